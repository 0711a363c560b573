"""What ``LocalCluster.submit`` returns is a running topology like any other, on the cluster's clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from acktree import Bolt, Config, ConfigError, MisuseError, RunningTopology, TopologyBuilder
from acktree.driver.handle import SubmittedTopology
from acktree.testing import FeederSpout, LocalCluster
from tests.scenarios.running_calls import make_all_calls, watched


def test_a_local_topology_answers_every_call_of_a_running_one():
    feeder = FeederSpout(["line"])
    with LocalCluster() as cluster:
        make_all_calls(cluster.submit(watched(feeder)), feeder)


def test_what_submit_returns_is_a_running_topology():
    assert RunningTopology in SubmittedTopology.__mro__


class Forgets(Bolt):
    """Neither acks nor fails."""

    def execute(self, tup):
        pass


def forgetful(feeder: FeederSpout):
    builder = TopologyBuilder("forgetful")
    builder.set_spout("lines", feeder)
    builder.set_bolt("forgets", Forgets()).shuffle_grouping("lines")
    return builder.create_topology()


def test_await_idle_steps_the_clock_no_further_than_it_says():
    feeder = FeederSpout(["line"])
    with LocalCluster() as cluster:
        running = cluster.submit(forgetful(feeder), config=Config(message_timeout_secs=30))
        feeder.feed(["a"], message_id=1)
        assert running.await_idle(10) is False
        assert (cluster.now_ms, feeder.failed) == (10_000, [])
        assert running.await_idle(60) is True
        assert 30_000 <= cluster.now_ms <= 34_000
        assert [message_id for message_id, _ in feeder.failed] == [1]


def test_await_termination_ends_when_every_spout_has_ended_and_every_message_has_its_verdict():
    feeder = FeederSpout(["line"])
    with LocalCluster() as cluster:
        running = cluster.submit(forgetful(feeder))
        feeder.feed(["a"], message_id=1)
        assert running.await_termination() is False  # its spout does not end, and nothing is left to wait for
        feeder.feed(["b"], message_id=2)
        feeder.end()
        assert running.await_termination() is True
        assert not running.is_running
        assert [message_id for message_id, _ in feeder.failed] == [1, 2]


def test_kill_waits_for_open_messages_as_long_as_it_says_and_closes_the_spouts():
    class Closing(FeederSpout):
        closed = 0

        def close(self):
            type(self).closed += 1

    feeder = Closing(["line"])
    with LocalCluster() as cluster:
        running = cluster.submit(forgetful(feeder))
        feeder.feed(["a"], message_id=1)
        cluster.advance()
        running.kill(wait_secs=7)
        assert (cluster.now_ms, Closing.closed, running.is_running) == (7_000, 1, False)
        feeder.feed(["b"], message_id=2)
        cluster.advance(100)  # a topology that was killed does not go on
        assert (feeder.acked, feeder.failed) == ([], [])
    assert Closing.closed == 1


def running_by(kind: str, cluster: LocalCluster):
    if kind == "local":
        return cluster.submit(forgetful(FeederSpout(["line"])))
    run = SimpleNamespace(name="forgetful", checkpoint=SimpleNamespace(place="/my checkpoints/a"))
    return SubmittedTopology(run, None)


@pytest.mark.parametrize(
    ("kind", "checkpoint"), [("local", "CHECKPOINT"), ("spark", "'/my checkpoints/a'")], ids=str
)
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, ""),
        ({"partitions": 3}, " --partitions 3"),
        ({"component": "count", "parallelism": 4}, " --component count --parallelism 4"),
        ({"component": "count it"}, " --component 'count it' --parallelism N"),
        (
            {"parallelism": {"count": 4}, "partitions": 0},
            " --component COMPONENT --parallelism N --partitions N",
        ),
    ],
    ids=str,
)
def test_rebalance_is_refused_with_the_command_that_does_it(kind, checkpoint, given, options):
    with LocalCluster() as cluster, pytest.raises(MisuseError, match="cannot be rebalanced") as refused:
        running_by(kind, cluster).rebalance(**given)
    assert f"`python -m acktree rebalance {checkpoint}{options}`" in refused.value.fix


@pytest.mark.parametrize("kind", ["local", "spark"])
def test_rebalance_with_arguments_of_storm_is_an_error_of_acktree(kind):
    with LocalCluster() as cluster:
        running = running_by(kind, cluster)
        with pytest.raises(ConfigError, match="rebalance has no argument 'wait_secs'"):
            running.rebalance(wait_secs=0)
        with pytest.raises(MisuseError, match="cannot be rebalanced"):
            running.rebalance({"count": 4})
