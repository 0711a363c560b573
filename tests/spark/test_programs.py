"""Programs of Storm on Spark: streamparse's quickstart with a restart, public graphs, shells, Flux."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import (
    Config,
    FailureCause,
    TopologyBuilder,
    Verdict,
    flux,
    submit,
)
from acktree.multilang import ShellBolt, ShellSpout
from acktree.streamparse import Bolt, load
from acktree.streamparse.bootstrap import quickstart
from acktree.streamparse.testing import run_topology
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit, tuples_logged
from tests.unit.multilang.bench import EXAMPLES, Count
from tests.unit.pystorm import test_async as at_once
from tests.unit.streamparse import test_programs as programs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree import Topology

ROOT = Path(__file__).parents[2]
TWO = Config(partitions=2, debug=True)
needs_examples = pytest.mark.skipif(
    not EXAMPLES.is_dir() or shutil.which("node") is None, reason="node or the examples are not here"
)


def emitted(
    spark: SparkSession, folder: Path, topology: Topology, feeder: FeederSpout, *batches: list[list[object]]
) -> Counter[tuple[str, str]]:
    """What each component emits where the feeder is fed in these micro-batches. All must be acked."""
    with (
        tuples_logged() as logged,
        submit(topology, checkpoint=folder / "checkpoint", spark=spark, config=TWO) as running,
    ):
        given = 0
        for batch in batches:
            for values in batch:
                feeder.feed(values, message_id=given)
                given += 1
            await_commit(running, feeder)
        assert running.await_idle(120)
    assert sorted(feeder.acked) == [*range(given)]
    return Counter({(component, values): n for (component, _, values), n in logged.items()})


QUICKSTART = """
from acktree import Config, submit
from acktree.streamparse import load
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit, tuples_logged

WORDS = ["dog", "cat", "zebra", "elephant"] * 50
counted = []
for _ in "12":
    feeder = FeederSpout(["word"])
    loaded = load("topologies/wordcount.py", replace={"word_spout": feeder})
    with (
        tuples_logged() as logged,
        submit(loaded.topology, checkpoint="checkpoint", config=Config(partitions=2, debug=True)) as running,
    ):
        for at, word in enumerate(WORDS):
            feeder.feed([word], message_id=at)
        await_commit(running, feeder)
        assert running.await_idle(120)
    assert sorted(feeder.acked) == [*range(200)]
    highest = {}
    for component, _, values in logged:
        if component == "count_bolt":
            word, count = eval(values)
            highest[word] = max(count, highest.get(word, 0))
    counted.append(highest)
