"""What a full Redis and a lost database mean to sinks, and what is known before the first message."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pytest

client = pytest.importorskip("redis")
sa = pytest.importorskip("sqlalchemy")

from acktree import (  # noqa: E402
    Config,
    ConfigError,
    ConnectorError,
    Retry,
    TaskContext,
    TopologyBuilder,
    TopologyError,
)
from acktree.connectors.files import ParquetSink  # noqa: E402
from acktree.connectors.redis import RedisSink, RedisStreamSink, RedisStreamSpout  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from acktree.tasks.component_checks import checks_of, unchecked  # noqa: E402
from acktree.testing import FeederSpout, LocalCluster  # noqa: E402

ROWS = pa.record_batch({"key": ["a", "b"], "n": [1, 2]})


@contextmanager
def full(redis):
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


@contextmanager
def a_replica(redis):
    redis.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        redis.replicaof("NO", "ONE")


OUTAGES = [full, a_replica]


@pytest.fixture
def db(redis):
    with client.Redis.from_url(redis.url, decode_responses=True) as connection:
        connection.flushall()
        yield connection
        connection.config_set("maxmemory", 0)


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("mode", ["upsert", "add"])
@pytest.mark.parametrize("method", ["set_bolt", "set_sink"])
def test_a_redis_that_takes_no_writes_is_an_outage_and_uses_up_no_attempt(redis, db, outage, mode, method):
    feeder, builder = FeederSpout(["key", "n"]), TopologyBuilder("t")
    builder.set_spout("rows", feeder, retry=Retry(max_attempts=1))
    given = {"retry": Retry(max_attempts=1)} if method == "set_sink" else {}
    sink = RedisSink(redis.url, "t:", mode=mode)
    getattr(builder, method)("store", sink, **given).fields_grouping("rows", ["key"])
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        with outage(db):
            for number in range(5):
                feeder.feed([f"k{number}", number], message_id=number)
            for _ in range(5):
                cluster.advance(secs=40)
            waits = {name: each.outage for name, each in running.stats().components.items() if each.outage}
            assert [each.dependency for each in waits.values()] == ["store"]
            assert not db.keys("t:k*")
        for _ in range(12):
            cluster.advance(secs=40)
        assert not running.dead_letters
        assert not feeder.failed
        assert {name: db.hget(name, "n") for name in db.keys("t:k*")} == {f"t:k{n}": str(n) for n in range(5)}


@pytest.mark.parametrize("outage", OUTAGES)
def test_rows_beside_a_refused_one_wait_too_and_nothing_is_written_in_part(redis, db, outage):
    db.set("t:a", "a text where a hash should be")
    sink = RedisSink(redis.url, "t:")
    sink.open(Config(), TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id="c"))
    sink.last_mark()
    with outage(db), pytest.raises(ConnectorError) as raised:
        sink.write(ROWS, b"m")
    assert raised.value.can_retry
    assert raised.value.nothing_written
    assert not db.exists("t:b")
    assert [*sink.write(ROWS, b"m")] == [0]
    assert db.hget("t:b", "n") == "2"


def test_what_redis_refuses_is_said_once(redis, db):
    db.set("t:a", "a text where a hash should be")
    feeder, builder = FeederSpout(["key", "n"]), TopologyBuilder("t")
    builder.set_spout("rows", feeder)
    builder.set_bolt("store", RedisSink(redis.url, "t:")).shuffle_grouping("rows")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed(["a", 1], message_id=1)
        cluster.advance(secs=0)
    [(_, failure)] = feeder.failed
    assert failure.reason.count("Redis refused the hash") == 1


# --- what a database has when a connection is lost --------------------------------------------------------


class Breaks:
    """Ends the connections of a table's engine at a moment of the transaction."""

    def __init__(self, sink, moment):
        self.engine, self.is_over = sink._kept._engine, False
        sa.event.listen(self.engine, moment, self)

    def __call__(self, connection, *_given):
        if not self.is_over:
            self.is_over = True
            connection.connection.driver_connection.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/sinks.db"
    else:
        server = request.getfixturevalue("postgresql")
        url = server.url(request.getfixturevalue("schema"))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS sums"))
        connection.execute(sa.text("CREATE TABLE sums (key TEXT PRIMARY KEY, n BIGINT)"))
    engine.dispose()
    return url


