"""How many tuples each task holds, and the age of the oldest, beside a dict that holds the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Bolt, Config, TopologyBuilder
from acktree.tasks.bolts import held_tuples
from acktree.testing import FeederSpout, LocalCluster


class Keeps(Bolt):
    """Keeps a tuple by its key until another of that key comes; then it acks or fails both."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, {}

    def execute(self, tup):
        other = self.kept.pop(tup["key"], None)
        if other is None:
            self.kept[tup["key"]] = tup
            return
        for each in (other, tup):
            (self.collector.fail if tup["fails"] else self.collector.ack)(each)


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=8), st.sampled_from([0, 1, 7, 60])
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(steps, st.sampled_from([0, 2, 256]))
def test_each_task_says_what_it_holds_and_for_how_long(script, searched):
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["key", "fails"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", Keeps(), parallelism=2).fields_grouping("source", ["key"])
    config = Config(enable_message_timeouts=False)
    kept, ran, number = {}, set(), 0  # key -> the clock that brought it
    with pytest.MonkeyPatch.context() as patch, LocalCluster() as cluster:
        patch.setattr(held_tuples, "MOST_SEARCHED", searched)
        running = cluster.submit(builder.create_topology(), config=config)
        for batch, secs in script:
            for key, fails in batch:
                number += 1
                feeder.feed([key, fails], message_id=number)
                ran.add(key)
                if kept.pop(key, None) is None:
                    kept[key] = running.now_ms
            cluster.advance()
            held = running.stats()["keeps"]
            assert (held.held or 0) == len(kept) == sum(each.held or 0 for each in held.tasks.values())
            assert (held.held is None) == (not ran)
            ages = [(running.now_ms - came_ms) / 1000 for came_ms in kept.values()]
            assert held.oldest_held_secs == max(ages, default=None)
            cluster.advance(secs)
            ages = [(running.now_ms - came_ms) / 1000 for came_ms in kept.values()]
            assert running.stats()["keeps"].oldest_held_secs == max(ages, default=None)


def test_a_bolt_that_remembers_nothing_holds_none():
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["key", "fails"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", Keeps()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        assert running.stats()["keeps"].held is None
        assert running.stats()["source"].held is None
