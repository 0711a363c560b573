"""A slow bolt lengthens nothing without end: micro-batches keep their time, and a spout waits for room."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, Spout, TopologyBuilder, submit
from acktree.checkpoint.inbox_files import Entry
from tests.spark.test_running import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 1000
"""``inbox_max_messages``."""
SLEEP_SECS = 0.004
INTERVAL_SECS = 1.0


class Endless(Spout):
    """Emits as often as it is asked."""

    outputs = ["n"]

    def __init__(self, *, tracked: bool):
        self.tracked = tracked

    def open(self, config, context, collector):
        self.collector, self.n = collector, 0

    def next_tuple(self):
        self.n += 1
        self.collector.emit([self.n], message_id=self.n if self.tracked else None)


class Sleepy(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        time.sleep(SLEEP_SECS)


@pytest.mark.parametrize("tracked", [False, True], ids=["untracked", "tracked"])
def test_micro_batches_keep_their_time_and_the_inbox_its_limit(
    spark: SparkSession, tmp_path: Path, *, tracked: bool
) -> None:
    builder = TopologyBuilder("sleepy")
    builder.set_spout("endless", Endless(tracked=tracked))
    builder.set_bolt("sleepy", Sleepy()).shuffle_grouping("endless")
    config = Config(inbox_max_messages=LIMIT, batch_interval_secs=INTERVAL_SECS)
    with submit(builder.create_topology(), checkpoint=tmp_path, spark=spark, config=config) as running:
        [thread] = running._run.threads.by_task.values()
        waiting: list[int] = []
        rows: dict[int, int] = {}
        batches: set[int] = set()

        def has_run_nine() -> bool:
            waiting.append(running._run.inbox._waiting + thread.task.buffered_count)
            batches.add(running._run.results.progress.batch_id)
            rows.update((entry.number, entry.rows) for entry in entries_in(tmp_path / "inbox"))
            return len(batches) >= 9

        wait_until(has_run_nine, secs=200)
        micro_batches = running._supervisor._query._query.recentProgress
    assert LIMIT // 2 <= max(waiting) <= LIMIT
    took = [each["durationMs"]["triggerExecution"] / 1000 for each in micro_batches]
    ends = [json.loads(each["sources"][0]["endOffset"])["chunk"] for each in micro_batches]
    slept = [sum(rows[n] for n in range(a + 1, b + 1)) * SLEEP_SECS for a, b in pairwise([-1, *ends])]
    # It takes about the interval, or twice what it takes beside the sleep where the machine is that slow.
    pairs = list(zip(took, slept, strict=True))[-4:]
    in_time = [
        secs <= 2.5 * max(INTERVAL_SECS, 2 * (secs - asleep))
        and asleep <= 2.5 * max(INTERVAL_SECS, secs - asleep)
        for secs, asleep in pairs
    ]
    assert sum(in_time) >= 2, pairs


def entries_in(inbox: Path) -> list[Entry]:
    return [entry for file in inbox.iterdir() if (entry := Entry.of_name(file.name)) is not None]
