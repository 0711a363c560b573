from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import MisuseError, SpoutError, TopologyError
from acktree.iterable_spout import IterableSpout
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector

FAILURE = Failure("why", FailureKind.FAILED, FailureCause.EXCEPTION, "b", None, (), None, 1, final=False)


class Kept(SpoutOutputCollector):
    """A collector that keeps what is emitted, and refuses what the test names."""

    def __init__(self, refuse=()):
        self.emitted = []
        self.refuse = set(refuse)

    def emit(self, values, message_id=None, stream="default"):
        if message_id in self.refuse:
            self.refuse.remove(message_id)
            raise MisuseError("refused", "here", "never mind")
        self.emitted.append((message_id, list(values)))

    def emit_direct(self, task_id, values, message_id=None, stream="default"):
        raise NotImplementedError

    def emit_batch(self, batch, message_ids=None, stream="default"):
        raise NotImplementedError

    def report_error(self, exception):
        raise NotImplementedError

    @property
    def pending_count(self):
        return 0


class Silent(Spout):
    outputs = ("line",)

    def next_tuple(self):
        pass


def opened(spout, index=0, tasks=1, collector=None):
    """A task's own copy, as the engine opens it."""
    spout = copy.deepcopy(spout)
    context = TaskContext("t", "s", index + 1, index, {"s": tuple(range(1, tasks + 1))})
    collector = collector or Kept()
    spout.open(Config(), context, collector)
    return spout, collector


def drained(spout, collector):
    with suppress(EndOfStream):
        while True:
            spout.next_tuple()
    return collector.emitted


def test_a_spout_needs_only_outputs_and_next_tuple():
    spout = Silent()
    assert spout.redelivers is True
    assert tuple(spout.remembers) == ()
    for hook in (spout.activate, spout.next_tuple, spout.deactivate, spout.close):
        assert hook() is None
    spout.ack(1)
    spout.fail(1, FAILURE)


def test_a_spout_without_next_tuple_cannot_be_made():
    class Half(Spout):
        outputs = ("line",)

    with pytest.raises(TypeError, match="next_tuple"):
        Half()


def test_verdicts_in_batches_are_delivered_one_by_one_in_the_order_given():
    delivered = []

    class Telling(Silent):
        def ack(self, message_id):
            delivered.append(("ack", message_id))

        def fail(self, message_id, failure):
            delivered.append(("fail", message_id, failure.reason))

    Telling().ack_batch([3, 1])
    Telling().fail_batch([(2, FAILURE)])
    assert delivered == [("ack", 3), ("ack", 1), ("fail", 2, "why")]


def test_one_callback_that_raises_does_not_silence_the_others():
    delivered = []

    class Picky(Silent):
        def ack(self, message_id):
            if message_id in ("bad", "worse"):
                raise ValueError(message_id)
            delivered.append(message_id)

    with pytest.raises(ValueError, match="bad"):
        Picky().ack_batch([1, "bad", 2])
    with pytest.raises(ExceptionGroup) as caught:
        Picky().ack_batch(["bad", 3, "worse"])
    assert [str(e) for e in caught.value.exceptions] == ["bad", "worse"]
    assert delivered == [1, 2, 3]


def test_an_iterable_spout_emits_each_item_with_its_position_and_then_ends():
    spout, collector = opened(IterableSpout(lambda: iter(["a", "b"]), outputs=["line"]))
    assert drained(spout, collector) == [(0, ["a"]), (1, ["b"])]
    with pytest.raises(EndOfStream):
        spout.next_tuple()


def test_an_iterable_spout_emits_one_item_a_call():
    spout, collector = opened(IterableSpout(["a", "b"], outputs=["line"]))
    spout.next_tuple()
    assert len(collector.emitted) == 1


def test_an_iterable_spout_says_that_we_redeliver_and_remembers_its_position():
    assert IterableSpout.redelivers is False
    assert IterableSpout.remembers == ("position",)


def test_an_item_of_several_fields_is_a_list_of_values_and_of_one_field_may_be_the_value():
    spout, collector = opened(IterableSpout([("a", 1), ["b", 2]], outputs=["line", "number"]))
    assert drained(spout, collector) == [(0, ["a", 1]), (1, ["b", 2])]
    spout, collector = opened(IterableSpout([["a"], ("b",), "cd", None], outputs=["line"]))
    assert [values for _, values in drained(spout, collector)] == [["a"], ["b"], ["cd"], [None]]


