"""What each task holds, the age of the oldest, and of which messages, beside a dict that holds the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Bolt, Config, TopologyBuilder
from acktree.core.state.store import MemoryStore
from acktree.tasks.bolts import held_tuples, oldest_held
from acktree.tasks.bolts.oldest_held import HeldOpen, OldestHeld
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn

TASK_OF = {}  # key -> task, of all copies of the bolt in this process


class Keeps(Bolt):
    """Keeps a tuple by its key until another of that key comes; then it acks or fails both."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept, self.task_id = collector, {}, context.task_id

    def execute(self, tup):
        TASK_OF[tup["key"]] = self.task_id
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


@settings(max_examples=drawn(60))
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


def holders(running):
    """Message id -> the tasks that hold it, and for how long."""
    messages = {
        each.root: each.message_id for task in running._tasks.values() for each in task.oldest_open(99)
    }
    found = running._results.holders.of(frozenset(messages), running.now_ms)
    return {
        messages[root]: [(each.task_id, each.held_secs) for each in those] for root, those in found.items()
    }


MOST = 3


@settings(max_examples=drawn(60))
@given(steps, st.sampled_from([0, 2, 256]), st.booleans())
def test_each_task_names_the_messages_of_its_oldest_tuples(script, searched, is_upgraded):
    """Also where the table was written by a release that noted none of them."""
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["key", "fails"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", Keeps(), parallelism=2).fields_grouping("source", ["key"])
    config = Config(enable_message_timeouts=False)
    kept, number = {}, 0  # key -> the message, and the clock that brought it
    with pytest.MonkeyPatch.context() as patch, LocalCluster() as cluster:
        patch.setattr(held_tuples, "MOST_SEARCHED", searched)
        patch.setattr(oldest_held, "MOST_TUPLES", MOST)
        running = cluster.submit(builder.create_topology(), config=config)
        for batch, secs in script:
            for key, fails in batch:
                number += 1
                feeder.feed([key, fails], message_id=number)
                if kept.pop(key, None) is None:
                    kept[key] = number, running.now_ms
            cluster.advance()
            cluster.advance(secs)
            oldest = {}
            for key, (message, came_ms) in kept.items():
                mine = [(TASK_OF[key], (running.now_ms - came_ms) / 1000)]
                if sum(each[0][0] == mine[0][0] for each in oldest.values()) < MOST:
                    oldest[message] = mine
            assert holders(running) == oldest
            for store in running._levels._stores.values() if is_upgraded else ():
                for name in [name for name in store.blobs if name.endswith("held/oldest-open")]:
                    del store.blobs[name]


class KeepsAll(Bolt):
    """Acks all but one message, and keeps all tuples."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, []

    def execute(self, tup):
        self.kept.append(tup)
        if tup["n"] != 700:
            self.collector.ack(tup)


def test_the_one_open_tuple_among_many_that_are_kept_and_acked_is_found():
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["n"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", KeepsAll()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(enable_message_timeouts=False))
        for n in range(1000):
            feeder.feed([n], message_id=n)
            if n % 100 == 99:
                cluster.advance()
        cluster.advance(7)
        ((message, ((_, secs),)),) = holders(running).items()
        assert (message, running.stats()["keeps"].held) == (700, 1000)
        assert secs >= 7


class KeepsOpen(Bolt):
    """Keeps each tuple, acks none."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.kept = []

    def execute(self, tup):
        self.kept.append(tup)


@pytest.mark.parametrize("searched", [0, 256])
def test_tuples_of_messages_that_have_timed_out_take_no_place_of_open_ones(monkeypatch, searched):
    monkeypatch.setattr(held_tuples, "MOST_SEARCHED", searched)
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["n"])
    builder.set_spout("source", feeder, message_timeout_secs=10)
    builder.set_bolt("keeps", KeepsOpen()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(message_timeout_secs=5))
        for begin in (0, 100, 200):  # each time twice as many as there are places
            for n in range(begin, begin + 2 * oldest_held.MOST_TUPLES):
                feeder.feed([n], message_id=n)
            cluster.advance(1)
            assert [*holders(running)] == [*range(begin, begin + oldest_held.MOST_TUPLES)]
            cluster.advance(30)
            assert not holders(running)


class Gathers(Bolt):
    """Anchors one tuple to all that it has got, and then acks these."""

    outputs = ["sum"]
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, []

    def execute(self, tup):
        self.kept.append(tup)
        if len(self.kept) == 50:
            self.collector.emit([sum(each["n"] for each in self.kept)], anchors=self.kept)
            for each in self.kept:
                self.collector.ack(each)
            self.kept = []


