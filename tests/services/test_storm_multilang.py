"""Programs on Storm's own multilang libraries, ``storm.py`` and ``storm.js``, as Maven Central has them.

The programs have the shape of Storm's examples and of the components of its own tests. They are run in a
``LocalCluster``; `tests/spark/test_shell.py` has children on Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from acktree import TopologyBuilder
from acktree.multilang import ShellBolt, ShellSpout
from acktree.testing import FeederSpout, LocalCluster
from tests.services import kafka

VERSION = "2.8.3"
LIBRARIES = ("multilang-python", "multilang-javascript")
SPLIT_PY = """
import storm

class Split(storm.BasicBolt):
    def process(self, tup):
        for word in tup.values[0].split(" "):
            storm.emit([word])

Split().run()
"""
SPLIT_JS = """
const storm = require('./storm')

class Split extends storm.BasicBolt {
  process (tup, done) {
    const split = () => {
      for (const word of tup.values[0].split(' ')) {
        this.emit({tuple: [word], anchorTupleId: tup.id}, (taskIds) => this.log(`${word} to ${taskIds}`))
      }
      done()
    }
    if (LATER) setTimeout(split, 300)
    else split()
  }
}

new Split().run()
"""
SENTENCES_JS = """
const storm = require('./storm')

class Sentences extends storm.Spout {
  constructor () { super(); this.sent = 0; this.heard = [] }
  nextTuple (done) {
    if (this.sent < 4) this.emit({tuple: ['the cow jumped'], id: ++this.sent}, () => done())
    else done()
  }
  ack (id, done) { this.log('acked ' + id); done() }
  fail (id, done) { done() }
  activate (done) { done() }
  deactivate (done) { done() }
}

new Sentences().run()
"""
TESTER_BOLT = """
import storm

class Tester(storm.Bolt):
    def initialize(self, conf, context):
        storm.emit(["bolt initializing"])
        self.seen = 0

    def process(self, tup):
        self.seen += 1
        if self.seen % 4:
            storm.emit([tup.values[0] + "lalala"], anchors=[tup])
            storm.ack(tup)
        else:
            storm.log(tup.values[0] + " skipped")

Tester().run()
"""
TESTER_SPOUT = """
import storm

WORDS = ["nathan", "mike", "bertels人"]

class Tester(storm.Spout):
    def initialize(self, conf, context):
        storm.emit(["spout initializing"])
        self.pending, self.count = {}, 0

    def nextTuple(self):
        if self.count < len(WORDS):
            storm.rpcMetrics("my-custom-shellspout-metric", 1)
            self.pending[self.count] = WORDS[self.count]
            storm.emit([WORDS[self.count]], id=self.count)
            self.count += 1

    def ack(self, id):
        del self.pending[id]

    def fail(self, id):
        storm.emit([self.pending[id]], id=id)

Tester().run()
"""
TESTER_BOLT_JS = """
const storm = require('./storm')

class Tester extends storm.BasicBolt {
  initialize (conf, context, done) { this.seen = 0; done() }
  process (tup, done) {
    this.seen += 1
    const word = tup.values[0]
    if (this.seen % 4) {
      this.emit({tuple: [word + 'lalala'], anchorTupleId: tup.id}, () => {})
      done()
    } else this.log(word + ' skipped')
  }
}

new Tester().run()
"""
TESTER_SPOUT_JS = """
const storm = require('./storm')
const words = ['nathan', 'mike', 'bertels人', 'עברית', 'golda']

class Tester extends storm.Spout {
  initialize (conf, context, done) { this.pending = {}; this.count = 0; done() }
  nextTuple (done) {
    if (this.count < words.length) {
      this.pending[this.count] = [words[this.count]]
      this.emit({tuple: this.pending[this.count], id: this.count}, () => {})
      this.count += 1
    }
    done()
  }
  ack (id, done) { delete this.pending[id]; done() }
  fail (id, done) {
    this.log(`emitting ${this.pending[id]} on fail`)
    this.emit({tuple: this.pending[id], id}, () => {})
    done()
  }
  activate (done) { done() }
  deactivate (done) { done() }
}

new Tester().run()
"""
METRICS_BOLT = """
import storm

class Tester(storm.BasicBolt):
    def process(self, tup):
        storm.rpcMetrics("my-custom-shell-metric", 1)
        storm.emit([tup.values[0]])

