"""Deltas that combining tasks add up, compared with a dict of root: sum."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acktree.core.ids import root_ids, row_root_ids
from acktree.core.tracking import combining, sequence_sums, sparse_sums
from acktree.core.tracking.combining import BLOCK_BITS, Combined, CombinedRun, combine, settle, split
from acktree.core.tracking.deltas import Deltas, as_sequence_sums
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.core.tracking.sparse_sums import SparseSums
from acktree.errors import ProtocolError

SALT = 5
HIGHEST = (1 << 16) - 1
TASKS = (1, 2, HIGHEST)
OWNER = -3  # of rows of a DataFrame
ROWS = [0, -1, 77, (1 << 63) - 1, -(1 << 63), 12345678901234567]


@contextmanager
def small_numbers():
    """Constants so small that drawn data is on both sides of each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GAP", 2), ("THINNEST", 2), ("SHORTEST", 3)):
            patch.setattr(sequence_sums, name, value)
        for name, value in (("SHORTEST", 3), ("WIDEST", 30), ("MOST_ZEROS", 4)):
            patch.setattr(sparse_sums, name, value)
        patch.setattr(combining, "BLOCK_BITS", 2)
        yield


def int64s(values):
    return np.array(list(values), dtype=np.int64)


def root(task, sequence):
    return int(root_ids(SALT, task, np.array([sequence]))[0])


messages = st.builds(root, st.sampled_from(TASKS), st.integers(0, 40))
acks = st.lists(st.tuples(messages | st.sampled_from(ROWS), st.integers(0, 3)), max_size=12)