print(counted)
"""


def test_the_quickstart_counts_on_after_a_restart(tmp_path: Path) -> None:
    quickstart(str(tmp_path / "words"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", QUICKSTART],
        cwd=tmp_path / "words", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    first = {"dog": 500, "cat": 50, "zebra": 50, "elephant": 50}
    second = {word: 2 * count for word, count in first.items()}
    assert eval(done.stdout or "None") == [first, second], done.stderr[-3000:]


def test_each_mail_of_spamscope_comes_out_once(spark: SparkSession, tmp_path: Path) -> None:
    feeder = FeederSpout(["mail_path", "mail_server", "priority"])
    loaded = load(programs.SpamScope, replace={"mails": feeder})
    mails = [f"mail{n}" for n in range(12)]
    batches = [[[mail, "server", 1] for mail in part] for part in (mails[:6], [*mails[6:], "bad mail"])]
    found = emitted(spark, tmp_path, loaded.topology, feeder, *batches)
    assert {values: n for (component, values), n in found.items() if component == "debug"} == {
        repr((mail,)): 1 for mail in mails
    }


def verdicts(
    spark: SparkSession, folder: Path, topology: type[programs.Topology], words: list[str]
) -> FeederSpout:
    """Feed words in one micro-batch, one after another; returns the spout when each has its verdict."""
    feeder = FeederSpout(["word"])
    loaded = load(topology, replace={"words": feeder})
    config = Config(partitions=2, execute_timeout_secs=1)
    with submit(loaded.topology, checkpoint=folder / "checkpoint", spark=spark, config=config) as running:
        for at, word in enumerate(words):
            feeder.feed([word], message_id=at)
        assert running.await_idle(120)
    return feeder


def test_many_tuples_at_once_have_the_verdicts_and_reasons_that_they_have_in_a_local_cluster(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = at_once.PICKED
    local = run_topology(at_once.PickyAtOnceTopology, {"words": [[word] for word in words]})
    feeder = verdicts(spark, tmp_path, at_once.PickyAtOnceTopology, words)
    acked = [at for at, each in enumerate(local.verdicts.of("words")) if each is Verdict.ACKED]
    assert sorted(feeder.acked) == acked
    assert {at: failure.reason for at, failure in feeder.failed} == {
        at: failure.reason for (_, at), failure in local.failures.items()
    }


def test_data_of_a_bolt_with_many_tuples_at_once_go_with_its_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["word"])
    loaded = load(at_once.CountTopology, replace={"words": feeder})
    batches = [[[word] for word in batch] for batch in at_once.BATCHES]
    found = emitted(spark, tmp_path, loaded.topology, feeder, *batches)
    counted = Counter(values for component, values in found.elements() if component == "count")
    assert counted == Counter(repr(tuple(pair)) for pair in at_once.COUNTS)


class Spinning(Bolt):
    outputs = ["word"]

    def process(self, tup):
        while tup.values.word == "spin":
            pass


class SpinningAtOnce(Bolt):
    outputs = ["word"]

    async def process(self, tup):
        while tup.values.word == "spin at once":
            pass


class SpinningTopology(programs.Topology):
    words = at_once.Words.spec()
    plain = Spinning.spec(inputs=[words])
    count = SpinningAtOnce.spec(inputs=[words])


def test_a_process_that_never_returns_is_interrupted_and_its_tuple_fails_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = verdicts(spark, tmp_path, SpinningTopology, ["a", "spin", "spin at once", "b"])
    assert sorted(feeder.acked) == [0, 3]
    failed = dict(feeder.failed)
    assert {at: failure.cause for at, failure in failed.items()} == dict.fromkeys([1, 2], FailureCause.HUNG)
    for at, word in ((1, "spin"), (2, "spin at once")):
        assert f'while tup.values.word == "{word}"' in (failed[at].traceback or "")


class OfPages(programs.Topology):
    """The pixels of one example, and the spout, the splitter and the ticks of the documentation."""

    lines = programs.Mails.spec(outputs=["line"])
    counter_ticks = {"topology.tick.tuple.freq.secs": 1}
    deserializer = programs.PixelDeserializer.spec(inputs=[lines])
    drops = programs.PixelCounter.spec(
        inputs={deserializer: programs.Grouping.fields("url")}, config=counter_ticks
    )
    counts = programs.PixelCounter.spec(
        inputs={deserializer: programs.Grouping.fields("url")},
        outputs=["url", "count"],
        config=counter_ticks,
        par=2,
    )
    spout = programs.FancySpout.spec()
    good = programs.Sentences.spec(inputs=[spout])
    errors = programs.Sentences.spec(inputs=[spout["errors"]])
    sentences = programs.Mails.spec(outputs=["sentence"])
    split = programs.Sentences.spec(inputs=[sentences])
    flushing = programs.Flushing.spec(inputs=[sentences], config=counter_ticks)


def flushed(logged: Counter[tuple[str, str, str]]) -> int:
    """How many sentences the bolt with ticks has told of."""
    return sum(eval(values)[0] * n for (name, _, values), n in [*logged.items()] if name == "flushing")


def test_batches_by_url_two_streams_a_failed_sentence_and_ticks_are_as_in_a_local_cluster(
    spark: SparkSession, tmp_path: Path
) -> None:
    pixels, sentences = FeederSpout(["line"]), FeederSpout(["sentence"])
    loaded = load(OfPages, replace={"lines": pixels, "sentences": sentences})
    for n, url in enumerate(["/a", "/b", "/a", "/a"]):
        pixels.feed([json.dumps({"ip": "10.0.0.1", "ts": n, "url": url})], message_id=n)
    for sentence in ("two words", ""):
        sentences.feed([sentence], message_id=sentence)
    with (
        tuples_logged() as logged,
        submit(loaded.topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=TWO) as running,
    ):
        while len(pixels.acked) < 4 or running.stats()["spout"].total.acked < 2 or flushed(logged) < 2:
            assert not running.await_termination(0.1)  # not for rest: there are ticks
    assert sorted(pixels.acked) == [0, 1, 2, 3]
    assert (sentences.acked, [message for message, _ in sentences.failed]) == (["two words"], [""])
    found: dict[str, set[object]] = {}
    for component, _, values in logged:
        found.setdefault(component, set()).add(eval(values))
    assert found["good"] == {("fine",)}
    assert found["errors"] == {("no",), ("data",)}
    assert found["split"] == {("two",), ("words",)}
    assert {("/a", 3), ("/b", 1)} <= found["counts"]
    assert "drops" not in found


class Store:
    """Stands for a client of Redis: it has a lock, and its data are in a file."""

    def __init__(self, file: str) -> None:
        self.lock, self.file = threading.Lock(), file

    def zincrby(self, word: str, by: int) -> None:
        with self.lock, Path(self.file).open("a") as file:
            file.write(f"{word} {by}\n")


class StoreCount(Bolt):
    outputs = ["word"]

    def initialize(self, conf, ctx):
        self.redis = Store(conf["my.store"])

    def process(self, tup):
        self.redis.zincrby(tup.values[0], 10 if tup.values[0] == "dog" else 1)
        self.emit([tup.values[0]])


class StoreWordCount(programs.Topology):
    words = programs.CyclingWords.spec()
    count = StoreCount.spec(inputs=[words], par=4)


def test_a_store_beside_the_topology_is_counted_into_by_every_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["word"])
    options = {"my.store": str(tmp_path / "store")}
    loaded = load(StoreWordCount, replace={"words": feeder}, options=options)
    words = ["dog", "cat", "zebra", "elephant"] * 20
    emitted(spark, tmp_path, loaded.topology, feeder, [[word] for word in words])
    counts: Counter[str] = Counter()
    for line in (tmp_path / "store").read_text().splitlines():
        counts[line.split()[0]] += int(line.split()[1])
    assert counts == {"dog": 200, "cat": 20, "zebra": 20, "elephant": 20}


@needs_examples
def test_five_spouts_eight_children_and_twelve_counters_count_words(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("words")
    spout = ShellSpout(["node", "sentences.js"], ["sentence"], resources=EXAMPLES)
    builder.set_spout("sentences", spout, parallelism=5)
    split = ShellBolt([sys.executable, "split.py"], ["word", "sentences"], resources=EXAMPLES)
    builder.set_bolt("split", split, parallelism=8).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=12).fields_grouping("split", ["word"])
    with (
        tuples_logged() as logged,
        submit(
            builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark, config=TWO
        ) as running,
    ):
        while running.stats()["sentences"].total.acked < 20:
            assert not running.await_termination(0.1)
        assert running.await_idle(120)
    words = Counter(eval(values)[0] for component, _, values in logged.elements() if component == "split")
    assert words
    assert all(count % 5 == 0 for count in words.values())  # five times the same four sentences
    counted = Counter(values for component, _, values in logged.elements() if component == "count")
    assert counted == Counter(repr((word, n)) for word, most in words.items() for n in range(1, most + 1))


YAML = f"""
name: shells
spouts:
- {{id: lines, className: acktree.IterableSpout, constructorArgs: [[[a b], [c a]], [line]]}}
bolts:
- id: split
  className: org.apache.storm.flux.wrappers.bolts.FluxShellBolt
  constructorArgs: [[{sys.executable}, {EXAMPLES / "split.py"}], [word, sentences]]