@pytest.mark.parametrize(("moment", "is_sure"), [("begin", True), ("commit", False)])
def test_a_connection_that_is_lost_in_the_commit_alone_leaves_a_doubt(table, moment, is_sure, request):
    sink = SqlSink(table, "sums", mode="add", key="key", patience_secs=0)
    component = f"{moment}{request.node.name}"
    sink.open(Config(), TaskContext("t", component, 1, 0, {component: (1,)}, checkpoint_id="c"))
    sink.last_mark()
    sink.write(ROWS, b"first")
    breaks = Breaks(sink, moment)
    with pytest.raises(Exception) as raised:  # noqa: PT011  # a driver's own, or what the sink makes of it
        sink.write(ROWS, b"second")
    assert breaks.is_over
    assert raised.value.nothing_written is is_sure


# --- before the first message -----------------------------------------------------------------------------


def refusals(spout=None, sink=None, method="set_sink", fields=("key", "n")):
    builder = TopologyBuilder("t")
    builder.set_spout("source", spout or FeederSpout(list(fields)))
    if sink is not None:
        getattr(builder, method)("store", sink).shuffle_grouping("source")
    topology = builder.create_topology()
    return {name: error for name, error in checks_of(topology, Config()) if error}, unchecked(topology)


@pytest.mark.parametrize("method", ["set_sink", "set_bolt"])
@pytest.mark.parametrize("key", ["key", "customer"])
def test_a_key_that_is_no_field_of_the_stream_is_refused_before_the_start(redis, method, key):
    sink = RedisSink(redis.url, "t:", key=key)
    if (key, method) == ("key", "set_sink"):  # the latest row of a key counts, so the topology is refused
        with pytest.raises(TopologyError, match="by 'key', which 'source' does not emit") as refused:
            refusals(sink=sink, method=method, fields=("customer", "n"))
        assert "customer, n" in refused.value.fix
        return
    found, _ = refusals(sink=sink, method=method, fields=("customer", "n"))
    if key == "customer":
        assert not found
    else:
        assert isinstance(found["store"], ConfigError)
        assert "no field 'key'" in found["store"].what
        assert "customer, n" in found["store"].fix
    assert refusals(sink=RedisSink(redis.url, "t:"), method=method, fields=("key",))[0]


def test_a_wrong_password_port_stream_and_folder_are_named(redis, db, tmp_path):
    db.acl_setuser("me", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"])
    wrong = redis.url.replace("redis://", "redis://me:S3cr3t@")
    away = "redis://127.0.0.1:1/0"
    for make in (partial(RedisSink, prefix="t:"), partial(RedisStreamSink, stream="s")):
        method = "set_sink" if make.func is RedisSink else "set_bolt"
        found, _ = refusals(sink=make(wrong), method=method)
        assert not found["store"].can_retry
        assert "S3cr3t" not in str(found["store"])
        assert refusals(sink=make(away), method=method)[0]["store"].can_retry
        assert not refusals(sink=make(redis.url), method=method)[0]
    assert "no such stream" in refusals(RedisStreamSpout(redis.url, "s", "g"))[0]["source"].what
    db.xgroup_create("s", "g", mkstream=True)
    assert not refusals(RedisStreamSpout(redis.url, "s", "g"))[0]
    assert refusals(RedisStreamSpout(away, "s", "g"))[0]["source"].can_retry
    assert not refusals(sink=ParquetSink(tmp_path / "new" / "folder"))[0]
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert "is no folder" in refusals(sink=ParquetSink(tmp_path / "file" / "folder"))[0]["store"].what


def test_those_that_nobody_asks_are_named(redis):
    class Plain(FeederSpout):
        pass

    found, names = refusals(Plain(["key", "n"]), RedisSink(redis.url, "t:"))
    assert not found
    assert names == ["source"]
