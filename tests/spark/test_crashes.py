"""What was acked stays acked, and everything else gets its verdict: after kill -9 and after a polite stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from acktree import BasicBolt, Config, IterableSpout, TopologyBuilder, submit
from tests.spark.driver import topology_over
from tests.spark.test_running import wait_until
from tests.spark.topologies import Notebook, Tally, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1500
ROOT = Path(__file__).parents[2]


def noted(folder: Path, verdict: str) -> list[int]:
    file = folder / "noted"
    lines = file.read_text().splitlines() if file.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(verdict + " ")]


def killed_in_the_middle(spout: str, folder: Path) -> None:
    """Run the driver, and kill it alone when a third is acked: its JVM and workers go by themselves."""
    command = [sys.executable, "-m", "tests.spark.driver", spout, str(folder), str(COUNT)]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
        try:
            wait_until(
                lambda: driver.poll() is not None or len(noted(folder, "acked")) > COUNT // 3, secs=200
            )
            assert driver.poll() is None, (folder / "driver.log").read_text()[-2000:]
            driver.kill()
            driver.wait()
            deadline = time.monotonic() + 120
            while _group_is_alive(driver.pid):
                assert time.monotonic() < deadline, "the JVM outlived its driver"
                time.sleep(0.1)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def stopped_in_the_middle(spout: str, folder: Path) -> None:
    """Run in a process of its own; its ``with`` block is left when a third is acked."""
    topology = topology_over(spout, folder, COUNT)
    config = Config(max_spout_pending=300)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with submit(topology, checkpoint=folder / "checkpoint", spark=SparkSession.active(), config=config):
        wait_until(lambda: len(noted(folder, "acked")) > COUNT // 3, secs=200)


def run_to_the_end(spark: SparkSession, spout: str, folder: Path, *, emptied: bool = False) -> None:
    """Submit again on the same checkpoint; a queue never ends, so it is watched."""
    config = Config(max_spout_pending=300)
    topology = topology_over(spout, folder, COUNT)
    with submit(topology, checkpoint=folder / "checkpoint", spark=spark, config=config) as running:
        if emptied:
            wait_until(lambda: not list((folder / "queue").iterdir()), secs=200)
            assert running.await_idle(120)
        else:
            assert running.await_termination(200)


def a_position_spout_loses_nothing_and_counts_exactly(spark: SparkSession, folder: Path) -> None:
    """What is left in a folder goes on to the end."""
    before = set(noted(folder, "acked"))
    assert 0 < len(before) < COUNT
    run_to_the_end(spark, "position", folder)
    assert set(noted(folder, "acked")) == set(range(COUNT))
    assert noted(folder, "failed") == []
    # Each number was counted exactly once in what is remembered: a key's highest count is how many it had.
    highest: Counter[str] = Counter()
    for key, count in notes(folder / "notes", "notes"):
        highest[key] = max(highest[key], int(count))
    assert highest == {f"key {key}": COUNT // 10 for key in range(10)}


def a_queue_brings_back_what_was_open_and_nothing_else(spark: SparkSession, folder: Path) -> None:
    """The same."""
    # The queue itself is asked: a note of the spout's may be one ahead of what it did before it was killed.
    before = set(range(COUNT)) - {int(file.name) for file in (folder / "queue").iterdir()}
    delivered_before = len(noted(folder, "delivered"))
    assert 0 < len(before) < COUNT
    run_to_the_end(spark, "queue", folder, emptied=True)
    delivered_again = set(noted(folder, "delivered")[delivered_before:])
    assert not delivered_again & before
    assert set(noted(folder, "acked")) == set(range(COUNT))
    highest: Counter[str] = Counter()
    for key, count in notes(folder / "notes", "notes"):
        highest[key] = max(highest[key], int(count))
    assert all(highest[f"key {key}"] >= COUNT // 10 for key in range(10)), highest


# After kill -9: test_when_things_break.py.
def test_after_a_polite_stop_a_spout_that_replays_by_position_loses_nothing_and_its_counts_are_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    stopped_in_the_middle("position", tmp_path)
    a_position_spout_loses_nothing_and_counts_exactly(spark, tmp_path)


def test_after_a_polite_stop_a_queue_is_not_asked_again_for_what_was_acked(
    spark: SparkSession, tmp_path: Path
) -> None:
    stopped_in_the_middle("queue", tmp_path)
    a_queue_brings_back_what_was_open_and_nothing_else(spark, tmp_path)


class KillsItsWorkerOnce(BasicBolt):
    """Kills the process it runs in when it first sees a certain number."""

    outputs = ["key"]

    def __init__(self, number: int, mark: Path):
        self.number, self.mark = number, mark

    def execute(self, tup, collector):
        if tup["n"] == self.number and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit([f"key {tup['n'] % 10}"])


def test_a_killed_worker_costs_a_retry_of_its_spark_task_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("killer")
    builder.set_spout("numbers", IterableSpout(range(2000), ["n"]))
    builder.set_bolt("killer", KillsItsWorkerOnce(777, tmp_path / "mark"), parallelism=2).shuffle_grouping(
        "numbers"
    )
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("killer", ["key"])
    builder.set_bolt("notes", Notebook(tmp_path), parallelism=2).fields_grouping("tally", ["key"])
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        assert running.await_termination(120)
        told_of = running.stats()["numbers"].total
        assert (told_of.acked, told_of.failed, told_of.timed_out) == (2000, 0, 0)
        assert running.stats().workers_lost == 1
    assert (tmp_path / "mark").exists()
    counts = [(key, int(count)) for key, count in notes(tmp_path, "notes")]
    assert Counter(counts) == Counter({(f"key {key}", n): 1 for key in range(10) for n in range(1, 201)})
