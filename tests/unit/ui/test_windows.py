"""Windows of counters: numbers of the last seconds, from samples of counters that only grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree import IterableSpout, TopologyBuilder, bolt
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats
from acktree.ui.snapshot import Snapshot, Window
from acktree.ui.windows import Windows


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9)), max_size=60))
def test_a_window_holds_what_grew_since_its_oldest_sample_and_no_more(steps):
    windows, counters, now_ms = Windows([600], 0), Counters(), 0
    history = [(0, 0)]
    for pause_ms, n in steps:
        now_ms += pause_ms
        counters.add("spout", 1, "default", "emitted", n)
        windows.note(counters, now_ms)
        history.append((now_ms, counters.total("emitted")))
        grown, secs = windows.since(counters, 600, now_ms)
        begin_ms = round(now_ms - secs * 1000)
        before = [count for at_ms, count in history if at_ms == begin_ms]
        assert counters.total("emitted") - grown.total("emitted") in before
        assert secs <= 600 + 70  # between two samples: a twentieth, and the pause after it
        assert secs == now_ms / 1000 or secs >= 600


def test_a_counter_that_appears_later_is_counted_whole():
    windows, counters = Windows([10], 0), Counters()
    counters.add("a", 1, "default", "acked", 3)
    windows.note(counters, 5_000)
    counters.add("b", 2, "default", "acked", 4)
    grown, _ = windows.since(counters, 10, 16_000)
    assert grown.total("acked", component="b") == 4


def test_the_capacity_of_a_bolt_is_of_what_it_may_do_at_once():
    counters = Counters()
    counters.add_latency("call", 1, "source:default", "execute_ms", 80_000.0, 40)
    counters.add("call", 1, "source:default", "executed", 40)
    window = Window(10.0, Stats.of(counters, components=["call"]))
    for at_once, load in ((16, 0.5), (1, 8.0), (None, 8.0)):  # None: a driver that does not say
        about = {} if at_once is None else {"at_once": at_once}
        snapshot = Snapshot(
            topology="t", id="t-1-1", checkpoint="", status="ACTIVE", run=1, batch_id=0, taken_ms=0,
            began_ms=0, host="", pid=1, user="", version="", config={}, windows={"10": window},
            graph={"components": {"call": about}},
        )  # fmt: skip
        assert snapshot.capacity(window, "call") == snapshot.capacities(window, "call")[1] == load
        assert snapshot.capacity(window, "none") == 0


def test_a_topology_says_how_much_a_bolt_may_do_at_once():
    @bolt(outputs=[], max_concurrency=7)
    async def waits(tup):
        pass

    builder = TopologyBuilder("t")
    builder.set_spout("source", IterableSpout([1], outputs=["n"]))
    builder.set_bolt("waits", waits).shuffle_grouping("source")
    components = builder.create_topology().describe(1).data["components"]
    assert (components["waits"]["at_once"], components["source"]["at_once"]) == (7, 1)