@st.composite
def micro_batches(draw):
    """What some levels and partitions send: each message and row is opened at most once."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        pairs = draw(acks)
        half = draw(st.integers(0, len(pairs)))
        with small_numbers():
            parts.append(
                as_sequence_sums(
                    SALT, [(int64s(r for r, _ in some), int64s(s for _, s in some))
                           for some in (pairs[:half], pairs[half:])],
                )
            )  # fmt: skip
    for task in TASKS:
        edges = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
        for first, end in zip(edges[::2], edges[1::2], strict=False):
            sums = int64s(draw(st.lists(st.integers(0, 3), min_size=end - first, max_size=end - first)))
            at = draw(st.integers(0, len(parts) - 1))
            parts[at] = replace(
                parts[at],
                opened=(*parts[at].opened, Opened(task, first, end)),
                sequence_sums=(*parts[at].sequence_sums, SequenceSums(task, first, sums)),
            )
    for row in draw(st.sets(st.sampled_from(ROWS))):
        at = draw(st.integers(0, len(parts) - 1))
        parts[at] = replace(
            parts[at],
            init_roots=int64s([*parts[at].init_roots, row]),
            init_sums=int64s([*parts[at].init_sums, draw(st.integers(0, 3))]),
            init_owners=np.array([*parts[at].init_owners, OWNER], dtype=np.int32),
        )
    for at, part in enumerate(parts):
        failed = draw(st.lists(messages | st.sampled_from(ROWS), max_size=3))
        parts[at] = replace(
            part, fail_roots=int64s(failed), failures=int64s([0] * len(failed)),
            reasons=(b"why",) if failed else (), reset_roots=int64s(draw(st.lists(messages, max_size=2))),
        )  # fmt: skip
    with small_numbers():
        return [part.summed() for part in parts]


class Heard:
    """The naive model: who was opened, and the XOR of all that was said of each root."""

    def __init__(self, parts):
        self.opened, self.sums = {}, {}
        for part in parts:
            for run in part.opened:
                self.opened |= {root(run.task, at): run.task for at in range(run.first, run.end)}
            self.opened |= dict(zip(part.init_roots.tolist(), part.init_owners.tolist(), strict=True))
            self.add(part.init_roots, part.init_sums)
            self.add(part.ack_roots, part.ack_sums)
            for each in part.sequence_sums:
                self.add(root_ids(SALT, each.task, np.arange(each.first, each.end)), each.sums)
            for each in part.sparse_sums:
                places = each.first + each.places.astype(np.int64)
                self.add(root_ids(SALT, each.task, places), each.sums)

    def add(self, roots, sums):
        for each, total in zip(roots.tolist(), sums.tolist(), strict=True):
            self.sums[each] = self.sums.get(each, 0) ^ total

    def open(self, failed=()):
        """Root -> (owner, sum) of all that were opened and are not done."""
        return {
            each: (owner, self.sums[each])
            for each, owner in self.opened.items()
            if self.sums[each] or each in failed
        }

    def old(self):
        """Root -> sum of the others."""
        return {each: total for each, total in self.sums.items() if total and each not in self.opened}


def told_of(parts, combiners, order=lambda shares: shares):
    """What all combining tasks tell the driver, through the bytes on the wire."""
    shares = {}
    for part in parts:
        for combiner, share in split(SALT, part, combiners)[0].items():
            shares.setdefault(combiner, []).append(Deltas.from_bytes(share.to_bytes()))
    assert all(0 <= combiner < combiners for combiner in shares)
    return [combine(SALT, order(shares[combiner])).to_bytes() for combiner in sorted(shares)]


@example([Deltas(sequence_sums=(SequenceSums(1, 0, int64s([1, 1, 0, 1])),))], 1)
@given(micro_batches(), st.integers(1, 4))
def test_what_combining_tasks_tell_the_driver_is_what_the_levels_said(parts, combiners):
    heard = Heard(parts)
    fails = np.concatenate([part.fail_roots for part in parts])
    with small_numbers():
        combined = [Combined.from_bytes(blob) for blob in told_of(parts, combiners)]
        settled = settle(SALT, combined, fails)
    opened = {
        each: (owner, total)
        for roots, sums, owners in [
            (settled.open_roots, settled.open_sums, settled.open_owners),
            *((one.rest.init_roots, one.rest.init_sums, one.rest.init_owners) for one in combined),
        ]
        for each, total, owner in zip(roots.tolist(), sums.tolist(), owners.tolist(), strict=True)
    }
    failed = set(fails.tolist())
    assert opened == {**heard.open(failed)}
    done = {root(task, at): task for task, sequences in settled.done for at in sequences.tolist()}
    done |= dict(zip(settled.done_rows.tolist(), settled.done_owners.tolist(), strict=True))
    assert done == {each: owner for each, owner in heard.opened.items() if each not in opened}
    others = [
        replace(one.rest, init_roots=int64s([]), init_sums=int64s([]), init_owners=int64s([]))
        for one in combined
    ]
    assert Heard(others).old() == heard.old(), "a zero among consecutive sums adds nothing"
    assert len({task for task, _ in settled.done}) == len(settled.done)
    assert all((np.diff(sequences) > 0).all() for _, sequences in settled.done)


@given(micro_batches(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_second_run_of_a_combining_task_tells_the_same_bytes_in_whatever_order_its_rows_come(
    parts, combiners, chance
):
    with small_numbers():
        first = told_of(parts, combiners)
        assert first == told_of(parts, combiners, lambda shares: chance.sample(shares, len(shares)))


@given(micro_batches(), st.integers(1, 4))
def test_all_that_is_said_of_a_root_goes_to_one_combining_task_and_fails_to_the_driver(parts, combiners):
    whose = {}
    for part in parts:
        with small_numbers():
            shares, at_once = split(SALT, part, combiners)
        heard = [(combiner, Heard([share])) for combiner, share in shares.items()]
        for combiner, share in heard:
            for each in (*share.sums, *share.opened):
                assert whose.setdefault(each, combiner) == combiner
        together = {}
        for _, share in heard:
            assert not together.keys() & share.sums.keys()
            together |= share.sums
        assert {each: total for each, total in together.items() if total} == {
            each: total for each, total in Heard([part]).sums.items() if total
        }
        assert not any(len(share.fail_roots) + len(share.reset_roots) for share in shares.values())
        for name in ("fail_roots", "failures", "reset_roots"):
            assert getattr(at_once, name).tolist() == getattr(part, name).tolist()
        assert at_once.reasons == part.reasons
        assert not Heard([at_once]).sums


def test_messages_that_are_done_at_once_take_no_bytes_and_rows_eight_each():
    count = 100_000
    sums = np.arange(1, count + 1)
    opens = Deltas(opened=(Opened(1, 0, count),), sequence_sums=(SequenceSums(1, 0, sums),))
    closes = Deltas(sparse_sums=(SparseSums(1, 0, np.arange(count, dtype=np.int32), sums),))
    assert sum(map(len, told_of([opens, closes], 13))) < 13 * 300
    roots = row_root_ids(SALT, 1, 0, np.arange(count, dtype=np.uint64))
    owners = np.full(count, OWNER, dtype=np.int32)
    opens = Deltas(init_roots=roots, init_sums=sums, init_owners=owners)
    assert sum(map(len, told_of([opens, Deltas(ack_roots=roots, ack_sums=sums)], 2))) < 8.1 * count


def test_every_combining_task_gets_blocks_of_a_micro_batch_and_of_many_small_spouts():
    wide = split(SALT, Deltas(opened=(Opened(1, 0, 13 << BLOCK_BITS),)), 13)[0]
    assert sorted(wide) == list(range(13))
    assert all(run.end - run.first == 1 << BLOCK_BITS for share in wide.values() for run in share.opened)
    many = split(SALT, Deltas(opened=tuple(Opened(task, 0, 100) for task in range(1, 27))), 13)[0]
    assert [len(many[combiner].opened) for combiner in range(13)] == [2] * 13


def test_a_few_messages_of_a_wide_range_are_divided_without_looking_at_the_blocks_between():
    places = np.array([0, (1 << 31) - 1], dtype=np.int32)
    shares, _ = split(SALT, Deltas(sparse_sums=(SparseSums(1, 0, places, int64s([5, 6])),)), 13)
    pieces = [part for share in shares.values() for part in share.sparse_sums]
    assert sorted((part.first, part.places.tolist(), part.sums.tolist()) for part in pieces) == [
        (0, [0], [5]), ((1 << 31) - 1, [0], [6]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "twice",
    [
        Deltas(opened=(Opened(1, 3, 9),), sequence_sums=(SequenceSums(1, 3, int64s(range(6))),)),
        Deltas(init_roots=int64s([7]), init_sums=int64s([1]), init_owners=np.array([OWNER], np.int32)),
    ],
    ids=["message", "row"],
)
def test_what_is_opened_twice_is_an_error_and_never_an_ack(twice):
    with pytest.raises(ProtocolError, match="open twice"):
        combine(SALT, [twice, twice])


def test_a_message_that_two_combining_tasks_opened_is_an_error():
    run = CombinedRun(Opened(1, 3, 9), np.zeros(0, np.int32), int64s([]))
    with pytest.raises(ProtocolError, match="message 3 of spout task 1 is open twice"):
        settle(SALT, [Combined((run,)), Combined((run,))], int64s([]))


def test_messages_of_an_earlier_run_are_not_opened_and_their_sums_are_those_of_unknown_roots():
    runs = (
        CombinedRun(Opened(1, 3, 9), np.array([2], np.int32), int64s([6])),
        CombinedRun(Opened(2, 3, 9), np.array([0], np.int32), int64s([4])),
    )
    known = Combined(runs).without_before(SALT, {1: 9, 2: 3})
    assert [run.opened for run in known.runs] == [Opened(2, 3, 9)]
    assert (known.rest.ack_roots.tolist(), known.rest.ack_sums.tolist()) == ([root(1, 5)], [6])


@pytest.mark.parametrize("roots", [[-(1 << 63)], [-1, 0], [0], sorted(ROWS)])
def test_roots_of_rows_come_back_from_the_wire(roots):
    told = Combined(done_rows=((OWNER, int64s(roots)), (-9, int64s([5]))))
    again = Combined.from_bytes(told.to_bytes())
    assert [(owner, each.tolist()) for owner, each in again.done_rows] == [(OWNER, roots), (-9, [5])]
    assert bool(again)
    assert not Combined.from_bytes(Combined().to_bytes())
