"""Metrics of users at Prometheus: one family for a name, one sample for a task, in base units."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from acktree.core.data.instruments import Instruments
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats
from acktree.core.stats.user_metrics import MetricTable
from acktree.ui.web.user_metrics import user_families


class _Families(Collector):
    def __init__(self, snapshots):
        self.snapshots = snapshots

    def collect(self):
        return user_families(self.snapshots)


def samples(table):
    stats = Stats.of(Counters(), metrics=table.metrics(now_ms=0))
    snapshot = SimpleNamespace(topology="words", stats=stats)
    registry = CollectorRegistry()
    registry.register(_Families([snapshot]))
    text = generate_latest(registry).decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) == len({family.name for family in families})
    return {
        (
            sample.name,
            sample.labels["component"],
            sample.labels["task"],
            sample.labels.get("le"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_kind_has_its_type_and_unit():
    instruments, table = Instruments(), MetricTable()
    instruments.counter("lines read").inc(3)
    instruments.meter("rate_total").mark(4)
    instruments.gauge("load", None).set(0.5)
    instruments.gauge("unset", None)
    for ms in (1.5, 1500):
        instruments.timer("took").update(ms)
    instruments.histogram("size").update(5)
    table.add(((("split", 3, name), grown) for name, grown in instruments.taken().items()), 0)
    found = samples(table)
    assert found["acktree_user_lines_read_total", "split", "3", None] == 3
    assert found["acktree_user_rate_total", "split", "3", None] == 4
    assert found["acktree_user_load", "split", "3", None] == 0.5
    assert not [name for name, *_ in found if "unset" in name]
    assert found["acktree_user_took_seconds_sum", "split", "3", None] == pytest.approx(1.5015)
    assert found["acktree_user_took_seconds_bucket", "split", "3", "+Inf"] == 2
    assert found["acktree_user_took_seconds_bucket", "split", "3", repr((1 << 20) / 1e6)] == 1
    assert found["acktree_user_size_bucket", "split", "3", "4.0"] == 0
    assert found["acktree_user_size_bucket", "split", "3", "8.0"] == 1


def test_one_name_of_two_kinds_and_two_names_that_become_one_are_no_clash():
    table = MetricTable()
    for component, task, names in (("split", 3, ("n", "a-b", "a.b")), ("count", 4, ("n",))):
        instruments = Instruments()
        for name in names:
            instruments.counter(name).inc(7) if component == "split" else instruments.gauge(name, None).set(1)
        table.add((((component, task, name), grown) for name, grown in instruments.taken().items()), 0)
    found = samples(table)
    assert found["acktree_user_n_counter_total", "split", "3", None] == 7
    assert found["acktree_user_n_gauge", "count", "4", None] == 1
    assert found["acktree_user_a_b_total", "split", "3", None] == 7
