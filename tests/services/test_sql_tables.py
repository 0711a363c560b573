"""Rows are written with their mark or not at all, also where a database undoes more or a table is changed."""

from __future__ import annotations

import sqlite3
from itertools import count

import pyarrow as pa
import pytest

sa = pytest.importorskip("sqlalchemy")

from acktree import Config, ConnectorError, TaskContext  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from tests.services.postgresql import PASSWORD  # noqa: E402

_names = count()


@pytest.fixture(scope="module")
def server(postgresql):
    postgresql.make_schema("tables")
    with postgresql.connect() as connection:
        connection.execute(f"CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}'")
        connection.execute("GRANT USAGE, CREATE ON SCHEMA tables TO writer")
    return postgresql


def url_of_writer(server):
    """Of a user that owns nothing: policies do not hold for a table's owner."""
    return server.url("tables").replace("//tester:", "//writer:")


def table_of(server, columns):
    name = f"t{next(_names)}"
    executed(server, f"CREATE TABLE tables.{name} ({columns})", f"GRANT ALL ON tables.{name} TO writer")
    return name


def executed(server, *statements):
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement)


def found(server, table, what="*"):
    with server.connect() as connection:
        return connection.execute(f"SELECT {what} FROM tables.{table}").fetchall()


class Opened:
    """A sink as a task has it, with its connection."""

    def __init__(self, url, table, mode="insert", key=()):
        self.sink = SqlSink(url, table, mode=mode, key=key, patience_secs=0.0)
        place = TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id=f"{next(_names)}")
        self.sink.open(Config(), place)

    @property
    def engine(self):
        return self.sink._kept._engine

    def write(self, rows, mark=b"mark"):
        """As a task writes: the last mark is read first."""
        self.sink.last_mark()
        return self.sink.write(pa.RecordBatch.from_pylist(rows), mark)


@pytest.fixture
def opened():
    made = []

    def open_one(*arguments, **more):
        made.append(Opened(*arguments, **more))
        return made[-1]

    yield open_one
    for each in made:
        each.engine.dispose()


def rows(count, **more):
    return [{"id": number, "x": "a", **more} for number in range(count)]


# ---- SQLite undoes a whole transaction --------------------------------------------------------------------


def sqlite_file(folder, definition):
    path = folder / "sink.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(definition)
    return path


def in_file(path, table="t"):
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_where_sqlite_has_no_room_nothing_is_written_and_the_rows_wait(tmp_path, opened):
    path = sqlite_file(tmp_path, "CREATE TABLE t (id INTEGER, x TEXT)")
    sink = opened(f"sqlite:///{path}", "t")
    room = [30]
    sa.event.listen(
        sink.engine, "checkout", lambda raw, *_: raw.execute(f"PRAGMA max_page_count={room[0]}").fetchall()
    )
    many = [{"id": number, "x": "a" * 3000} for number in range(100)]
    with pytest.raises(ConnectorError, match="disk is full") as raised:
        sink.write(many)
    assert (raised.value.can_retry, raised.value.nothing_written) == (True, True)
    assert (in_file(path), in_file(path, "acktree_marks")) == (0, 0)
    room[0] = 10_000
    assert sink.write(many) == {}
    assert sink.write(many) == {}, "the second run finds the mark"
    assert in_file(path) == 100


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE t (id INTEGER UNIQUE ON CONFLICT ROLLBACK, x TEXT)",
        (
            "CREATE TABLE t (id INTEGER, x TEXT); CREATE TRIGGER g BEFORE INSERT ON t WHEN new.x = 'bad'"
            " BEGIN SELECT raise(ROLLBACK, 'no'); END"
        ),
    ],
    ids=["constraint", "trigger"],
)
def test_a_row_that_ends_sqlites_transaction_is_an_error_and_nothing_is_written(tmp_path, opened, definition):
    path = sqlite_file(tmp_path, definition)
    sink = opened(f"sqlite:///{path}", "t")
    many = rows(8)
    many[5] = {"id": 1, "x": "bad"}
    with pytest.raises(ConnectorError, match="ended the transaction of all rows") as raised:
        sink.write(many)
    assert "RAISE(ABORT" in raised.value.fix
    assert raised.value.nothing_written
    assert (in_file(path), in_file(path, "acktree_marks")) == (0, 0)


# ---- one row is refused, or the table is ------------------------------------------------------------------

POLICY = "CREATE POLICY p ON tables.{} WITH CHECK (x <> 'bad')"
RAISES = (
    "CREATE OR REPLACE FUNCTION tables.refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN IF new.x = ''bad'' THEN RAISE insufficient_privilege; END IF; RETURN new; END'"
)
TRIGGER = "CREATE TRIGGER g BEFORE INSERT ON tables.{} FOR EACH ROW EXECUTE FUNCTION tables.refuse()"


