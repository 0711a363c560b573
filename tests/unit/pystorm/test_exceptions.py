"""Each exception of a component is reported, wherever it is raised and whatever the class does with it."""

from __future__ import annotations

import pytest

from acktree import Verdict
from acktree.streamparse import BatchingBolt, Bolt, Spout, Topology, load
from acktree.streamparse.testing import run_bolt, run_topology
from acktree.testing import LocalCluster
from tests.unit.pystorm.one_task import Checkpoint


class After(Bolt):
    outputs = ["word"]

    def _run(self):
        super()._run()
        raise OSError("after the tuple")

    def process(self, tup):
        self.emit(list(tup.values))


class Hook(BatchingBolt):
    outputs = ["count"]

    def process_batches(self):
        super().process_batches()
        raise OSError("after the batch")

    def process_batch(self, key, tups):
        self.emit([len(tups)])


class Read(Bolt):
    outputs = ["word"]

    def read_tuple(self):
        super().read_tuple()
        raise OSError("in read_tuple")

    def process(self, tup):
        raise AssertionError


def reasons(ran):
    return [str(error) for error in ran.errors]


def test_an_exception_while_no_tuple_is_current_is_reported_and_what_was_acked_stays_acked():
    ran = run_bolt(After, [["a"], ["b"]])
    assert (ran.emitted, ran.acked, ran.failed) == ([["a"], ["b"]], [["a"], ["b"]], [])
    assert reasons(ran) == ["after the tuple"] * 2


def test_an_exception_after_the_batches_is_reported_and_they_stay_acked():
    ran = run_bolt(Hook, [["a"], ["b"]], ticks=2)
    assert (ran.emitted, ran.acked, ran.failed) == ([[2]], [["a"], ["b"]], [])
    assert reasons(ran) == ["after the batch"]


def test_a_tuple_that_was_not_read_fails():
    ran = run_bolt(Read, [["a"]])
    assert (ran.acked, ran.failed, reasons(ran)) == ([], [["a"]], ["in read_tuple"])


def test_a_tuple_that_was_not_read_fails_also_where_its_id_was_given_before():
    class Once(Bolt):
        outputs = ["word"]

        def read_tuple(self):
            tup = super().read_tuple()
            if tup.values[0] == "unread":
                raise OSError("in read_tuple")
            return tup

        def process(self, tup):
            self.emit(list(tup.values))

    run = Checkpoint().run(Once)
    run.batch("a")
    run.batch("b", commits=False)
    assert run.batch("unread").failed == [["unread"]]


def test_an_exception_of_a_batching_bolt_between_tuples_leaves_the_batch_as_it_is():
    class Late(Hook):
        raises = True

        def process_batches(self):
            BatchingBolt.process_batches(self)

        def _run(self):
            super()._run()
            if self.raises:
                self.raises = False
                raise OSError("after process")

    ran = run_bolt(Late, [["a"], ["b"]], ticks=2)
    assert (ran.emitted, ran.acked, ran.failed) == ([[2]], [["a"], ["b"]], [])
    assert reasons(ran) == ["after process"]


def raising(tup):
    raise ValueError(tup.values[0])


@pytest.mark.parametrize(
    ("handler", "told", "failed"),
    [
        (lambda *_: None, ["a"], []),
        (lambda bolt, error: raising_other(), ["a", "other"], [["a"]]),
        (lambda bolt, error: reraised(error), ["a"], [["a"]]),
        (lambda bolt, error: left(), ["a", "7"], [["a"]]),
        (lambda bolt, error: bolt.raise_exception(error), ["a"], []),
    ],
    ids=["nothing", "another", "the same", "exit", "a report"],
)
def test_what_a_handler_of_the_programs_own_does_not_report_is_reported(handler, told, failed):
    class Own(Bolt):
        outputs = ["word"]
        _handle_run_exception = handler

        def process(self, tup):
            raise ValueError(tup.values[0])

    ran = run_bolt(Own, [["a"]])
    assert (reasons(ran), ran.failed, ran.acked) == (told, failed, [])


def raising_other():
    raise OSError("other")


def reraised(error):
    raise error


def left():
    raise SystemExit(7)


def test_an_exit_in_process_fails_its_tuple_which_is_held_no_longer():
    class Leaves(Bolt):
        outputs = ["word"]

        def process(self, tup):
            if tup.values[0] == "exit":
                raise SystemExit(3)
            self.emit(list(tup.values))

    class Leaving(Topology):
        words = Words.spec()
        count = Leaves.spec(inputs=[words])

    results = run_topology(Leaving, {"words": [["a"], ["exit"], ["b"]]})
    assert results.verdicts.of("words") == [Verdict.ACKED, Verdict.FAILED, Verdict.ACKED]
    assert results.tuples("count") == [["a"], ["b"]]


class Words(Spout):
    outputs = ["word"]


class Quiet(Spout):
    outputs = ["word"]

    def next_tuple(self):
        raise OSError("no source")

    def _handle_run_exception(self, exc):
        pass


def test_an_exception_of_a_spout_is_reported_too_if_its_class_does_nothing_with_it():
    class Silent(Topology):
        words = Quiet.spec()
        count = After.spec(inputs=[words])

    with LocalCluster() as cluster:
        running = cluster.submit(load(Silent).topology)
        cluster.run(most_messages=1, secs=0.1)
        assert "no source" in running.errors[0].reason


def test_all_current_tuples_of_a_bolt_of_its_own_kind_fail():
    class Pairs(Bolt):
        outputs = ["word"]
        auto_ack = False
        waiting = []

        def process(self, tup):
            self.waiting.append(tup)
            if len(self.waiting) == 2:
                self._current_tups = self.waiting
                raise ValueError("a bad pair")

    ran = run_bolt(Pairs, [["a"], ["b"]])
    assert (ran.failed, reasons(ran)) == ([["a"], ["b"]], ["a bad pair"])
