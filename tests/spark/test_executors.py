"""Executors in JVMs of their own: one is killed in mid-batch, and its work is done by others."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.test_crashes import ROOT, noted
from tests.spark.topologies import notes

COUNT = 600


@pytest.mark.parametrize("stage", ["first", "last"])
def test_a_killed_executor_costs_its_part_of_the_micro_batch_again_and_nothing_else(
    stage: str, tmp_path: Path
) -> None:
    """In the last stage Spark would end the query, if it were not told that parts may run again alone."""
    command = [sys.executable, "-m", "tests.spark.cluster_driver", str(tmp_path), str(COUNT), stage]
    with (tmp_path / "driver.log").open("w") as log:
        run = subprocess.run(command, cwd=ROOT, check=False, stdout=log, stderr=log, timeout=560)
    assert run.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    executor = int((tmp_path / "killed").read_text())
    assert not Path(f"/proc/{executor}").exists()
    assert sorted(noted(tmp_path, "acked")) == list(range(COUNT))
    assert noted(tmp_path, "failed") == []
    # What is remembered holds each number once; what was written outside may be there twice.
    highest: Counter[str] = Counter()
    for key, count in notes(tmp_path / "notes", "notes"):
        highest[key] = max(highest[key], int(count))
    assert highest == {f"key {key}": COUNT // 10 for key in range(10)}
