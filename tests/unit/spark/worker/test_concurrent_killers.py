"""Of tuples that are executed at once, the one that kills, blocks or hangs is found. Without Spark."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from acktree import BasicBolt, Config, bolt
from acktree.core.tracking.verdicts import FailureCause
from tests.unit.tasks.bolts.bolt_harness import bench

pytestmark = pytest.mark.usefixtures("each_level_in_a_child")

QUICK = Config(execute_timeout_secs=0.3)


def fates(made: Any, values: range, config: Config | None = None) -> dict[int, FailureCause]:
    """Run values through a bolt; the causes of those that failed. All others are acked."""
    with bench(made, config=config) as running:
        for value in values:
            running.feeder.feed([value], message_id=value)
        running.cluster.advance()
        failed = {value: failure.cause for value, failure in running.failures.items()}
        assert sorted(running.acked) == [value for value in values if value not in failed]
        return failed


def test_a_coroutine_that_kills_its_process_is_found() -> None:
    @bolt(max_concurrency=10)
    async def kills(tup):
        await asyncio.sleep(0.001)
        if tup["value"] == 3:
            os._exit(9)
        await asyncio.sleep(0.001)

    assert fates(kills, range(20)) == {3: FailureCause.KILLED_WORKER}


def test_a_task_that_a_coroutine_has_started_and_that_kills_is_found() -> None:
    @bolt(max_concurrency=10)
    async def kills(tup):
        async def die():
            await asyncio.sleep(0.001)
            os._exit(9)

        await asyncio.sleep(0.001)
        if tup["value"] == 3:
            await asyncio.gather(die())

    assert fates(kills, range(8)) == {3: FailureCause.KILLED_WORKER}


def test_a_thread_that_kills_its_process_is_found() -> None:
    @bolt(threads=10)
    def kills(tup):
        time.sleep(0.001)
        if tup["value"] == 3:
            os._exit(9)
        time.sleep(0.001)

    assert fates(kills, range(8)) == {3: FailureCause.KILLED_WORKER}


def test_a_coroutine_that_blocks_the_loop_is_interrupted_and_no_other_fails() -> None:
    @bolt(max_concurrency=10)
    async def blocks(tup):
        await asyncio.sleep(0.01)
        if tup["value"] == 3:
            time.sleep(3600)  # noqa: ASYNC251  # the mistake
        await asyncio.sleep(0.01)

    assert fates(blocks, range(8), QUICK) == {3: FailureCause.HUNG}


def test_a_thread_that_hangs_with_the_memory_costs_its_process_and_fails_alone() -> None:
    class Hangs(BasicBolt):
        outputs = ()
        remembers = ("counts",)
        threads = 2

        def prepare(self, config, context):
            self.counts = {}

        def execute(self, tup, collector):
            self.counts["all"] = self.counts.get("all", 0) + 1
            if tup["value"] == 3:
                threading.Event().wait(30)

    assert fates(Hangs(), range(5), QUICK) == {3: FailureCause.HUNG}


def test_a_library_that_holds_the_interpreter_in_a_thread_is_found() -> None:
    @bolt(threads=2)
    def holds(tup):
        if tup["value"] == 1:
            sum(range(10**13))  # one call of C: no other thread runs meanwhile

    assert fates(holds, range(2), QUICK) == {1: FailureCause.HUNG}
