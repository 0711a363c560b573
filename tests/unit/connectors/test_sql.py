"""The SQL sink on SQLite, and the statements that it makes for each dialect."""

from __future__ import annotations

import pickle
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

sa = pytest.importorskip("sqlalchemy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sqlalchemy.dialects import mysql, postgresql, sqlite  # noqa: E402

from acktree import BasicBolt, Config, ConfigError, ConnectorError, KeyValueState, TopologyBuilder  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from acktree.connectors.sql_tables.sql_columns import changes, takes_of  # noqa: E402
from acktree.connectors.sql_tables.sql_table import upsert  # noqa: E402
from acktree.testing import FeederSpout, LocalCluster  # noqa: E402
from tests.drawn import drawn  # noqa: E402

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT NOT NULL CHECK (name <> 'bad'), n INTEGER)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "shop.sqlite"
    execute(made, ORDERS)
    return made


def execute(file: Path, statement: str) -> list[tuple]:
    with closing(sqlite3.connect(file)) as connection, connection:
        return connection.execute(statement).fetchall()


def orders(file: Path) -> list[tuple]:
    return execute(file, "SELECT * FROM orders ORDER BY id")


class Sink:
    """A topology of a feeder and a sink."""

    def __init__(self, cluster: LocalCluster, sink: SqlSink, fields=("id", "name", "n")) -> None:
        self.feeder, self.cluster = FeederSpout(list(fields)), cluster
        builder = TopologyBuilder("sink")
        builder.set_spout("feeder", self.feeder)
        builder.set_bolt("sink", sink).shuffle_grouping("feeder")
        cluster.submit(builder.create_topology())

    def write(self, *rows) -> None:
        """As one micro-batch; the message id is the row's number from 0."""
        for n, row in enumerate(rows):
            self.feeder.feed(list(row), message_id=n)
        self.cluster.advance()

    @property
    def reasons(self) -> dict[int, str]:
        return {message_id: failure.reason for message_id, failure in self.feeder.failed}


@pytest.fixture
def cluster():
    with LocalCluster() as made:
        yield made


def sink_of(file: Path, mode="upsert", key="id", table="orders", patience_secs=0.0, **more) -> SqlSink:
    return SqlSink(f"sqlite:///{file}", table, mode=mode, key=key, patience_secs=patience_secs, **more)


def test_tuples_are_acked_when_their_rows_are_committed(cluster, file):
    sink = Sink(cluster, sink_of(file))
    sink.write((1, "one", 1), (2, "two", None))
    assert orders(file) == [(1, "one", 1), (2, "two", None)]
    assert sink.feeder.acked == [0, 1]


@pytest.mark.parametrize(
    ("mode", "left"),
    [("upsert", [(1, "newest", 3)]), ("ignore", [(1, "first", 1)]), ("insert", [(1, "first", 1)])],
)
def test_a_key_that_is_there_is_overwritten_left_or_refused(cluster, file, mode, left):
    sink = Sink(cluster, sink_of(file, mode))
    sink.write((1, "first", 1))
    sink.write((1, "newer", 2), (1, "newest", 3))
    assert orders(file) == left
    assert len(sink.feeder.acked) == (1 if mode == "insert" else 3)


@settings(max_examples=drawn(15))
@given(st.lists(st.sampled_from(["good", "bad", "null", "no key"]), max_size=40), st.integers(1, 20))
def test_each_refused_row_fails_alone_wherever_it_is(tmp_path_factory, kinds, batch_rows):
    file = tmp_path_factory.mktemp("law") / "shop.sqlite"
    execute(file, ORDERS)
    rows = [
        (n if kind != "no key" else None, {"good": "g", "bad": "bad", "null": None, "no key": "k"}[kind], n)
        for n, kind in enumerate(kinds)
    ]
    with LocalCluster() as cluster:
        sink = Sink(cluster, sink_of(file, batch_rows=batch_rows))
        sink.write(*rows)
        good = [n for n, kind in enumerate(kinds) if kind == "good"]
        assert sorted(sink.feeder.acked) == good == [row[0] for row in orders(file)]
        assert sorted(sink.reasons) == [n for n in range(len(kinds)) if n not in good]


def test_a_refused_row_says_what_is_wrong_and_shows_no_row(cluster, file):
    sink = Sink(cluster, sink_of(file))
    sink.write((1, "fine", 1), (2, "bad", 77_001))
    assert sink.feeder.acked == [0]
    assert "refused the row" in sink.reasons[1]
    assert "table 'orders' at sqlite:///" in sink.reasons[1]
    assert "77001" not in sink.reasons[1]


