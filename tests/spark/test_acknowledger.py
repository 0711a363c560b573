"""The Acknowledger on Spark: a killed driver's undelivered verdicts are delivered by the next one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import submit
from acktree.spark import submit as submitting
from acktree.spark.query import results
from tests.spark.dying_rows import COUNT, EVERY, topology_of
from tests.spark.test_running import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
WANTED = {("failed" if n % EVERY == 0 else "acked", str(n)) for n in range(COUNT)}


def with_numbers(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text("\n".join(json.dumps({"n": n}) for n in range(COUNT)))
    return folder


def noted(folder: Path) -> Counter[tuple[str, ...]]:
    file = folder / "noted"
    return (
        Counter(tuple(line.split()) for line in file.read_text().splitlines()) if file.exists() else Counter()
    )


def test_after_a_restart_every_verdict_that_a_killed_driver_left_is_delivered(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = with_numbers(tmp_path)
    command = [sys.executable, "-m", "tests.spark.dying_rows", str(folder), "BEFORE"]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
        try:
            assert driver.wait(240) == -signal.SIGKILL, (folder / "driver.log").read_text()[-2000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    assert not noted(folder)
    with submit(topology_of(spark, folder), checkpoint=folder / "checkpoint", spark=spark):
        wait_until(lambda: set(noted(folder)) == WANTED)
    assert noted(folder).total() == COUNT


def test_where_driver_and_workers_share_no_machine_the_ids_are_collected_in_parts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "_scratch_folder", lambda *_: None)
    monkeypatch.setattr(results, "COLLECTED_BYTES", 1000)
    folder = with_numbers(tmp_path)
    with submit(topology_of(spark, folder), checkpoint=folder / "checkpoint", spark=spark):
        wait_until(lambda: set(noted(folder)) == WANTED)
    assert noted(folder).total() == COUNT
