"""Spouts and bolts in other languages, on Spark: workers, children and the driver are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, Retry, TopologyBuilder, submit
from acktree.multilang import ShellBolt, ShellSpout
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit, tuples_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "multilang"
FOUR = ["the cow", "an apple a day", "four score", "naïve café"]


class KillsWorkerOnce(ShellBolt):
    """Kills its worker when a message says so for the first time: after the child was given the message."""

    def __init__(self, mark: Path) -> None:
        command = [sys.executable, "split.py", str(mark)]
        super().__init__(command, ["word", "sentences"], resources=EXAMPLES)
        self.flag = mark / "killed"

    def execute(self, tup):
        super().execute(tup)
        if tup["sentence"] == "kill the worker" and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def children(mark: Path) -> list[int]:
    """The child processes that have a mark among their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(mark).encode() in arguments and {b"split.py", b"sentences.pl"} & {*arguments}:
            found.append(int(file.parent.name))
    return found


def topology_of(source, mark: Path, retry: Retry | None = None):
    builder = TopologyBuilder("shells")
    builder.set_spout("source", source, retry=retry)
    builder.set_bolt("split", KillsWorkerOnce(mark)).shuffle_grouping("source")
    return builder.create_topology()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the children are found in /proc")
def test_a_child_serves_many_micro_batches_and_no_death_loses_a_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["sentence"])
    topology = topology_of(feeder, tmp_path, Retry(8, backoff_secs=(0.1, 0.1)))
    config = Config(partitions=2, debug=True)
    with (
        tuples_logged() as logged,
        submit(topology, checkpoint=tmp_path / "c", spark=spark, config=config) as running,
    ):
        for batch in range(4):
            for at, sentence in enumerate(FOUR):
                feeder.feed([sentence], message_id=4 * batch + at)
            await_commit(running, feeder)
        said = Counter(values for component, _, values in logged.elements() if component == "split")
        assert {eval(values)[1] for values in said} == {*range(1, 17)}  # one child counts over all workers
        (first,) = children(tmp_path)
        for sentence in [*FOUR, "kill the worker"]:
            feeder.feed([sentence], message_id=sentence)
        await_commit(running, feeder)
        assert running.await_idle(60)
        assert (tmp_path / "killed").exists()
        for kill in range(2):
            (child,) = children(tmp_path)
            assert child != first
            first = child
            for at in range(20):
                feeder.feed([FOUR[at % 4]], message_id=(kill, at))
            os.kill(child, signal.SIGKILL)
            await_commit(running, feeder)
            assert running.await_idle(60)
        assert len(children(tmp_path)) == 1
    assert not children(tmp_path)  # they end with the topology; the session goes on
    names = [*range(16), *FOUR, "kill the worker", *((kill, at) for kill in range(2) for at in range(20))]
    assert sorted(map(str, feeder.acked)) == sorted(map(str, names))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the children are found in /proc")
@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
def test_a_killed_driver_leaves_no_child(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.test_shell", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"4 acked\n"
        assert len(children(tmp_path)) == 2  # a spout's and a bolt's
        driver.kill()
    while children(tmp_path):
        pass


if __name__ == "__main__":
    place = Path(sys.argv[1])
    source = ShellSpout(["perl", "sentences.pl", str(place)], ["sentence"], resources=EXAMPLES)
    with submit(topology_of(source, place), checkpoint=place / "c", config=Config(partitions=2)) as handle:
        while handle.stats()["source"].total.acked < 4:
            handle.await_termination(0.1)
        sys.stdout.write("4 acked\n")
        sys.stdout.flush()
        handle.await_termination()
