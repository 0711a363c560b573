"""Root ids and edge ids: derived, not random.

Rules of this file
------------------
1. Nothing here is random. Spark may run a task again, and the second run must derive the same ids.
2. Ids are mixed as ``uint64`` and returned as ``int64``: Spark's LONG is signed.

A **root id** identifies one attempt of one message. It is (spout task, sequence) XOR a mask that is derived
from the run salt, so two open roots of one checkpoint are never equal. The XOR can be undone, so the spout
task and the sequence of a verdict are known without a table. Root ids are never summed, so they need not look
random; edge ids are summed, and are mixed.

An **edge id** identifies one copy of a tuple sent to one task. It is a mix of (parent's fold, channel,
ordinal). The channel is the emitting component, stream and target partition; the ordinal counts the copies
made from this parent. Copies for one partition share one sum, and single edge ids are derived from it on
demand: see ``lineage_runs.siblings``. Storm draws edge ids at random; these are as good as random, up to
2**-64.

Source: Storm's ``tuple/MessageId`` and ``spout/SpoutOutputCollector``; the mixer is the finaliser of
Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (variant 13 of Stafford).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
UInt64s = npt.NDArray[np.uint64]

SEQUENCE_BITS: Final = 48
"""A spout task takes 2**48 sequences of a checkpoint: nine years at a million tracked tuples a second."""
MAX_SPOUT_TASK: Final = (1 << (64 - SEQUENCE_BITS)) - 1
"""The largest task id of a spout task: 16 bits."""
SEQUENCE_MASK: Final = np.uint64((1 << SEQUENCE_BITS) - 1)
"""The bits of a sequence in what :func:`sequence_names` returns."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_MASK: Final = (1 << 64) - 1
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def mix64(values: UInt64s) -> UInt64s:
    """Mix each value over all 64 bits: a bijection, so different values stay different. Shape kept."""
    shifted = values >> _S30
    mixed = values ^ shifted
    mixed *= _FIRST
    mixed ^= np.right_shift(mixed, _S27, out=shifted)
    mixed *= _SECOND
    mixed ^= np.right_shift(mixed, _S31, out=shifted)
    return mixed


