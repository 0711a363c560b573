"""The SQL sink against a real PostgreSQL."""

from __future__ import annotations

import threading
import traceback
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sqlalchemy")

from acktree import Config, ConnectorError, Topology, TopologyBuilder
from acktree.connectors.sql import SqlSink
from acktree.tasks.component_checks import checks_of
from acktree.testing import FeederSpout, LocalCluster
from tests.services.postgresql import PASSWORD, PostgreSQL

ORDERS = "id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), at timestamptz, tags jsonb"
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


class Orders:
    """A table of orders in a schema of its own, and a topology that writes into it."""

    fields = ("id", "name", "at", "tags")

    def __init__(self, server: PostgreSQL, schema: str, cluster: LocalCluster) -> None:
        self.server, self.schema, self.cluster = server, schema, cluster
        self.execute(f"CREATE TABLE {schema}.orders ({ORDERS})")

    def execute(self, statement: str):
        with self.server.connect() as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else None

    def ids(self) -> list[int]:
        return [row[0] for row in self.execute(f"SELECT id FROM {self.schema}.orders ORDER BY id")]

    def sink(self, url: str | None = None, table: str = "orders", **options) -> SqlSink:
        return SqlSink(url or self.server.url(self.schema), table, **{"key": "id"} | options)

    def topology(self, sink: SqlSink, fields=None) -> tuple[FeederSpout, Topology]:
        feeder = FeederSpout(list(fields or self.fields))
        builder = TopologyBuilder("sink")
        builder.set_spout("feeder", feeder)
        builder.set_bolt("sink", sink).shuffle_grouping("feeder")
        return feeder, builder.create_topology()

    def refused_by_check(self, sink: SqlSink, *_rows, fields=None) -> ConnectorError | None:
        """What the sink says before anything runs."""
        ((_, error),) = checks_of(self.topology(sink, fields)[1], Config())
        return error

    def stopped_by(self, sink: SqlSink, *rows, fields=None) -> ConnectorError:
        """The error that stops a topology which writes these rows, in a cluster of its own."""
        with LocalCluster() as cluster, pytest.raises(ConnectorError) as stopped:
            self.write(sink, *rows, fields=fields, cluster=cluster)
        return stopped.value

    def write(self, sink: SqlSink, *rows, fields=None, cluster=None) -> FeederSpout:
        feeder, topology = self.topology(sink, fields)
        cluster = cluster or self.cluster
        cluster.submit(topology)
        for n, row in enumerate(rows):
            feeder.feed(list(row), message_id=n)
        cluster.advance()
        return feeder


@pytest.fixture
def orders(postgresql, schema):
    with LocalCluster() as cluster:
        yield Orders(postgresql, schema, cluster)


def row(number: int, name: object = "name") -> tuple:
    return number, name, NOON, {"a": [number]}


def test_rows_are_written_with_the_types_of_their_columns_and_a_second_run_leaves_them(
    orders: Orders,
) -> None:
    for _ in range(2):
        assert orders.write(orders.sink(), row(1), row(2)).acked == [0, 1]
    assert orders.execute(f"SELECT * FROM {orders.schema}.orders ORDER BY id") == [row(1), row(2)]


