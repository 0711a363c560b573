"""What the driver does with the rows of a micro-batch that are not deltas."""

from __future__ import annotations

from types import SimpleNamespace

from acktree.config import Config
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats
from acktree.driver.batch import BatchResults, rows_by_kind, source_work_ms
from acktree.driver.logs.error_log import ErrorLog


def statistics(level: int, *counts: tuple[str, float, int], secs: float = 0.0) -> WireRow:
    """A row of statistics of a level: what the tuples of each bolt took in all, and how many; its time."""
    counters = Counters()
    for bolt, total_ms, count in counts:
        counters.add(bolt, 1, "s:default", "executed", count)
        counters.add_latency(bolt, 1, "s:default", "execute_ms", total_ms, count)
    counters.add_level_time(secs)
    return WireRow(0, SINK_LEVEL, Kind.STATISTICS, 0, level, 0, b"", counters.to_bytes())


def test_the_work_of_a_message_is_that_of_all_bolts_of_the_source_level_in_all_partitions():
    rows = [
        statistics(0, ("a", 100.0, 10), ("b", 50.0, 10)),
        statistics(0, ("a", 300.0, 10), ("b", 50.0, 10)),
    ]
    assert source_work_ms(rows_by_kind([*rows, statistics(1, ("c", 9000.0, 20))])) == 25.0


def test_the_time_of_a_level_is_that_of_its_slowest_partition_on_the_clock_and_phases_add_up():
    """The partitions of a level run at the same time."""
    topology = SimpleNamespace(components={})
    results = BatchResults(SimpleNamespace(topology=topology), None, ErrorLog(Config()))
    rows = [
        statistics(0, ("a", 100.0, 10), ("b", 50.0, 10), secs=0.2),
        statistics(0, ("a", 300.0, 10), secs=0.3),
        statistics(1, ("c", 28_000.0, 20), secs=9.0),
    ]
    for _ in range(2):
        results.note(rows_by_kind(rows), 0)
        results.note_phases({"admission": 5_000})
    found = Stats.of(results.counters()).acker
    assert found.phase_secs == {"admission": 0.01, "level_0": 0.6, "level_1": 18.0}
    results.times.keep(1)
    levels = {"level_0": 600.0, "level_1": 18_000.0}  # admission is Spark's, of the micro-batch before
    assert results.times.with_parts(1, {"addBatch": 1}) == {"addBatch": 1, **levels}


def test_a_source_level_without_bolts_is_no_work_and_one_without_messages_is_not_known():
    assert source_work_ms(rows_by_kind([statistics(0)])) == 0.0
    assert source_work_ms(rows_by_kind([statistics(1, ("c", 9000.0, 20))])) is None
