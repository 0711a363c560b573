"""Counts of all runs and the history, though the driver is killed again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, submit
from acktree.ui.client import find
from acktree.ui.stopped import history_of
from tests.spark.driver import topology_over
from tests.spark.test_crashes import ROOT, noted
from tests.spark.test_running import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("KILLS", "3"))
"""How often the driver is killed: ``KILLS=10 pytest --long=windows`` for a longer run."""
BEFORE_A_KILL = 500
"""More messages than a run acks before it is killed: a spout has 300 open."""


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory, monkeypatch):
    """Sockets and entries in a folder of the test's own; drivers in other processes inherit it."""
    folder = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


def killed_after(acked: int, folder: Path, count: int) -> None:
    """Run the driver in a process group of its own, and kill all of it after a number of acks."""
    command = [sys.executable, "-m", "tests.spark.driver", "position", str(folder), str(count)]
    with (folder / "driver.log").open("a") as log:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
        try:
            wait_until(lambda: driver.poll() is not None or len(noted(folder, "acked")) >= acked, secs=200)
            assert driver.poll() is None, (folder / "driver.log").read_text()[-2000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def test_after_kills_of_the_driver_all_time_has_each_message_once_and_the_history_has_every_run(
    spark: SparkSession, tmp_path: Path, *, thorough: bool
) -> None:
    kills = KILLS if thorough else 2
    count = BEFORE_A_KILL * kills
    for kill in range(1, kills + 1):
        at_least = len(noted(tmp_path, "acked")) + 1  # each run gets so far that it acks
        killed_after(max(at_least, kill * count // (kills + 1)), tmp_path, count)
    topology = topology_over("position", tmp_path, count)
    checkpoint = tmp_path / "checkpoint"
    config = Config(max_spout_pending=300)
    with submit(topology, checkpoint=checkpoint, spark=spark, config=config) as running:
        before = find(str(checkpoint)).door.get("history")["points"]
        assert running.await_termination(200)
        stats = running.stats()
    assert set(noted(tmp_path, "acked")) == set(range(count))

    found = find(str(checkpoint))
    snapshot = found.last_snapshot()
    assert snapshot is not None
    assert snapshot.run == kills + 1
    whole, own = (snapshot.windows[window].stats for window in (":all-time", ":run"))
    assert own.components == stats.components
    numbers = whole["numbers"].total
    assert (numbers.emitted, numbers.acked, numbers.failed, numbers.timed_out) == (count, count, 0, 0)
    assert whole["numbers"].streams["default"].acked == count
    for bolt in ("key", "tally", "notes"):
        assert whole[bolt].total.executed == count, bolt
        assert own[bolt].total.executed < count
    # The topology ran for less than a day: that window goes back over all runs.
    day = snapshot.windows["86400"].stats["numbers"].total
    assert own["numbers"].total.acked < day.acked <= count

    with history_of(found) as store:
        points = store.points(limit=10_000)
    assert {point.run for point in points} == set(range(1, kills + 2))
    assert {point["run"] for point in before} >= set(range(1, kills + 1))
    counts = [point.counts for point in points]
    assert counts == sorted(counts)  # what was counted is never taken back
    assert points[-1].counts == (count, count, 0, 0)
