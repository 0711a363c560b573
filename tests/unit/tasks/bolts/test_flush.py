"""The hook at the end of a task's micro-batch may emit, ack and fail; what it raises fails the open rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, Config
from acktree.core.tracking.verdicts import FailureCause
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench


def nothing(*_: object) -> None:
    """A bolt's function that does nothing."""


class Sink(BasicBolt):
    """Collects values, and writes them in ``flush``; a batch with "boom" cannot be written."""

    outputs = ["value"]

    def __init__(self, write, *, tick_secs: float | None = None) -> None:
        self.write, self.tick_secs = write, tick_secs

    def prepare(self, config, context):
        self.batch = []

    def execute(self, tup, collector):
        if tup["value"] == "bad":
            raise ValueError("bad")
        self.batch.append(tup["value"])

    def tick(self, tup, collector):
        pass

    def flush(self, collector):
        if "boom" in self.batch:
            raise OSError("no connection")
        self.write(self.batch)
        collector.emit([len(self.batch)])
        self.batch = []


WRITTEN: list[object] = []
BROKEN = "BoltError: bolt 'b0' raised in flush(): OSError: no connection"


@pytest.fixture(autouse=True)
def written():
    WRITTEN.clear()
    return WRITTEN


def write(what):
    """Keep what was written; a bolt is pickled, and a list of its own would be a copy."""
    WRITTEN.append(what)


def test_a_basic_bolt_that_flushes_is_acked_when_flush_returned(written):
    with bench(Sink(write), Calls(nothing)) as running:
        running.feed("a", "b", "bad")
        assert written == [["a", "b"]]
        assert running.acked == ["a", "b"]
        assert running.failures["bad"].reason == "ValueError: bad"
        assert running.tuples("b0") == [2]
        total = running.running.stats()["b0"].total
        assert (total.acked, total.failed, total.executed) == (2, 1, 3)
        assert total.process_ms is not None


def test_what_flush_raises_fails_every_tuple_of_its_micro_batch_that_is_open(written):
    with bench(Sink(write)) as running:
        running.feed("a", "boom", "bad")
        running.feed("c")
        assert running.acked == ["c"]
        assert written == [["c"]]
        reasons = {value: failure.reason for value, failure in running.failures.items()}
        assert reasons == {
            "a": "OSError: no connection", "boom": "OSError: no connection", "bad": "ValueError: bad"
        }  # fmt: skip
        assert running.failures["a"].cause is FailureCause.EXCEPTION
        assert running.reasons("b0") == ["ValueError: bad", BROKEN]
        total = running.running.stats()["b0"].total
        assert (total.acked, total.failed) == (1, 3)


def test_flush_comes_once_a_micro_batch_after_the_tick_and_the_last_frame(written):
    class Notes(Sink):
        def execute(self, tup, collector):
            self.write(("execute", tup["value"]))

        def tick(self, tup, collector):
            self.write("tick")

        def flush(self, collector):
            self.write("flush")

        def cleanup(self):
            self.write("cleanup")

    with bench(Notes(write, tick_secs=5)) as running:
        running.cluster.advance(6)
        assert written == ["tick", "flush", "cleanup"]
        written.clear()
        running.feed(1, 2)
        assert written == [("execute", 1), ("execute", 2), "flush", "cleanup"]
        assert running.acked == [1, 2]


def test_a_flush_whose_emit_cannot_be_sent_fails_what_is_open():
    class Emits(Sink):
        outputs = pa.schema([("value", pa.int64())])

        def execute(self, tup, collector):
            pass

        def flush(self, collector):
            collector.emit(["no number"])

    with bench(Emits(write), Calls(nothing)) as running:
        running.feed(1, 2)
        assert running.acked == []
        assert {failure.cause for failure in running.failures.values()} == {FailureCause.MISUSE}
        assert set(running.failures) == {1, 2}


class Holder(Bolt):
    """Holds the tuples of a micro-batch, and follows a script in ``flush``."""

    outputs = ["value"]

    def __init__(self, flush, *, remembers: tuple[str, ...] = ()) -> None:
        self.do, self.remembers = flush, remembers

    def prepare(self, config, context, collector):
        self.held, self.kept = [], []

    def execute(self, tup):
        self.held.append(tup)

    def flush(self, collector):
        held, self.held = self.held, []
        self.do(self, held, collector)


def test_a_bolt_acks_and_fails_held_tuples_in_flush_and_what_it_leaves_open_times_out():
    def flush(bolt, held, collector):
        collector.ack(held[0])
        collector.fail(held[1], "odd one")

    with bench(Holder(flush), config=Config(message_timeout_secs=30)) as running:
        running.feed("a", "b", "c")
        assert running.acked == ["a"]
        assert running.failures["b"].reason == "odd one"
        assert "c" not in running.failures
        total = running.running.stats()["b0"].total
        assert (total.acked, total.failed) == (1, 1)
        running.cluster.advance(60)
        assert running.failures["c"].kind == "TIMED_OUT"


