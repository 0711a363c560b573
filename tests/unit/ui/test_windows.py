"""Windows of counters: numbers of the last seconds, from samples of counters that only grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.stats.counters import Counters
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