- {{id: count, className: org.apache.storm.testing.TestWordCounter, parallelism: 2}}
streams:
- {{from: lines, to: split, grouping: {{type: SHUFFLE}}}}
- {{from: split, to: count, grouping: {{type: FIELDS, args: [word]}}}}
"""


@needs_examples
def test_a_file_of_flux_with_a_child_counts_words(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "x.yaml").write_text(YAML)
    loaded = flux.load(tmp_path / "x.yaml")
    config = replace(loaded.config, partitions=2, debug=True)
    with (
        tuples_logged() as logged,
        submit(loaded.topology, checkpoint=tmp_path / "c", spark=spark, config=config) as running,
    ):
        assert running.await_termination(timeout_secs=240)
        assert running.stats()["lines"].total.acked == 2
    counted = {values for component, _, values in logged if component == "count"}
    assert counted == {repr(pair) for pair in [("a", 1), ("a", 2), ("b", 1), ("c", 1)]}


PACKED = """
from acktree.pystorm import Bolt

class Upper(Bolt):
    outputs = ["word", "count"]
    count = 0

    def process(self, tup):
        self.count += 1
        self.emit([tup.values[0].upper(), self.count])

Upper(serializer="msgpack").run()
"""


def test_a_child_that_speaks_msgpack_serves_the_micro_batches_of_its_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("msgpack")
    (tmp_path / "upper.py").write_text(PACKED)
    feeder, builder = FeederSpout(["word"]), TopologyBuilder("packed")
    builder.set_spout("source", feeder)
    upper = ShellBolt(
        [sys.executable, "upper.py"], ["word", "count"], resources=tmp_path, serializer="msgpack"
    )
    builder.set_bolt("upper", upper).shuffle_grouping("source")
    found = emitted(spark, tmp_path, builder.create_topology(), feeder, [[b"bytes"]], [["naïve"]], [["café"]])
    said = [(b"BYTES", 1), ("NAÏVE", 2), ("CAFÉ", 3)]
    assert {values for component, values in found if component == "upper"} == {repr(pair) for pair in said}