@pytest.mark.parametrize("value", [2**70, {"a": 1}, "\ud800", object])
def test_a_value_that_the_driver_cannot_send_fails_alone(cluster, file, value):
    sink = Sink(cluster, sink_of(file))
    sink.write((1, "fine", 1), (2, "odd", value), (3, "fine", 3))
    assert [row[0] for row in orders(file)] == [1, 3]
    assert sink.feeder.acked == [0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "nothing"}, "there is no table 'nothing'"),
        ({"key": "name"}, "neither a primary key nor a unique index"),
        ({"key": ("id", "name")}, "neither a primary key nor a unique index"),
        ({"file": "/nowhere/x.sqlite"}, "unable to open"),
    ],
)
def test_a_table_that_cannot_be_written_stops_the_topology_with_the_fix(cluster, file, change, words):
    sink = Sink(cluster, sink_of(**{"file": file, **change}))
    with pytest.raises(ConnectorError, match=words) as stopped:
        sink.write((1, "one", 1), (2, "two", 2))
    assert stopped.value.fix
    assert sink.reasons == {}


def test_a_field_without_a_column_is_named_and_a_corrected_table_is_seen(cluster, file):
    sink = Sink(cluster, sink_of(file), ["id", "name", "total"])
    with pytest.raises(ConnectorError, match="the table has no column 'total'"):
        sink.write((1, "one", 7))
    execute(file, "ALTER TABLE orders ADD COLUMN total INTEGER")
    cluster.advance(1)
    assert sink.feeder.acked == [0]
    assert orders(file) == [(1, "one", None, 7)]


def test_a_locked_database_is_tried_again_and_then_its_messages_wait(cluster, file):
    sink = Sink(cluster, SqlSink(f"sqlite:///{file}?timeout=0", "orders", key="id", patience_secs=0.25))
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        sink.write((1, "one", 1))
        assert sink.feeder.failed == sink.feeder.acked == orders(file) == []
    cluster.advance(60)
    assert sink.feeder.acked == [0]


def test_a_unique_index_is_a_key_too(cluster, file):
    execute(file, "CREATE UNIQUE INDEX by_name ON orders (name, n)")
    sink = Sink(cluster, sink_of(file, key=["n", "name"]))
    sink.write((1, "one", 1), (2, "one", 1))
    assert orders(file) == [(2, "one", 1)]


def test_a_second_run_of_a_micro_batch_leaves_the_rows_as_they_are(cluster, file):
    rows = [(n, "x" * n, n) for n in range(1, 50)]
    sink = Sink(cluster, sink_of(file, batch_rows=7))
    sink.write(*rows)
    sink.write(*rows)
    assert orders(file) == rows
    assert Counter(sink.feeder.acked) == dict.fromkeys(range(49), 2)


@pytest.mark.parametrize(
    ("dialect", "name", "words"),
    [
        (postgresql.dialect(), "postgresql", "ON CONFLICT (id) DO UPDATE SET n = excluded.n"),
        (sqlite.dialect(), "sqlite", "ON CONFLICT (id) DO UPDATE SET n = excluded.n"),
        (mysql.dialect(), "mysql", "ON DUPLICATE KEY UPDATE n = VALUES(n)"),
    ],
)
def test_each_dialect_has_its_upsert(dialect, name, words):
    table = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("n", sa.Integer))
    assert words in str(upsert(table, ["id"], ["n"], name).compile(dialect=dialect))
    left = str(upsert(table, ["id"], [], name).compile(dialect=dialect))
    assert ("DO NOTHING" in left) or ("ON DUPLICATE KEY UPDATE id = orders.id" in left)


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": ()},
        {"key": None},
        {"mode": "replace"},
        {"batch_rows": 0},
        {"patience_secs": -1},
        {"url": "nothing://me:S3cr3t@host/db"},
        {"url": "S3cr3t"},
    ],
)
def test_arguments_that_cannot_be_used_are_refused_and_no_secret_is_shown(arguments):
    given = {"url": "sqlite://", "table": "orders", "key": "id"} | arguments
    with pytest.raises(ConfigError) as refused:
        SqlSink(given.pop("url"), given.pop("table"), **given)
    assert "S3cr3t" not in str(refused.value)


def test_no_key_may_be_written_as_none():
    assert SqlSink("sqlite://", "orders", mode="insert", key=None).key == ()


def test_a_sink_travels_to_the_workers(file):
    assert pickle.loads(pickle.dumps(sink_of(file))).key == ("id",)


@pytest.mark.parametrize(
    ("kind", "value", "change", "fix"),
    [
        ("timestamp", datetime(2024, 7, 1, 12, tzinfo=UTC), "its zone would be lost", "isoformat()"),
        ("date", datetime(2024, 7, 1, 12), "its time of day would be lost", "value.date()"),  # noqa: DTZ001
        ("numeric(20, 2)", Decimal("12345678901234567.89"), "digits of it would be rounded", "str(value)"),
        ("real", 2**53 + 1, "digits of it would be rounded", "str(value)"),
        ("real", float("nan"), "NaN would become NULL", "emit None"),
        ("integer", "007", "this text would become a number", "declare the column as TEXT"),
        ("text", 7, "the column holds no int", "str(value)"),
        ("text", UUID(int=7), "the column holds no UUID", "str(value)"),
        ("json", {"a": float("nan")}, "JSON has no NaN", "emit None"),
        ("json", {1: 2}, "JSON has texts as keys only", "texts as keys"),
    ],
)
def test_a_value_that_a_column_would_change_fails_alone_with_what_would_change_and_how_to_write_it(
    cluster, tmp_path, kind, value, change, fix
):
    file = tmp_path / "changes.sqlite"
    execute(file, f"CREATE TABLE orders (id INTEGER PRIMARY KEY, n {kind})")
    sink = Sink(cluster, sink_of(file), ["id", "n"])
    sink.write((1, None), (2, value), (3, None))
    assert [row[0] for row in orders(file)] == [1, 3]
    assert sink.feeder.acked == [0, 2]
    what, _, last = sink.reasons[1].partition("fix:")
    assert f"the database would not return 'n' as it is: {change}" in what
    assert fix in last


