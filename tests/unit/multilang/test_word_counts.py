"""Storm's word count in its own shape, five, eight and twelve tasks, without Spark."""

from __future__ import annotations

import shutil
import sys
from collections import Counter

import pytest

from acktree import TopologyBuilder
from acktree.multilang import ShellBolt, ShellSpout
from acktree.streamparse import Bolt, Grouping, Spout, Topology, load
from acktree.testing import LocalCluster
from tests.unit.multilang.bench import EXAMPLES, Count

SENTENCES = ["the cow jumped over the moon", "an apple a day", "four score and seven", "snow white and seven"]


def counted(topology):
    """Run a topology whose five spouts say four sentences each; checks all counts, and returns the words."""
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        while running.stats()["sentences"].total.acked < 20:
            cluster.advance(1)
        said = Counter(word for word, *_ in running.tuples("split"))
        counts = Counter((word, count) for word, count, *_ in running.tuples("count"))
        assert len(running.stats()["split"].tasks) == 8
    assert said
    assert counts == Counter((word, n) for word, most in said.items() for n in range(1, most + 1))
    return said


@pytest.mark.skipif(
    shutil.which("node") is None or not EXAMPLES.is_dir(), reason="node or the examples are not here"
)
def test_five_node_spouts_eight_python_children_and_twelve_counters():
    builder = TopologyBuilder("words")
    spout = ShellSpout(["node", "sentences.js"], ["sentence"], resources=EXAMPLES)
    builder.set_spout("sentences", spout, parallelism=5)
    split = ShellBolt([sys.executable, "split.py"], ["word", "sentences"], resources=EXAMPLES)
    builder.set_bolt("split", split, parallelism=8).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=12).fields_grouping("split", ["word"])
    said = counted(builder.create_topology())
    assert all(count % 5 == 0 for count in said.values())


class Sentences(Spout):
    outputs = ["sentence"]

    def initialize(self, conf, context):
        self.left = list(SENTENCES)

    def next_tuple(self):
        if self.left:
            self.emit([self.left[-1]], tup_id=len(self.left))
            self.left.pop()


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup):
        for word in tup.values.sentence.split():
            self.emit([word])


class Counts(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf, context):
        self.counts = Counter()

    def process(self, tup):
        self.counts[tup.values.word] += 1
        self.emit([tup.values.word, self.counts[tup.values.word]])


class WordCount(Topology):
    sentences = Sentences.spec(par=5)
    split = Split.spec(inputs=[sentences], par=8)
    count = Counts.spec(inputs={split: Grouping.fields("word")}, par=12)


def test_five_eight_and_twelve_tasks_of_streamparse():
    assert counted(load(WordCount).topology) == Counter(" ".join(SENTENCES * 5).split())