def test_of_a_tuple_that_belongs_to_many_messages_ten_are_named():
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["n"])
    builder.set_spout("source", feeder)
    builder.set_bolt("gathers", Gathers()).global_grouping("source")
    builder.set_bolt("keeps", KeepsOpen()).global_grouping("gathers")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(enable_message_timeouts=False))
        for n in range(50):
            feeder.feed([n], message_id=n)
        cluster.advance()
        assert len(holders(running)) == oldest_held.MOST_ROOTS


def never(_):
    return False


class Table:
    """Held tuples by name, beside which the oldest are found again and again by looking at all of them."""

    def __init__(self):
        self.came_ms, self.acked, self.end = {}, set(), 0

    def open_under(self, name):
        is_open = name in self.came_ms and name not in self.acked
        return HeldOpen(self.came_ms[name], (name,)) if is_open else None

    def found(self, late_ms):
        """The oldest of all, and the oldest that are not late."""
        names = [name for name in sorted(self.came_ms) if name not in self.acked]
        in_time = [name for name in names if self.came_ms[name] >= late_ms]
        return sorted({*names[:MOST], *in_time[:MOST]})


micro_batches = st.lists(
    st.tuples(
        st.integers(0, 8), st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)), st.integers(0, 3)
    ),
    max_size=20,
)


@settings(max_examples=drawn(300))
@given(micro_batches, st.booleans(), st.sampled_from([1, 5, 4096]))
def test_the_oldest_and_the_oldest_in_time_are_found_beside_any_number_of_late_ones(
    script, is_searched, passed
):
    table, store, now_ms = Table(), MemoryStore(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oldest_held, "MOST_TUPLES", MOST)
        patch.setattr(oldest_held, "_MOST_PASSED", passed)
        for new, released, acked, later_ms in script:
            for name in range(table.end, table.end + new):
                table.came_ms[name] = now_ms
            table.end += new
            touched = {name for name in (*released, *acked) if name in table.came_ms}
            table.acked.update(touched.intersection(acked))
            for name in touched.intersection(released):
                del table.came_ms[name]
            now_ms += later_ms
            late_ms = now_ms - 4
            first = min(table.came_ms, default=table.end)

            def is_late(name, late_ms=late_ms):
                return table.came_ms.get(name, -1) < late_ms

            oldest = OldestHeld(store, table.open_under, is_late)
            for _ in range(table.end + 1 if passed < table.end else 1):  # it goes on where it stopped
                if is_searched:
                    found = oldest.searched(table.came_ms)
                else:
                    found = oldest.noted(first, table.end, touched)
            assert [each.roots[0] for each in found] == table.found(late_ms)


def test_what_an_earlier_release_acked_meanwhile_is_dropped_from_the_note():
    store, table = MemoryStore(), {name: HeldOpen(name, (name,)) for name in range(40)}
    assert len(OldestHeld(store, table.get, never).noted(0, 40, ())) == 10
    for name in range(12):
        del table[name]  # its note stays as it is
    found = OldestHeld(store, table.get, never).noted(12, 40, ())
    assert [each.roots for each in found] == [(name,) for name in range(12, 22)]


@pytest.mark.parametrize("searched", [0, 256])
def test_where_nothing_is_held_no_message_is_looked_for(searched):
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["key", "fails"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", Keeps()).shuffle_grouping("source")
    with pytest.MonkeyPatch.context() as patch, LocalCluster() as cluster:
        patch.setattr(held_tuples, "MOST_SEARCHED", searched)
        asked = []
        for name in ("noted", "searched"):
            patch.setattr(OldestHeld, name, lambda *given, name=name: asked.append(name) or ())
        running = cluster.submit(builder.create_topology())
        for n in range(4):
            feeder.feed([1, False], message_id=n)
            cluster.advance()
        assert feeder.acked == [0, 1, 2, 3]
        assert asked == ["searched" if searched else "noted"] * 2  # after the first, and the third
        assert running.stats()["keeps"].held == 0


def test_a_bolt_that_remembers_nothing_holds_none():
    builder, feeder = TopologyBuilder("holds"), FeederSpout(["key", "fails"])
    builder.set_spout("source", feeder)
    builder.set_bolt("keeps", Keeps()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        assert running.stats()["keeps"].held is None
        assert running.stats()["source"].held is None
