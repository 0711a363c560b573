"""Orders of operators that the driver gives itself: a smaller share of traces while there are very many."""

from __future__ import annotations

from acktree.driver.operator_orders import Watch
from acktree.traces.pace import LOOK_SECS, MOST_PER_SEC
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import IN_MEMORY, TraceStore
from tests.unit.ui.driver_without_spark import started

PER_LOOK = round(MOST_PER_SEC * LOOK_SECS)


def test_a_share_that_records_very_many_messages_is_lowered_for_levels_and_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    with started(tmp_path / "cp") as running:
        plan = running.run.plan
    sent = []
    store = TraceStore(IN_MEMORY)
    traces = TraceRecorder(store, 0.001, plan.run_salt, is_threaded=False)
    watch = Watch(plan, traces, sent.append)
    watch.keep_pace(1000.0)
    store.add_messages(
        [(root, "numbers", 1, "default", None, 1, None, root, None) for root in range(3 * PER_LOOK)]
    )
    watch.keep_pace(1000.0 + LOOK_SECS)
    assert [order.trace_rate for order in sent] == [0.00025]
    assert traces.rate == 0.00025
    watch.set_debug(on=True, component=None, percent=50)
    assert (watch.order.trace_rate, watch.order.debug) == (0.00025, {"": 0.5}), "another order keeps it"
    for looks in (2, 3, 4):
        watch.keep_pace(1000.0 + looks * LOOK_SECS)
    assert [order.trace_rate for order in sent] == [0.00025, 0.00025, 0.0005, 0.001]
    assert (traces.rate, watch.order.debug) == (0.001, {"": 0.5})
    watch.set_rate(1.0)
    watch.keep_pace(2000.0)
    watch.keep_pace(3000.0)
    assert (traces.rate, len(sent)) == (1.0, 5)