Tester().run()
"""


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture
def resources(tmp_path):
    """A folder with the libraries."""
    if find_spec("pyspark") is None:
        pytest.skip("Maven Central is asked with PySpark's jars, and there is no PySpark")
    try:
        folders = [
            kafka.fetch(f"org.apache.storm:{name}", VERSION, name, transitive=False) for name in LIBRARIES
        ]
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    for folder in folders:
        (file,) = folder.glob("*.jar")
        with zipfile.ZipFile(file) as jar:
            for each in {"resources/storm.py", "resources/storm.js"} & {*jar.namelist()}:
                (tmp_path / Path(each).name).write_bytes(jar.read(each))
    return tmp_path


def feed(resources, command, text, *values, **more):
    """A bolt whose program is a file of the folder: its tuples, its verdicts, its stats."""
    (resources / command[-1]).write_text(text)
    feeder, builder = FeederSpout(["sentence"]), TopologyBuilder("storm")
    builder.set_spout("source", feeder)
    bolt = ShellBolt(command, ["word"], resources=resources, **more)
    builder.set_bolt("bolt", bolt).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for value in values:
            feeder.feed([value], message_id=value)
        cluster.advance(0)
        cluster.advance(60)
        return [word for (word,) in running.tuples("bolt")], feeder, running.stats()["bolt"]


WORDS = ["the", "cow", "naïve", "café"]


def test_a_bolt_of_storm_py_splits_sentences(resources):
    words, feeder, _ = feed(resources, [sys.executable, "split.py"], SPLIT_PY, "the cow", "naïve café")
    assert (words, feeder.acked) == (WORDS, ["the cow", "naïve café"])


@needs_node
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_bolt_of_storm_js_splits_sentences_also_where_it_answers_out_of_turn(later, resources):
    text = SPLIT_JS.replace("LATER", str(later).lower())
    words, feeder, _ = feed(
        resources, ["node", "split.js"], text, "the cow", "naïve café", linger_secs=60 if later else 0
    )
    assert (words, sorted(feeder.acked)) == (WORDS, ["naïve café", "the cow"])


def run_spout(resources, command, text):
    (resources / command[-1]).write_text(text)
    (resources / "metrics.py").write_text(METRICS_BOLT)
    builder = TopologyBuilder("storm")
    builder.set_spout("spout", ShellSpout(command, ["word"], resources=resources))
    bolt = ShellBolt([sys.executable, "metrics.py"], ["word"], resources=resources)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.advance(5)
        return [word for (word,) in running.tuples("bolt")], running.stats()


@needs_node
def test_a_spout_of_storm_js_hears_its_verdicts(resources, caplog):
    with caplog.at_level("INFO"):
        words, stats = run_spout(resources, ["node", "sentences.js"], SENTENCES_JS)
    assert words == ["the cow jumped"] * 4
    assert stats["spout"].total.acked == 4
    assert "acked 4" in caplog.text


def test_the_spout_of_storms_tests_emits_in_initialize_and_its_metrics_are_counted(resources):
    words, stats = run_spout(resources, [sys.executable, "spout.py"], TESTER_SPOUT)
    assert words == ["spout initializing", "nathan", "mike", "bertels人"]
    assert stats["spout"].total.acked == 3
    assert stats["spout"].metrics["my-custom-shellspout-metric"].count == 3
    assert stats["bolt"].metrics["my-custom-shell-metric"].count == 4


TESTERS = {
    "python": ([sys.executable, "bolt.py"], TESTER_BOLT, ["bolt initializing"]),
    "node": (["node", "bolt.js"], TESTER_BOLT_JS, []),
}
"""The bolts of Storm's own tests, and what they emit first: ``storm.js`` can emit nothing before its pid."""


@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=needs_node)])
def test_the_bolt_of_storms_tests_acks_three_of_four_and_the_fourth_times_out(language, resources):
    command, text, first = TESTERS[language]
    values = [f"word {n}" for n in range(8)]
    words, feeder, _ = feed(resources, command, text, *values)
    acked = [value for n, value in enumerate(values, 1) if n % 4]
    assert words == [*first, *(f"{value}lalala" for value in acked)]
    assert feeder.acked == acked
    assert {name: failure.kind.name for name, failure in feeder.failed} == {
        "word 3": "TIMED_OUT",
        "word 7": "TIMED_OUT",
    }


@needs_node
def test_the_spout_of_storms_tests_in_node_emits_again_what_timed_out(resources, caplog):
    (resources / "spout.js").write_text(TESTER_SPOUT_JS)
    (resources / "bolt.js").write_text(TESTER_BOLT_JS)
    builder = TopologyBuilder("storm")
    builder.set_spout("spout", ShellSpout(["node", "spout.js"], ["word"], resources=resources))
    bolt = ShellBolt(["node", "bolt.js"], ["word"], resources=resources)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    with LocalCluster() as cluster, caplog.at_level("INFO"):
        running = cluster.submit(builder.create_topology())
        cluster.advance(5)
        cluster.advance(60)
        cluster.advance(5)
        words = [word for (word,) in running.tuples("bolt")]
        total = running.stats()["spout"].total
    said = ["nathan", "mike", "bertels人", "golda", "עברית"]
    assert words == [f"{word}lalala" for word in said]
    assert (total.acked, total.timed_out) == (5, 1)
    assert "emitting עברית on fail" in caplog.text