@pytest.mark.parametrize(
    ("kind", "value", "back"),
    [
        ("jsonb", {"a": [Colour.RED, np.float64(1.5), np.int64(2)]}, {"a": ["red", 1.5, 2]}),
        ("json", {Colour.RED: OrderedDict(a=True)}, {"red": {"a": True}}),
        ("double precision[]", np.array([1.5, 2.5]), [1.5, 2.5]),
        ("integer[]", np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ("text[]", [Colour.RED, None], ["red", None]),
        ("numeric", 1 / 3, Decimal(repr(1 / 3))),
        ("numeric(20, 2)", 123456789012345.67, Decimal("123456789012345.67")),
        ("interval", pd.Timedelta(hours=3), timedelta(hours=3)),
        ("timestamptz", "2024-05-01T12:00:00.5Z", datetime(2024, 5, 1, 12, 0, 0, 500_000, UTC)),
        ("timestamp", "2024-05-01 12:00", datetime(2024, 5, 1, 12)),  # noqa: DTZ001  # it has no zone
        ("date", "2024-05-01", date(2024, 5, 1)),
    ],
)
def test_values_of_numpy_pandas_and_enumerations_are_written_wherever_they_are(
    orders: Orders, kind: str, value: object, back: object
) -> None:
    orders.execute(f"CREATE TABLE {orders.schema}.measured (id bigint PRIMARY KEY, value {kind})")
    feeder = orders.write(orders.sink(table="measured"), (1, value), fields=["id", "value"])
    assert (feeder.acked, feeder.failed) == ([0], [])
    assert orders.execute(f"SELECT value FROM {orders.schema}.measured") == [(back,)]


def test_a_table_may_be_named_with_its_schema(orders: Orders) -> None:
    sink = orders.sink(orders.server.url(), f"{orders.schema}.orders")
    assert orders.write(sink, row(1)).acked == [0]
    assert orders.ids() == [1]


@pytest.mark.parametrize("odd", ["bad", "nul \0"])
def test_a_refused_row_fails_alone_among_many(orders: Orders, odd: object) -> None:
    rows = [row(n, odd if n == 321 else "name") for n in range(600)]
    feeder = orders.write(orders.sink(), *rows)
    assert [message_id for message_id, _ in feeder.failed] == [321]
    assert len(feeder.acked) == 599
    assert orders.ids() == [n for n in range(600) if n != 321]


def test_the_same_key_twice_in_a_batch_leaves_the_later_values(orders: Orders) -> None:
    assert orders.write(orders.sink(), row(1, "older"), row(1, "newer")).acked == [0, 1]
    assert orders.execute(f"SELECT name FROM {orders.schema}.orders") == [("newer",)]


def test_an_error_of_the_table_is_reported_without_a_secret(orders: Orders) -> None:
    url = orders.server.url(orders.schema)
    wrong = url.replace(quote(PASSWORD, safe=""), "Wr0ngS3cr3t")
    orders.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 'R3aders'")
    orders.execute(f"GRANT USAGE ON SCHEMA {orders.schema} TO reader")
    orders.execute(f"GRANT SELECT ON {orders.schema}.orders TO reader")
    reads = url.replace("tester:" + quote(PASSWORD, safe=""), "reader:R3aders")
    cases = {
        "refused the login": orders.sink(wrong),
        "there is no table 'nothing'": orders.sink(table="nothing"),
        "permission denied": orders.sink(reads),
        "does not exist": orders.sink(url.replace("/postgres?", "/nowhere?")),
        "neither a primary key nor a unique index": orders.sink(key="name"),
    }
    for words, sink in cases.items():
        said = [orders.stopped_by(sink, row(1)), orders.refused_by_check(sink)]
        assert words in said[0].what
        assert words in said[1].what or (words == "permission denied" and "may not INSERT" in said[1].what)
        for error in said:
            assert error.fix
            assert not error.can_retry
            for secret in (PASSWORD, quote(PASSWORD, safe=""), "Wr0ngS3cr3t", "R3aders"):
                assert secret not in "".join(traceback.format_exception(error))
    orders.execute(
        f"REVOKE ALL ON SCHEMA {orders.schema} FROM reader; DROP OWNED BY reader; DROP ROLE reader"
    )
    for ask in (orders.stopped_by, orders.refused_by_check):
        assert "no column 'total'" in ask(orders.sink(), (1, 2), fields=["id", "total"]).what
    assert orders.refused_by_check(orders.sink()) is None
    assert orders.ids() == []


def test_a_server_that_is_away_is_waited_for(orders: Orders) -> None:
    sink = orders.sink()
    assert orders.write(sink, row(1)).acked == [0]
    orders.server.stop()
    starts = threading.Timer(0.5, orders.server.start)
    starts.start()
    try:
        assert orders.write(sink, row(2), row(3)).acked == [0, 1]
    finally:
        starts.join()
    assert orders.ids() == [1, 2, 3]


def test_while_the_server_stays_away_messages_wait_and_are_written_when_it_is_back(orders: Orders) -> None:
    orders.server.stop()
    try:
        feeder = orders.write(orders.sink(patience_secs=0.3), row(1), row(2))
        orders.cluster.advance(5)
        assert feeder.failed == feeder.acked == []
    finally:
        orders.server.start()
    orders.cluster.advance(60)
    assert sorted(feeder.acked) == [0, 1]
    assert orders.ids() == [1, 2]


def test_connections_that_the_server_ended_are_made_anew(orders: Orders) -> None:
    sink = orders.sink()
    orders.write(sink, row(1))
    others = "pid <> pg_backend_pid() AND usename = 'tester'"
    orders.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    assert orders.write(sink, row(2)).acked == [0]


def test_a_lock_is_waited_for(orders: Orders) -> None:
    sink = orders.sink(orders.server.url(orders.schema, settings="-clock_timeout=50ms"))
    with orders.server.connect() as other:
        other.execute("BEGIN")
        other.execute(f"LOCK TABLE {orders.schema}.orders")

        def release_after_a_timeout():
            for waits in (1, 0):
                while orders.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(waits,)]:
                    pass
            other.execute("COMMIT")

        releases = threading.Thread(target=release_after_a_timeout)
        releases.start()
        assert orders.write(sink, row(1)).acked == [0]
        releases.join()
