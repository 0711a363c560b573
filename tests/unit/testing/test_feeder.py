"""The feeder emits what is fed and records verdicts, for all copies together."""

from __future__ import annotations

import copy

import pytest

from acktree import Config, Retry
from acktree.errors import MisuseError, TopologyError
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.bolts.bolt_harness import Calls, bench, in_a_row


def test_copies_share_what_is_fed_and_their_verdicts():
    def build(builder):
        builder.set_spout("several", feeder, parallelism=3)
        builder.set_bolt("b", Calls(lambda bolt, tup, collector: tup["value"])).global_grouping("several")

    feeder = FeederSpout(["value"])
    with bench(Calls(print), build=build) as running:
        for n in range(9):
            feeder.feed([n], message_id=n)
        running.cluster.advance()
        assert sorted(feeder.acked) == [*range(9)]
        assert sorted(running.tuples("b")) == [*range(9)]
    twin = copy.deepcopy(feeder)
    assert twin.acked is feeder.acked
    assert twin is not feeder


def test_what_does_not_fit_is_refused_where_it_is_fed():
    feeder = FeederSpout({"default": ["a", "b"], "side": []})
    for values, stream in (([1], "default"), ([1, 2, 3], "default"), ([1], "side"), ([1, 2], "nowhere")):
        with pytest.raises(MisuseError, match="fields by stream: "):
            feeder.feed(values, stream=stream)
    feeder.feed([1, 2])
    feeder.feed([], stream="side")
    with pytest.raises(TopologyError):
        FeederSpout("value")


def test_what_is_fed_may_be_changed_afterwards():
    with bench(Calls(lambda bolt, tup, collector: tup["value"])) as running:
        values = [1]
        running.feeder.feed(values, message_id=1)
        values[0] = 2
        running.cluster.advance()
        assert running.tuples("b0") == [1]


def test_after_the_end_nothing_can_be_fed():
    with bench(Calls(lambda bolt, tup, collector: None)) as running:
        running.feeder.feed([1], message_id=1)
        running.feeder.end()
        with pytest.raises(MisuseError, match="after end"):
            running.feeder.feed([2])
        running.cluster.advance()
        assert running.running.has_ended
        assert running.acked == [1]


def test_verdicts_are_recorded_in_the_order_of_their_delivery():
    def odd_ones(bolt, tup, collector):
        if tup["value"] % 2:
            raise ValueError(tup["value"])

    with bench(Calls(odd_ones), config=Config(message_timeout_secs=1)) as running:
        for n in range(4):
            running.feed(n)
        assert running.acked == [0, 2]
        assert [(n, failure.reason) for n, failure in running.feeder.failed] == [
            (1, "ValueError: 1"),
            (3, "ValueError: 3"),
        ]


def test_a_label_is_fed_with_its_message():
    feeder = FeederSpout(["value"])
    with LocalCluster() as cluster:
        running = cluster.submit(in_a_row(feeder, Calls(lambda *_: 1 / 0), retry=Retry(max_attempts=1)))
        feeder.feed([1], message_id=1, label="order-17")
        cluster.advance()
        assert [letter.label for letter in running.dead_letters] == ["order-17"]
