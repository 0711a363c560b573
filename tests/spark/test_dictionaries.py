"""Words in a dictionary reach the tasks that plain texts would, are counted exactly, and read as texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from acktree import ArrowBolt, BasicBolt, ColumnState, IterableSpout, Topology, TopologyBuilder, submit
from acktree.testing import LocalCluster
from tests.spark.topologies import Notebook, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = [f"word{number}" for number in range(40)]
SENTENCES = [f"{WORDS[n * n % 40]} {WORDS[n % 7]} {WORDS[n * 3 % 40]}" for n in range(600)]
EACH = Counter(word for sentence in SENTENCES for word in sentence.split())
KNOWN = [*(f"unused{number}" for number in range(300)), *WORDS, *WORDS]
"""A dictionary with values of no row, and with values that it has twice."""


class Split(ArrowBolt):
    outputs = pa.schema([("word", pa.dictionary(pa.int16(), pa.string()))])

    def execute_batch(self, batch, collector):
        words = pc.split_pattern(batch["sentence"], " ")
        flat = pc.list_flatten(words)
        places = [KNOWN.index(word) + 40 * (at % 2) for at, word in enumerate(flat.to_pylist())]
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int16()), pa.array(KNOWN))
        collector.emit_batch(pa.record_batch({"word": column}), parents=pc.list_parent_indices(words))


class Count(ArrowBolt):
    outputs = ["word", "count", "task"]
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts, self.task = ColumnState(str, int), context.task_index

    def execute_batch(self, batch, collector):
        words = batch["word"].dictionary_decode()
        counts, tasks = self.counts.add_many(batch["word"]), pa.array([self.task] * batch.num_rows)
        collector.emit_batch(pa.record_batch([words, counts, tasks], self.outputs), range(batch.num_rows))


class Plain(BasicBolt):
    """Sends the word on as a text, and says which of its tasks got it."""

    outputs = ["word", "task"]

    def prepare(self, config, context):
        self.task = context.task_index

    def execute(self, tup, collector):
        collector.emit([tup["word"], self.task])


def word_count(folder: Path) -> Topology:
    builder = TopologyBuilder("dictionaries")
    builder.set_spout("sentences", IterableSpout(SENTENCES, ["sentence"]))
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", ["word"])
    builder.set_bolt("plain", Plain(), parallelism=3).fields_grouping("split", ["word"])
    builder.set_bolt("counted", Notebook(folder)).global_grouping("count")
    builder.set_bolt("read", Notebook(folder)).global_grouping("plain")
    return builder.create_topology()


def is_exact(folder: Path) -> bool:
    """Every word was counted and read as often as it was emitted, by the same task of both bolts."""
    counted, read = notes(folder, "counted"), notes(folder, "read")
    most: Counter[str] = Counter()
    for word, count, _ in counted:
        most[word] = max(most[word], int(count))
    tasks = {(word, task) for word, _, task in counted}
    return (
        most == EACH
        and Counter(word for word, _ in read) == EACH
        and {(word, task) for word, task in read} == tasks
        and len(tasks) == len(EACH)
    )


def test_words_in_a_dictionary_are_counted_and_read_in_a_local_cluster(tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        cluster.submit(word_count(tmp_path))
        cluster.advance()
    assert is_exact(tmp_path)


def test_words_in_a_dictionary_are_counted_and_read_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with submit(word_count(tmp_path / "notes"), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        assert running.await_termination(timeout_secs=120)
        totals = running.stats()["sentences"].total
    assert (totals.acked, totals.failed, totals.timed_out) == (len(SENTENCES), 0, 0)
    assert is_exact(tmp_path / "notes")