def mix64_one(value: int) -> int:
    """:func:`mix64` of one number from 0 to 2**64 - 1; numpy takes ten times as long for a single number."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=64)
def _mask_of(run_salt: int) -> np.uint64:
    mask: np.uint64 = mix64(np.array([(run_salt + int(_GOLDEN)) & _MASK], dtype=np.uint64))[0]
    return mask


def root_ids(run_salt: int, spout_task: int, sequences: Int64s) -> Int64s:
    """The root id of each tuple that a spout task emits with a message id.

    Args:
        run_salt: A number that stays the same for a checkpoint; any int.
        spout_task: The task that emits, 0 to :data:`MAX_SPOUT_TASK`.
        sequences: The number of each tuple among all that this task emits, shape (n,), 0 to 2**48 - 1.

    >>> int(sequences_of(7, root_ids(7, 3, np.array([41])))[1][0])
    41
    """
    named = sequences.astype(np.uint64)
    named ^= _mask_of(run_salt) ^ (np.uint64(spout_task) << np.uint64(SEQUENCE_BITS))
    return named.view(np.int64)


def sequences_of(run_salt: int, roots: Int64s) -> tuple[Int64s, Int64s]:
    """The inverse of :func:`root_ids`: the spout task and the sequence of each root, both shape (n,)."""
    return tasks_and_sequences(sequence_names(run_salt, roots))


def tasks_and_sequences(names: UInt64s) -> tuple[Int64s, Int64s]:
    """The spout task and the sequence of each of what :func:`sequence_names` returns, both shape (n,)."""
    return (names >> np.uint64(SEQUENCE_BITS)).view(np.int64), (names & SEQUENCE_MASK).view(np.int64)


def sequence_names(run_salt: int, roots: Int64s) -> UInt64s:
    """Spout task and sequence of each root as one number, ascending as the two are; shape kept."""
    return roots.view(np.uint64) ^ _mask_of(run_salt)


def roots_named(run_salt: int, names: UInt64s) -> Int64s:
    """The inverse of :func:`sequence_names`."""
    return (names ^ _mask_of(run_salt)).view(np.int64)


def row_root_ids(run_salt: int, batch_id: int, position: int, row_hashes: UInt64s) -> Int64s:
    """Root ids for rows of a DataFrame, which have no sequence: a mix of their position and values.

    Equal rows of one position and micro-batch are distinguished by a counter. Unlike :func:`root_ids` this is
    not a bijection: the roots of two open rows are equal with probability 2**-64.

    Args:
        run_salt: A number that stays the same for a checkpoint; any int.
        batch_id: The number of the micro-batch.
        position: A number for the spout, partition and batch of rows within the micro-batch; 0 to 2**64 - 1.
        row_hashes: A hash of all values of each row, shape (n,).
    """
    order = np.argsort(row_hashes, kind="stable")
    ranked = row_hashes[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])[: len(ranked)]
    occurrence = np.empty(len(ranked), dtype=np.uint64)
    run_lengths = np.diff(np.r_[starts, len(ranked)])
    occurrence[order] = np.arange(len(ranked)) - np.repeat(starts, run_lengths)
    batch = mix64(np.array([batch_id & _MASK], dtype=np.uint64) ^ _mask_of(run_salt))
    origin = mix64(batch + np.uint64(position & _MASK))
    return mix64(mix64(row_hashes ^ origin) + (occurrence + np.uint64(1)) * _GOLDEN).view(np.int64)


def channel_id(component: str, stream: str, partition: int) -> np.uint64:
    """A number for (component, stream, target partition), the same on every machine and release."""
    named = f"{component}\x00{stream}\x00{partition}".encode("utf-8", "surrogatepass")
    return np.uint64(int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little"))


def edge_ids(folds: UInt64s, channels: UInt64s, ordinals: Int64s) -> Int64s:
    """The edge id of each copy, derived from its parent, its channel and its ordinal.

    Args:
        folds: The parent of each copy as one number (:func:`fold`, or the root id for a spout's tuple), (n,).
        channels: :func:`channel_id` of each copy, shape (n,) or (1,).
        ordinals: Each copy is the parent's n-th copy, from 0; shape (n,). The caller must never use the same
            (fold, channel, ordinal) twice: two equal edges XOR to zero, which gives a false ACKED.

    Never returns zero: an edge of zero would not change a sum.
    """
    return edges_at(folds + channels, ordinals)


def edges_at(seeds: UInt64s, ordinals: Int64s) -> Int64s:
    """:func:`edge_ids`, given ``seeds`` = ``folds + channels``. Shapes (n,); ordinals also (1,).

    Each seed starts a SplitMix64 sequence; its n-th number is the edge of the n-th copy.
    """
    return edges_from(steps_to(ordinals) + seeds)


def steps_to(ordinals: Int64s) -> UInt64s:
    """How far the n-th number of each sequence is from its seed, shape (n,)."""
    steps = (ordinals + 1).view(np.uint64)
    steps *= _GOLDEN
    return steps


def edges_from(stepped: UInt64s) -> Int64s:
    """:func:`edges_at`, given the seeds with their steps added. Shape (n,)."""
    mixed = mix64(stepped)
    if not mixed.all():
        mixed[mixed == 0] = _GOLDEN
    return mixed.view(np.int64)


def fold(roots: Int64s, edges: Int64s) -> int:
    """One number for a tuple with one or more roots.

    It depends on the order of the pairs, which are sorted by root. An XOR of the edges would be zero after a
    join of two copies of one tuple, and all its children would get equal ids. With one pair it is the edge.

    Args:
        roots: Distinct roots of the tuple, shape (k,), k >= 1, any order.
        edges: Its edge under each, shape (k,).
    """
    if len(roots) == 1:
        return int(edges.view(np.uint64)[0])
    order = np.argsort(roots)
    folded = np.zeros(1, dtype=np.uint64)
    for root, edge in zip(roots.view(np.uint64)[order], edges.view(np.uint64)[order], strict=True):
        folded = mix64((mix64(folded ^ root) + _GOLDEN) ^ edge)
    return int(folded[0])
