"""Sums of consecutive messages: tracking at the cost of an XOR.

A spout task numbers its messages one after the other, and a micro-batch works on long runs of them. So what
the components tell the acker of such a run needs no root ids: a *span* says the task, the first sequence and
one sum for each message, zero where there is nothing to say. Spans of one run are added up place by place,
without a sort and without a table, and a message whose sum is zero is done.

Whatever does not come in runs (rows of a DataFrame, a few acks of old messages) travels as pairs of root and
sum beside them: see ``deltas``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from acktree.core.ids import SEQUENCE_BITS, Int32s, Int64s, UInt64s, root_ids, sequences_of
from acktree.errors import ProtocolError

GAP: Final = 4096
"""Spans of one task that are at most so far apart become one; the places between say nothing."""
THINNEST: Final = 4
"""A span is worth its places when at least one in so many says something."""
SHORTEST: Final = 32
"""And when it says at least so many things; fewer are told one by one."""
MOST_TASKS: Final = 16
"""Roots of more spout tasks than this are told one by one. Rows of DataFrames look like that: their roots are
no numbers of a task, and reading them as such gives any task."""

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """One sum for each of consecutive messages of a spout task; n of them.

    Attributes:
        task: The spout task.
        first: Sequence of the first.
        sums: XOR of the edges created and acked below each, shape (n,); 0 says nothing.
    """

    task: int
    first: int
    sums: Int64s

    @property
    def end(self) -> int:
        """The sequence behind the last."""
        return self.first + len(self.sums)


@dataclass(frozen=True, order=True)
class Opened:
    """Consecutive messages that a spout task sent out: sequences ``first`` to ``end`` - 1."""

    task: int
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Closing:
    """What one micro-batch left of its spans.

    Attributes:
        done: Messages opened and fully processed: (spout task, sequences ascending), a task may come twice.
        open_roots: Roots of messages that were opened and are not done, or failed; ``open_sums`` is what each
            still owes, ``open_owners`` the spout task; shape (n,).
        old_roots: Roots that no run of this micro-batch opened and something was said of, ``old_sums`` what;
            shape (m,), any order, repeats allowed.
    """

    done: Sequence[tuple[int, Int64s]]
    open_roots: Int64s
    open_sums: Int64s
    open_owners: Int32s
    old_roots: Int64s
    old_sums: Int64s


def sequence_sums_of(run_salt: int, roots: Int64s, sums: Int64s) -> tuple[list[SequenceSums], Int64s, Int64s]:
    """Write acks as spans where their roots stand close together.

    Args:
        roots: Root of each, shape (n,); repeats allowed, any order.
        sums: What to add to each, shape (n,).

    Returns:
        Spans, and the roots and sums that none of them holds.
    """
    tasks, sequences = sequences_of(run_salt, roots)
    if not len(roots):
        return [], roots, sums
    if (tasks == tasks[0]).all():
        sequence_sum = _sequence_sums_of_run(int(tasks[0]), sequences, sums)
        return ([], roots, sums) if sequence_sum is None else ([sequence_sum], roots[:0], sums[:0])
    distinct = np.unique(tasks)
    if len(distinct) > MOST_TASKS:
        return [], roots, sums
    sequence_sums: list[SequenceSums] = []
    alone = np.zeros(len(roots), dtype=np.bool_)
    for task in distinct:
        mine = tasks == task
        sequence_sum = _sequence_sums_of_run(int(task), sequences[mine], sums[mine])
        if sequence_sum is None:
            alone |= mine
        else:
            sequence_sums.append(sequence_sum)
    return sequence_sums, roots[alone], sums[alone]


def _sequence_sums_of_run(task: int, sequences: Int64s, sums: Int64s) -> SequenceSums | None:
    if not (sequences[1:] > sequences[:-1]).all():
        order = np.argsort(sequences, kind="stable")
        sequences, sums = sequences[order], sums[order]
        starts = np.flatnonzero(np.r_[True, sequences[1:] != sequences[:-1]])
        sequences, sums = sequences[starts], np.bitwise_xor.reduceat(sums, starts)
    first, last = int(sequences[0]), int(sequences[-1])
    length = last - first + 1
    if len(sums) < SHORTEST or length > THINNEST * len(sums):
        return None
    if length == len(sums):
        return SequenceSums(task, first, sums)
    spread = np.zeros(length, dtype=np.int64)
    spread[sequences - first] = sums
    return SequenceSums(task, first, spread)


def add_up(sequence_sums: Iterable[SequenceSums]) -> list[SequenceSums]:
    """Spans that touch, overlap or nearly do as one, summed; ascending by task and first sequence."""
    return list(
        _added(sorted(sequence_sums, key=lambda sequence_sum: (sequence_sum.task, sequence_sum.first)))
    )


def _added(ordered: Sequence[SequenceSums]) -> Iterator[SequenceSums]:
    for task, mine in groupby(ordered, key=lambda sequence_sum: sequence_sum.task):
        together: list[SequenceSums] = []
        end = 0
        for sequence_sum in mine:
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
    """The same messages in as few runs as possible, ascending.

    Raises:
        ProtocolError: A message was opened twice: its sums would cancel, an ack of what nobody processed.
    """
    runs: list[Opened] = []
    for run in sorted(run for run in opened if run.first < run.end):
        if runs and runs[-1].task == run.task and runs[-1].end >= run.first:
            if runs[-1].end > run.first:
                raise ProtocolError(
                    f"message {run.first} of spout task {run.task} is open twice",
                    "the spans of one micro-batch",
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
    """Judge what a micro-batch opened by what it said of it.

    A sum is looked at once, with all that was said in it. Without what was told one by one it would be that
    of an unfinished tree, with one more chance to be zero by accident.

    Args:
        spans: What was said in runs, the spouts' own sums among it: each run of ``opened`` lies in some span.
        fail_roots: Roots that failed, shape (f,), any order; none of them is done, whatever its sum.
        ack_roots: Roots that something was told of one by one, shape (a,), any order, repeats allowed.
        ack_sums: What was told of each, shape (a,).

    Raises:
        ProtocolError: A message was opened twice, or without a sum: it would never have a verdict.
    """
    runs = joined(opened)
    told_alone, old_roots, old_sums = _of_runs(run_salt, runs, ack_roots, ack_sums)
    failed = np.sort(_names(run_salt, fail_roots))
    waiting = deque(runs)
    done: list[tuple[int, Int64s]] = []
    still_open: list[tuple[Int64s, Int64s, int]] = []
    old: list[tuple[Int64s, Int64s]] = [(old_roots, old_sums)]
    for sequence_sum in add_up([*sequence_sums, *told_alone]):
        edges = [sequence_sum.first]
        while waiting and _holds(sequence_sum, waiting[0]):
            run = waiting.popleft()
            edges += (run.first, run.end)
            sums = sequence_sum.sums[run.first - sequence_sum.first : run.end - sequence_sum.first]
            is_done = sums == 0
            is_done[_places(run, failed)] = False
            done.append((run.task, run.first + np.flatnonzero(is_done)))
            places = np.flatnonzero(~is_done)
            still_open.append((root_ids(run_salt, run.task, run.first + places), sums[places], run.task))
        edges.append(sequence_sum.end)
        for first, end in list(pairwise(edges))[::2]:
            sums = sequence_sum.sums[first - sequence_sum.first : end - sequence_sum.first]
            places = np.flatnonzero(sums)
            old.append((root_ids(run_salt, sequence_sum.task, first + places), sums[places]))
    if waiting:
        raise ProtocolError(
            f"{waiting[0]} was opened without its sums",
            "the spans of one micro-batch",
            "a bug in acktree: please report it",
        )
    owners = [np.full(len(roots), task, dtype=np.int32) for roots, _, task in still_open]
    return Closing(
        [(task, sequences) for task, sequences in done if len(sequences)],
        np.concatenate([_NONE, *(roots for roots, _, _ in still_open)]),
        np.concatenate([_NONE, *(sums for _, sums, _ in still_open)]),
        np.concatenate([_NONE.astype(np.int32), *owners]),
        np.concatenate([roots for roots, _ in old]),
        np.concatenate([sums for _, sums in old]),
    )


def _holds(sequence_sum: SequenceSums, run: Opened) -> bool:
    return sequence_sum.task == run.task and sequence_sum.first <= run.first and run.end <= sequence_sum.end


def _of_runs(
    run_salt: int, runs: Sequence[Opened], roots: Int64s, sums: Int64s
) -> tuple[list[SequenceSums], Int64s, Int64s]:
    """What was told one by one of messages in some runs, as spans; and the roots and sums of all others."""
    if not runs or not len(roots):
        return [], roots, sums
    names = _names(run_salt, roots)
    order = np.argsort(names)
    names, roots, sums = names[order], roots[order], sums[order]
    sequence_sums: list[SequenceSums] = []
    is_other = np.ones(len(roots), dtype=np.bool_)
    for run in runs:
        mine = _within(run, names)
        if mine.start < mine.stop:
            places = _places(run, names)
            spread = np.zeros(int(places[-1]) + 1, dtype=np.int64)
            np.bitwise_xor.at(spread, places, sums[mine])
            sequence_sums.append(SequenceSums(run.task, run.first, spread))
            is_other[mine] = False
    return sequence_sums, roots[is_other], sums[is_other]


def _names(run_salt: int, roots: Int64s) -> UInt64s:
    """Spout task and sequence of each root as one number, ascending as the two are; shape kept."""
    tasks, sequences = sequences_of(run_salt, roots)
    return (tasks.view(np.uint64) << np.uint64(SEQUENCE_BITS)) | sequences.view(np.uint64)


def _within(run: Opened, names: UInt64s) -> slice:
    """Where the messages of a run stand among ascending names."""
    first, last = (np.uint64(run.task << SEQUENCE_BITS | sequence) for sequence in (run.first, run.end - 1))
    return slice(int(names.searchsorted(first)), int(names.searchsorted(last, side="right")))


def _places(run: Opened, names: UInt64s) -> Int64s:
    """The places in a run of those ascending names that are of it."""
    first = np.uint64(run.task << SEQUENCE_BITS | run.first)
    return (names[_within(run, names)] - first).view(np.int64)
