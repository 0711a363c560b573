"""A sink that says by which fields the latest row counts: what waits is not written over what is newer."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest

from acktree import ConnectorError, Retry, Sink, TopologyBuilder, TopologyError
from acktree.core.data.values import encode_rows
from acktree.tasks.spouts.keys import latest
from acktree.testing import FeederSpout, LocalCluster

GATE = "__gate/table/rows/default"
SLOW = Retry(max_attempts=3, backoff_secs=(10, 10))


class Table(Sink):
    """Writes (key, n) to a list, but for rows that are refused: as often as ``refusals`` says."""

    written: ClassVar[list[tuple[str, int]]] = []
    refusals: ClassVar[dict[tuple[str, int], int]] = {}
    is_away: ClassVar[bool] = False
    marks: ClassVar[dict[int, tuple[bytes, dict[int, str]]]] = {}

    def __init__(self, latest_by=("key",)):
        self.latest_by = latest_by

    def open(self, config, context):
        self.task = context.task_id

    def last_mark(self):
        return self.marks.get(self.task, (None, {}))[0]

    def write(self, batch, mark):
        if self.last_mark() != mark:
            if type(self).is_away:
                raise ConnectorError("away", "a test", "wait", can_retry=True)
            refused = {}
            for at, row in enumerate(zip(*(column.to_pylist() for column in batch), strict=True)):
                if self.refusals.get(row, 0):
                    self.refusals[row] -= 1
                    refused[at] = "refused"
                else:
                    self.written.append(row)
            self.marks[self.task] = mark, refused
        return self.marks[self.task][1]


@pytest.fixture(autouse=True)
def table():
    Table.written, Table.refusals, Table.is_away, Table.marks = [], {}, False, {}


class Rows:
    """A topology of a feeder and a table."""

    def __init__(self, cluster: LocalCluster, sink: Table, retry: Retry = SLOW) -> None:
        self.feeder, self.cluster = FeederSpout(["key", "n"]), cluster
        builder = TopologyBuilder("rows")
        builder.set_spout("rows", self.feeder)
        builder.set_sink("table", sink, retry=retry).fields_grouping("rows", ["key"])
        self.running = cluster.submit(builder.create_topology())

    def write(self, *rows: tuple[str, int], secs: float = 1) -> None:
        for row in rows:
            self.feeder.feed([*row], message_id=row)
        self.cluster.advance(secs=secs)

    def counts(self) -> tuple[int, int, int]:
        """Messages of the gate that were acked, that wait, and that were given up."""
        numbers = self.running.stats()[GATE]
        return numbers.total.acked, numbers.open, len(self.running.dead_letters)


def test_a_row_that_was_refused_is_superseded_by_a_newer_one_with_its_key_and_by_no_other():
    Table.refusals = {("a", 1): 1, ("b", 1): 1}
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table())
        rows.write(("a", 1), ("b", 1))
        rows.write(("a", 2))
        assert rows.counts() == (2, 1, 0)
        cluster.advance(secs=30)
        assert Table.written == [("a", 2), ("b", 1)]
        assert rows.counts() == (3, 0, 0)
        total = rows.running.stats()[GATE].total
        assert (total.acked, total.superseded) == (3, 1)


def test_a_row_that_was_refused_is_superseded_by_a_newer_one_of_the_same_micro_batch():
    Table.refusals = {("a", 1): 1, ("a", 3): 1}
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table())
        rows.write(("a", 1), ("a", 2), ("a", 3))
        assert rows.counts() == (2, 1, 0)
        cluster.advance(secs=30)
        assert Table.written == [("a", 2), ("a", 3)]
        assert rows.counts() == (3, 0, 0)


def test_a_row_that_was_given_up_is_a_dead_letter_though_a_newer_one_is_written_with_it():
    Table.refusals = {("a", 1): 1}
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table(), Retry(max_attempts=1))
        rows.write(("a", 1), ("a", 2))
        assert rows.counts() == (1, 0, 1)


def test_rows_that_waited_for_a_database_are_written_in_their_order_and_each_key_ends_with_its_last():
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table())
        Table.is_away = True
        for n in range(12):
            rows.write(*((key, n) for key in "abc"), secs=3)
        Table.is_away = False
        cluster.advance(secs=600)
        for key in "abc":
            written = [n for of, n in Table.written if of == key]
            assert (written, written[-1]) == (sorted(set(written)), 11)
        assert rows.counts() == (36, 0, 0)


class RefusesFirst(Table):
    """Refuses the row of number 1 once; keys may be of any kind."""

    came: ClassVar[set[int]] = set()

    def write(self, batch, mark):
        refused = {}
        for at, number in enumerate(batch.column("n").to_pylist()):
            if number == 1 and number not in self.came:
                refused[at] = "refused"
            else:
                self.written.append(("", number))
            self.came.add(number)
        return refused


class NeverEqual:
    """Compares itself with nothing."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        raise SystemExit(3)

    __hash__ = None


