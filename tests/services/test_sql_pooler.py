"""Through PgBouncer in transaction mode, where each transaction may have another session of PostgreSQL.

Nothing of a session may be needed by a later transaction: no prepared statement, temporary table or setting.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

psycopg = pytest.importorskip("psycopg")
sa = pytest.importorskip("sqlalchemy")

from acktree import Config, ConnectorError, TaskContext  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from acktree.connectors.sql_tables.sql_table import SqlTable, engine_of  # noqa: E402
from acktree.dead_letters import DeadLetters  # noqa: E402
from acktree.states import MapState, SqlMap  # noqa: E402
from acktree.testing import SINK_CHECKS, check_sink  # noqa: E402
from tests.services.postgresql import PgBouncer  # noqa: E402
from tests.unit.dead_letters.letters import LETTER  # noqa: E402

_numbers = count()
ROUNDS = 12
"""psycopg prepares a statement when it executes it for the sixth time."""


@pytest.fixture
def pooler(pgbouncer):
    """It has all of its sessions, and gives each transaction the next one."""
    with ExitStack() as stack:
        opened = {"host": "127.0.0.1", "port": pgbouncer.port, "user": "tester", "dbname": "postgres"}
        clients = [stack.enter_context(psycopg.connect(**opened)) for _ in range(pgbouncer.sessions)]
        for each in clients:
            each.execute("SELECT 1")  # it holds its session until its transaction ends
        for each in clients:
            each.rollback()
        asked = set()
        for each in clients:
            asked.add(each.execute("SELECT pg_backend_pid()").fetchone())
            each.rollback()
        assert len(asked) == pgbouncer.sessions
    return pgbouncer


@pytest.fixture(scope="module")
def server(postgresql):
    postgresql.make_schema("pooled")
    return postgresql


def executed(server, statement):
    with server.connect() as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else None


def made(server, columns="id bigint PRIMARY KEY, x bigint CHECK (x <> 7777)"):
    name = f"pooled.t{next(_numbers)}"
    executed(server, f"CREATE TABLE {name} ({columns})")
    return name


def opened(sink):
    place = TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id=f"{next(_numbers)}")
    sink.open(Config(), place)
    return sink


@pytest.mark.parametrize("rows", [1, 60, 300])
@pytest.mark.parametrize("mode", ["insert", "ignore", "upsert", "add"])
def test_each_transaction_may_have_another_session(server, pooler, mode, rows):
    table, key = made(server), () if mode == "insert" else "id"
    sink = opened(SqlSink(pooler.url, table, mode=mode, key=key, patience_secs=0.0))
    for number in range(ROUNDS):
        ids = [row + (rows * number if mode == "insert" else 0) for row in range(rows)]
        values = [number + 1] * rows
        values[-1] = 7777 if number % 4 == 3 else values[-1]  # is refused
        sink.last_mark()
        refused = sink.write(pa.record_batch({"id": ids, "x": values}), b"%d" % number)
        assert [*refused] == [rows - 1] * (number % 4 == 3), refused
    sink._kept._engine.dispose()
    numbers = range(1, ROUNDS + 1)
    taken = [number for number in numbers if rows > 1 or number % 4]
    left = {"insert": sum(taken), "ignore": 1, "upsert": taken[-1], "add": sum(taken)}
    assert executed(server, f"SELECT sum(x) FROM {table} WHERE id % {rows} = 0") == [(left[mode],)]


def test_a_bolt_writes_through_a_pooler(server, pooler):
    table = made(server)
    kept = SqlTable(pooler.url, table, "upsert", ("id",))
    for number in range(ROUNDS):
        kept.commit([{"id": row, "x": number} for row in range(50)])
    kept.check([frozenset(["id", "x"])], has_marks=True)
    assert executed(server, f"SELECT count(*), min(x) FROM {table}") == [(50, ROUNDS - 1)]


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_each_row_is_written_once_through_a_pooler(server, pooler, check):
    table = made(server, "key TEXT, value TEXT CHECK (length(value) < 50)")
    make = partial(SqlSink, pooler.url, table, mode="insert", patience_secs=5)

    def read():
        return [{"key": key, "value": value} for key, value in executed(server, f"SELECT * FROM {table}")]

    check_sink(make, read, refused={"key": "refused", "value": "x" * 100}, only=[check])


def test_an_outage_behind_a_pooler_is_waited_for(server, pooler):
    table = made(server)
    sink = opened(SqlSink(pooler.url, table, key="id", patience_secs=0.0))
    batch = pa.record_batch({"id": [1], "x": [1]})
    sink.last_mark()
    assert sink.write(batch, b"1") == {}
    pooler.kill()
    try:
        with pytest.raises(ConnectorError) as away:
            sink.write(batch, b"2")
        assert (away.value.can_retry, away.value.nothing_written) == (True, True)
    finally:
        pooler.start()
    server.stop()
    try:
        with pytest.raises(ConnectorError) as behind:
            sink.write(batch, b"2")
        assert (behind.value.can_retry, behind.value.nothing_written) == (True, True)
    finally:
        server.start()
    sink.patience_secs = 60.0  # the pooler tries again by itself
    sink.last_mark()
    assert sink.write(batch, b"2") == {}


def test_letters_and_states_go_through_a_pooler(server, pooler):
    with DeadLetters(pooler.url, create=True) as letters:
        for number in range(ROUNDS):
            letters.put([replace(LETTER, root=LETTER.root + number)])
        assert len(letters) == ROUNDS
    executed(server, "DROP TABLE acktree_dead_letters, acktree_dead_letters_version")
    state = MapState(SqlMap(pooler.url, "pooled.counts"), mode="opaque")
    for txid in range(1, ROUNDS + 1):
        state.begin_commit(txid)
        state.multi_update(["a", "b"], [lambda old: (old or 0) + 1] * 2)
        state.commit(txid)
    assert state.multi_get(["a", "b"]) == [ROUNDS, ROUNDS]


def test_statements_are_prepared_where_no_pooler_is_between(server, pooler):
    for url, threshold in ((server.url("pooled"), 5), (pooler.url, None)):
        engine = engine_of(url)
        with engine.connect() as connection:
            assert connection.connection.driver_connection.prepare_threshold == threshold
        engine.dispose()


@pytest.fixture
def by_statement(server, pgbouncer):  # it skips where PgBouncer is missing
    pooler = PgBouncer(server.port, "statement")
    yield pooler
    pooler.remove()


def test_a_pooler_that_cannot_be_used_is_refused_before_the_first_row(server, pooler, by_statement):
    table = made(server)
    place = TaskContext("t", "sink", 1, 0, {"sink": (1,)}, is_sink=True)
    for url in (by_statement.url, f"{pooler.url}?options=-csearch_path%3Dpooled"):
        with pytest.raises(ConnectorError, match="the pooler cannot be used so") as refused:
            SqlSink(url, table, key="id").check(Config(), place)
        assert "pool_mode = transaction" in refused.value.fix
        assert not refused.value.can_retry
    SqlSink(pooler.url, table, key="id").check(Config(), place)
