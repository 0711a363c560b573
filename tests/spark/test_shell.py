"""Spouts and bolts in other languages, on Spark: workers, children and the driver are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, Retry, TopologyBuilder, submit
from acktree.multilang import ShellBolt, ShellSpout
from acktree.testing import FeederSpout
from tests.services import test_storm_multilang as of_storm
from tests.services.test_storm_multilang import resources  # noqa: F401  # a fixture
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


SPLITTERS = {
    "python": ([sys.executable, "split.py"], of_storm.SPLIT_PY),
    "node": (["node", "split.js"], of_storm.SPLIT_JS.replace("LATER", "false")),
    "node, later": (["node", "later.js"], of_storm.SPLIT_JS.replace("LATER", "true")),
}
"""Programs on Storm's own libraries that split sentences."""


TEXTS = {
    "sentences.js": of_storm.SENTENCES_JS,
    "spout.py": of_storm.TESTER_SPOUT,
    "metrics.py": of_storm.METRICS_BOLT,
    "bolt.py": of_storm.TESTER_BOLT,
    "bolt.js": of_storm.TESTER_BOLT_JS,
    **{command[-1]: text for command, text in SPLITTERS.values()},
}
NEEDED = ("go", "node", "perl")


def shells_of_storm(feeder: FeederSpout, folder: Path):
    """Two spouts of Storm's examples with their bolts, and a bolt that acks three of four tuples."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    go = [str(shutil.which("go")), "build", "-o", str(folder / "split"), str(EXAMPLES / "split.go")]
    subprocess.run(go, check=True)
    shutil.copy(EXAMPLES / "split.pl", folder)
    builder = TopologyBuilder("storm")
    builder.set_spout("sentences", ShellSpout(["node", "sentences.js"], ["sentence"], resources=folder))
    for name, (command, _) in SPLITTERS.items():
        bolt = ShellBolt(command, ["word"], resources=folder, linger_secs=60 if "later" in name else 0)
        builder.set_bolt(name, bolt).shuffle_grouping("sentences")
    for name, command in {"go": ["./split"], "perl": ["perl", "split.pl"]}.items():
        bolt = ShellBolt(command, ["word", "sentences"], resources=folder)
        builder.set_bolt(name, bolt).shuffle_grouping("sentences")
    builder.set_spout("spout", ShellSpout([sys.executable, "spout.py"], ["word"], resources=folder))
    metrics = ShellBolt([sys.executable, "metrics.py"], ["word"], resources=folder)
    builder.set_bolt("metrics", metrics).shuffle_grouping("spout")
    builder.set_spout("words", feeder, message_timeout_secs=5)
    for name, (command, *_) in of_storm.TESTERS.items():
        tester = ShellBolt(command, ["word"], resources=folder)
        builder.set_bolt(f"tester in {name}", tester).shuffle_grouping("words")
    return builder.create_topology()


@pytest.mark.skipif(
    not EXAMPLES.is_dir() or not all(map(shutil.which, NEEDED)),
    reason="a language or the examples are not here",
)
def test_programs_on_storms_own_libraries_and_in_go_and_perl_serve_micro_batches(
    spark: SparkSession,
    tmp_path: Path,
    resources: Path,  # noqa: F811  # the fixture
) -> None:
    feeder = FeederSpout(["word"])
    topology = shells_of_storm(feeder, resources)
    words = [f"word {n}" for n in range(8)]
    for word in words:
        feeder.feed([word], message_id=word)
    config = Config(partitions=2, debug=True)
    with (
        tuples_logged() as logged,
        submit(topology, checkpoint=tmp_path / "c", spark=spark, config=config) as running,
    ):
        while running.stats()["sentences"].total.acked < 4 or len(feeder.acked) + len(feeder.failed) < 8:
            assert not running.await_termination(0.1)
        assert running.await_idle(120)
        stats = running.stats()
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for (name, _, values), n in logged.items():
        said[name][eval(values)[0]] += n
    for name in (*SPLITTERS, "go", "perl"):
        assert said[name] == dict.fromkeys(["the", "cow", "jumped"], 4), name
    assert said["metrics"] == dict.fromkeys(["spout initializing", "nathan", "mike", "bertels人"], 1)
    assert stats["spout"].metrics["my-custom-shellspout-metric"].count == 3
    assert stats["metrics"].metrics["my-custom-shell-metric"].count == 4
    acked = [word for n, word in enumerate(words, 1) if n % 4]
    assert sorted(feeder.acked) == acked
    assert {word: failure.kind.name for word, failure in feeder.failed} == {
        "word 3": "TIMED_OUT",
        "word 7": "TIMED_OUT",
    }
    for name, (*_, first) in of_storm.TESTERS.items():
        expected = [*first, *(f"{word}lalala" for word in acked)]
        assert said[f"tester in {name}"] == dict.fromkeys(expected, 1)


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
