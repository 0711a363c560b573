"""The calls that every running topology answers, made on one: for ``LocalCluster`` and for Spark."""

from __future__ import annotations

from acktree import RunningTopology, Topology, TopologyBuilder, bolt
from acktree.testing import FeederSpout


@bolt(outputs=["word"])
def split(tup):
    """The words of a line; "boom" raises."""
    if tup["line"] == "boom":
        raise ValueError("boom")
    for word in tup["line"].split():
        yield [word]


def watched(feeder: FeederSpout) -> Topology:
    """A topology of one bolt."""
    builder = TopologyBuilder("watched")
    builder.set_spout("lines", feeder)
    builder.set_bolt("split", split).shuffle_grouping("lines")
    return builder.create_topology()


def make_all_calls(running: RunningTopology, feeder: FeederSpout) -> None:
    """Make each call of the protocol on a fresh topology of :func:`watched`; afterwards it is stopped."""
    assert isinstance(running, RunningTopology)
    assert running.name == "watched"
    assert running.is_running
    assert list(running.describe().data["components"]) == ["lines", "split"]
    feeder.feed(["a b"], message_id=1)
    feeder.feed(["boom"], message_id=2)
    assert running.await_idle(120)
    assert (feeder.acked, [message_id for message_id, _ in feeder.failed]) == ([1], [2])
    assert running.stats()["split"].total.acked == 1
    assert [(error.component, error.reason) for error in running.errors] == [("split", "ValueError: boom")]
    assert len(running.dead_letters) == 0  # there is no Retry
    running.deactivate()
    feeder.feed(["c"], message_id=3)
    assert running.await_termination(timeout_secs=0.2) is False
    assert feeder.acked == [1]
    running.activate()
    assert running.await_idle(120)
    with running as entered:
        assert entered is running
        running.kill(wait_secs=5)
        assert not running.is_running
        running.kill()  # a second one does nothing
    assert running.await_termination() is True
    assert set(feeder.acked) <= {1, 3}
