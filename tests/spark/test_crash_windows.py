"""Two rows of docs/crash-windows.md on Spark itself; all of them, without it, in tests/unit/spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.test_crashes import noted, run_to_the_end
from tests.spark.topologies import notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1500
ROOT = Path(__file__).parents[2]
WINDOWS = [
    ("position", "SINK"), ("queue", "SINK"), ("queue", "TOLD"),
    ("position", "SINK", "epochs"), ("queue", "TOLD", "epochs"),
]  # fmt: skip


@pytest.mark.parametrize("given", WINDOWS, ids="-".join)
def test_a_driver_that_dies_at_this_step_has_delivered_only_what_is_committed(
    spark: SparkSession, tmp_path: Path, given: tuple[str, ...]
) -> None:
    """By epochs, too: then the next run goes on by micro-batches."""
    spout, step, *epochs = given
    command = [sys.executable, "-m", "tests.spark.dying_driver", spout, str(tmp_path), str(COUNT), step]
    command += epochs
    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
        try:
            assert driver.wait(240) == 9, (tmp_path / "driver.log").read_text()[-2000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    before = noted(tmp_path, "acked")
    if step == "SINK":
        assert before == []  # its only verdicts were those of the micro-batch that was not committed
    else:
        assert len(before) > COUNT // 3
    run_to_the_end(spark, spout, tmp_path, emptied=spout == "queue")
    again = Counter(noted(tmp_path, "acked"))
    assert set(again) == set(range(COUNT))
    assert set(noted(tmp_path, "failed")) == set()
    if step == "SINK":
        # The queue brings the interrupted micro-batch's messages back as well, and none is counted twice.
        highest: Counter[str] = Counter()
        for key, count in notes(tmp_path / "notes", "notes"):
            highest[key] = max(highest[key], int(count))
        assert highest == {f"key {key}": COUNT // 10 for key in range(10)}
    if spout == "position":
        assert set(again.values()) == {1}
    else:
        assert all(again[number] == 1 for number in before)  # what was acked left the queue