@pytest.mark.parametrize("child_fails", [False, True])
def test_what_is_emitted_in_flush_hangs_on_its_anchors(child_fails):
    def flush(bolt, held, collector):
        collector.emit([[tup["value"] for tup in held]], anchors=held)
        for tup in held:
            collector.ack(tup)

    def child(bolt, tup, collector):
        if child_fails:
            raise ValueError("child")

    with bench(Holder(flush), Calls(child)) as running:
        running.feed("a", "b")
        assert running.tuples("b0") == [["a", "b"]]
        assert running.acked == ([] if child_fails else ["a", "b"])
        assert set(running.failures) == ({"a", "b"} if child_fails else set())


def test_a_flush_that_raises_after_an_ack_fails_the_others_and_leaves_tuples_held_from_before():
    def flush(bolt, held, collector):
        if held[0]["value"] == "early":
            bolt.kept = held
            return
        collector.ack(held[0])
        if held[0]["value"] == "b":
            raise RuntimeError("broke")
        collector.ack(bolt.kept.pop())

    with bench(Holder(flush, remembers=("kept",))) as running:
        running.feed("early")
        running.feed("b", "c")
        assert running.acked == ["b"]
        assert {value: failure.reason for value, failure in running.failures.items()} == {
            "c": "RuntimeError: broke"
        }
        running.feed("d")
        assert running.acked == ["b", "early", "d"]


def test_what_flush_changed_of_the_memory_is_saved_and_a_save_that_fails_fails_what_flush_acked():
    numbers = list(range(9))

    def flush(bolt, held, collector):
        for tup in held:
            collector.ack(tup)
        bolt.kept.append(numbers.pop(0) if held[0]["value"] == "a" else held[0]["value"])
        if held[0]["value"] == "unsaved":
            bolt.kept.append(x for x in ())
        collector.emit([repr(bolt.kept) if held[0]["value"] == "show" else None])

    with bench(Holder(flush, remembers=("kept",))) as running:
        running.feed("b")
        running.feed("unsaved")
        running.feed("show")
        assert running.acked == ["b", "show"]
        assert "pickle" in running.failures["unsaved"].reason
        assert running.tuples("b0")[-1] == "['b', 'show']"


class Batches(ArrowBolt):
    """Emits in ``flush`` how many rows came; a row "boom" makes it raise."""

    outputs = pa.schema([("rows", pa.int64())])

    def prepare(self, config, context):
        self.rows, self.boom = 0, False

    def execute_batch(self, batch, collector):
        self.rows += batch.num_rows
        self.boom = self.boom or "boom" in batch["value"].to_pylist()
        if "fails" in batch["value"].to_pylist():
            collector.fail_rows([batch["value"].to_pylist().index("fails")], "said so")

    def flush(self, collector):
        if self.boom:
            raise ValueError("boom")
        if self.rows == 1:
            collector.fail_rows([0], "no row is at hand")
        collector.emit_batch(pa.record_batch({"rows": [self.rows]}), parents=None)
        self.rows = 0


def test_rows_of_an_arrow_bolt_that_flushes_are_acked_when_flush_returned():
    with bench(Batches(), Calls(nothing)) as running:
        running.feed("a", "b", "fails")
        assert running.acked == ["a", "b"]
        assert running.tuples("b0") == [3]
        running.feed("c", "boom")
        assert running.acked == ["a", "b"]
        assert {value: failure.reason for value, failure in running.failures.items()} == {
            "fails": "said so", "c": "ValueError: boom", "boom": "ValueError: boom"
        }  # fmt: skip


def test_fail_rows_is_refused_in_flush_where_no_batch_is_at_hand():
    with bench(Batches()) as running:
        running.feed("one")
        assert running.failures["one"].cause is FailureCause.MISUSE


class KeepsIt(Sink):
    """Does not empty what it collected."""

    def flush(self, collector):
        pass


def test_an_attribute_that_flush_does_not_restore_is_refused_by_name_and_the_tuples_fail():
    with bench(KeepsIt(write)) as running:
        running.feed("a", "b")
        assert set(running.failures) == {"a", "b"}
        assert "changed its attribute 'batch'" in running.failures["a"].reason
        assert "flush() did not restore it" in running.failures["a"].reason


def test_a_bolt_that_does_not_flush_is_still_watched_after_each_tuple():
    def keeps(bolt, tup, collector):
        if tup["value"] == "a":
            bolt.batch.append(1)

    with bench(Calls(keeps, batch=[])) as running:
        running.feed("a", "b")
        assert (running.acked, set(running.failures)) == (["b"], {"a"})


def test_flush_is_entered_as_a_hook_so_that_a_killed_worker_blames_no_tuple(monkeypatch):
    entered = []
    monkeypatch.setattr(
        ExecutionMonitor, "enter", lambda self, component, hook: entered.append((component.id, hook))
    )
    with bench(Sink(write), CallsByHand(nothing)) as running:
        running.feed("a")
    assert ("b0", "flush") in entered
    assert ("b1", "flush") not in entered
    assert entered.index(("b0", "flush")) < entered.index(("b0", "cleanup"))


def test_flush_is_not_called_where_prepare_raised(written):
    class Broken(Sink):
        def prepare(self, config, context):
            raise ValueError("prepare")

    with bench(Broken(write)) as running:
        running.feed("a")
        assert running.failures["a"].reason == "ValueError: prepare"
        assert written == []
