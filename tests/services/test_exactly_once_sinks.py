"""Sinks that write each row once, and their mark with it, into real servers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis as redis_client
import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, ConnectorError, TaskContext, TopologyBuilder
from acktree.connectors.files import ParquetSink
from acktree.connectors.kafka import KafkaSink
from acktree.connectors.redis import RedisSink
from acktree.connectors.sql import SqlSink
from acktree.testing import SINK_CHECKS, FeederSpout, LocalCluster, check_sink

REFUSED = {"key": "refused", "value": "x" * 100}


def read_table(url, table):
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        rows = connection.execute(sa.text(f"SELECT key, value FROM {table}")).mappings().all()
    engine.dispose()
    return rows


class Tables:
    def __init__(self, url):
        self.url = url

    def make(self, name, columns="key TEXT PRIMARY KEY, value TEXT CHECK (length(value) < 50)"):
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE {name} ({columns})"))
        engine.dispose()
        return name


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def tables(request, tmp_path_factory):
    if request.param == "sqlite":
        return Tables(f"sqlite:///{tmp_path_factory.mktemp('sinks')}/sinks.db")
    server = request.getfixturevalue("postgresql")
    server.make_schema("sinks")
    return Tables(server.url("sinks"))


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_sql_sink_writes_each_row_once(tables, check):
    table = tables.make(check[:40], "key TEXT, value TEXT CHECK (length(value) < 50)")
    make = partial(SqlSink, tables.url, table, mode="insert", patience_secs=5)
    check_sink(make, lambda: read_table(tables.url, table), refused=REFUSED, only=[check])


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_parquet_sink_writes_each_row_once(tmp_path, check):
    def read_rows():
        return [row for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]

    check_sink(partial(ParquetSink, tmp_path), read_rows, only=[check])


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_redis_sink_writes_each_row_once(redis, check):
    with redis_client.Redis.from_url(redis.url, decode_responses=True) as client:
        prefix = f"{check}:"
        client.set(f"{prefix}refused", "a text where a hash should be")

        def read_rows():
            names = [name for name in client.scan_iter(f"{prefix}*") if client.type(name) == "hash"]
            return [
                {"key": name.removeprefix(prefix), "value": client.hget(name, "value")}
                for name in names
                if "acktree:" not in name
            ]

        check_sink(partial(RedisSink, redis.url, prefix), read_rows, refused=REFUSED, only=[check])


def committed(kafka, topic):
    """What a consumer with read_committed reads of a topic of one partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "reads",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        rows = []
        while True:
            message = consumer.poll(60)
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return rows
            rows.append({"key": message.key().decode(), "value": message.value().decode()})


