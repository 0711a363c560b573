"""What create_topology warns of: rows of one key that come to several tasks."""

from __future__ import annotations

import logging
from itertools import product

import pytest

from acktree import ArrowBolt, BasicBolt, IterableSpout, TopologyBuilder
from acktree.connectors.parquet_files import ParquetSink
from acktree.errors import TopologyError
from acktree.multilang import ShellBolt
from acktree.sink import Sink


class Count(BasicBolt):
    outputs = ("word", "count")
    remembers = ("counts",)

    def execute(self, tup, collector):
        pass


class Means(Count):
    remembers_per_task = True


class Sums(ArrowBolt):
    remembers = ("sums",)

    def execute_batch(self, batch, collector):
        pass


class Split(BasicBolt):
    outputs = ("word", "count")

    def execute(self, tup, collector):
        pass


class Table(Sink):
    def __init__(self, latest_by=("word",)):
        self.latest_by = latest_by

    def open(self, config, context):
        pass

    def last_mark(self):
        pass

    def write(self, batch, mark):
        return {}


ANY = ("shuffle", "local_or_shuffle", "none")
BY = {"fields": [["word"]], "partial_key": [["word"]]}


def warned(caplog, component, grouping, parallelism=2, **options):
    """What is logged where a component reads the words and counts of another by this grouping."""
    builder = TopologyBuilder("t")
    builder.set_spout("words", IterableSpout([], outputs=["word", "count"]))
    declare = builder.set_sink if isinstance(component, Sink) else builder.set_bolt
    read = declare("mine", component, parallelism, **options)
    getattr(read, f"{grouping}_grouping")("words", *BY.get(grouping, ()))
    with caplog.at_level(logging.WARNING):
        builder.create_topology()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("component", "grouping"), list(product([Count(), Sums()], ANY)))
def test_memory_in_several_tasks_that_any_tuple_may_come_to_is_warned_of(caplog, component, grouping):
    (said,) = warned(caplog, component, grouping, 3)
    name = type(component).__name__
    assert (
        f"topology=t bolt 'mine' ({name}) remembers {component.remembers[0]}, and any of its 3 tasks" in said
    )
    assert f"(set_bolt('mine', {name}(...), parallelism=3).{grouping}_grouping('words'))" in said
    assert ".fields_grouping('words', [...]), with one or more of word, count; or take one task;" in said
    assert said.endswith(f"set {name}.remembers_per_task = True")


def test_an_exactly_once_bolt_is_warned_of_too(caplog):
    assert len(warned(caplog, Count(), "shuffle", exactly_once=True)) == 1


@pytest.mark.parametrize(
    ("component", "grouping", "parallelism"),
    [
        (Count(), "shuffle", 1), (Count(), "fields", 2), (Count(), "partial_key", 2), (Count(), "global", 2),
        (Count(), "all", 2), (Count(), "direct", 2), (Means(), "shuffle", 2), (Split(), "shuffle", 2),
        (ShellBolt(["python", "-c", ""]), "shuffle", 2), (Table(), "fields", 2), (Table(), "global", 2),
        (Table(), "shuffle", 1), (Table(None), "shuffle", 2), (ParquetSink("folder"), "shuffle", 2),
    ],
)  # fmt: skip
def test_of_all_else_nothing_is_said(caplog, component, grouping, parallelism):
    assert warned(caplog, component, grouping, parallelism) == []


@pytest.mark.parametrize("grouping", [*ANY, "partial_key"])
def test_a_sink_whose_rows_of_a_key_may_be_written_by_two_tasks_is_warned_of(caplog, grouping):
    (said,) = warned(caplog, Table(), grouping)
    assert "topology=t sink 'mine' (Table) writes the latest row of each word, and any of its 2 tasks" in said
    assert said.endswith("group by the key: .fields_grouping('words', ['word']); or take one task")


def test_each_input_is_warned_of_and_a_stream_of_one_field_is_the_key(caplog):
    builder = TopologyBuilder("t")
    builder.set_spout("words", IterableSpout([], outputs=["word"]))
    builder.set_spout("more", IterableSpout([], outputs=["word"]))
    read = builder.set_bolt("count", Count(), 2).shuffle_grouping("words")
    read.none_grouping("more").fields_grouping("count-less", ["word"])
    builder.set_bolt("count-less", Split()).shuffle_grouping("words")
    builder.create_topology()
    assert [".fields_grouping('words', ['word'])" in each.getMessage() for each in caplog.records] == [
        True,
        False,
    ]
    assert ".fields_grouping('more', ['word'])" in caplog.records[1].getMessage()


def test_the_examples_are_free_of_it(caplog, tmp_path):
    programs = ("first_service.service", "orders.orders", "page.topologies", "word_count.word_count")
    service, orders, topologies, words = (pytest.importorskip(f"examples.{each}") for each in programs)
    topologies.poison()
    topologies.forgets()
    words.word_count(tmp_path, tmp_path / "rows")
    service.topology(IterableSpout([], outputs=["body"]), "http://localhost", "sqlite://")
    orders.orders("amqp://localhost", "sqlite://")
    assert caplog.records == []


def test_what_says_that_it_is_meant_is_true_or_false():
    builder = TopologyBuilder("t")
    builder.set_spout("words", IterableSpout([], outputs=["word"]))
    builder.set_bolt("mine", type("Mine", (Count,), {"remembers_per_task": ["counts"]})()).shuffle_grouping(
        "words"
    )
    with pytest.raises(TopologyError, match="remembers_per_task of bolt 'mine'"):
        builder.create_topology()
