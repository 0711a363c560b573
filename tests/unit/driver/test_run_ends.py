"""Each component is told that its run is over, whatever another one raises."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, TopologyBuilder
from acktree.driver.run_ends import tell_ended
from acktree.testing import FeederSpout, LocalCluster

TOLD: list[tuple[str, str]] = []


class Told(BasicBolt):
    outputs = []

    def __init__(self, name):
        self.name = name

    def execute(self, tup, collector):
        """Nothing."""

    def run_ended(self, run_id):
        TOLD.append((self.name, run_id))


class Raises(Told):
    def run_ended(self, run_id):
        super().run_ended(run_id)
        raise self.name


class Own(Told):
    """Has a method of that name for a purpose of its own."""

    def run_ended(self, row, why):  # type: ignore[override]
        raise AssertionError("not ours to call")


class Refuses(Told):
    """Answers no question for an attribute that it does not have."""

    run_ended = property(lambda self: 1 / 0)


@pytest.fixture(params=[ValueError("broken"), SystemExit(3)], ids=["ValueError", "SystemExit"])
def topology(request):
    TOLD.clear()
    builder = TopologyBuilder("ends")
    builder.set_spout("source", FeederSpout(["n"]))
    bolts = {"a": Raises(request.param), "b": Own("b"), "c": Refuses("c"), "d": Told("d")}
    for name, each in bolts.items():
        builder.set_bolt(name, each).shuffle_grouping("source")
    return builder.create_topology()


def test_each_component_that_has_the_method_is_told_whatever_another_raises(topology, caplog):
    tell_ended(topology, "run 1")
    assert [name for name, _ in TOLD[1:]] == ["d"]
    assert {run for _, run in TOLD} == {"run 1"}
    assert [each.split()[1] for each in caplog.messages] == ["component=a"]


def test_a_local_cluster_tells_it_when_it_closes(topology):
    with LocalCluster() as cluster:
        cluster.submit(topology)
        assert TOLD == []
    assert [name for name, _ in TOLD[1:]] == ["d"]
