"""On a real standalone cluster whose executors do not have acktree installed: all verdicts, whatever dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.standalone import Standalone, standalone
from tests.spark.test_crashes import noted
from tests.spark.test_running import wait_until
from tests.spark.topologies import notes

COUNT = 1000
DRIVER = Path(__file__).with_name("standalone_driver.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def test_code_reaches_executors_that_lack_it_and_a_killed_executor_costs_no_verdict(
    cluster: Standalone, tmp_path: Path
) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": str(cluster.python), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, str(DRIVER), cluster.url, str(tmp_path), str(COUNT)]
    with (tmp_path / "out").open("w") as out, (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=log)
        try:
            wait_until(
                lambda: driver.poll() is not None or len(noted(tmp_path, "acked")) > COUNT // 3, secs=200
            )
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:] + cluster.logs()
            first = [cluster.executors(worker) for worker in (0, 1)]
            assert [len(pids) for pids in first] == [1, 1], "both workers have a part of it"
            cluster.kill_executor(0)
            assert driver.wait(200) == 0, (tmp_path / "log").read_text()[-3000:] + cluster.logs()
        finally:
            driver.kill()
            driver.wait()
    verdicts = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert verdicts == {"acked": COUNT, "failed": 0, "timed_out": 0}
    assert Counter(noted(tmp_path, "acked")) == Counter(range(COUNT))
    highest: Counter[str] = Counter()
    for key, count in notes(tmp_path / "notes", "notes"):
        highest[key] = max(highest[key], int(count))
    assert highest == {f"key {key}": COUNT // 10 for key in range(10)}
    origins = (tmp_path / "notes" / "origins").read_text().splitlines()
    # Below the executor's own working folder, to which Spark brought it: not where the driver has it.
    assert all(origin.startswith("./acktree-code-") for origin in origins), origins
