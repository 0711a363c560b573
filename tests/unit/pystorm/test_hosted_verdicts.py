"""Components of pystorm in a topology: which verdict each tuple gets."""

from __future__ import annotations

from acktree import ExecuteTimeoutError, FailureCause, Verdict
from acktree.core.data import context as contexts
from acktree.streamparse import (
    BatchingBolt,
    Bolt,
    Topology,
)
from acktree.streamparse.testing import run_topology
from tests.unit.pystorm.word_count import TOLD, Picky, Words, fed


class PickyTopology(Topology):
    words = Words.spec()
    count = Picky.spec(inputs=[words])


def test_each_tuple_gets_the_verdict_that_its_bolt_gave_and_the_component_lives_on():
    words = ["good", "raise", "fail", "report", "twice", "unknown", "late", "undeclared", "wide", "good"]
    results = run_topology(PickyTopology, {"words": [[word] for word in words]})
    verdicts = results.verdicts.of("words")
    acked = {word for word, verdict in zip(words, verdicts, strict=True) if verdict is Verdict.ACKED}
    assert acked == {"good", "report", "twice", "late"}  # "late" was acked before its mistake
    failures = {words[at]: failure for (_, at), failure in results.failures.items()}
    assert "component 'count' failed it" in failures["fail"].reason
    assert isinstance(failures["raise"].exception, ValueError)
    assert 'raise ValueError("no such word")' in (failures["raise"].traceback or "")
    assert "stream 'nowhere'" in failures["undeclared"].reason
    undeclared = failures["undeclared"].exception
    assert 'declare Stream(fields=[...], name="nowhere") in its outputs' in undeclared.fix
    assert "never given" in failures["unknown"].reason


def test_a_second_ack_by_hand_is_reported_and_has_no_effect():
    feeder, _, _, errors = fed(PickyTopology, batches=[["twice"]])
    assert feeder.acked == [0]
    assert "acked or failed before" in errors[0].reason


def test_an_emit_after_the_ack_is_an_error_and_the_tuple_stays_acked():
    feeder, emitted, _, errors = fed(PickyTopology, batches=[["late"]])
    assert (feeder.acked, emitted) == ([0], [])
    assert "anchored to '1', which was acked or failed before" in errors[0].reason


def test_without_auto_fail_nobody_fails_a_tuple_and_it_times_out():
    class Quiet(Picky):
        auto_fail = False

    class QuietTopology(Topology):
        words = Words.spec()
        count = Quiet.spec(inputs=[words])

    results = run_topology(QuietTopology, {"words": [["raise"]]})
    assert results.verdicts.of("words") == [Verdict.TIMED_OUT]


def test_a_default_stream_that_is_not_declared_drops_its_tuples_with_one_warning(caplog):
    class Silent(Bolt):
        outputs = []

        def process(self, tup):
            self.emit(list(tup.values))

    class SilentTopology(Topology):
        words = Words.spec()
        count = Silent.spec(inputs=[words])

    results = run_topology(SilentTopology, {"words": [["a"], ["b"]]})
    assert results.verdicts.of("words") == [Verdict.ACKED] * 2
    assert [
        record.getMessage() for record in caplog.records if "does not declare" in record.getMessage()
    ] == ["component 'count' emits on its default stream, which it does not declare: its tuples are dropped"]


class Spinning(BatchingBolt):
    outputs = ["word"]

    def group_key(self, tup):
        if tup.values.word == "spin":  # as the worker's timer interrupts it; a LocalCluster has none
            raise ExecuteTimeoutError("took too long", "execute", "be faster")
        if tup.values.word == "odd":
            raise ValueError("no key")

    def process_batch(self, key, tups):
        self.emit([len(tups)])


class SpinningTopology(Topology):
    words = Words.spec()
    count = Spinning.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})


def test_a_component_that_hangs_or_raises_between_batches_fails_that_tuple_alone():
    feeder, emitted, stats, _ = fed(
        SpinningTopology,
        batches=[["a", "spin", "odd", "b"], [], []],
        clock_secs=1,
    )
    assert (emitted, sorted(feeder.acked)) == ([[2]], [0, 3])
    causes = {message: failure.cause for message, failure in feeder.failed}
    assert causes == {1: FailureCause.HUNG, 2: FailureCause.EXCEPTION}
    assert stats["count"].tasks[1].held == 0


class TickRaises(Bolt):
    outputs = ["word"]

    def process(self, tup):
        self.emit(list(tup.values))

    def process_tick(self, tup):
        raise RuntimeError("at a tick")


class TickRaisesTopology(Topology):
    words = Words.spec()
    count = TickRaises.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})


def test_what_a_tick_raises_is_reported_and_fails_no_message():
    feeder, emitted, _, errors = fed(TickRaisesTopology, batches=[["a"], ["b"]], clock_secs=1)
    assert (emitted, feeder.acked, feeder.failed) == ([["a"], ["b"]], [0, 1], [])
    assert {error.reason for error in errors} == {"RuntimeError: at a tick"}


class Broken(Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        TOLD["broken"].append(context["componentid"])
        if len(TOLD["broken"]) == 1:
            raise OSError("no database")

    def process(self, tup):
        self.emit(list(tup.values))


class BrokenTopology(Topology):
    words = Words.spec()
    count = Broken.spec(inputs=[words])


def test_an_initialize_that_raises_fails_the_tuples_and_is_called_again_in_the_next_micro_batch():
    feeder, emitted, _, _ = fed(BrokenTopology, batches=[["a", "b"], ["c"]])
    assert len(TOLD["broken"]) == 2
    assert [message for message, _ in feeder.failed] == [0, 1]
    assert (feeder.acked, emitted) == ([2], [["c"]])


def test_what_initialize_emits_is_emitted_once_for_a_task_wherever_it_moves():
    class Greeting(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.emit(["hello"])
            self.seen = 0

        def process(self, tup):
            self.seen += 1

    class GreetingTopology(Topology):
        words = Words.spec()
        count = Greeting.spec(inputs=[words])

    _, emitted, _, _ = fed(GreetingTopology, batches=[["a"], ["b"]], after_each=contexts._cached.clear)
    assert emitted == [["hello"]]