def test_a_stream_with_an_unknown_field_stops_the_topology_and_no_tuple_of_another_fails(cluster, file):
    builder = TopologyBuilder("sink")
    feeders = [FeederSpout(["id", "total"]), FeederSpout(["id", "name", "n"])]
    sink = builder.set_bolt("sink", sink_of(file))
    for number, feeder in enumerate(feeders):
        builder.set_spout(f"feeder{number}", feeder)
        sink.shuffle_grouping(f"feeder{number}")
    cluster.submit(builder.create_topology())
    feeders[0].feed([1, 5], message_id=0)
    feeders[1].feed([2, "two", 2], message_id=0)
    with pytest.raises(ConnectorError, match="no column 'total'"):
        cluster.advance()
    assert feeders[0].failed == feeders[1].failed == []


def test_an_index_of_some_rows_alone_is_no_key(cluster, file):
    execute(file, "CREATE UNIQUE INDEX some ON orders (name) WHERE n > 5")
    sink = Sink(cluster, sink_of(file, key="name"))
    with pytest.raises(ConnectorError, match="neither a primary key nor a unique index"):
        sink.write((1, "one", 1), (2, "two", 9))


@pytest.mark.parametrize(
    ("kind", "kept", "changed"),
    [
        (mysql.DATETIME(), datetime(2024, 7, 1), datetime(2024, 7, 1, microsecond=1)),  # noqa: DTZ001
        (mysql.DATETIME(fsp=6), datetime(2024, 7, 1, microsecond=1), datetime(2024, 7, 1, tzinfo=UTC)),  # noqa: DTZ001
        (mysql.DECIMAL(5, 2), Decimal("1.10"), Decimal("1.005")),
        (mysql.CHAR(3), "ab", "a "),
        (mysql.VARCHAR(3), "a ", "abcd"),
        (mysql.DOUBLE(), 1.5, float("nan")),
        (mysql.INTEGER(), 1.0, 1.5),
    ],
)
def test_what_mysql_would_change_is_known_by_the_type_of_the_column(kind, kept, changed):
    rows = [{"n": kept}, {"n": changed}, {"n": None}]
    assert [number for number, _ in changes(rows, "n", takes_of(kind, "mysql"))] == [1]
    assert [*changes(rows, "n", takes_of(kind, "oracle"))] == []


class Total(BasicBolt):
    """Counts the events of each customer."""

    outputs = ["customer", "events"]
    remembers = ["totals"]

    def prepare(self, config, context):
        self.totals = KeyValueState()

    def execute(self, tup, collector):
        self.totals[tup["customer"]] = events = self.totals.get(tup["customer"], 0) + 1
        collector.emit([tup["customer"], events])


def test_totals_that_waited_for_a_locked_database_are_not_written_over_newer_ones(tmp_path: Path) -> None:
    file = tmp_path / "totals.sqlite"
    execute(file, "CREATE TABLE totals (customer TEXT PRIMARY KEY, events INTEGER)")
    sink = SqlSink(f"sqlite:///{file}?timeout=0.01", "totals", key="customer", patience_secs=0)
    feeder, builder = FeederSpout(["customer"]), TopologyBuilder("totals")
    builder.set_spout("events", feeder)
    builder.set_bolt("total", Total(), exactly_once=True).fields_grouping("events", ["customer"])
    builder.set_sink("store", sink, parallelism=2).fields_grouping("total", ["customer"])
    customers = [f"c{n}" for n in range(10)]
    with closing(sqlite3.connect(file, isolation_level=None)) as other, LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for n in range(14):
            if n == 2:
                other.execute("BEGIN IMMEDIATE")  # another program holds the database
            if n == 13:
                other.execute("COMMIT")
            for customer in customers:
                feeder.feed([customer], message_id=(n, customer))
            cluster.advance(secs=2)
        cluster.advance(secs=900)
        acked = running.stats()["__gate/store/total/default"].total.acked
        assert (len(feeder.acked), acked, len(running.dead_letters)) == (140, 140, 0)
    assert execute(file, "SELECT * FROM totals ORDER BY customer") == [(each, 14) for each in customers]


def test_a_check_makes_no_file(tmp_path):
    file = tmp_path / "mistyped.sqlite"
    with pytest.raises(ConnectorError, match=r"there is no file .*mistyped\.sqlite") as refused:
        sink_of(file).check(Config(), SimpleNamespace(input_fields={}, is_sink=False))
    assert not refused.value.can_retry
    assert not file.exists()
