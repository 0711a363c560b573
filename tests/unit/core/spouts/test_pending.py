"""Each open message leaves exactly once; the table agrees with a naive dict at each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acktree.core.spouts.pending import Closed, IdArray, Pending, one_by_one
from acktree.errors import ProtocolError
from tests.drawn import drawn


def closed_ids(closed: list[Closed]) -> list[object]:
    return [message_id for part in closed for message_id in part.message_ids]


def with_messages(*message_ids: object, chunk: int = 1) -> Pending:
    pending = Pending()
    pending.add(0, message_ids, None, chunk, 0, 1000)
    return pending


class PendingBesideADict(RuleBasedStateMachine):
    """The real table and a dict of sequence -> what was added take the same random actions."""

    def __init__(self):
        super().__init__()
        self.pending = Pending()
        self.naive = {}  # sequence -> (message id, chunk, row, attempt, first emitted ms)
        self.next_sequence = 0
        self.rows = {}  # chunk -> its next row
        self.busy = set()  # chunks with open messages, or added to, since last asked
        self.now_ms = 5000

    @rule(
        gap=st.integers(0, 3),
        count=st.integers(0, 6),
        chunk=st.integers(0, 4),
        as_array=st.booleans(),
        numbered=st.booleans(),
        passed_ms=st.integers(-50, 100),
        data=st.data(),
    )
    def add(self, gap, count, chunk, as_array, numbered, passed_ms, data):
        self.now_ms += passed_ms
        first = self.next_sequence + gap
        first_row = self.rows.get(chunk, 0) + gap
        ids = list(range(first * 10, first * 10 + count))
        attempts = emitted_ms = None
        if numbered:
            attempts = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
            emitted_ms = data.draw(st.lists(st.integers(0, 6000), min_size=count, max_size=count))
        self.pending.add(
            first,
            np.array(ids, dtype=np.int64) if as_array else ids,
            None if attempts is None else np.array(attempts, dtype=np.int32),
            chunk,
            first_row,
            self.now_ms,
            first_emitted_ms=None if emitted_ms is None else np.array(emitted_ms, dtype=np.int64),
        )
        for place, message_id in enumerate(ids):
            self.naive[first + place] = (
                message_id,
                chunk,
                first_row + place,
                attempts[place] if attempts else 1,
                emitted_ms[place] if emitted_ms else self.now_ms,
            )
        self.next_sequence = first + count
        self.rows[chunk] = first_row + count
        self.busy.add(chunk)

    @rule(data=st.data())
    def close(self, data):
        sequences = data.draw(st.lists(st.integers(-2, self.next_sequence + 2), max_size=30))
        got = [
            (sequence, (message_id, part.chunk, row, attempt, emitted_ms))
            for part in self.pending.close(np.array(sequences, dtype=np.int64))
            for sequence, message_id, row, attempt, emitted_ms in zip(
                part.sequences.tolist(),
                part.message_ids,
                part.rows.tolist(),
                part.attempts.tolist(),
                part.first_emitted_ms.tolist(),
                strict=True,
            )
        ]
        expected = [(seq, self.naive.pop(seq)) for seq in sorted(set(sequences)) if seq in self.naive]
        assert got == expected

    @precondition(lambda self: self.next_sequence)
    @rule(data=st.data())
    def close_a_run(self, data):
        first = data.draw(st.integers(0, self.next_sequence))
        last = data.draw(st.integers(first, self.next_sequence))
        expected = [self.naive.pop(seq)[0] for seq in range(first, last) if seq in self.naive]
        assert closed_ids(self.pending.close(np.arange(first, last))) == expected

    @rule()
    def ask_for_the_chunks_that_are_done(self):
        still_open = {chunk for _, chunk, *_ in self.naive.values()}
        done = self.pending.chunks_done()
        assert len(done) == len(set(done))
        assert set(done) == self.busy - still_open
        self.busy &= still_open

    @invariant()
    def both_hold_the_same(self):
        assert list(self.pending.items()) == [(seq, kept[0]) for seq, kept in sorted(self.naive.items())]
        assert self.pending.open_count == len(self.naive)
        moment_ms = self.now_ms - 20
        old = [kept[0] for _, kept in sorted(self.naive.items()) if kept[4] <= moment_ms]
        assert list(one_by_one(self.pending.emitted_by(moment_ms))) == old
        assert self.pending.oldest_ms() == min((kept[4] for kept in self.naive.values()), default=None)
        for chunk in range(5):
            rows = [kept[2] for _, kept in sorted(self.naive.items()) if kept[1] == chunk]
            assert self.pending.open_in_chunk(chunk).tolist() == rows

    @invariant()
    def what_is_wholly_closed_is_dropped(self):
        assert all(segment.open_count for segment in self.pending._segments)
        assert len(self.pending._segments) == len(self.pending._starts)
        assert sum(map(len, self.pending._by_chunk.values())) == len(self.pending._segments)


PendingBesideADict.TestCase.settings = settings(
    max_examples=drawn(100), stateful_step_count=30, deadline=None
)
TestPendingBesideADict = PendingBesideADict.TestCase


@given(st.lists(st.integers(0, 60), max_size=120), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_every_message_leaves_exactly_once_however_often_it_is_named(sequences, sizes):
    pending = Pending()
    first = 0
    for chunk, size in enumerate(sizes):
        pending.add(first, range(first, first + size), None, chunk, 0, 0)
        first += size
    closed: list[object] = []
    for at in range(0, len(sequences), 7):
        closed += closed_ids(pending.close(np.array(sequences[at : at + 7], dtype=np.int64)))
    assert sorted(closed) == sorted({seq for seq in sequences if seq < first})
    assert pending.open_count == first - len(closed)


def test_nothing_is_closed_in_an_empty_table():
    assert Pending().close(np.array([1, 2, 3])) == []
    assert Pending().close(np.array([], dtype=np.int64)) == []
    assert Pending().oldest_ms() is None
    assert not len(Pending().open_in_chunk(3))


def test_ids_that_came_as_an_array_leave_as_one():
    pending = Pending()
    pending.add(0, np.array(["a", "b", "c", "d"]), None, 1, 0, 0)
    for sequences, expected in (([1, 2], ["b", "c"]), ([0, 3], ["a", "d"])):
        (closed,) = pending.close(np.array(sequences))
        assert isinstance(closed.message_ids, np.ndarray)
        assert closed.message_ids.tolist() == expected


@pytest.mark.parametrize("ids", [np.array([5, 6, 7]), ["5", "6", "7"]])
def test_ids_are_a_list_of_python_objects_where_that_is_asked_for(ids):
    (closed,) = with_messages(*ids).close(np.array([0, 2])) if isinstance(ids, list) else in_an_array(ids)
    assert closed.message_list() == [ids[0], ids[2]]
    assert not any(isinstance(one, np.generic) for one in closed.message_list())


@pytest.mark.parametrize("ids", [[5, 6, 7], ["5", "6", "7"], [None, (1, 2), "x"]])
def test_ids_of_an_array_are_a_sequence_of_python_objects(ids):
    array = np.empty(3, dtype=object)
    array[:] = ids
    ids_given = IdArray(np.array(ids) if None not in ids else array)
    assert isinstance(ids_given, Sequence)
    assert (list(ids_given), ids_given[1], ids_given[-1], ids_given[1:], len(ids_given)) == (
        ids,
        ids[1],
        ids[-1],
        ids[1:],
        3,
    )
    assert not any(isinstance(one, np.generic) for one in (*ids_given, ids_given[0]))
    assert ids_given == ids
    assert ids_given != ids[:2]
    assert ids_given != 5
    assert repr(ids_given) == repr(ids)
    assert ids_given
    assert not IdArray(np.zeros(0))
    with pytest.raises(IndexError):
        ids_given[3]


def test_ids_of_an_array_are_a_read_only_numpy_array_without_a_copy():
    ids = np.arange(3)
    ids_given = IdArray(ids)
    assert np.shares_memory(np.asarray(ids_given), ids)
    assert np.array(ids_given, dtype=np.float64).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(ids_given).sort()


def in_an_array(ids):
    pending = Pending()
    pending.add(0, ids, None, 1, 0, 1000)
    return pending.close(np.array([0, 2]))


def test_any_sequence_of_ids_may_be_added_and_leaves_as_a_list():
    for ids in (["a", "b", "c"], ("a", "b", "c"), "abc"):
        pending = Pending()
        pending.add(0, ids, None, 1, 0, 0)
        assert pending.close(np.array([0, 2]))[0].message_ids == ["a", "c"]
        assert pending.close(np.array([1]))[0].message_ids == ["b"]


def test_a_caller_may_use_its_list_and_arrays_again():
    ids, array = ["a", "b"], np.array([7, 8])
    attempts, emitted_ms = np.array([1, 2], dtype=np.int32), np.array([10, 20])
    pending = Pending()
    pending.add(0, ids, attempts, 1, 0, 0, first_emitted_ms=emitted_ms)
    pending.add(2, array, None, 1, 2, 0)
    ids[:] = ["x", "x"]
    array[:] = attempts[:] = emitted_ms[:] = 0
    first, second = pending.close(np.arange(4))
    assert (first.message_ids, first.attempts.tolist()) == (["a", "b"], [1, 2])
    assert first.first_emitted_ms.tolist() == [10, 20]
    assert second.message_ids.tolist() == [7, 8]


def test_two_messages_with_equal_ids_are_two_messages():
    pending = with_messages("a", "a")
    assert closed_ids(pending.close(np.array([1]))) == ["a"]
    assert pending.open_count == 1


def test_the_columns_of_what_was_closed_have_the_types_they_promise():
    for attempts, emitted_ms in ((None, None), (np.array([2, 3]), np.array([1, 2], dtype=np.int32))):
        pending = Pending()
        pending.add(5, ["a", "b"], attempts, 1, 9, np.int64(77), first_emitted_ms=emitted_ms)
        (closed,) = pending.close([5, 6])
        assert closed.sequences.dtype == closed.rows.dtype == closed.first_emitted_ms.dtype == np.int64
        assert closed.attempts.dtype == np.int32
        assert closed.rows.tolist() == [9, 10]


def test_a_chunk_is_done_only_with_the_last_of_its_segments():
    pending = with_messages("a", chunk=7)
    pending.add(1, ["b"], None, 8, 0, 0)
    pending.add(2, ["c"], None, 7, 1, 0)
    pending.close(np.array([0, 1]))
    assert pending.chunks_done() == [8]
    pending.close(np.array([2]))
    assert pending.chunks_done() == [7]
    assert pending.chunks_done() == []


def test_a_chunk_that_gets_another_message_before_anyone_asked_is_not_done():
    pending = with_messages("a", chunk=7)
    pending.close(np.array([0]))
    pending.add(1, ["b"], None, 7, 1, 0)
    assert pending.chunks_done() == []


def test_a_chunk_without_tracked_messages_is_done_at_once():
    pending = with_messages(chunk=7)
    assert pending.chunks_done() == [7]


def test_room_ends_at_the_limit_and_messages_that_wait_for_a_retry_take_room_too():
    pending = with_messages("a", "b")
    assert pending.has_room(3)
    assert not pending.has_room(2)
    assert not pending.has_room(1)
    assert pending.has_room(4, waiting=1)
    assert not pending.has_room(3, waiting=1)


@pytest.mark.parametrize("limit", [None, 0])
def test_no_limit_is_always_room_as_in_storm(limit):
    assert with_messages("a", "b").has_room(limit)


def test_a_sequence_that_goes_back_is_our_bug_and_said_loudly():
    pending = with_messages("a", "b")
    pending.close(np.array([0, 1]))
    with pytest.raises(ProtocolError, match="sequence 1 comes after sequence 1"):
        pending.add(1, ["c"], None, 1, 2, 0)


@pytest.mark.parametrize("wrong", ["attempts", "first_emitted_ms"])
def test_columns_of_another_length_are_refused_and_nothing_is_added(wrong):
    columns = {"attempts": None, "first_emitted_ms": None, wrong: np.array([1, 2, 3])}
    pending = Pending()
    with pytest.raises(ProtocolError, match="2 message ids"):
        pending.add(0, ["a", "b"], chunk=1, first_row=0, now_ms=0, **columns)
    assert pending.open_count == 0
    pending.add(0, ["a", "b"], None, 1, 0, 0)


def test_fifty_thousand_verdicts_leave_in_a_few_pieces_and_not_one_by_one():
    pending = Pending()
    for chunk in range(10):
        pending.add(chunk * 10_000, np.arange(10_000), None, chunk, 0, 0)
    closed = pending.close(np.arange(0, 100_000, 2)[::-1])
    assert [part.chunk for part in closed] == list(range(10))
    assert pending.open_count == 50_000


@pytest.mark.parametrize("emitted_ms", [None, np.array([1000, 1000], dtype=np.int64)], ids=["one", "each"])
def test_the_time_of_the_first_emit_is_one_for_all_or_one_for_each(emitted_ms):
    pending = Pending()
    pending.add(0, ["a", "b"], None, 1, 0, 1000, first_emitted_ms=emitted_ms)
    (closed,) = pending.close(np.array([0, 1], dtype=np.int64))
    assert closed.first_emitted_ms.tolist() == [1000, 1000]
    assert closed.attempts.tolist() == [1, 1]
    assert closed.waited_ms(1500) == 1000


@pytest.mark.parametrize("ids", [["a", "b"], np.array([7, 8])], ids=["objects", "numbers"])
def test_message_ids_are_given_as_a_list_and_as_a_sequence(ids):
    pending = Pending()
    pending.add(0, ids, np.array([1, 2], dtype=np.int32), 1, 0, 1000)
    (closed,) = pending.close(np.array([1], dtype=np.int64))
    assert list(closed.message_sequence()) == closed.message_list() == [list(ids)[1]]
    assert closed.attempts.tolist() == [2]


def test_the_oldest_messages_come_first_whatever_segment_they_are_in():
    pending = Pending()
    pending.add(10, ["a", "b", "c"], None, chunk=1, first_row=0, now_ms=500)
    pending.add(
        20, ["d", "e"], np.array([2, 3], np.int32), chunk=2, first_row=0, now_ms=900,
        first_emitted_ms=np.array([700, 100]),
    )  # fmt: skip
    pending.close(np.array([10]))
    assert pending.oldest(3) == [(100, 21, "e", 3), (500, 11, "b", 1), (500, 12, "c", 1)]
    assert pending.oldest(0) == Pending().oldest(5) == []


def test_an_id_of_an_array_is_an_integer_of_python_wherever_one_message_is_named():
    pending = with_messages(7, 8)
    pending.add(2, np.array([9, 10]), None, 2, 0, 1000)
    found = [*pending.ids_at(np.arange(4)), *(each for _, each in pending.items())]
    found += [each for _, _, each, _ in pending.oldest(9)]
    assert found == [7, 8, 9, 10] * 3
    assert {*map(type, found)} == {int}


def test_ids_are_found_by_sequence_and_those_of_arrays_stay_an_array():
    pending = Pending()
    pending.add(2, np.array([9, 10, 11]), None, 1, 0, 1000)
    pending.add(7, np.array([20]), None, 2, 0, 1000)
    found = pending.ids_at(np.array([2, 4, 7]))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [9, 11, 20]
    assert pending.ids_at(np.array([0, 3, 5, 7, 8])) == [None, 10, None, 20, None]
    assert pending.ids_at(np.array([0, 1])) == [None, None]
    pending.close(np.array([2]))
    assert list(pending.ids_at(np.array([2, 3]))) == [9, 10]  # its segment still has it
    assert Pending().ids_at(np.array([5])) == [None]