def test_a_string_is_never_taken_for_a_list_of_values():
    spout, collector = opened(IterableSpout(["ab"], outputs=["line", "number"]))
    with pytest.raises(SpoutError, match="item 0 is 'ab'"):
        spout.next_tuple()
    assert collector.emitted == []


@given(items=st.integers(0, 30), tasks=st.integers(1, 5))
def test_the_tasks_share_the_positions_between_them(items, tasks):
    declared = IterableSpout(range(items), outputs=["n"])
    shares = [drained(*opened(declared, index, tasks)) for index in range(tasks)]
    for index, share in enumerate(shares):
        assert all(position % tasks == index for position, _ in share)
    assert sorted(p for share in shares for p, _ in share) == list(range(items))
    assert all(values == [position] for share in shares for position, values in share)


@given(items=st.integers(0, 20), tasks=st.integers(1, 4), before=st.integers(0, 20))
def test_a_restart_from_the_remembered_position_emits_what_is_left_and_nothing_twice(items, tasks, before):
    declared = IterableSpout(range(items), outputs=["n"])
    whole = drained(*opened(declared, 0, tasks))
    first, collector = opened(declared, 0, tasks)
    for _ in range(min(before, len(whole))):
        first.next_tuple()
    again = copy.deepcopy(declared)
    again.position = first.position
    second, rest = opened(again, 0, tasks)
    assert collector.emitted + drained(second, rest) == whole


def test_an_item_whose_emit_was_refused_is_not_skipped():
    spout, collector = opened(IterableSpout("abc", outputs=["c"]), collector=Kept(refuse=[1]))
    spout.next_tuple()
    with pytest.raises(SpoutError, match="item 1 was not emitted") as caught:
        spout.next_tuple()
    assert isinstance(caught.value.__cause__, MisuseError)
    assert drained(spout, collector) == [(0, ["a"]), (1, ["b"]), (2, ["c"])]


def failing_at(position, times, items=10):
    """A function that gives some items, and a list of its calls; the first calls raise at a position."""
    calls = []

    def read():
        calls.append(position)
        for item in range(items):
            if item == position and len(calls) <= times:
                raise ConnectionError("reset")
            yield [item]

    return read, calls


def kept_trying(spout):
    """What it raises until it emits or stops the topology."""
    raised = []
    while not raised or raised[-1].can_go_on:
        try:
            spout.next_tuple()
        except SpoutError as error:
            raised.append(error)
        else:
            break
    return raised


@pytest.mark.parametrize("tasks", [1, 2])
def test_after_an_exception_the_items_are_read_anew_and_none_is_lost_or_moved(tasks):
    read, calls = failing_at(4, times=1)
    spout, collector = opened(IterableSpout(read, ["n"]), tasks=tasks)
    for _ in range(4 // tasks):
        spout.next_tuple()
    (raised,) = kept_trying(spout)
    assert "item 4 was not emitted, try 1 of 8, it is tried again: ConnectionError: reset" in raised.what
    assert drained(spout, collector) == [(n, [n]) for n in range(0, 10, tasks)]
    assert len(calls) == 2


def test_what_cannot_be_read_stops_the_topology_in_the_end_and_names_the_position():
    spout, collector = opened(IterableSpout(failing_at(3, times=99)[0], ["n"]))
    for _ in range(3):
        spout.next_tuple()
    raised = kept_trying(spout)
    assert [error.pause_secs for error in raised] == [0.1 * 2**n for n in range(8)]
    assert [error.can_go_on for error in raised] == [True] * 7 + [False]
    assert "item 3" in raised[-1].what
    assert "the topology stops" in raised[-1].what
    assert "position 3" in raised[-1].where
    assert [position for position, _ in collector.emitted] == [0, 1, 2]


def test_tries_are_counted_for_each_position_alone():
    failing = {(n, t) for n in range(5) for t in range(7)}

    def read():
        for item in range(5):
            if (item, calls[item]) in failing:
                calls[item] += 1
                raise ValueError(item)
            yield item

    calls = [0] * 5
    spout, collector = opened(IterableSpout(read, ["n"]))
    for _ in range(5):
        assert all(error.can_go_on for error in kept_trying(spout))
    assert collector.emitted == [(n, [n]) for n in range(5)]


def test_a_file_with_a_bad_byte_loses_no_line_and_positions_name_the_same_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"".join(b"line %d\n" % n if n != 1000 else b"line \xff\n" for n in range(3000)))
    spout, collector = opened(IterableSpout(lambda: path.open(encoding="utf-8"), ["line"]))
    with suppress(SpoutError):
        while True:
            spout.next_tuple()
    kept_trying(spout)
    assert collector.emitted == [(n, [f"line {n}\n"]) for n in range(len(collector.emitted))]
    path.write_bytes(path.read_bytes().replace(b"\xff", b"1000"))
    assert [values for _, values in drained(spout, collector)] == [[f"line {n}\n"] for n in range(3000)]
    spout.close()


