"""Components that are child processes: shell components, and Python classes with ``acktree.process``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from acktree import TopologyError
from acktree.streamparse import Bolt, Grouping, ShellBolt, Spout, Topology, load
from acktree.testing import FeederSpout, LocalCluster

SPLIT = Path(__file__).parents[3] / "examples" / "multilang" / "split.pl"


class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self):
        """Is replaced."""


class Numbers(Spout):
    outputs = ["number", "pid"]
    config = {"acktree.process": True}

    def initialize(self, conf, context):
        self.number = 0
        self.acked = 0

    def next_tuple(self):
        if self.number < 5:
            self.number += 1
            self.emit([self.number, os.getpid()], tup_id=self.number)

    def ack(self, tup_id):
        self.acked += 1
        self.log(f"{self.acked} acked in the child")


class CountWords(Bolt):
    outputs = ["word", "count", "pid"]

    def initialize(self, conf, context):
        self.counts: dict[str, int] = {}
        self.most = conf["my.most"]

    def process(self, tup):
        word = tup.values.word
        self.counts[word] = min(self.counts.get(word, 0) + 1, self.most)
        self.emit([word, self.counts[word], os.getpid()])


class Words(Topology):
    lines = Lines.spec()
    split = ShellBolt.spec(command="perl", script=str(SPLIT), inputs=[lines], outputs=["word", "sentences"])
    count = CountWords.spec(
        inputs={split: Grouping.fields("word")}, config={"acktree.process": True, "my.most": 2}
    )


@pytest.mark.skipif(not SPLIT.is_file(), reason="the examples are not beside the tests")
@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
def test_a_shell_component_and_a_class_in_a_process_of_its_own_work_together():
    feeder = FeederSpout(["line"])
    with LocalCluster() as cluster:
        running = cluster.submit(load(Words, replace={"lines": feeder}).topology)
        for line in ("the cow", "the moon", "the end"):
            feeder.feed([line], message_id=line)
            cluster.advance(0)
        assert feeder.acked == ["the cow", "the moon", "the end"]
        counts = running.tuples("count")
        assert [count for _, count, _ in counts] == [1, 1, 2, 1, 2, 1]
        (pid,) = {pid for *_, pid in counts}
        assert pid != os.getpid()


class Echo(Bolt):
    outputs = ["number", "pid"]

    def process(self, tup):
        self.emit(list(tup.values))


class Counting(Topology):
    numbers = Numbers.spec()
    echo = Echo.spec(inputs=[numbers])


def test_a_spout_in_a_process_of_its_own_hears_its_verdicts(caplog):
    with caplog.at_level("INFO"), LocalCluster() as cluster:
        running = cluster.submit(load(Counting).topology)
        cluster.advance(1)
        assert running.stats()["numbers"].total.acked == 5
        assert [number for number, _ in running.tuples("echo")] == [1, 2, 3, 4, 5]
        assert {pid for _, pid in running.tuples("echo")} != {os.getpid()}
    assert "5 acked in the child" in caplog.text


def test_a_folder_of_logs_that_is_storms_has_no_effect_on_a_child(caplog, tmp_path):
    options = {"pystorm.log.path": str(tmp_path / "storm" / "logs"), "pystorm.log.level": "info"}
    with caplog.at_level("INFO"), LocalCluster() as cluster:
        running = cluster.submit(load(Counting, options=options).topology)
        cluster.advance(1)
        assert running.stats()["numbers"].total.acked == 5
    assert "5 acked in the child" in caplog.text


class Careful(Bolt):
    """An exception does not end its process."""

    outputs = ["number", "pid"]
    config = {"acktree.process": True}
    exit_on_exception = False

    def process(self, tup):
        self.emit([10 // tup.values[0], os.getpid()])


class Careless(Careful):
    exit_on_exception = True


@pytest.mark.parametrize("kind", [Careful, Careless])
def test_an_exception_ends_a_child_unless_its_class_says_otherwise(kind):
    class Dividing(Topology):
        numbers = Lines.spec()
        divide = kind.spec(inputs=[numbers])

    feeder = FeederSpout(["number"])
    with LocalCluster() as cluster:
        running = cluster.submit(load(Dividing, replace={"numbers": feeder}).topology)
        for number in (10, 0):
            feeder.feed([number], message_id=number)
            cluster.advance(0)
        assert [message_id for message_id, _ in feeder.failed] == [0]
        more = iter(range(1, 1_000))  # the child may be given some while it ends: they fail, too
        while len(feeder.acked) < 2:
            feeder.feed([1], message_id=(number := next(more)))
            cluster.advance(0)
        assert feeder.acked == [10, number]
        assert len(feeder.failed) == number
        (_, pid), (_, later) = running.tuples("divide")
        assert (pid == later) == (kind is Careful)
        assert (number == 1) or kind is Careless


class InProcess(Topology):
    lines = Lines.spec()
    echo = Echo.spec(inputs=[lines])


def test_the_serializer_is_said_to_have_no_effect_only_where_no_component_is_a_child(caplog):
    options = {"topology.multilang.serializer": "json"}
    with caplog.at_level("INFO"):
        assert load(Counting, options=options).ignored == {}
        assert "no effect" not in caplog.text
        assert list(load(InProcess, options=options).ignored) == ["topology.multilang.serializer"]
    assert "setting topology.multilang.serializer has no effect" in caplog.text


def test_a_class_that_a_child_cannot_import_is_refused():
    class Inner(Bolt):
        outputs = ["word"]

    class Refused(Topology):
        lines = Lines.spec()
        inner = Inner.spec(inputs=[lines], config={"acktree.process": True})

    with pytest.raises(TopologyError, match="cannot be imported by a child process"):
        load(Refused)
