"""A backlog of a DataFrame's rows with a ``Retry``, larger than what the driver may collect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 50_000
"""Of 1 KB each, in one micro-batch."""


@pytest.mark.parametrize(
    "where",
    [("--master", "local[2,4]"), ("--master", "local-cluster[1,2,1024]", "--apart")],
    ids=["one machine", "apart"],
)
def test_a_backlog_larger_than_max_result_size_has_exact_verdicts_and_its_values_stay_off_the_driver(
    where: tuple[str, ...], tmp_path: Path
) -> None:
    # The benchmark compares every verdict, and the values of every dead letter, with what must be.
    command = [sys.executable, "-m", "benchmarks", "backlog", "--rows", str(ROWS), *where]
    command += ["--conf", "spark.driver.maxResultSize=16m"]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        timeout=560, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["acked"], found["failed"], found["dead_letters"]) == (ROWS - 50, 100, 50)
    assert found["bytes_to_driver_per_row"] < 100
