"""What the components send to the acker in one micro-batch: Storm's four streams, as arrays.

``__ack_init`` (root, XOR of the edges sent, spout task), ``__ack_ack`` (root, delta), ``__ack_fail`` (root,
failure) and ``__ack_reset_timeout`` (root) are sent together, as one value from each level and partition,
summed by root: the cost depends on the number of roots, not of tuples. Consecutive messages, which are nearly
all, are sent as sequence sums: eight bytes a message, and one sum for an init and its acks together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.runs import end_to_end, xor_by_key
from acktree.core.tracking.sequence_sums import Opened, SequenceSums, add_up, joined, sequence_sums_of
from acktree.core.tracking.sparse_sums import SparseSums, sparse_sums_of

_NONE_64 = np.zeros(0, dtype=np.int64)
_NONE_32 = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Deltas:
    """What one level and partition sends to the acker.

    Attributes:
        init_roots: Roots that a spout opened and ``opened`` does not contain, each once, shape (i,).
        init_sums: XOR of the edges of the tuples sent, shape (i,); 0 where no bolt subscribes.
        init_owners: Spout task of each, shape (i,); minus the task for a row of a DataFrame.
        ack_roots: Roots of which bolts acked tuples, shape (a,).
        ack_sums: XOR of edges closed and edges created, shape (a,).
        fail_roots: Roots that failed, in the order of the data, shape (f,); repeats allowed.
        failures: The failure of each, as an index into ``reasons``, shape (f,).
        reasons: Encoded failures; many roots may share one.
        reset_roots: Roots whose age begins again, shape (r,).
        opened: Messages that spouts opened, as ranges of consecutive sequences.
        sequence_sums: Sums of consecutive messages: the inits of ``opened``, and acks of any message.
        sparse_sums: Sums of some messages of a range: acks of any message.
    """

    init_roots: Int64s = field(default_factory=lambda: _NONE_64)
    init_sums: Int64s = field(default_factory=lambda: _NONE_64)
    init_owners: Int32s = field(default_factory=lambda: _NONE_32)
    ack_roots: Int64s = field(default_factory=lambda: _NONE_64)
    ack_sums: Int64s = field(default_factory=lambda: _NONE_64)
    fail_roots: Int64s = field(default_factory=lambda: _NONE_64)
    failures: Int64s = field(default_factory=lambda: _NONE_64)
    reasons: tuple[bytes, ...] = ()
    reset_roots: Int64s = field(default_factory=lambda: _NONE_64)
    opened: tuple[Opened, ...] = ()
    sequence_sums: tuple[SequenceSums, ...] = ()
    sparse_sums: tuple[SparseSums, ...] = ()

    def summed(self) -> Deltas:
        """The same with each acked root once: the compact form that is sent."""
        roots, sums = xor_by_key(self.ack_roots, self.ack_sums)
        resets = np.unique(self.reset_roots) if len(self.reset_roots) else self.reset_roots
        return Deltas(
            self.init_roots, self.init_sums, self.init_owners, ack_roots=roots, ack_sums=sums,
            fail_roots=self.fail_roots, failures=self.failures, reasons=self.reasons, reset_roots=resets,
            opened=tuple(joined(self.opened)), sequence_sums=tuple(add_up(self.sequence_sums)),
            sparse_sums=self.sparse_sums,
        )  # fmt: skip

    def __bool__(self) -> bool:
        scattered = (self.init_roots, self.ack_roots, self.fail_roots, self.reset_roots)
        return bool(self.opened or self.sequence_sums or self.sparse_sums) or any(map(len, scattered))

    def to_bytes(self) -> bytes:
        """For the wire."""
        runs = [(run.task, run.first, run.end) for run in self.opened]
        heads = [(sequence_sum.task, sequence_sum.first) for sequence_sum in self.sequence_sums]
        sparse_heads = [(part.task, part.first, len(part.places)) for part in self.sparse_sums]
        return pack(
            json.dumps((runs, heads, sparse_heads)).encode(),
            *(sequence_sum.sums for sequence_sum in self.sequence_sums),
            np.concatenate([_NONE_32, *(part.places for part in self.sparse_sums)]),
            end_to_end(part.sums for part in self.sparse_sums),
            self.init_roots, self.init_sums, self.init_owners, self.ack_roots, self.ack_sums,
            self.fail_roots, self.failures, self.reset_roots, *self.reasons,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Deltas:
        """Read what :meth:`to_bytes` wrote."""
        head, *parts = unpack(blob)
        runs, heads, sparse_heads = json.loads(bytes(head))
        sums, parts = parts[: len(heads)], parts[len(heads) :]
        all_places, all_sums, *parts = parts
        places, sparse = int32s(all_places), int64s(all_sums)
        ends = accumulate(count for _, _, count in sparse_heads)
        i_roots, i_sums, i_owners, a_roots, a_sums, f_roots, failures, resets, *reasons = parts
        return cls(
            int64s(i_roots),
            int64s(i_sums),
            init_owners=int32s(i_owners),
            ack_roots=int64s(a_roots),
            ack_sums=int64s(a_sums),
            fail_roots=int64s(f_roots),
            failures=int64s(failures),
            reasons=tuple(map(bytes, reasons)),
            reset_roots=int64s(resets),
            opened=tuple(Opened(*run) for run in runs),
            sequence_sums=tuple(
                SequenceSums(task, first, int64s(part))
                for (task, first), part in zip(heads, sums, strict=True)
            ),
            sparse_sums=tuple(
                SparseSums(task, first, places[end - count : end], sparse[end - count : end])
                for (task, first, count), end in zip(sparse_heads, ends, strict=True)
            ),
        )  # fmt: skip


def as_sequence_sums(run_salt: int, acks: Sequence[tuple[Int64s, Int64s]]) -> Deltas:
    """Convert acks to deltas: sums of sequences where a spout task has enough of them, else pairs.

    Args:
        acks: Roots and sums; each pair of arrays is the result of one ``Lineage.acks``.
    """
    sequence_sums: list[SequenceSums] = []
    alone: list[tuple[Int64s, Int64s]] = []
    for roots, sums in acks:
        new_sums, left_roots, left_sums = sequence_sums_of(run_salt, roots, sums)
        sequence_sums += new_sums
        alone.append((left_roots, left_sums))
    sparse_sums, left_roots, left_sums = sparse_sums_of(
        run_salt,
        end_to_end(roots for roots, _ in alone),
        end_to_end(sums for _, sums in alone),
    )
    return Deltas(
        ack_roots=left_roots,
        ack_sums=left_sums,
        sequence_sums=tuple(sequence_sums),
        sparse_sums=tuple(sparse_sums),
    )


def concat_deltas(parts: Sequence[Deltas]) -> Deltas:
    """Concatenate deltas, in order; acked roots may repeat."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Deltas()
    shifts = np.cumsum([0, *(len(part.reasons) for part in parts)])
    shifted = [part.failures + shift for part, shift in zip(parts, shifts[:-1], strict=True)]

    def together(name: str) -> Int64s:
        arrays: Int64s = np.concatenate([getattr(part, name) for part in parts])
        return arrays

    return Deltas(
        together("init_roots"), together("init_sums"),
        init_owners=np.concatenate([part.init_owners for part in parts]), ack_roots=together("ack_roots"),
        ack_sums=together("ack_sums"), fail_roots=together("fail_roots"), failures=np.concatenate(shifted),
        reasons=tuple(reason for part in parts for reason in part.reasons),
        reset_roots=together("reset_roots"), opened=tuple(run for part in parts for run in part.opened),
        sequence_sums=tuple(sequence_sum for part in parts for sequence_sum in part.sequence_sums),
        sparse_sums=tuple(sparse_sum for part in parts for sparse_sum in part.sparse_sums),
    )  # fmt: skip