@pytest.fixture
def topic(kafka):
    name = f"t{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    settings = {"max.message.bytes": "20000"}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result()
    return name


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_kafka_sink_writes_each_row_once(kafka, topic, check):
    refused = {"key": "refused", "value": "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))}
    make = partial(KafkaSink, kafka.bootstrap, topic)
    check_sink(make, partial(committed, kafka, topic), refused=refused, only=[check])


DIES = """
import os, sys
import pyarrow as pa
from acktree import Config, TaskContext
from acktree.connectors.kafka import KafkaSink, transactions

class Dies(transactions.Producer):
    def commit_transaction(self, *timeout):
        if sys.argv[3] == "after":
            super().commit_transaction(*timeout)
        os.kill(os.getpid(), 9)

transactions.Producer = Dies
sink = KafkaSink(sys.argv[1], sys.argv[2])
sink.open(Config(), TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id="c"))
sink.last_mark()
sink.write(pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]}), b"first")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_kafka_sink_killed_around_its_commit_writes_the_batch_once(kafka, topic, when):
    done = subprocess.run([sys.executable, "-c", DIES, kafka.bootstrap, topic, when], check=False)
    assert done.returncode == -signal.SIGKILL
    sink = KafkaSink(kafka.bootstrap, topic)
    sink.open(Config(), TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id="c"))
    assert sink.last_mark() == (None if when == "before" else b"first")
    rows = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    assert not sink.write(pa.RecordBatch.from_pylist(rows), b"first")
    assert committed(kafka, topic) == rows


# --- adding numbers ---------------------------------------------------------------------------------------


def opened(sink, component="sink"):
    sink.open(Config(), TaskContext("t", component, 1, 0, {component: (1,)}, checkpoint_id="c"))
    sink.last_mark()
    return sink


def batch(rows):
    return pa.RecordBatch.from_pylist(rows)


AMOUNTS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), st.booleans()), min_size=1, max_size=5),
    max_size=4,
)


def check_sums(make_sink, read_sums):
    """The sums are those of all rows, however often a write runs again, and beside rows that do not fit."""

    @settings(max_examples=20)
    @given(AMOUNTS, st.lists(st.integers(0, 2), min_size=4, max_size=4))
    def law(batches, runs_again):
        run = uuid4().hex
        naive = {}
        sink = opened(make_sink(), run)  # a component of its own, so a writer of its own
        for number, (rows, again) in enumerate(zip(batches, runs_again, strict=False)):
            plain = [{"key": f"{run}{key}", "n": amount if fits else "x"} for key, amount, fits in rows]
            numbers = batch([row | {"n": str(row["n"])} for row in plain])
            values = [None if row["n"] == "x" else row["n"] for row in plain]
            numbers = numbers.set_column(1, "n", pa.array(values, pa.int64()))
            told = sink.write(numbers, f"mark {number}".encode())
            assert set(told) == {index for index, (_, _, fits) in enumerate(rows) if not fits}
            for _ in range(again):
                sink = opened(make_sink(), run)
                assert sink.write(numbers, f"mark {number}".encode()) == told
            for row in plain:
                if row["n"] != "x":
                    naive[row["key"]] = naive.get(row["key"], 0) + row["n"]
        assert {key: n for key, n in read_sums().items() if key.startswith(run)} == naive

    law()


def test_sql_sink_adds_each_number_once(tables):
    table = tables.make("totals", "key TEXT PRIMARY KEY, n BIGINT")

    def read_sums():
        engine = sa.create_engine(tables.url)
        with engine.begin() as connection:
            sums = dict(connection.execute(sa.text("SELECT key, n FROM totals")).all())
        engine.dispose()
        return sums

    check_sums(partial(SqlSink, tables.url, table, mode="add", key="key"), read_sums)


def test_redis_sink_adds_each_number_once(redis):
    with redis_client.Redis.from_url(redis.url, decode_responses=True) as client:

        def read_sums():
            names = [name for name in client.scan_iter("sums:*") if "acktree" not in name]
            return {name.removeprefix("sums:"): int(client.hget(name, "n")) for name in names}

        check_sums(partial(RedisSink, redis.url, "sums:", mode="add"), read_sums)


def test_a_hash_that_cannot_grow_is_left_as_it_was(redis):
    with redis_client.Redis.from_url(redis.url, decode_responses=True) as client:
        client.hset("half:k", mapping={"a": 1, "b": "text", "c": 2**63 - 1})
        for wrong in ("b", "c"):
            sink = opened(RedisSink(redis.url, "half:", mode="add"), wrong)
            told = sink.write(batch([{"key": key, "a": 1, wrong: 1, "new": 1} for key in "kl"]), b"m")
            assert [*told] == [0]
            assert client.hgetall("half:k") == {"a": "1", "b": "text", "c": str(2**63 - 1)}
            assert sink.write(batch([]), b"m") == told
        assert client.hget("half:l", "a") == "2"


# --- values, tables and folders ---------------------------------------------------------------------------


def test_a_row_that_a_column_would_change_fails_alone_and_a_number_out_of_range_too(tables):
    table = tables.make("ranges", "key TEXT PRIMARY KEY, n SMALLINT CHECK (n < 40000)")
    sink = opened(SqlSink(tables.url, table, key="key"))
    rows = [{"key": key, "n": n} for key, n in zip("abcd", (1, 70_000, 2, 50_000), strict=True)]
    told = sink.write(batch([*rows, {"key": None, "n": 3}]), b"m")
    assert [*sorted(told)] == [1, 3, 4]
    assert all("fix" in reason or "emit" in reason for reason in told.values())


def test_a_constraint_that_is_checked_at_the_commit_fails_its_row_alone(postgresql):
    postgresql.make_schema("deferred")
    tables = Tables(postgresql.url("deferred"))
    tables.make("parents", "key TEXT PRIMARY KEY")
    columns = "key TEXT, value TEXT REFERENCES parents DEFERRABLE INITIALLY DEFERRED"
    table = tables.make("children", columns)
    sink = opened(SqlSink(tables.url, table, mode="insert"))
    told = sink.write(batch([{"key": "a", "value": None}, {"key": "b", "value": "nobody"}]), b"m")
    assert [*told] == [1]
    assert [row["key"] for row in read_table(tables.url, table)] == ["a"]


def test_a_missing_table_and_column_are_named(tables):
    with pytest.raises(ConnectorError, match="there is no table 'nowhere'") as raised:
        opened(SqlSink(tables.url, "nowhere", mode="insert"), "none").write(batch([{"key": "a"}]), b"m")
    assert not raised.value.can_retry
    table = tables.make("narrow", "key TEXT")
    sink = opened(SqlSink(tables.url, table, mode="insert"), "narrow")
    told = sink.write(batch([{"key": "a", "other": 1}]), b"m")
    assert "has no column 'other'" in told[0]


def test_a_parquet_sink_refuses_rows_that_do_not_fit_and_says_so_again(tmp_path):
    schema = pa.schema([pa.field("n", pa.int8())])
    rows = pa.record_batch({"n": pa.array([1, 300, 2])})
    told = opened(ParquetSink(tmp_path, schema=schema)).write(rows, b"m")
    assert [*told] == [1]
    assert opened(ParquetSink(tmp_path, schema=schema)).write(rows, b"m") == told
    others = opened(ParquetSink(tmp_path, schema=schema)).write(pa.record_batch({"m": pa.array([1])}), b"n")
    assert "have no field 'n'" in others[0]
    assert pq.read_table(tmp_path)["n"].to_pylist() == [1, 2]


def test_a_damaged_newest_file_is_an_error_that_names_it(tmp_path):
    opened(ParquetSink(tmp_path)).write(batch([{"n": 1}]), b"m")
    (file,) = tmp_path.glob("*.parquet")
    file.write_bytes(b"PAR1 and something else")
    with pytest.raises(ConnectorError, match="cannot be read") as raised:
        opened(ParquetSink(tmp_path))
    assert str(file) in raised.value.where


def test_the_same_objects_are_bolts_that_write_at_least_once(tables, tmp_path, redis):
    table = tables.make("bolts", "key TEXT PRIMARY KEY, n BIGINT")
    sinks = {
        "sql": SqlSink(tables.url, table, mode="add", key="key"),
        "parquet": ParquetSink(tmp_path),
        "redis": RedisSink(redis.url, "bolts:", mode="add"),
    }
    feeder = FeederSpout(["key", "n"])
    builder = TopologyBuilder("bolts")
    builder.set_spout("rows", feeder)
    for name, sink in sinks.items():
        builder.set_bolt(name, sink).shuffle_grouping("rows")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for number in range(2):
            feeder.feed(["a", 2], message_id=number)
        feeder.feed(["a", "no number"], message_id=2)
        cluster.advance(secs=0)
    assert feeder.acked == [0, 1]
    assert [message for message, _ in feeder.failed] == [2]
    with redis_client.Redis.from_url(redis.url) as client:
        assert client.hget("bolts:a", "n") == b"4"
        client.delete("bolts:a")
    assert [row["n"] for row in read_columns(tables.url, table)] == [4]


def read_columns(url, table):
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        rows = connection.execute(sa.text(f"SELECT * FROM {table}")).mappings().all()
    engine.dispose()
    return rows


class Looked(SqlSink):
    """Says when it looks for its mark."""

    seen = threading.Event()

    def last_mark(self):
        self.seen.set()
        return super().last_mark()


def test_rows_wait_for_a_database_that_is_away_and_each_is_written_once(postgresql):
    postgresql.make_schema("away")
    tables = Tables(postgresql.url("away"))
    feeder = FeederSpout(["key", "value"])
    builder = TopologyBuilder("away")
    builder.set_spout("rows", feeder)
    table = tables.make("waits", "key TEXT, value TEXT")
    builder.set_sink("sink", Looked(tables.url, table, mode="insert")).shuffle_grouping("rows")

    def come_back():
        Looked.seen.wait()
        postgresql.start()

    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        feeder.feed(["a", "1"], message_id=0)
        assert running.await_idle(60)
        postgresql.stop()
        Looked.seen.clear()
        comes = threading.Thread(target=come_back)
        comes.start()
        feeder.feed(["b", "2"], message_id=1)
        assert running.await_idle(300)
        comes.join()
        assert [*running.dead_letters] == []
    assert sorted(row["key"] for row in read_table(tables.url, table)) == ["a", "b"]
