"""Combining: the deltas of one message are added up in a task of the query before they go to the driver.

With many partitions the acks of a message come from as many of them as its tree has tuples. Every level and
partition sends what it has of a message to the same one of a few *combining tasks* (:func:`split`). The task
adds it up (:func:`combine`). Of messages that were opened and done in one micro-batch it tells the driver
their range, which takes no byte a message; of rows of a DataFrame that are done it tells the roots; of
everything else one sum.

Rules of this file
------------------
1. All deltas of a root in a micro-batch go to one combining task, so a sum is tested once, after all were
   added.
2. A combining task judges nothing: fails and resets go to the driver. A message whose sum is zero may
   have failed there.
3. The result is a function of the set of deltas: Spark may run the task again, with its rows in another
   order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s, root_ids, sequence_names, sequences_of
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.runs import end_to_end, starts_of_runs, xor_by_key
from acktree.core.tracking.deltas import Deltas, as_sequence_sums, concat_deltas
from acktree.core.tracking.open_roots import Roots
from acktree.core.tracking.sequence_sums import (
    Opened,
    SequenceSums,
    close,
    joined,
    positions_in,
    within,
)
from acktree.core.tracking.sparse_sums import SparseSums, spread

BLOCK_BITS: Final = 14
"""A combining task gets blocks of 2**14 consecutive messages of a spout task: long ranges, and several blocks
in a micro-batch that is worth combining."""

_NONE: Final = np.zeros(0, dtype=np.int64)
_NONE_32: Final = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class CombinedRun:
    """Consecutive messages that a micro-batch opened, with all its deltas added.

    Attributes:
        opened: Which messages.
        places: The sequence of each message whose sum is not zero, less the first sequence; ascending, (n,).
        sums: The sum of each of these, shape (n,).
    """

    opened: Opened
    places: Int32s
    sums: Int64s

    @property
    def sequences(self) -> Int64s:
        """The sequences of the messages whose sum is not zero, shape (n,)."""
        return self.opened.first + self.places.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Combined:
    """What a combining task tells the driver.

    Attributes:
        runs: Messages that the micro-batch opened.
        done_rows: Rows of DataFrames that it opened and whose sum is zero: (owner, roots ascending).
        rest: Other rows that it opened; sums, not zero, of what earlier micro-batches opened.
    """

    runs: tuple[CombinedRun, ...] = ()
    done_rows: tuple[tuple[int, Int64s], ...] = ()
    rest: Deltas = field(default_factory=Deltas)

    def __bool__(self) -> bool:
        return bool(self.runs or self.done_rows or self.rest)

    def without_before(self, run_salt: int, first_sequences: Mapping[int, int]) -> Combined:
        """The same where no message before a sequence of its spout task was opened.

        Args:
            run_salt: The salt of the checkpoint, to make roots of sequences.
            first_sequences: Spout task -> the first sequence that it opened.
        """
        runs = [
            run if run.opened.first >= first_sequences.get(run.opened.task, 0) else None for run in self.runs
        ]
        void = [run for run, known in zip(self.runs, runs, strict=True) if known is None]
        roots = [root_ids(run_salt, run.opened.task, run.sequences) for run in void]
        rest = replace(
            self.rest,
            ack_roots=np.concatenate([self.rest.ack_roots, *roots]),
            ack_sums=np.concatenate([self.rest.ack_sums, *(run.sums for run in void)]),
        )
        return replace(self, runs=tuple(run for run in runs if run is not None), rest=rest)

    def to_bytes(self) -> bytes:
        """For the wire."""
        heads = [(run.opened.task, run.opened.first, run.opened.end) for run in self.runs]
        owners = [owner for owner, _ in self.done_rows]
        return pack(
            json.dumps((heads, owners)).encode(),
            *(run.places for run in self.runs),
            *(run.sums for run in self.runs),
            *(roots for _, roots in self.done_rows),
            self.rest.to_bytes() if self.rest else b"",
        )

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Combined:
        """Read what :meth:`to_bytes` wrote."""
        head, *parts = unpack(blob)
        heads, owners = json.loads(bytes(head))
        count = len(heads)
        places, sums, rows, rest = parts[:count], parts[count : 2 * count], parts[2 * count : -1], parts[-1]
        return cls(
            tuple(
                CombinedRun(Opened(*run), int32s(place), int64s(sums_of_run))
                for run, place, sums_of_run in zip(heads, places, sums, strict=True)
            ),
            tuple((owner, int64s(roots)) for owner, roots in zip(owners, rows, strict=True)),
            Deltas.from_bytes(rest) if len(rest) else Deltas(),
        )


def split(run_salt: int, deltas: Deltas, combiners: int) -> tuple[dict[int, Deltas], Deltas]:
    """Divide what a level sends: the sums by combining task, and what goes to the driver.

    Args:
        deltas: What the level sends.
        combiners: How many combining tasks there are.

    Returns:
        Combining task, from 0 -> its deltas, without tasks that have none; and fails and resets.
    """
    opened: dict[int, list[Opened]] = {}
    sums: dict[int, list[SequenceSums]] = {}
    sparse: dict[int, list[SparseSums]] = {}
    for run in deltas.opened:
        for combiner, first, end in _blocks(run.task, run.first, run.end, combiners):
            opened.setdefault(combiner, []).append(Opened(run.task, first, end))
    for part in deltas.sequence_sums:
        for combiner, first, end in _blocks(part.task, part.first, part.end, combiners):
            block_sums = part.sums[first - part.first : end - part.first]
            sums.setdefault(combiner, []).append(SequenceSums(part.task, first, block_sums))
    for some in deltas.sparse_sums:
        for combiner, piece in _sparse_blocks(some, combiners):
            sparse.setdefault(combiner, []).append(piece)
    acks = _by_combiner(run_salt, deltas.ack_roots, combiners)
    inits = _by_combiner(run_salt, deltas.init_roots, combiners)
    none = _NONE
    shares = {
        combiner: Deltas(
            init_roots=deltas.init_roots[inits.get(combiner, none)],
            init_sums=deltas.init_sums[inits.get(combiner, none)],
            init_owners=deltas.init_owners[inits.get(combiner, none)],
            ack_roots=deltas.ack_roots[acks.get(combiner, none)],
            ack_sums=deltas.ack_sums[acks.get(combiner, none)],
            opened=tuple(opened.get(combiner, ())),
            sequence_sums=tuple(sums.get(combiner, ())),
            sparse_sums=tuple(sparse.get(combiner, ())),
        )
        for combiner in sorted({*opened, *sums, *sparse, *acks, *inits})
    }
    at_once = Deltas(
        fail_roots=deltas.fail_roots,
        failures=deltas.failures,
        reasons=deltas.reasons,
        reset_roots=deltas.reset_roots,
    )
    return shares, at_once


def _blocks(task: int, first: int, end: int, combiners: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a range of sequences that lie in one block: (combining task, first, end)."""
    for block in range(first >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
        start = block << BLOCK_BITS
        yield (task + block) % combiners, max(first, start), min(end, start + (1 << BLOCK_BITS))


def _sparse_blocks(part: SparseSums, combiners: int) -> Iterator[tuple[int, SparseSums]]:
    """The parts of sparse sums by block; blocks without a sum, which may be very many, cost nothing."""
    blocks = part.first + part.places.astype(np.int64) >> BLOCK_BITS
    cuts = starts_of_runs(blocks).tolist()
    for start, end in pairwise(cuts):
        places, shift = part.places[start:end], int(part.places[start])
        piece = SparseSums(part.task, part.first + shift, places - np.int32(shift), part.sums[start:end])
        yield (part.task + int(blocks[start])) % combiners, piece


def _by_combiner(run_salt: int, roots: Int64s, combiners: int) -> dict[int, Int64s]:
    """The positions of the roots of each combining task. A row's root gets one by the same rule."""
    if not len(roots):
        return {}
    tasks, sequences = sequences_of(run_salt, roots)
    combiner_of = ((tasks + (sequences >> BLOCK_BITS)) % combiners).astype(np.int32)
    order = np.argsort(combiner_of, kind="stable")
    ranked = combiner_of[order]
    starts = starts_of_runs(ranked).tolist()
    return {int(ranked[start]): order[start:end] for start, end in pairwise(starts)}


def combine(run_salt: int, parts: Sequence[Deltas]) -> Combined:
    """Add up what one combining task was sent in a micro-batch.

    Args:
        parts: The shares of :func:`split` for this task, in any order.

    Raises:
        ProtocolError: A message or row was opened twice, or a message without a sum.
    """
    deltas = concat_deltas(parts)
    spread_sums, roots, sums = spread(run_salt, deltas.sparse_sums)
    closing = close(
        run_salt, (*deltas.sequence_sums, *spread_sums), deltas.opened, fail_roots=_NONE,
        ack_roots=np.concatenate((deltas.ack_roots, roots)),
        ack_sums=np.concatenate((deltas.ack_sums, sums)),
    )  # fmt: skip
    rows = Roots.of(deltas.init_roots, deltas.init_sums, deltas.init_owners)
    old_roots, old_sums = xor_by_key(closing.old_roots, closing.old_sums)
    at, old_places = rows.find(old_roots)
    owed = rows.sums.copy()
    owed[at] ^= old_sums[old_places]
    is_old = old_sums != 0
    is_old[old_places] = False
    is_done = owed == 0
    still_open = Roots(rows.roots, owed, rows.owners).keep(~is_done)
    return Combined(
        tuple(_runs_of(run_salt, joined(deltas.opened), closing.open_roots, closing.open_sums)),
        tuple(_by_owner(rows.keep(is_done))),
        replace(
            as_sequence_sums(run_salt, [(old_roots[is_old], old_sums[is_old])]),
            init_roots=still_open.roots,
            init_sums=still_open.sums,
            init_owners=still_open.owners,
        ),
    )


def _runs_of(run_salt: int, runs: Iterable[Opened], roots: Int64s, sums: Int64s) -> Iterator[CombinedRun]:
    """The ranges with those of their messages whose sums are not zero."""
    names = sequence_names(run_salt, roots)  # ascending, since the ranges are
    for run in runs:
        yield CombinedRun(run, positions_in(run, names).astype(np.int32), sums[within(run, names)])


def _by_owner(rows: Roots) -> Iterator[tuple[int, Int64s]]:
    for owner in np.unique(rows.owners).tolist():
        yield owner, rows.roots[rows.owners == owner]


@dataclass(frozen=True, eq=False)
class Settled:
    """What :func:`settle` found.

    Attributes:
        done: Messages opened and fully processed: (spout task, sequences ascending), each task once.
        open_roots: Roots of messages and rows that were opened and are not done, or failed; shape (n,).
        open_sums: The sum of each, shape (n,).
        open_owners: The spout task of each, or minus it for rows; shape (n,).
        done_rows: Rows that were opened and fully processed: roots, shape (m,).
        done_owners: Minus the spout task of each, shape (m,).
    """

    done: Sequence[tuple[int, Int64s]]
    open_roots: Int64s
    open_sums: Int64s
    open_owners: Int32s
    done_rows: Int64s
    done_owners: Int32s


def settle(run_salt: int, combined: Sequence[Combined], fail_roots: Int64s) -> Settled:
    """Judge in the driver what combining tasks told: a failed message is not done, whatever its sum.

    Args:
        combined: What all of them told of a micro-batch.
        fail_roots: Roots that failed, shape (f,), any order.

    Raises:
        ProtocolError: A message was opened twice.
    """
    failed = np.sort(sequence_names(run_salt, fail_roots))
    runs = sorted((run for one in combined for run in one.runs), key=lambda run: run.opened)
    done: dict[int, list[Int64s]] = {}
    opened: list[tuple[Int64s, Int64s, int]] = []
    at = 0
    for run in joined(part.opened for part in runs):
        is_done = np.ones(run.end - run.first, dtype=np.bool_)
        while at < len(runs) and runs[at].opened.task == run.task and runs[at].opened.end <= run.end:
            part = runs[at]
            is_done[part.sequences - run.first] = False
            opened.append((root_ids(run_salt, run.task, part.sequences), part.sums, run.task))
            at += 1
        lost = positions_in(run, failed)
        lost = np.unique(lost[is_done[lost]])  # with a sum of zero
        is_done[lost] = False
        opened.append((root_ids(run_salt, run.task, run.first + lost), np.zeros_like(lost), run.task))
        done.setdefault(run.task, []).append(run.first + np.flatnonzero(is_done))
    done_rows = end_to_end(roots for one in combined for _, roots in one.done_rows)
    owners = [np.full(len(roots), owner, np.int32) for one in combined for owner, roots in one.done_rows]
    done_owners = np.concatenate([_NONE_32, *owners])
    has_failed = np.isin(done_rows, fail_roots) if len(fail_roots) else np.zeros(len(done_rows), np.bool_)
    owners = [np.full(len(roots), task, dtype=np.int32) for roots, _, task in opened]
    lost_rows = done_rows[has_failed]
    return Settled(
        [
            (task, sequences)
            for task, pieces in done.items()
            for sequences in (np.concatenate(pieces),)
            if len(sequences)
        ],
        np.concatenate([lost_rows, *(roots for roots, _, _ in opened)]),
        open_sums=np.concatenate([np.zeros_like(lost_rows), *(sums for _, sums, _ in opened)]),
        open_owners=np.concatenate([done_owners[has_failed], *owners]),
        done_rows=done_rows[~has_failed],
        done_owners=done_owners[~has_failed],
    )
