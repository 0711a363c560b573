"""Rows that a sink copies leave what rows that it inserts leave: in the table, and of refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acktree import Config, ConnectorError, TaskContext
from acktree.connectors import sql_copy
from acktree.connectors.sql import SqlSink
from tests.drawn import drawn

COLUMNS = "id bigint {}, name text CHECK (name <> 'bad'), amount numeric(8, 2), n int, at timestamptz, tags jsonb, part float8"
NEVER = 10**9
_names = count()


@pytest.fixture(scope="module")
def server(postgresql):
    postgresql.make_schema("copied")
    return postgresql


@pytest.fixture
def copies(monkeypatch):
    """How many rows each COPY has written, of whatever number of rows."""
    found = []
    real = sql_copy.Copied._copy

    def noting(self, connection, table, names, rows):
        real(self, connection, table, names, rows)
        found.append(len(rows))

    monkeypatch.setattr(sql_copy.Copied, "_copy", noting)
    monkeypatch.setattr(sql_copy, "LEAST_ROWS", 1)
    return found


def table_of(server, columns):
    name = f"t{next(_names)}"
    with server.connect() as connection:
        connection.execute(f"CREATE TABLE copied.{name} ({columns})")
    return name


def rows_in(server, table):
    with server.connect() as connection:
        found = connection.execute(f"SELECT * FROM copied.{table}").fetchall()
    return sorted(found, key=repr)


def written(server, table, rows, mode, url=None):
    """Writes rows as a task does; returns the refusals."""
    sink = SqlSink(url or server.url("copied"), table, mode=mode, key=() if mode == "insert" else "id")
    sink.open(Config(), TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id=f"{next(_names)}"))
    try:
        sink.last_mark()
        return sink.write(pa.RecordBatch.from_pylist(rows), b"mark")
    finally:
        sink._kept._engine.dispose()  # one for each example, and the server has few connections


numbers = {"id": st.one_of(st.integers(1, 5), st.none()), "n": st.one_of(st.integers(-3, 3), st.none())}
others = {
    "name": st.sampled_from(["a", "b\t\\N\n\r", "", "\\.", "ü", "bad", None, "with \0"]),
    "amount": st.one_of(st.decimals(-9999, 9999, places=2), st.just(Decimal("99999999"))),
    "part": st.sampled_from([0.1, -1e300, float("nan"), float("inf"), None]),
    "at": st.sampled_from([datetime(2024, 5, 1, 12, tzinfo=UTC), None]),
    "tags": st.sampled_from([{"a": [1, None]}, {"a": [2, 3]}, None]),
}


@pytest.mark.parametrize("mode", ["insert", "upsert", "ignore", "add"])
def test_what_is_copied_leaves_the_rows_and_refusals_of_what_is_inserted(server, copies, monkeypatch, mode):
    fields = numbers if mode == "add" else numbers | others
    key = "" if mode == "insert" else "PRIMARY KEY"

    @settings(max_examples=drawn(12), deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=30), st.sampled_from([1, 3]))
    def law(rows, most_turns):
        monkeypatch.setattr(sql_copy, "_MOST_TURNS", most_turns)
        found = []
        for least in (1, NEVER):
            monkeypatch.setattr(sql_copy, "LEAST_ROWS", least)
            table = table_of(server, COLUMNS.format(key))
            refused = written(server, table, rows, mode)
            # As texts: NaN equals nothing. A refusal names its table and its constraints.
            found.append(repr((rows_in(server, table), refused)).replace(table, "T"))
        assert found[0] == found[1]

    law()
    assert copies, "nothing was copied"


def orders(count):
    return [{"id": n, "name": f"name {n}"} for n in range(count)]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_refused_row_among_many_that_are_copied_fails_alone(server, copies, mode):
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    rows = orders(300)
    rows[123]["name"] = "bad"
    refused = written(server, table, rows, mode)
    assert list(refused) == [123]
    assert len(rows_in(server, table)) == 299
    assert max(copies) >= 150


def test_rows_of_one_key_are_copied_in_turns_and_the_last_one_counts(server, copies):
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    assert written(server, table, [{"id": n % 3, "n": n} for n in range(90)], "upsert") == {}
    assert [(row[0], row[3]) for row in rows_in(server, table)] == [(0, 87), (1, 88), (2, 89)]
    assert copies == [60], "20 turns of three keys; the others are inserted"


def test_few_rows_are_inserted(server, copies, monkeypatch):
    monkeypatch.setattr(sql_copy, "LEAST_ROWS", 100)
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    assert written(server, table, orders(99), "insert") == {}
    assert copies == []


@pytest.mark.parametrize(
    "also",
    [
        "ALTER TABLE {} ENABLE ROW LEVEL SECURITY",
        "CREATE RULE r AS ON INSERT TO {} WHERE new.id = 1 DO INSTEAD NOTHING",
        "ALTER TABLE {} DROP COLUMN id, ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY",
    ],
    ids=["row security", "rule", "identity"],
)
def test_nothing_is_copied_where_an_insert_has_another_meaning(server, copies, also):
    table = table_of(server, COLUMNS.format(""))
    with server.connect() as connection:
        connection.execute(also.format(f"copied.{table}"))
    if "IDENTITY" in also:
        with pytest.raises(ConnectorError, match="cannot insert a non-DEFAULT value"):
            written(server, table, orders(3), "insert")
    else:
        assert written(server, table, orders(3), "insert") == {}
    assert [row for row in rows_in(server, table) if row[0] == 1] == [] or "RULE" not in also
    assert copies == []


def test_a_user_who_may_make_no_temporary_table_inserts(server, copies):
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    with server.connect() as connection:
        connection.execute("REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
        connection.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        connection.execute("GRANT ALL ON SCHEMA copied TO plain")
        connection.execute(f"GRANT ALL ON copied.{table} TO plain")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA copied TO plain")
    url = f"postgresql+psycopg://plain:plain@127.0.0.1:{server.port}/postgres?options=-csearch_path%3Dcopied"
    try:
        assert written(server, table, orders(3), "upsert", url) == {}
    finally:
        with server.connect() as connection:
            connection.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")
    assert len(rows_in(server, table)) == 3
    assert copies == []


def test_a_connection_that_ends_in_a_copy_refuses_no_row(server, copies):
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    with server.connect() as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION copied.ends() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN new; END $$"
        )
        connection.execute(
            f"CREATE TRIGGER ends BEFORE INSERT ON copied.{table} FOR EACH ROW EXECUTE FUNCTION copied.ends()"
        )
    with pytest.raises(ConnectorError) as raised:
        written(server, table, orders(3), "insert")
    assert raised.value.can_retry
    assert raised.value.nothing_written
    assert rows_in(server, table) == []
    assert copies == []
