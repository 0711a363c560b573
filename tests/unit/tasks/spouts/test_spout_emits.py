"""What a spout may emit, in which form, and what becomes of it on its way out."""

from __future__ import annotations

import dis
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, Retry
from acktree.core import durable
from acktree.core.data.values import decode_rows
from acktree.dead_letters.conversion import redriven_letter
from acktree.errors import MisuseError
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.verdict_batch import Redrive
from tests.unit.tasks.bolts.bolt_harness import Calls
from tests.unit.tasks.spouts.spout_harness import Harness, Source, emits

MISUSE = {
    "an unknown stream": (lambda c: c.emit([1], stream="x"), "declared: 'default', 'typed', 'direct'"),
    "no stream": (lambda c: c.emit([1], "id", None), "emitted on stream None, which is not declared"),
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


@pytest.mark.parametrize("acker_executors", [None, 0])
@pytest.mark.parametrize(
    "emit",
    [
        lambda c: c.emit(["x"]),
        lambda c: c.emit_direct(c_task(c), ["x"], stream="direct"),
        lambda c: c.emit_batch(pa.record_batch({"value": ["x"]})),
    ],
    ids=["emit", "emit_direct", "emit_batch"],
)
def test_a_spout_with_a_retry_may_not_emit_without_a_message_id(emit, acker_executors):
    config = Config(acker_executors=acker_executors)
    harness = Harness(Source(), retry=Retry(max_attempts=2), build=reads_directly, config=config)
    with pytest.raises(MisuseError) as misuse:
        emit(harness.spout.collector)
    assert "has a Retry, and emitted a tuple without a message id" in misuse.value.what
    assert "'source'" in misuse.value.where
    assert "message_id=" in misuse.value.fix
    assert harness.run() == []
    harness.spout.collector.emit(["x"], message_id=0)
    assert harness.run() == [[("x",)]]


def c_task(collector):
    """A task that reads the stream "direct"."""
    return collector._plan.topology.components["direct"].task_ids[0]


@pytest.mark.parametrize(("emit", "wanted"), MISUSE.values(), ids=MISUSE.keys())
def test_misuse_is_an_error_in_the_spout_and_nothing_was_emitted(emit, wanted):
    harness = Harness(Source(), build=reads_directly)
    with pytest.raises(MisuseError) as misuse:
        emit(harness.spout.collector)
    assert wanted in str(misuse.value)
    assert "'source'" in misuse.value.where
    assert harness.run() == []
    assert harness.task.is_idle


def test_a_direct_message_goes_to_the_task_that_was_named_in_every_attempt_and_when_it_is_redriven():
    def emit(spout):
        for task, name in zip(spout.context.task_ids("direct"), "ab", strict=True):
            spout.collector.emit_direct(task, [name], message_id=name, stream="direct")

    harness = Harness(Source(emit), Retry(max_attempts=2, backoff_secs=(0, 0)), build=reads_directly)
    first, second = harness.topology.tasks["direct"]
    harness.run()
    harness.verdict(failed=[1])
    harness.verdict(failed=[0, 2])  # b's second attempt, a's first
    harness.run()
    (letter,) = harness.letters
    harness.task.dispatch(Redrive([redriven_letter(letter)]))
    harness.run()
    sent = [
        (value, task)
        for number in range(len(harness.inbox.chunks))
        for (value,), task in zip(
            decode_rows(harness.chunk(number).values), harness.chunk(number).tasks, strict=True
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

    harness = Harness(Source(emit))
    harness.run()
    chunks = [harness.chunk(number) for number in range(len(harness.inbox.chunks))]
    for stream, expected in (("default", [*range(9)]), ("typed", [*range(6)])):
        ordered = sorted(
            (chunk for chunk in chunks if chunk.stream == stream), key=lambda c: c.first_sequence
        )
        assert [row[0] for chunk in ordered for row in decode_rows(chunk.values)] == expected
    sequences = [sequence for chunk in chunks for sequence in chunk.sequences.tolist()]
    assert sorted(sequences) == [*range(15)]
    assert all(
        chunk.is_tracked == (number not in harness.inbox.released) for number, chunk in enumerate(chunks)
    )


IDS = {
    "a list": (["a", "b"], ["a", "b"]),
    "a tuple": (("a", "b"), ["a", "b"]),
    "integers": (np.array([7, 8]), [7, 8]),
    "arrow integers": (pa.array([7, 8]), [7, 8]),
    "arrow strings": (pa.array(["a", "b"]), ["a", "b"]),
    "a chunked array": (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
    "chunked integers": (pa.chunked_array([[7], [8]]), [7, 8]),
}


@pytest.mark.parametrize(("ids", "wanted"), IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("ackers", [1, 0])
def test_the_ids_of_a_batch_may_come_in_any_form_and_are_delivered_as_python_values(ids, wanted, ackers):
    batch = pa.record_batch({"value": ["x", "y"]})
    harness = Harness(
        Source(lambda spout: spout.collector.emit_batch(batch, ids)), config=Config(acker_executors=ackers)
    )
    assert harness.run() == [[("x",), ("y",)]]
    if ackers:
        harness.verdict(acked=[0, 1])
    assert harness.spout.delivered() == [("ack", one) for one in wanted]
    assert all(
        type(call[1]) is type(one) for call, one in zip(harness.spout.delivered(), wanted, strict=True)
    )


def test_a_batch_without_rows_is_nothing():
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    harness = Harness(Source(lambda spout: spout.collector.emit_batch(empty, [])))
    assert harness.run() == []


def test_a_report_of_a_spout_is_reported():
    harness = Harness(Source(lambda spout: spout.collector.report_error(ValueError("said"))))
    harness.run()
    assert [failure.reason for _, _, failure in harness.reports] == ["ValueError: said"]


def test_sequences_are_reserved_before_a_message_wears_one():
    harness = Harness(Source(emits(*((n, n) for n in range(25)))), first_sequence=100)
    harness.run()
    assert harness.reserved == [100, 110, 120]
    assert harness.chunk(0).sequences.tolist() == [*range(100, 125)]


HOW = {
    "emit": lambda c, n: c.emit([n], n),
    "emit without an id": lambda c, n: c.emit([n]),
    "another attempt": lambda c, n: c.emit((n,), n, attempt=n + 2),
    "a value to be pickled": lambda c, n: c.emit([complex(n)], n),
    "a value that is an iterable": lambda c, n: c.emit(iter([n]), n),
    "typed": lambda c, n: c.emit([n], n, "typed"),
    "typed without an id": lambda c, n: c.emit([n], None, "typed"),
    "a stream by an equal name": lambda c, n: c.emit([n], n, str(b"typed", "ascii")),
    "direct": lambda c, n: c.emit_direct(c_task(c), [n], n, "direct", attempt=n + 2),
    "direct without an id": lambda c, n: c.emit_direct(c_task(c), [n], None, "direct"),
    "a batch": lambda c, n: c.emit_batch(pa.record_batch({"value": [n]}), [n]),
    "a batch without ids": lambda c, n: c.emit_batch(pa.record_batch({"value": [n]})),
}


@pytest.mark.parametrize("ackers", [None, 0])
@given(given=st.lists(st.sampled_from([*HOW, *MISUSE, "lost", "taken"]), max_size=25))
def test_a_collector_has_what_a_naive_list_has(ackers, given):
    harness = Harness(Source(), build=reads_directly, config=Config(acker_executors=ackers))
    collector = harness.spout.collector
    model = []  # (stream, number, attempt, whether it is tracked)
    unacked = []
    for number, name in enumerate(given):
        if name in HOW:
            HOW[name](collector, number)
            stream = next((known for known in ("typed", "direct") if known in name), "default")
            stream = "typed" if "equal" in name else stream
            attempt = number + 2 if name in {"another attempt", "direct"} else 1
            has_id = "without" not in name
            model.append((stream, number, attempt, has_id and ackers is None))
            unacked += [number] if has_id and ackers == 0 else []
        elif name in MISUSE:
            with pytest.raises(MisuseError):
                MISUSE[name][0](collector)
        elif name == "lost":
            gone = {number - 1, number - 2, number - 3}
            collector.lost(gone)
            model = [each for each in model if not (each[3] and each[1] in gone)]
            unacked = [each for each in unacked if each not in gone]
        else:
            assert sorted(taken(collector)) == sorted(model)
            model = []
        assert collector.row_count == len(model)
        assert collector.tracked_count == sum(tracked for *_, tracked in model)
        assert sorted(collector.waiting_ids()) == [n for _, n, _, tracked in model if tracked]
    rest = taken(collector)
    for stream in ("default", "typed", "direct"):
        assert [each for each in rest if each[0] == stream] == [each for each in model if each[0] == stream]
    assert sorted(number for ids in collector.take_unacked().values() for number in ids) == unacked


def taken(collector):
    """What waits, as (stream, number, attempt, whether it is tracked)."""
    found = []
    for run in collector.take_runs():
        numbers = [int(value.real) for (value,) in decode_rows(run.values)]
        attempts = [1] * len(run) if run.attempts is None else run.attempts.tolist()
        assert not run.is_tracked or [*run.message_ids] == numbers
        assert (run.tasks is not None) == (run.stream == "direct")
        found += [(run.stream, *each, run.is_tracked) for each in zip(numbers, attempts, strict=True)]
    return found


@pytest.fixture
def threads_take_turns():
    """CPython changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def of_threads(emit, threads, messages):
    """Threads that emit: thread t the numbers from t * messages on."""
    made = [
        threading.Thread(target=lambda t=t: [emit(n) for n in range(t * messages, (t + 1) * messages)])
        for t in range(threads)
    ]
    for thread in made:
        thread.start()
    return made


@pytest.mark.parametrize("ackers", [None, 0])
@pytest.mark.parametrize("name", HOW)
def test_what_several_threads_emit_keeps_its_ids_and_its_order(name, ackers, threads_take_turns):
    harness = Harness(Source(), build=reads_directly, config=Config(acker_executors=ackers))
    collector, found = harness.spout.collector, []

    def emit(number):
        HOW[name](collector, number)
        if number % 5 == 0:  # now and then another kind, so that runs begin and end
            collector.emit([number], number, "default")

    running = of_threads(emit, 3, 150)
    while any(thread.is_alive() for thread in running):
        found += taken(collector)  # looks whether each id is its value
    found += taken(collector)
    assert (collector.row_count, collector.tracked_count) == (0, 0)
    wanted = [number for number in range(450) for _ in range(2 if number % 5 == 0 else 1)]
    assert sorted(number for _, number, *_ in found) == wanted
    assert all(attempt in {1, number + 2} for _, number, attempt, _ in found)
    for stream in ("default", "typed", "direct"):
        for first in range(0, 450, 150):
            numbers = [n for s, n, *_ in found if s == stream and first <= n < first + 150]
            assert numbers == sorted(numbers)
    unacked = {number for ids in collector.take_unacked().values() for number in ids}
    assert unacked == (
        set() if ackers is None else {n for s, n, *_ in found if "without" not in name or n % 5 == 0}
    )


def test_no_other_thread_is_let_in_while_an_emit_writes():
    """Rule 3 of the collector: CPython changes threads after calls, at backward jumps and in RESUME alone."""
    steps = list(dis.get_instructions(SpoutCollector.emit))
    names = [str(step.argval) for step in steps]
    first = names.index("row_count")
    written = names.index("append", first)
    assert names.index("cells", first) < written
    last = next(n for n in range(written, len(steps)) if steps[n].opname.startswith("CALL"))
    between = [step.opname for step in steps[first:last]]
    assert [name for name in between if name.startswith(("CALL", "JUMP_BACKWARD", "RESUME", "SEND"))] == []
    assert not any("BACKWARD" in name for name in between)


def test_an_emit_whose_run_is_taken_before_it_writes_goes_to_the_next_run():
    harness = Harness(Source())
    collector = harness.spout.collector

    class Values(list):
        """Looked at by the collector after it has chosen a run; that is taken meanwhile."""

        def __iter__(self):
            found.extend(taken(collector))
            return super().__iter__()

    found = []
    collector.emit([0], 0)
    collector.emit(Values([1]), 1, attempt=3)
    assert found == [("default", 0, 1, True)]
    assert taken(collector) == [("default", 1, 3, True)]
    assert collector.row_count == 0


class TakenIds(list):
    """After an id is written another thread takes what waits, and then a timer raises in the emit."""

    def __init__(self, collector):
        super().__init__()
        self.collector, self.taken = collector, []

    def append(self, message_id):
        super().append(message_id)
        self.taken += taken(self.collector)
        raise KeyboardInterrupt


def test_an_emit_that_is_interrupted_after_it_was_written_and_taken_is_not_written_again():
    harness = Harness(Source(), build=reads_directly)
    collector = harness.spout.collector
    collector.emit([0], 0)
    collector._run.ids = ids = TakenIds(collector)
    collector._run.cells.clear()
    with pytest.raises(KeyboardInterrupt):
        collector.emit([1], 1)
    assert ids.taken == [("default", 1, 1, True)]
    assert taken(collector) == []


class ClosedMeanwhile(list):
    """Values: while they are read, another thread closes the collector."""

    def __init__(self, values, collector):
        super().__init__(values)
        self.collector = collector

    def __iter__(self):
        self.collector.close()
        return super().__iter__()


def test_an_emit_that_is_refused_as_the_collector_closes_is_not_counted():
    harness = Harness(Source(), build=reads_directly)
    collector = harness.spout.collector
    collector.emit([0], 0)
    with pytest.raises(MisuseError, match="after the spout was closed"):
        collector.emit(ClosedMeanwhile([1], collector), 1)
    assert collector.row_count == 1
    assert taken(collector) == [("default", 0, 1, True)]


def test_a_closed_collector_names_the_thread_and_keeps_what_it_has():
    harness = Harness(Source(), build=reads_directly)
    collector = harness.spout.collector
    collector.emit([0], 0)
    harness.task.close()
    refused = []

    def emit():
        for how in HOW.values():
            with pytest.raises(MisuseError) as misuse:
                how(collector, 1)
            refused.append(str(misuse.value))

    late = threading.Thread(target=emit, name="client callback")
    late.start()
    late.join()
    assert len(refused) == len(HOW)
    assert all("'client callback' after the spout was closed" in each for each in refused)
    assert taken(collector) == [("default", 0, 1, True)]


def test_lost_is_refused_on_another_thread_and_changes_nothing():
    harness = Harness(Source(emits(("x", "a"))))
    harness.run()
    refused = []

    def lose():
        with pytest.raises(MisuseError, match=r"'client callback'(?s:.)*by a queue") as misuse:
            harness.spout.collector.lost()
        refused.append(misuse.value)

    thread = threading.Thread(target=lose, name="client callback")
    thread.start()
    thread.join()
    assert len(refused) == 1
    assert harness.task.open_count == 1
    harness.spout.collector.lost()
    assert harness.task.open_count == 0


class EmitsMeanwhile(Source):
    """While its position is read, "another thread" emits, and then sets the position."""

    remembers = ("position",)
    others = ("b",)

    @property
    def position(self):
        saved = 2 - len(self.others)
        for value in self.others:
            self.collector.emit([value], value)
        self.others = ()
        return saved


def test_what_is_emitted_while_the_position_is_read_is_newer_than_it():
    harness = Harness(EmitsMeanwhile(emits(("a", "a")), emits(("c", "c"))))
    assert harness.run() == [[("a",), ("b",)]]
    assert harness.run() == [[("c",)]]
    positions = [durable.loads(harness.chunk(number).position)["position"] for number in range(2)]
    assert positions == [1, 2]  # the first has "a", and "b" would come again: it is not lost
