"""A spout task tells each verdict once, retries by policy, buries before it tells, never blocks an emit."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, EndOfStream, IterableSpout, Retry, Spout
from acktree.core.ids import root_ids
from acktree.core.values import decode_rows
from acktree.core.verdicts import Failure, FailureCause, FailureKind
from acktree.dead_letters.wills import letter_of, redriven_letter
from acktree.errors import DeadLetterLimitError, MisuseError
from acktree.tasks.chunk import Chunk
from acktree.tasks.mail import Mail
from acktree.tasks.outputs import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.retries import Retries
from acktree.tasks.spout_task import SpoutTask
from acktree.tasks.surroundings import Surroundings
from tests.unit.tasks.workbench import Calls, in_a_row

BROKEN = failure_of(ValueError("broken"), "b0")
LATE = Failure(
    reason="late", kind=FailureKind.TIMED_OUT, cause=FailureCause.TIMEOUT, component=None, exception=None,
    exception_types=(), traceback=None, attempt=1, final=False,
)  # fmt: skip


class Source(Spout):
    """Does what it is told at each ``next_tuple``, and notes every call."""

    outputs = {"default": ["value"], "typed": pa.schema([("n", pa.int32())]), "direct": ["value"]}

    def __init__(self, *plan):
        self.plan = list(plan)
        self.calls = []
        self.in_call = None

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.context = collector, context
        self.note("open")

    def next_tuple(self):
        self.in_call = "next_tuple"
        try:
            if self.plan:
                self.plan.pop(0)(self)
        finally:
            self.in_call = None

    def note(self, *what):
        assert self.in_call is None, f"{what} while {self.in_call} runs"
        self.calls.append(what)

    def ack(self, message_id):
        self.note("ack", message_id)

    def fail(self, message_id, failure):
        self.note("fail", message_id, failure.reason, failure.attempt, failure.final)

    def activate(self):
        self.note("activate")

    def deactivate(self):
        self.note("deactivate")

    def close(self):
        self.note("close")

    def told(self):
        """The verdicts it was told."""
        return [call for call in self.calls if call[0] in {"ack", "fail"}]


class Inbox:
    """Chunks in a list."""

    def __init__(self):
        self.chunks, self.released, self.has_room = {}, [], True

    chunk_rows = most = 10**9

    def append(self, chunks):
        first = len(self.chunks)
        for offset, chunk in enumerate(chunks):
            self.chunks[first + offset] = chunk.to_bytes()
        return first

    def read(self, number):
        assert number not in self.released, f"chunk {number} was released"
        return Chunk.from_bytes(self.chunks[number])

    def room(self, wanted=1):
        return self.most if self.has_room else 0

    def release(self, number):
        assert number not in self.released, f"chunk {number} was released twice"
        self.released.append(number)


class Desk:
    """One spout task, and everything around it."""

    def __init__(self, spout, retry=None, config=None, build=None, first_sequence=0):
        self.spout, self.inbox, self.reports, self.reserved = spout, Inbox(), [], []
        self.letters, self.broken_store = [], None
        self.topology = in_a_row(spout, Calls(print), retry=retry, build=build)
        self.plan = Plan.of(self.topology, config or Config(), 1, 5)
        around = Surroundings(self.inbox, self.bury, lambda *told: self.reports.append(told), self.reserve)
        component = self.plan.topology.components["source"]
        self.number = component.task_ids[0]
        self.task = SpoutTask(spout, component, self.number, self.plan, around, first_sequence)
        self.now_ms = 0
        self.task.open()
        self.task.activate()

    def reserve(self, first):
        self.reserved.append(first)
        return first + 10

    def bury(self, wills):
        if self.broken_store is not None:
            raise self.broken_store
        assert self.spout.told() == self.told_before_burial
        self.letters += [letter_of(will, self.topology, len(self.letters) + 1) for will in wills]

    @property
    def told_before_burial(self):
        return [call for call in self.spout.told() if call[0] == "ack" or call[1] in self.may_be_told]

    may_be_told = frozenset()

    def run(self, steps=1):
        """Step and hand over so often; returns the values of all chunks that came."""
        before = len(self.inbox.chunks)
        for _ in range(steps):
            self.task.step(self.now_ms)
            self.task.flush(self.now_ms)
        return [decode_rows(self.chunk(number).values) for number in range(before, len(self.inbox.chunks))]

    def chunk(self, number):
        """A chunk, released or not."""
        return Chunk.from_bytes(self.inbox.chunks[number])

    def verdict(self, acked=(), failed=(), failure=BROKEN):
        """Deliver verdicts by sequence, and take them."""
        failures = [(np.array(failed, dtype=np.int64), failure)] if failed else []
        self.task.deliver(Mail(np.array(acked, dtype=np.int64), failures))
        return self.run()


def emits(*messages, **options):
    """At this ``next_tuple`` emit these (value, message id)."""

    def emit(spout):
        for value, message_id in messages:
            spout.collector.emit([value], message_id=message_id, **options)

    return emit


def raises(error):
    """At this ``next_tuple`` raise."""

    def throw(spout):
        raise error

    return throw


# ---- verdicts ----------------------------------------------------------------------------------------------


def test_every_message_is_told_its_verdict_once_between_two_calls_of_next_tuple():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    assert desk.run() == [[("x",), ("y",), ("z",)]]
    desk.verdict(acked=[0, 1])
    desk.verdict(acked=[0, 1, 2], failed=[1])
    desk.verdict(failed=[2])
    assert desk.spout.told() == [("ack", "a"), ("ack", "b"), ("ack", "c")]


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["ack", "fail", "late"])), max_size=8),
        max_size=8,
    )
)
def test_whatever_verdicts_come_however_often_each_message_is_told_one(mails):
    desk = Desk(Source(emits(*((n, n) for n in range(10)))))
    desk.run()
    for mail in mails:
        acked = [n for n, verdict in mail if verdict == "ack"]
        failures = [(np.array([n]), BROKEN if how == "fail" else LATE) for n, how in mail if how != "ack"]
        desk.task.deliver(Mail(np.array(acked, dtype=np.int64), failures))
        desk.run()
    told = [call[1] for call in desk.spout.told()]
    assert sorted(told) == sorted({n for mail in mails for n, _ in mail if n < 10})
    assert desk.task.open_count == 10 - len(told)
    assert desk.inbox.released == ([0] if len(told) == 10 else [])


def test_without_a_policy_each_failure_is_told_with_final_false_and_nothing_is_buried():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))))
    desk.run()
    desk.verdict(failed=[0])
    desk.verdict(failed=[1], failure=LATE)
    assert desk.spout.told() == [
        ("fail", "a", "ValueError: broken", 1, False),
        ("fail", "b", "late", 1, False),
    ]
    assert desk.letters == []
    assert desk.inbox.released == [0]


def test_a_callback_that_raises_is_reported_and_the_others_are_told():
    class Touchy(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id == "a":
                raise RuntimeError("do not touch")

    desk = Desk(Touchy(emits(("x", "a"), ("y", "b"))))
    desk.run()
    desk.verdict(acked=[0, 1])
    assert desk.spout.told() == [("ack", "a"), ("ack", "b")]
    ((component, task, failure),) = desk.reports
    assert (component, task, failure.reason) == ("source", desk.number, "RuntimeError: do not touch")
    assert desk.task.counters.total("errors", component="source") == 1


@pytest.mark.parametrize("hook", ["activate", "deactivate", "close"])
def test_any_other_hook_that_raises_is_reported(hook):
    class Touchy(Source):
        pass

    setattr(Touchy, hook, lambda self: (_ for _ in ()).throw(RuntimeError(hook)))
    desk = Desk(Touchy())
    desk.task.deactivate()
    desk.task.close()
    assert [failure.reason for _, _, failure in desk.reports] == [f"RuntimeError: {hook}"]


def test_a_spout_lives_from_open_to_close_and_asks_for_nothing_twice():
    desk = Desk(Source())
    desk.task.activate()
    desk.task.deactivate()
    desk.task.deactivate()
    desk.task.activate()
    desk.task.close()
    assert desk.spout.calls == [("open",), ("activate",), ("deactivate",), ("activate",), ("close",)]


def test_a_deactivated_spout_takes_its_mail_and_is_not_asked():
    desk = Desk(Source(emits(("x", "a")), emits(("y", "b"))))
    desk.run()
    desk.task.deactivate()
    assert desk.verdict(acked=[0]) == []
    assert desk.spout.told() == [("ack", "a")]


# ---- next_tuple ------------------------------------------------------------------------------------------


def test_a_next_tuple_that_raises_is_reported_and_called_again_and_what_it_emitted_stands():
    def both(spout):
        emits(("x", "a"))(spout)
        raise ValueError("in between")

    desk = Desk(Source(both, raises(KeyError("k")), emits(("y", "b"))))
    assert desk.task.step(0) is True
    assert desk.task.step(0) is False  # nothing moved: time for the wait strategy
    assert desk.run() == [[("x",), ("y",)]]
    assert [failure.reason for _, _, failure in desk.reports] == ["ValueError: in between", "KeyError: 'k'"]


def test_after_end_of_stream_nothing_is_asked_and_verdicts_are_told():
    desk = Desk(Source(emits(("x", "a")), raises(EndOfStream()), emits(("never", "n"))))
    desk.run(4)
    assert desk.task.has_ended
    assert not desk.task.is_idle
    desk.verdict(acked=[0])
    assert desk.spout.told() == [("ack", "a")]
    assert desk.task.is_idle
    assert len(desk.spout.plan) == 1


def test_what_is_emitted_from_fail_after_the_end_is_a_new_message():
    class EmitsAgain(Source):
        def fail(self, message_id, failure):
            super().fail(message_id, failure)
            self.collector.emit(["again"], message_id=message_id + "'")

    desk = Desk(EmitsAgain(emits(("x", "a")), raises(EndOfStream())))
    desk.run(2)
    assert desk.verdict(failed=[0]) == [[("again",)]]
    assert not desk.task.is_idle
    desk.verdict(acked=[1])
    assert [call[:2] for call in desk.spout.told()] == [("fail", "a"), ("ack", "a'")]
    assert desk.task.is_idle


def test_emit_never_blocks_room_is_asked_for_before_next_tuple():
    desk = Desk(Source(emits(*((n, n) for n in range(1000))), emits(("more", "m"))))
    desk.inbox.has_room = False
    assert desk.run() == []
    desk.inbox.has_room = True
    desk.task.step(0)
    desk.inbox.has_room = False  # full while it emits: what it emitted is there all the same
    assert desk.task.buffered_count == 1000
    desk.task.step(0)
    assert not desk.task.may_emit()
    assert len(desk.run()[0]) == 1000


def test_what_is_not_handed_over_yet_takes_room_too():
    desk = Desk(Source(*(emits((n, n)) for n in range(10))))
    desk.inbox.most = 3
    for _ in range(5):
        desk.task.step(0)
    assert desk.task.buffered_count == 3
    desk.task.flush(0)
    desk.task.step(0)
    assert desk.task.buffered_count == 1
    desk.task.step(
        0, enough=100, until=monotonic() + 60
    )  # nor does one that is asked again and again pass it
    assert desk.task.buffered_count == 3


def one_each(count):
    """At each of so many calls of ``next_tuple`` one message."""
    return [emits((n, n)) for n in range(count)]


FAR = float("inf")


@pytest.mark.parametrize(("enough", "asked"), [(1, 1), (3, 3), (100, 5)])
def test_a_step_asks_again_while_the_spout_emits_until_there_is_enough(enough, asked):
    desk = Desk(Source(*one_each(5)))
    assert desk.task.step(0, enough=enough, until=FAR) is True
    assert desk.task.buffered_count == 5 - len(desk.spout.plan) == asked


def test_a_step_asks_once_if_not_told_otherwise_and_when_the_time_is_up():
    desk = Desk(Source(*one_each(5)))
    desk.task.step(0)
    desk.task.step(0, enough=100)
    desk.task.step(0, enough=100, until=monotonic() - 1)
    assert desk.task.buffered_count == 3


@pytest.mark.parametrize("stop", [lambda spout: None, raises(ValueError("x")), raises(EndOfStream())])
def test_a_step_that_may_ask_again_does_not_after_silence_a_raise_or_the_end(stop):
    desk = Desk(Source(emits(("x", "a")), stop, emits(("y", "b"))))
    assert desk.task.step(0, enough=100, until=FAR) is True
    assert (desk.task.buffered_count, len(desk.spout.plan)) == (1, 1)


def test_verdicts_that_come_while_a_spout_is_asked_do_not_wait_for_enough():
    def mail_comes(spout):
        emits(("y", "b"))(spout)
        desk.task.deliver(Mail(np.array([0])))

    desk = Desk(Source(emits(("x", "a")), mail_comes, emits(("z", "c"))))
    desk.run()
    desk.task.step(0, enough=100, until=FAR)
    assert (desk.spout.told(), desk.task.buffered_count) == ([], 1)
    desk.task.step(0, enough=100, until=FAR)
    assert desk.spout.told() == [("ack", "a")]
    assert desk.task.buffered_count == 2


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (4, 4), (None, 6), (0, 6)])
def test_a_step_that_asks_again_keeps_to_the_limit_as_one_that_does_not(limit, asked):
    desk = Desk(Source(*one_each(6)), config=Config(max_spout_pending=limit))
    desk.task.step(0, enough=2, until=FAR)
    desk.task.flush(0)  # open is what was handed over as well as what was not
    desk.task.step(0, enough=100, until=FAR)
    assert 6 - len(desk.spout.plan) == asked


def test_a_message_that_waits_for_its_retry_is_open_to_a_step_that_asks_again():
    desk = Desk(
        Source(*one_each(6)), retry=Retry(3, backoff_secs=(1000, 1000)), config=Config(max_spout_pending=3)
    )
    desk.run()
    desk.may_be_told = {0}
    desk.task.deliver(Mail(failed=[(np.array([0]), BROKEN)]))
    desk.task.step(0, enough=100, until=FAR)
    assert desk.task.open_count == 3


def test_without_ackers_a_step_that_asks_again_tells_all_that_it_emitted():
    desk = Desk(Source(*one_each(3)), config=Config(acker_executors=0))
    desk.task.step(0, enough=100, until=FAR)
    assert desk.spout.told() == [("ack", 0), ("ack", 1), ("ack", 2)]


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (2, 2), (3, 3), (None, 5), (0, 5)])
def test_next_tuple_is_called_while_fewer_than_the_limit_are_open(limit, asked):
    desk = Desk(Source(*(emits((n, n)) for n in range(5))), config=Config(max_spout_pending=limit))
    for _ in range(8):  # what is not handed over yet is open, too
        desk.task.step(0)
    assert 5 - len(desk.spout.plan) == asked
    desk.run(8)
    assert 5 - len(desk.spout.plan) == asked
    desk.verdict(acked=[0])
    assert 5 - len(desk.spout.plan) == min(5, asked + 1)


def test_a_message_that_waits_for_its_retry_is_open():
    config = Config(max_spout_pending=1)
    desk = Desk(
        Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(9, 9)), config
    )
    desk.run()
    desk.verdict(failed=[0])
    assert desk.task.open_count == 1
    assert desk.spout.collector.pending_count == 1
    assert not desk.task.may_emit()
    assert desk.task.oldest_ms() == 0
    assert not desk.task.is_idle


# ---- emits -----------------------------------------------------------------------------------------------


MISUSE = {
    "an unknown stream": (lambda c: c.emit([1], stream="x"), "declared: 'default', 'typed', 'direct'"),
    "too many values": (lambda c: c.emit([1, 2], "id"), "which has the fields ['value']"),
    "too few values": (lambda c: c.emit([], "id"), "emit a list of 1 values"),
    "a string for a list": (lambda c: c.emit("x"), "emitted 'x' on stream 'default'"),
    "a dict for a list": (lambda c: c.emit({"value": 1}), "in the order of the fields"),
    "no list at all": (lambda c: c.emit(7), "emitted 7"),
    "emit where emit_direct is meant": (
        lambda c: c.emit([1], stream="direct"),
        "emit_direct(task_id, values",
    ),
    "a task that does not read": (
        lambda c: c.emit_direct(99, [1], stream="direct"),
        "task 99, which does not",
    ),
    "a stream that is not read directly": (lambda c: c.emit_direct(1, [1]), "does not read stream 'default'"),
    "a value that does not fit": (lambda c: c.emit(["x"], "id", "typed"), "declared as int32"),
    "a value that is too large": (lambda c: c.emit([2**40], "id", "typed"), "declared as int32"),
    "a value that does not pickle": (lambda c: c.emit([(i for i in ())], "id"), "cannot be pickled"),
    "a batch of other columns": (lambda c: c.emit_batch(pa.record_batch({"x": [1]})), "columns ['x']"),
    "a batch that is none": (lambda c: c.emit_batch([[1]]), "emit_batch() of a list"),
    "a batch with too few ids": (
        lambda c: c.emit_batch(pa.record_batch({"value": [1]}), []),
        "0 message ids",
    ),
}


def reads_directly(builder):
    """Somebody reads the stream "direct" directly."""
    builder.set_bolt("direct", Calls(print), parallelism=2).direct_grouping("source", "direct")


@pytest.mark.parametrize(("emit", "told"), MISUSE.values(), ids=MISUSE.keys())
def test_misuse_is_an_error_in_the_spout_and_nothing_was_emitted(emit, told):
    desk = Desk(Source(), build=reads_directly)
    with pytest.raises(MisuseError) as misuse:
        emit(desk.spout.collector)
    assert told in str(misuse.value)
    assert "'source'" in misuse.value.where
    assert desk.run() == []
    assert desk.task.is_idle


def test_a_direct_message_goes_to_the_task_that_was_named_in_every_attempt_and_when_it_is_redriven():
    def emit(spout):
        for task, name in zip(spout.context.task_ids("direct"), "ab", strict=True):
            spout.collector.emit_direct(task, [name], message_id=name, stream="direct")

    desk = Desk(Source(emit), Retry(max_attempts=2, backoff_secs=(0, 0)), build=reads_directly)
    first, second = desk.topology.tasks["direct"]
    desk.run()
    desk.verdict(failed=[1])
    desk.verdict(failed=[0, 2])  # b's second attempt, a's first
    desk.run()
    (letter,) = desk.letters
    desk.task.deliver(Mail(redriven=[redriven_letter(letter)]))
    desk.run()
    sent = [
        (value, task)
        for number in range(len(desk.inbox.chunks))
        for (value,), task in zip(
            decode_rows(desk.chunk(number).values), desk.chunk(number).tasks, strict=True
        )
    ]
    assert sent == [("a", first), ("b", second), ("b", second), ("a", first), ("b", second)]
    assert letter.values == ["b"]


def test_messages_keep_their_order_within_a_stream_whatever_is_tracked():
    def emit(spout):
        for n in range(6):
            spout.collector.emit([n], message_id=n if n % 3 else None)
            spout.collector.emit([n], message_id=n, stream="typed")
        spout.collector.emit_batch(pa.record_batch({"value": [6, 7]}))
        spout.collector.emit([8])

    desk = Desk(Source(emit))
    desk.run()
    chunks = [desk.chunk(number) for number in range(len(desk.inbox.chunks))]
    for stream, expected in (("default", [*range(9)]), ("typed", [*range(6)])):
        ordered = sorted(
            (chunk for chunk in chunks if chunk.stream == stream), key=lambda c: c.first_sequence
        )
        assert [row[0] for chunk in ordered for row in decode_rows(chunk.values)] == expected
    sequences = [sequence for chunk in chunks for sequence in chunk.sequences.tolist()]
    assert sorted(sequences) == [*range(15)]
    assert all(chunk.is_tracked == (number not in desk.inbox.released) for number, chunk in enumerate(chunks))


IDS = {
    "a list": (["a", "b"], ["a", "b"]),
    "a tuple": (("a", "b"), ["a", "b"]),
    "integers": (np.array([7, 8]), [7, 8]),
    "arrow integers": (pa.array([7, 8]), [7, 8]),
    "arrow strings": (pa.array(["a", "b"]), ["a", "b"]),
    "a chunked array": (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
    "chunked integers": (pa.chunked_array([[7], [8]]), [7, 8]),
}


@pytest.mark.parametrize(("ids", "told"), IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("ackers", [1, 0])
def test_the_ids_of_a_batch_may_come_in_any_form_and_are_told_as_python_values(ids, told, ackers):
    batch = pa.record_batch({"value": ["x", "y"]})
    desk = Desk(
        Source(lambda spout: spout.collector.emit_batch(batch, ids)), config=Config(acker_executors=ackers)
    )
    assert desk.run() == [[("x",), ("y",)]]
    if ackers:
        desk.verdict(acked=[0, 1])
    assert desk.spout.told() == [("ack", one) for one in told]
    assert all(type(call[1]) is type(one) for call, one in zip(desk.spout.told(), told, strict=True))


def test_a_batch_without_rows_is_nothing():
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    desk = Desk(Source(lambda spout: spout.collector.emit_batch(empty, [])))
    assert desk.run() == []


def test_a_report_of_a_spout_is_reported():
    desk = Desk(Source(lambda spout: spout.collector.report_error(ValueError("said"))))
    desk.run()
    assert [failure.reason for _, _, failure in desk.reports] == ["ValueError: said"]


def test_sequences_are_reserved_before_a_message_wears_one():
    desk = Desk(Source(emits(*((n, n) for n in range(25)))), first_sequence=100)
    desk.run()
    assert desk.reserved == [100, 110, 120]
    assert desk.chunk(0).sequences.tolist() == [*range(100, 125)]


# ---- no ackers -------------------------------------------------------------------------------------------


def test_without_ackers_all_ids_are_acked_after_next_tuple_returned_by_stream():
    def emit(spout):
        spout.collector.emit(["x"], message_id="a")
        spout.collector.emit([1], message_id="b", stream="typed")
        spout.collector.emit(["y"])

    desk = Desk(Source(emit), config=Config(acker_executors=0))
    desk.task.step(0)
    assert desk.spout.told() == [("ack", "a"), ("ack", "b")]  # note() would refuse it inside next_tuple
    assert desk.task.open_count == 0
    assert desk.task.counters.by_stream("acked", "source") == {"default": 1, "typed": 1}
    desk.run()
    assert not any(desk.chunk(number).is_tracked for number in range(len(desk.inbox.chunks)))
    assert sorted(desk.inbox.released) == sorted(desk.inbox.chunks)


def test_without_ackers_what_ack_emits_is_acked_too_also_after_the_end():
    class Chain(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id < 3:
                self.collector.emit(["more"], message_id=message_id + 1)

    desk = Desk(Chain(emits(("x", 1)), raises(EndOfStream())), config=Config(acker_executors=0))
    desk.run(6)
    assert desk.spout.told() == [("ack", 1), ("ack", 2), ("ack", 3)]
    assert desk.task.is_idle


# ---- retries and dead letters ------------------------------------------------------------------------------


def test_after_a_clock_was_set_back_a_retry_waits_no_longer_than_its_pause():
    desk = Desk(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(10, 60), jitter=False)
    )
    desk.now_ms = 3_600_000
    desk.run()
    desk.verdict(failed=[0])
    desk.now_ms += 4_000
    assert desk.run() == []
    desk.now_ms = 0
    desk.verdict(failed=[1])
    assert desk.run() == []
    assert desk.task.due_ms() == 6_000
    desk.now_ms = 6_000
    assert desk.run() == [[("x",)]]
    assert desk.task.due_ms() == 10_000
    desk.now_ms = 10_000
    assert desk.run() == [[("y",)]]


def test_with_a_policy_a_message_is_tried_again_as_a_new_root_and_told_once_when_it_is_final():
    desk = Desk(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(1, 60), jitter=False)
    )
    desk.run()
    roots = []
    for attempt, due_ms in ((1, 1_000), (2, 3_000)):
        desk.verdict(acked=[1], failed=[0 if attempt == 1 else 2])
        assert desk.task.due_ms() == due_ms
        assert desk.run() == []
        desk.now_ms = due_ms
        assert desk.run() == [[("x",)]]
        chunk = desk.chunk(attempt)
        assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist()) == ([attempt + 1], [0])
        assert chunk.retry_of.tolist() == [0 if attempt == 1 else 2]
        roots += root_ids(5, desk.number, chunk.sequences).tolist()
    assert len(set(roots)) == 2
    assert desk.spout.told() == [("ack", "b")]
    assert desk.letters == []
    desk.verdict(failed=[3])
    assert desk.spout.told()[1:] == [("fail", "a", "ValueError: broken", 3, True)]
    (letter,) = desk.letters
    assert (letter.attempts, letter.values, letter.message_id_repr) == (3, ["x"], "'a'")
    assert (letter.first_emitted_ms, letter.dead_ms) == (0, 3_000)
    assert letter.root == roots[-1]
    assert desk.inbox.released == [0, 1, 2]
    assert desk.task.is_idle
    assert desk.task.counters.total("failed", component="source") == 3


def test_a_retry_that_is_acked_is_told_as_an_ack_and_leaves_no_letter():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    desk.verdict(failed=[0])
    desk.run()
    desk.verdict(acked=[1])
    assert desk.spout.told() == [("ack", "a")]
    assert desk.letters == []
    assert desk.inbox.released == [0, 1]


def test_an_exception_that_is_final_is_not_tried_again():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=9, final=(ValueError,)))
    desk.run()
    desk.verdict(failed=[0])
    assert desk.spout.told() == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(desk.letters) == 1


def test_fail_is_told_only_after_the_dead_letter_is_durable():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    desk.run()
    desk.broken_store = OSError(28, "disk full")
    desk.verdict(failed=[0], acked=[1])
    desk.run(3)
    assert desk.spout.told() == [("ack", "b")]
    assert desk.task.open_count == 1
    assert not desk.task.is_idle
    assert desk.inbox.released == []
    assert desk.reports[0][2].reason == "OSError: [Errno 28] disk full"
    desk.broken_store = None
    desk.run()
    assert desk.spout.told()[1:] == []  # not again at once: a database that is away would be hammered
    desk.now_ms = desk.task.due_ms()
    desk.run()
    assert desk.spout.told()[1:] == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(desk.letters) == 1
    assert desk.inbox.released == [0]


def test_of_what_the_limit_refuses_letters_are_told_and_only_the_others_tried_anew():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))), Retry(max_attempts=1))
    desk.run()
    letter, *_ = root_ids(desk.plan.run_salt, desk.number, np.array([1])).tolist()
    desk.broken_store = DeadLetterLimitError("too many", "here", "mend it", buried=frozenset({letter, 77}))
    assert desk.verdict(failed=[0, 1, 2]) == [[("x",), ("z",)]]
    assert desk.spout.told() == [("fail", "b", "ValueError: broken", 1, True)]
    assert (desk.task.open_count, desk.task.is_settled, desk.reports) == (2, True, [])
    chunk = desk.chunk(1)
    assert (chunk.attempts.tolist(), chunk.retry_of.tolist()) == ([1, 1], [0, 2])
    assert desk.inbox.released == [0]
    desk.verdict(acked=chunk.sequences.tolist())
    assert desk.spout.told()[1:] == [("ack", "a"), ("ack", "c")]
    assert (desk.inbox.released, desk.task.is_idle) == ([0, 1], True)


def test_a_letter_that_the_limit_refuses_lets_go_of_its_chunk_only_with_its_neighbours():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    desk.run()
    letter, *_ = root_ids(desk.plan.run_salt, desk.number, np.array([0])).tolist()
    desk.broken_store = DeadLetterLimitError("too many", "here", "mend it", buried=frozenset({letter}))
    desk.verdict(failed=[0])
    assert (desk.inbox.released, desk.task.open_count) == ([], 1)
    desk.verdict(acked=[1])
    assert [call[:2] for call in desk.spout.told()] == [("fail", "a"), ("ack", "b")]
    assert desk.inbox.released == [0]


def test_a_chunk_stays_while_a_message_of_it_may_be_wanted_again():
    desk = Desk(
        Source(emits(*((n, n) for n in range(4)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    desk.run()
    desk.verdict(acked=[0, 1])
    desk.verdict(failed=[2, 3])
    assert desk.inbox.released == []
    desk.now_ms = 1_000
    assert desk.run() == [[(2,), (3,)]]
    assert desk.inbox.released == [0]
    desk.verdict(failed=[4])
    assert desk.inbox.released == [0]
    desk.verdict(acked=[5])
    assert desk.inbox.released == [0, 1]
    assert [call[0] for call in desk.spout.told()] == ["ack", "ack", "fail", "ack"]


def test_messages_of_several_streams_are_tried_again_on_theirs():
    def emit(spout):
        spout.collector.emit([(1, 2)], message_id="a")
        spout.collector.emit([7], message_id="b", stream="typed")
        spout.collector.emit([2.5], message_id="c")

    desk = Desk(Source(emit), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    sequences = {desk.chunk(n).stream: desk.chunk(n).sequences.tolist() for n in desk.inbox.chunks}
    desk.verdict(failed=[*sequences["default"], *sequences["typed"]])
    again = {desk.chunk(n).stream: decode_rows(desk.chunk(n).values) for n in (2, 3)}
    assert again == {"default": [((1, 2),), (2.5,)], "typed": [(7,)]}


def test_a_redriven_letter_is_a_first_attempt_whose_source_is_told_nothing():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=1))
    desk.run()
    desk.verdict(failed=[0])
    told = desk.spout.told()
    desk.now_ms = 9_000
    desk.task.deliver(Mail(redriven=[redriven_letter(desk.letters[0])]))
    assert desk.run() == [[("x",)]]
    chunk = desk.chunk(1)
    assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist(), chunk.sequences.tolist()) == (
        [1],
        [9_000],
        [1],
    )
    desk.verdict(acked=[1])
    assert desk.spout.told() == told
    assert len(desk.letters) == 1


@pytest.mark.parametrize("retry", [Retry(max_attempts=1), None], ids=["with a policy", "without"])
def test_a_redriven_letter_that_fails_for_good_is_a_letter_again(retry):
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=1))
    desk.run()
    desk.verdict(failed=[0])
    again = Desk(Source(), retry)
    again.task.deliver(Mail(redriven=[redriven_letter(desk.letters[0])]))
    again.run()
    again.verdict(failed=[0])
    assert again.spout.told() == []
    assert [letter.values for letter in again.letters] == [["x"]]
    assert again.task.is_idle


def test_redriven_letters_and_own_messages_are_told_apart_in_one_verdict():
    desk = Desk(Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    letter = replace(redriven_letter(letter_of(will_of("z"), desk.topology, 4)), letter_id=4)
    desk.task.deliver(Mail(redriven=[letter]))
    desk.run()
    desk.verdict(failed=[0, 1, 2])
    assert sorted(decode_rows(desk.chunk(max(desk.inbox.chunks)).values)) == [("x",), ("y",), ("z",)]
    desk.verdict(acked=[3, 4, 5])
    assert sorted(desk.spout.told()) == [("ack", "a"), ("ack", "b")]


def will_of(value):
    """The will of a message of some earlier run."""
    desk = Desk(Source(emits((value, "old"))), Retry(max_attempts=1))
    wills = []
    desk.task._around = replace(desk.task._around, bury=wills.extend)
    desk.run()
    desk.verdict(failed=[0])
    return wills[0]


# ---- restarts ----------------------------------------------------------------------------------------------


class Positioned(IterableSpout):
    """A position spout that notes its verdicts."""

    def __init__(self, items):
        super().__init__(items, ["value"])
        self.calls = []

    def __deepcopy__(self, memo):
        return self

    def ack(self, message_id):
        self.calls.append(("ack", message_id))

    def fail(self, message_id, failure):
        self.calls.append(("fail", message_id, failure.attempt, failure.final))

    def told(self):
        return self.calls


def restarted(desk, retry):
    """A second run over the chunks of the first that were not released."""
    again = Desk(Positioned(desk.spout.factory), retry, first_sequence=100)
    again.inbox.chunks = dict(desk.inbox.chunks)
    for number in [number for number in desk.inbox.chunks if number not in desk.inbox.released]:
        chunk = again.chunk(number)
        again.task.remember(chunk.position or b"\x80\x05}\x94.")
        again.task.recovery.reopen(number, chunk)
    return again


def test_the_position_is_saved_with_each_chunk_and_comes_back():
    desk = Desk(Positioned(["x", "y", "z"]))
    desk.run(2)
    assert desk.spout.position == 2
    again = restarted(desk, None)
    assert again.spout.position == 2
    assert again.run(2) == [[("z",)]]


def test_open_messages_of_a_spout_that_does_not_redeliver_go_on_and_are_told():
    desk = Desk(Positioned(["x", "y", "z"]))
    desk.run(3)
    desk.verdict(acked=[0])
    again = restarted(desk, None)
    assert again.task.open_count == 3 - 1  # one chunk each; the first is gone
    again.verdict(acked=[1], failed=[2])
    assert again.spout.told() == [("ack", 1), ("fail", 2, 1, False)]


def test_verdicts_that_were_told_before_the_crash_are_not_told_again():
    desk = Desk(Positioned(["x", "y", "z"]))
    for _ in range(3):
        desk.task.step(0)
    desk.task.flush(0)  # one chunk
    again = restarted(desk, None)
    mail = Mail(np.array([0]), [(np.array([1]), BROKEN)])
    again.task.recovery.settle(mail, 0, was_told=True)
    again.run()
    assert again.spout.told() == []
    assert again.task.open_count == 1
    again.task.recovery.settle(Mail(np.array([2])), 0, was_told=False)
    again.run()
    assert again.spout.told() == [("ack", 2)]


def test_a_retry_that_was_emitted_before_the_crash_is_not_emitted_again():
    retry = Retry(max_attempts=2, backoff_secs=(0, 0))
    desk = Desk(Positioned(["x", "y"]), retry)
    for _ in range(2):
        desk.task.step(0)
    desk.task.flush(0)
    desk.verdict(failed=[0])  # retried at once: chunk 1; chunk 0 stays, since message 1 is open
    assert decode_rows(desk.chunk(1).values) == [("x",)]
    again = restarted(desk, retry)
    again.task.recovery.settle(Mail(failed=[(np.array([0]), BROKEN)]), 0, was_told=True)
    before = len(again.inbox.chunks)
    again.run()
    assert len(again.inbox.chunks) == before
    assert again.task.open_count == 2
    again.verdict(acked=[1, 2])
    assert sorted(again.spout.told()) == [("ack", 0), ("ack", 1)]


def test_a_retry_that_was_not_emitted_before_the_crash_is_emitted_after_it():
    retry = Retry(max_attempts=2, backoff_secs=(5, 5), jitter=False)
    desk = Desk(Positioned(["x", "y"]), retry)
    for _ in range(2):
        desk.task.step(0)
    desk.task.flush(0)
    desk.verdict(failed=[0])
    again = restarted(desk, retry)
    again.task.recovery.settle(Mail(failed=[(np.array([0]), BROKEN)]), 0, was_told=True)
    again.now_ms = 5_000
    (values,) = again.run()
    assert values == [("x",)]
    assert again.chunk(max(again.inbox.chunks)).attempts.tolist() == [2]


# ---- the table of retries --------------------------------------------------------------------------------


def test_equal_due_times_keep_the_order_of_the_data():
    desk = Desk(
        Source(emits(*((n, n) for n in range(20)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    desk.run()
    desk.verdict(failed=[*range(20)])
    desk.now_ms = 1_000
    assert desk.run() == [[(n,) for n in range(20)]]


def test_an_empty_table_waits_for_nothing():
    retries = Retries(None)
    assert (len(retries), retries.due_ms(), retries.oldest_ms(), retries.take_due(10**12)) == (
        0,
        None,
        None,
        {},
    )
    assert not retries.has_wills
    assert not retries.needs(3)