@pytest.mark.parametrize(
    "key",
    [math.nan, (math.nan, 1), None, np.arange(3), [np.zeros(2)], {"a": math.nan}],
    ids=repr,
)
def test_a_row_of_any_key_is_superseded_and_no_key_ends_the_topology(key):
    RefusesFirst.came = set()
    with LocalCluster() as cluster:
        rows = Rows(cluster, RefusesFirst())
        rows.feeder.feed([key, 1], message_id=1)
        rows.feeder.feed([key, 2], message_id=2)
        cluster.advance(secs=60)
        assert rows.running.stats()[GATE].open == 0
        assert rows.counts()[0] == 2
    assert [number for _, number in Table.written] == [2]


def test_rows_have_one_key_as_a_fields_grouping_sees_it():
    def row(value):
        return encode_rows(["key"], [[value]])

    for one, other in ((1, 1.0), (math.nan, math.nan), (np.arange(3), np.arange(3)), ("a", "a")):
        assert latest._are_equal(row(one), row(other))
    of_no_equal = NeverEqual(1), NeverEqual(2)
    for one, other in (
        (1, 2), (np.arange(3), np.arange(4)), (np.arange(3), np.ones(3)), (None, math.nan), of_no_equal,
    ):  # fmt: skip
        assert not latest._are_equal(row(one), row(other))


def test_without_the_declaration_each_row_is_written_however_late():
    Table.refusals = {("a", 1): 1}
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table(latest_by=None))
        rows.write(("a", 1), ("a", 2), secs=30)
        assert Table.written == [("a", 2), ("a", 1)]


def test_a_letter_that_is_sent_again_and_has_to_wait_is_superseded_and_settled():
    Table.refusals = {("a", 1): 2}
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table(), Retry(max_attempts=1))
        rows.write(("a", 1))
        [letter] = rows.running.dead_letters
        Table.is_away = True
        rows.running.dead_letters.redrive([letter.id])
        rows.write(("a", 2), secs=3)
        Table.is_away, Table.refusals = False, {("a", 1): 1}
        cluster.advance(secs=300)
        assert Table.written[-1] == ("a", 2)
        [letter] = rows.running.dead_letters.find(settled=True, redriven=True)
        assert letter.values == ["a", 1]


def test_no_key_is_hashed_while_no_row_waits(monkeypatch):
    hashed = []
    monkeypatch.setattr(latest, "hash_rows_anyhow", lambda *_: hashed.append(1))
    with LocalCluster() as cluster:
        rows = Rows(cluster, Table())
        for n in range(3):
            rows.write(("a", n), ("b", n))
        assert rows.counts() == (6, 0, 0)
    assert not hashed


@pytest.mark.parametrize("latest_by", ["key", [], [1], 7])
def test_latest_by_that_names_no_fields_is_refused(latest_by):
    with pytest.raises(TopologyError, match=r"latest_by of sink 'table'[^~]*Table.latest_by = \[\"id\"\]"):
        _built(Table(latest_by))


def test_latest_by_names_fields_that_each_input_has():
    with pytest.raises(TopologyError, match=r"keeps the latest row by 'id', which 'rows' does not emit"):
        _built(Table(["key", "id"]))
    topology = _built(Table(["key"]))
    assert topology.components[GATE].latest_by == ("key",)


def _built(sink):
    builder = TopologyBuilder("rows")
    builder.set_spout("rows", FeederSpout(["key", "n"]))
    builder.set_sink("table", sink).fields_grouping("rows", ["key"])
    return builder.create_topology()