def test_a_function_that_gives_a_half_read_iterator_again_is_refused():
    def gives():
        yield 0
        raise ValueError("once")

    items = gives()
    spout, collector = opened(IterableSpout(lambda: items, ["n"]))
    spout.next_tuple()
    raised = kept_trying(spout)
    assert "the same iterator a second time" in raised[-1].what
    assert not raised[-1].can_go_on
    assert collector.emitted == [(0, [0])]


def test_what_the_function_opened_is_closed_before_it_is_opened_anew_and_at_the_end():
    closed = []

    def gives():
        try:
            yield from range(3)
        finally:
            closed.append(spout.position)

    spout, _ = opened(IterableSpout(gives, ["n"]), collector=Kept(refuse=[1]))
    spout.next_tuple()
    kept_trying(spout)
    kept_trying(spout)
    assert closed == [1]
    spout.close()
    assert closed == [1, 3]
    spout.close()


def test_a_function_that_cannot_be_called_is_tried_again_too():
    def opens():
        raise FileNotFoundError("words.txt")

    raised = kept_trying(opened(IterableSpout(opens, ["line"]))[0])
    assert len(raised) == 8
    assert "FileNotFoundError: words.txt" in raised[-1].what


def test_what_a_spout_says_of_its_error_survives_a_pickle():
    error = pickle.loads(pickle.dumps(SpoutError("a", "b", "c", can_go_on=False, pause_secs=2.5)))
    assert (str(error), error.can_go_on, error.pause_secs) == (str(SpoutError("a", "b", "c")), False, 2.5)


@pytest.mark.parametrize(
    ("factory", "outputs", "says"),
    [
        (iter([1]), ["n"], "can be iterated only once"),
        (5, ["n"], "neither be iterated nor called"),
        ([1], [], "stream 'default' alone"),
        ([1], {"other": ["n"]}, "stream 'default' alone"),
        ([1], "n", "a string, not a list"),
    ],
)
def test_an_iterable_spout_refuses_what_it_could_not_begin_again_or_emit(factory, outputs, says):
    with pytest.raises(TopologyError) as caught:
        IterableSpout(factory, outputs=outputs)
    assert says in caught.value.what
    assert len(str(caught.value).splitlines()) == 3


def streaming(*columns):
    return SimpleNamespace(columns=list(columns), isStreaming=True)


def test_a_data_frame_spout_has_the_columns_as_fields():
    spout = DataFrameSpout(streaming("key", "value"), message_id="key")
    assert spout.outputs == ["key", "value"]
    assert spout.message_id == "key"
    assert spout.redelivers is False


def test_a_data_frame_spout_is_never_asked_for_a_tuple():
    with pytest.raises(MisuseError, match="only Spark can read"):
        DataFrameSpout(streaming("key")).next_tuple()


@pytest.mark.parametrize(
    ("frame", "message_id", "says"),
    [
        ([1], None, "no Spark DataFrame"),
        (SimpleNamespace(columns=["a"], isStreaming=False), None, "not a streaming one"),
        (streaming("key", "value"), "kye", "did you mean 'key'?"),
    ],
)
def test_a_data_frame_spout_refuses_what_is_not_a_stream_of_rows(frame, message_id, says):
    with pytest.raises(TopologyError) as caught:
        DataFrameSpout(frame, message_id=message_id)
    assert says in str(caught.value)