@pytest.mark.parametrize(
    "also", [("ALTER TABLE tables.{} ENABLE ROW LEVEL SECURITY", POLICY), (RAISES, TRIGGER)], ids=len
)
def test_a_row_that_a_policy_or_a_trigger_forbids_fails_alone(server, opened, also):
    table = table_of(server, "id int, x text")
    executed(server, *(statement.format(table) for statement in also))
    many = rows(150)
    many[77]["x"] = "bad"
    assert list(opened(url_of_writer(server), table).write(many)) == [77]
    assert found(server, table, "count(*)") == [(149,)]


def test_what_can_never_be_written_is_not_taken_for_a_database_that_is_away(server, opened):
    executed(server, "CREATE VIEW tables.v AS SELECT 1 AS id, 'a'::text AS x")
    table = table_of(server, "id int PRIMARY KEY DEFERRABLE, x text")
    for sink in (opened(server.url("tables"), "v"), opened(server.url("tables"), table, "upsert", "id")):
        with pytest.raises(ConnectorError, match="the table cannot be written") as raised:
            sink.write(rows(3))
        assert not raised.value.can_retry


def test_who_may_not_make_the_table_of_marks_is_told_how_to(server, opened):
    server.make_schema("closed")
    executed(
        server, "GRANT USAGE ON SCHEMA closed TO writer", "CREATE TABLE closed.t (id int, x text)",
        "GRANT ALL ON closed.t TO writer",
    )  # fmt: skip
    sink = opened(url_of_writer(server), "closed.t")
    with pytest.raises(ConnectorError, match=r"no table closed\.acktree_marks") as raised:
        sink.write(rows(3))
    assert "GRANT SELECT, INSERT, UPDATE" in raised.value.fix
    executed(server, raised.value.fix.partition(": ")[2].partition(" (or ")[0])
    assert sink.write(rows(3)) == {}


# ---- the table is changed between two micro-batches -------------------------------------------------------


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_a_column_that_was_given_another_type_refuses_what_it_would_change(
    request, tmp_path, opened, database, count
):
    if database == "sqlite":
        path = sqlite_file(tmp_path, "CREATE TABLE t (id INTEGER, x TEXT, d TEXT)")
        url, table = f"sqlite:///{path}", "t"
    else:
        server = request.getfixturevalue("server")
        url, table = server.url("tables"), table_of(server, "id int, x text, d text")
    sink = opened(url, table)
    assert sink.write(rows(count, d="1.50"), b"1") == {}
    if database == "sqlite":
        with sqlite3.connect(path) as connection:
            connection.executescript("DROP TABLE t; CREATE TABLE t (id INTEGER, x TEXT, d INTEGER)")
    else:
        executed(server, f"ALTER TABLE tables.{table} ALTER d TYPE char(6)")
    assert len(sink.write(rows(count, d="1.50"), b"2")) == count
    if database == "postgresql":
        executed(server, f"ALTER TABLE tables.{table} ALTER d TYPE text")
        assert sink.write(rows(count, d="1.50"), b"3") == {}


def test_a_rule_that_was_made_later_holds_for_many_rows(server, opened):
    table = table_of(server, "id int, x text")
    sink = opened(server.url("tables"), table)
    assert sink.write(rows(200), b"1") == {}
    executed(server, f"CREATE RULE r AS ON INSERT TO tables.{table} DO INSTEAD NOTHING")
    assert sink.write(rows(200), b"2") == {}
    assert found(server, table, "count(*)") == [(200,)], "a COPY would pass the rule by"


def test_no_row_is_doubled_where_the_key_was_dropped_later(server, opened):
    table = table_of(server, "id int PRIMARY KEY, x text")
    sink = opened(server.url("tables"), table, "upsert", "id")
    assert sink.write(rows(200), b"1") == {}
    executed(server, f"ALTER TABLE tables.{table} DROP CONSTRAINT {table}_pkey")
    with pytest.raises(ConnectorError, match="neither a primary key nor a unique index"):
        sink.write(rows(200), b"2")
    executed(server, f"CREATE UNIQUE INDEX ON tables.{table} (id)")
    assert sink.write(rows(200), b"2") == {}
    assert found(server, table, "count(*)") == [(200,)]


def test_while_a_table_is_the_same_it_is_looked_up_once(server, opened, monkeypatch):
    table = table_of(server, "id int PRIMARY KEY, x text")
    sink = opened(server.url("tables"), table, "upsert", "id")
    assert sink.write(rows(200), b"0") == {}
    executed(server, f"VACUUM ANALYZE tables.{table}")
    monkeypatch.setattr(sink.sink._kept, "forget_table", lambda: pytest.fail("it was forgotten"))
    for number in range(1, 4):
        assert sink.write(rows(200), b"%d" % number) == {}
