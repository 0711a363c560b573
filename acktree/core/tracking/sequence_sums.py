"""Sums of consecutive messages: tracking at the cost of an XOR.

A spout task numbers its messages consecutively, and a micro-batch works on long ranges of them. The deltas of
such a range need no root ids: :class:`SequenceSums` holds the spout task, the first sequence and one sum for
each message; a zero sum adds nothing. Sequence sums of one range are added element by element, without a sort
and without a table. A message whose sum is zero is done.

Some messages of a range are sent as sparse sums (``sparse_sums.py``); other acks (rows of a DataFrame, a few
acks of old messages) as pairs of root and sum (``deltas.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from acktree.core.ids import (
    SEQUENCE_BITS,
    SEQUENCE_MASK,
    Int32s,
    Int64s,
    UInt64s,
    root_ids,
    roots_named,
    sequence_names,
)
from acktree.core.runs import end_to_end, starts_of_runs, xor_by_key
from acktree.errors import ProtocolError

GAP: Final = 4096
"""Sequence sums of one task that are at most this many sequences apart are joined; zeros fill the gap."""
THINNEST: Final = 4
"""Sequence sums are used where at least one of this many consecutive messages has a delta."""
SHORTEST: Final = 32
"""Sums of sequences are used for at least this many deltas; fewer are sent as pairs of root and sum."""

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """One sum for each of consecutive messages of a spout task; n of them.

    Attributes:
        task: The spout task.
        first: Sequence of the first.
        sums: XOR of the edges created and acked below each, shape (n,); 0 adds nothing.
    """

    task: int
    first: int
    sums: Int64s

    @property
    def end(self) -> int:
        """The sequence after the last."""
        return self.first + len(self.sums)


@dataclass(frozen=True, order=True)
class Opened:
    """Consecutive messages that a spout task sent out: sequences ``first`` to ``end`` - 1."""

    task: int
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Closing:
    """The result of :func:`close` for one micro-batch.

    Attributes:
        done: Messages opened and fully processed: (spout task, sequences ascending); a task may occur twice.
        open_roots: Roots of messages that were opened and are not done, or failed; shape (n,).
        open_sums: The remaining sum of each, shape (n,).
        open_owners: The spout task of each, shape (n,).
        old_roots: Roots that have a delta and were not opened by ``opened``; shape (m,), any order, repeats
            allowed.
        old_sums: The delta of each, shape (m,).
    """

    done: Sequence[tuple[int, Int64s]]
    open_roots: Int64s
    open_sums: Int64s
    open_owners: Int32s
    old_roots: Int64s
    old_sums: Int64s


def sequence_sums_of(run_salt: int, roots: Int64s, sums: Int64s) -> tuple[list[SequenceSums], Int64s, Int64s]:
    """Convert acks to sequence sums where their sequences are close together.

    Args:
        roots: Root of each, shape (n,); repeats allowed, any order.
        sums: The delta of each, shape (n,).

    Returns:
        Sequence sums; the remaining roots, each once and ascending by name, and their sums.
    """
    names, sums = xor_by_key(sequence_names(run_salt, roots), sums)
    sequence_sums: list[SequenceSums] = []
    if len(names) < SHORTEST:
        return sequence_sums, roots_named(run_salt, names), sums
    is_other = np.ones(len(names), dtype=np.bool_)
    for close_names in _close_together(names):
        sequence_sum = _sequence_sums_of(names[close_names], sums[close_names])
        if sequence_sum is not None:
            sequence_sums.append(sequence_sum)
            is_other[close_names] = False
    return sequence_sums, roots_named(run_salt, names[is_other]), sums[is_other]


def by_task(names: UInt64s) -> Iterator[slice]:
    """Where each spout task is among ascending names, if it has at least ``SHORTEST`` of them."""
    edges = starts_of_runs(names >> np.uint64(SEQUENCE_BITS))
    for number in np.flatnonzero(np.diff(edges) >= SHORTEST).tolist():
        yield slice(int(edges[number]), int(edges[number + 1]))


def _close_together(names: UInt64s) -> Iterator[slice]:
    """Parts of ascending names, of one spout task each and without a gap, of at least ``SHORTEST`` names.

    A spout task leaves sequences out now and then. Roots of a DataFrame's rows are all far apart.
    """
    gaps = np.flatnonzero(names[1:] - names[:-1] > GAP) + 1
    edges = np.concatenate(([0], gaps, [len(names)]))
    for number in np.flatnonzero(np.diff(edges) >= SHORTEST).tolist():
        start, end = int(edges[number]), int(edges[number + 1])
        if names[start] >> np.uint64(SEQUENCE_BITS) == names[end - 1] >> np.uint64(SEQUENCE_BITS):
            yield slice(start, end)
        else:  # the last sequences of a task, and the first of the next
            yield from (slice(start + part.start, start + part.stop) for part in by_task(names[start:end]))


def _sequence_sums_of(names: UInt64s, sums: Int64s) -> SequenceSums | None:
    task, sequences = int(names[0]) >> SEQUENCE_BITS, (names & SEQUENCE_MASK).view(np.int64)
    first, last = int(sequences[0]), int(sequences[-1])
    length = last - first + 1
    if length > THINNEST * len(sums):
        return None
    if length == len(sums):
        return SequenceSums(task, first, sums)
    spread = np.zeros(length, dtype=np.int64)
    spread[sequences - first] = sums
    return SequenceSums(task, first, spread)


def add_up(sequence_sums: Iterable[SequenceSums]) -> list[SequenceSums]:
    """Add up sequence sums that overlap or are at most GAP apart; ascending by task and first sequence."""
    return list(
        _added(sorted(sequence_sums, key=lambda sequence_sum: (sequence_sum.task, sequence_sum.first)))
    )


def _added(ordered: Sequence[SequenceSums]) -> Iterator[SequenceSums]:
    for task, sums_of_task in groupby(ordered, key=lambda sequence_sum: sequence_sum.task):
        together: list[SequenceSums] = []
        end = 0
        for sequence_sum in sums_of_task:
            if together and sequence_sum.first > end + GAP:
                yield _one(task, together, end)
                together, end = [], 0
            together.append(sequence_sum)
            end = max(end, sequence_sum.end)
        yield _one(task, together, end)


def _one(task: int, sequence_sums: Sequence[SequenceSums], end: int) -> SequenceSums:
    if len(sequence_sums) == 1:
        return sequence_sums[0]
    first = sequence_sums[0].first
    sums = np.zeros(end - first, dtype=np.int64)
    for sequence_sum in sequence_sums:
        sums[sequence_sum.first - first : sequence_sum.end - first] ^= sequence_sum.sums
    return SequenceSums(task, first, sums)


def joined(opened: Iterable[Opened]) -> list[Opened]:
    """The same messages in as few ranges as possible, ascending.

    Raises:
        ProtocolError: A message was opened twice. Its sums would cancel, and it would be acked unprocessed.
    """
    runs: list[Opened] = []
    for run in sorted(run for run in opened if run.first < run.end):
        if runs and runs[-1].task == run.task and runs[-1].end >= run.first:
            if runs[-1].end > run.first:
                raise ProtocolError(
                    f"message {run.first} of spout task {run.task} is open twice",
                    "the sequence sums of one micro-batch",
                    "a bug in acktree: please report it",
                )
            runs[-1] = Opened(run.task, runs[-1].first, run.end)
        else:
            runs.append(run)
    return runs


def close(
    run_salt: int,
    sequence_sums: Iterable[SequenceSums],
    opened: Iterable[Opened],
    fail_roots: Int64s,
    ack_roots: Int64s = _NONE,
    ack_sums: Int64s = _NONE,
) -> Closing:
    """Judge the messages that a micro-batch opened by the deltas of the same micro-batch.

    Each sum is tested once, after all deltas were added. A test before the pairs of root and sum were added
    would test the sum of an unfinished tree: one more chance of an accidental zero.

    Args:
        run_salt: The salt of the checkpoint, to convert between roots and sequences.
        sequence_sums: Deltas of consecutive messages, the spouts' inits included: each range of ``opened``
            lies within one of them.
        opened: Messages that this micro-batch opened.
        fail_roots: Roots that failed, shape (f,), any order; none of them is done, even with a zero sum.
        ack_roots: Roots whose deltas came as pairs of root and sum, shape (a,), any order, repeats allowed.
        ack_sums: The delta of each, shape (a,).

    Raises:
        ProtocolError: A message was opened twice, or without a sum: it would never have a verdict.
    """
    runs = joined(opened)
    from_pairs, old_roots, old_sums = _of_runs(run_salt, runs, ack_roots, ack_sums)
    failed = np.sort(sequence_names(run_salt, fail_roots))
    waiting = deque(runs)
    done: list[tuple[int, Int64s]] = []
    still_open: list[tuple[Int64s, Int64s, int]] = []
    old: list[tuple[Int64s, Int64s]] = [(old_roots, old_sums)]
    for sequence_sum in add_up([*sequence_sums, *from_pairs]):
        edges = [sequence_sum.first]
        while waiting and _holds(sequence_sum, waiting[0]):
            run = waiting.popleft()
            edges += (run.first, run.end)
            sums = sequence_sum.sums[run.first - sequence_sum.first : run.end - sequence_sum.first]
            is_done = sums == 0
            is_done[positions_in(run, failed)] = False
            done.append((run.task, run.first + np.flatnonzero(is_done)))
            positions = np.flatnonzero(~is_done)
            still_open.append(
                (root_ids(run_salt, run.task, run.first + positions), sums[positions], run.task)
            )
        edges.append(sequence_sum.end)
        for first, end in list(pairwise(edges))[::2]:
            sums = sequence_sum.sums[first - sequence_sum.first : end - sequence_sum.first]
            positions = np.flatnonzero(sums)
            old.append((root_ids(run_salt, sequence_sum.task, first + positions), sums[positions]))
    if waiting:
        raise ProtocolError(
            f"{waiting[0]} was opened without its sums",
            "the sequence sums of one micro-batch",
            "a bug in acktree: please report it",
        )
    owners = [np.full(len(roots), task, dtype=np.int32) for roots, _, task in still_open]
    return Closing(
        [(task, sequences) for task, sequences in done if len(sequences)],
        end_to_end(roots for roots, _, _ in still_open),
        open_sums=end_to_end(sums for _, sums, _ in still_open),
        open_owners=np.concatenate([_NONE.astype(np.int32), *owners]),
        old_roots=np.concatenate([roots for roots, _ in old]),
        old_sums=np.concatenate([sums for _, sums in old]),
    )  # fmt: skip


def _holds(sequence_sum: SequenceSums, run: Opened) -> bool:
    return sequence_sum.task == run.task and sequence_sum.first <= run.first and run.end <= sequence_sum.end


def _of_runs(
    run_salt: int, runs: Sequence[Opened], roots: Int64s, sums: Int64s
) -> tuple[list[SequenceSums], Int64s, Int64s]:
    """Convert pairs of root and sum in ``runs`` to sequence sums; return those and the remaining pairs."""
    if not runs or not len(roots):
        return [], roots, sums
    names = sequence_names(run_salt, roots)
    order = np.argsort(names)
    names, roots, sums = names[order], roots[order], sums[order]
    sequence_sums: list[SequenceSums] = []
    is_other = np.ones(len(roots), dtype=np.bool_)
    for run in runs:
        in_run = within(run, names)
        if in_run.start < in_run.stop:
            positions = positions_in(run, names)
            spread = np.zeros(int(positions[-1]) + 1, dtype=np.int64)
            np.bitwise_xor.at(spread, positions, sums[in_run])
            sequence_sums.append(SequenceSums(run.task, run.first, spread))
            is_other[in_run] = False
    return sequence_sums, roots[is_other], sums[is_other]


def within(run: Opened, names: UInt64s) -> slice:
    """The slice of ascending names that are messages of this range."""
    first, last = (np.uint64(run.task << SEQUENCE_BITS | sequence) for sequence in (run.first, run.end - 1))
    return slice(int(names.searchsorted(first)), int(names.searchsorted(last, side="right")))


def positions_in(run: Opened, names: UInt64s) -> Int64s:
    """The positions within a range of those ascending names that belong to it."""
    first = np.uint64(run.task << SEQUENCE_BITS | run.first)
    return (names[within(run, names)] - first).view(np.int64)
