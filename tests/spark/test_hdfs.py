"""A checkpoint on a real HDFS: another machine goes on with it, and nobody but the driver reads our part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from acktree import IterableSpout, Retry, TopologyBuilder, submit
from acktree.checkpoint.lease import Lease
from acktree.errors import CheckpointError, ConfigError
from acktree.spark.hadoop import HadoopFolder
from tests.services.hdfs import Hdfs, minicluster
from tests.spark.test_crashes import ROOT, noted
from tests.spark.test_running import wait_until
from tests.spark.topologies import notes

COUNT = 400


@pytest.fixture(scope="module")
def hdfs() -> Iterator[Hdfs]:
    try:
        minicluster()
    except OSError as error:
        pytest.skip(f"hadoop-client-minicluster cannot be fetched: {error}")
    started = Hdfs()
    yield started
    started.remove()


def driver(url: str, folder: Path, master: str) -> subprocess.Popen[bytes]:
    (folder / "copies").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.spark.hdfs_driver", url, str(folder), str(COUNT), master]
    with (folder / "out").open("ab") as out, (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=log)


@pytest.mark.timeout(3000)  # two drivers with two executors each, beside HDFS
def test_a_killed_driver_is_followed_by_one_that_has_nothing_but_the_url(hdfs: Hdfs, tmp_path: Path) -> None:
    url = f"{hdfs.url}/user/me/killed"
    first = driver(url, tmp_path, "local-cluster[2,1,1024]")
    try:
        wait_until(lambda: first.poll() is not None or len(noted(tmp_path, "acked")) > COUNT // 3, secs=1200)
        assert first.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    [copy] = (tmp_path / "copies").glob("acktree-checkpoint-*")
    (tmp_path / "copies").rename(tmp_path / "on another machine")
    second = driver(url, tmp_path, "local-cluster[2,1,1024]")
    try:
        assert second.wait(1200) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        second.kill()
        second.wait()
    verdicts = Counter(noted(tmp_path, "acked"))
    assert set(verdicts) == set(range(COUNT))
    assert not noted(tmp_path, "failed")
    assert max(verdicts.values()) <= 2, "delivered again at most once, for the one death"
    highest: Counter[str] = Counter()
    for key, count in notes(tmp_path / "notes", "notes"):
        highest[key] = max(highest[key], int(count))
    assert highest == {f"key {key}": COUNT // 10 for key in range(10)}, "each was counted once"
    assert (tmp_path / "notes" / "watched").exists()
    assert not (tmp_path / "notes" / "opened").exists(), "no worker opens anything of a working copy"
    assert not list((tmp_path / "copies").glob("acktree-checkpoint-*")), f"left behind, as {copy.name} was"
    last = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert (last["failed"], last["timed_out"]) == (0, 0)


def numbers(count: int = 20, **given: object):
    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", IterableSpout(range(count), ["n"]), **given)
    return builder.create_topology()


def test_a_second_driver_is_refused_and_foreign_files_are_reported(hdfs: Hdfs, spark, tmp_path) -> None:
    url = f"{hdfs.url}/user/me/held"
    remote = HadoopFolder.of_session(spark, url)
    remote.make("")
    held = Lease.take(remote, tmp_path)
    with pytest.raises(CheckpointError, match="another driver runs on this checkpoint"):
        submit(numbers(), checkpoint=url, spark=spark)
    with pytest.raises(ConfigError, match="has a Retry"):
        submit(numbers(retry=Retry(max_attempts=2)), checkpoint=url, spark=spark)
    with pytest.raises(ConfigError, match="finds no such file system"):
        submit(numbers(), checkpoint="nosuch://names/orders", spark=spark)
    held.release()
    with submit(numbers(), checkpoint=url, spark=spark) as running:
        assert running.checkpoint == url
        assert running.await_termination(200)
    with submit(numbers(), checkpoint=url, spark=spark) as running:
        assert not running.is_running, "it ended, and stays ended"


def test_a_namenode_that_goes_away_stops_the_topology_and_it_goes_on_afterwards(hdfs, spark, tmp_path):
    url = f"{hdfs.url}/user/me/gone"
    running = submit(numbers(10**6), checkpoint=url, spark=spark)
    wait_until(lambda: running.stats()["numbers"].total.acked > 0, secs=200)
    hdfs.stop_namenode()
    try:
        with pytest.raises(CheckpointError, match="file system failed") as raised:
            running.await_termination(250)
    finally:
        hdfs.start_namenode()
    assert "submit again" in raised.value.fix
    with again(numbers(10**6), url, spark) as running:
        wait_until(lambda: running.stats()["numbers"].total.acked > 0, secs=200)


def again(topology, url: str, spark):
    """As a supervisor does it. The process that holds the lease is this one, so it is free after its time."""
    running = []

    def is_taken() -> bool:
        try:
            running.append(submit(topology, checkpoint=url, spark=spark))
        except CheckpointError as error:
            if "another driver runs" not in error.what:
                raise
        return bool(running)

    wait_until(is_taken, secs=100)
    return running[0]
