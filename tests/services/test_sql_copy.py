"""Rows that a sink copies leave what rows that it inserts leave: in the table, and of refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from itertools import count
from types import SimpleNamespace
from uuid import UUID

import pyarrow as pa
import pytest

sa = pytest.importorskip("sqlalchemy")

from acktree import Config, ConnectorError, TaskContext  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from acktree.connectors.sql_tables import sql_copy, sql_table  # noqa: E402

COLUMNS = (
    "id bigint {}, name text CHECK (name <> 'bad'), amount numeric(8, 2), n int, at timestamptz, tags jsonb,"
    " part float8"
)
NEVER = 10**9
_names = count()


@pytest.fixture(scope="module")
def server(postgresql):
    postgresql.make_schema("copied")
    return postgresql


@pytest.fixture(scope="module", autouse=True)
def statements_are_compiled_once() -> Iterator[None]:
    """An engine for all examples, each with a connection of its own: an engine keeps what it has compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_table, "engine_of", cache(sql_table.engine_of))
        yield


@pytest.fixture
def copies(monkeypatch):
    """How many rows each COPY has written, of whatever number of rows."""
    found: list[int] = []
    real = sql_copy.Copied._copy

    def noting(self, connection, statement, write, turns):
        found.append(real(self, connection, statement, write, turns))

    monkeypatch.setattr(sql_copy.Copied, "_copy", noting)
    monkeypatch.setattr(sql_copy, "LEAST_ROWS", 2)
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
        batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(rows)
        return sink.write(batch, b"mark")
    finally:
        sink._kept._engine.dispose()  # one for each example, and the server has few connections


VALUES = {
    "id": [*range(1, 6), None],
    "n": [*range(-3, 4)],
    "name": ["a", "b\t\\N\n\r", "", "\\.", "x\n\\.\ny", 'q"', "ü", None],
    "amount": [Decimal("0.10"), Decimal(-9999), Decimal("7.5")],
    "part": [0.1, -1e300, float("nan"), float("inf"), -0.0, None],
    "at": [datetime(2024, 5, 1, 12, tzinfo=UTC), datetime.min.replace(tzinfo=UTC), None],
    "tags": [{"a": [1, None]}, {"a": [2, 3]}, None],
}
REFUSED = {"name": ["bad", "with \0"], "amount": [Decimal(99999999)], "n": [2**40]}


def drawn_rows(seed, fields):
    chance = random.Random(seed)
    rows = [{name: chance.choice(VALUES[name]) for name in fields} for _ in range(24)]
    for name in sorted(REFUSED.keys() & {*fields})[: seed % 3]:
        chance.choice(rows)[name] = chance.choice(REFUSED[name])
    return rows


@pytest.mark.parametrize("mode", ["insert", "upsert", "ignore", "add"])
@pytest.mark.parametrize("most_turns", [1, 3])
@pytest.mark.parametrize("fields", [("id", "n"), ("id", "n", "name", "part", "at"), tuple(VALUES)], ids=len)
def test_what_is_copied_leaves_the_rows_and_refusals_of_what_is_inserted(
    server, copies, monkeypatch, mode, most_turns, fields
):
    monkeypatch.setattr(sql_copy, "_MOST_TURNS", most_turns)
    key = "" if mode == "insert" else "PRIMARY KEY"
    for seed in range(1, 3):
        found = []
        rows = drawn_rows(seed, fields[:2] if mode == "add" else fields)
        for least in (2, NEVER):
            monkeypatch.setattr(sql_copy, "LEAST_ROWS", least)
            table = table_of(server, COLUMNS.format(key))
            refused = written(server, table, rows, mode)
            # As texts: NaN equals nothing. A refusal names its table and its constraints.
            found.append(repr((rows_in(server, table), refused)).replace(table, "T"))
        assert found[0] == found[1]
    assert copies, "nothing was copied"


def texts_of(*values):
    """Texts that may be anything but UTF-8: Arrow does not look."""
    _, offsets, data = pa.array(values, pa.binary()).buffers()
    return pa.StringArray.from_buffers(len(values), offsets, data)


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("is_key", [False, True])
def test_texts_that_are_no_utf8_are_refused_alone_where_rows_are_copied(
    server, copies, monkeypatch, mode, is_key
):
    good = pa.array([f"row {number}" for number in range(6)])
    bad = texts_of(b"a", b"\xff\xfe", b"c", b"d", b"\0z", b"f")
    rows = pa.record_batch([bad, good] if is_key else [good, bad], names=["id", "name"])
    found = []
    for least in (2, NEVER):
        monkeypatch.setattr(sql_copy, "LEAST_ROWS", least)
        table = table_of(server, "id text PRIMARY KEY, name text")
        refused = written(server, table, rows, mode)
        assert list(refused) == [1, 4]
        found.append(repr((rows_in(server, table), refused)).replace(table, "T"))
    assert found[0] == found[1]


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


@pytest.mark.parametrize(
    ("columns", "by", "is_sorted"),
    [
        ("id bigint PRIMARY KEY, x int", "ctid", True),
        ("id bigint PRIMARY KEY, x int, made timestamptz", "ctid", True),
        ("n serial, id bigint PRIMARY KEY, x int", "n", False),
        ("n int GENERATED ALWAYS AS IDENTITY, id bigint PRIMARY KEY, x int", "n", False),
        ("n copied.numbered, id bigint PRIMARY KEY, x int", "n", False),
        ("id text PRIMARY KEY, x int", "ctid", False),
    ],
    ids=["plain", "a column without a default", "serial", "identity", "domain", "text"],
)
def test_rows_go_in_the_order_of_the_index_unless_their_own_can_be_seen(
    server, copies, columns, by, is_sorted
):
    with server.connect() as connection:
        connection.execute("CREATE SEQUENCE IF NOT EXISTS copied.numbers")
        connection.execute("DROP DOMAIN IF EXISTS copied.numbered CASCADE")
        connection.execute("CREATE DOMAIN copied.numbered AS int DEFAULT nextval('copied.numbers')")
        table = table_of(server, columns)
        connection.execute(f"INSERT INTO copied.{table} (id, x) VALUES ('0', 0)")
        ids = [int(f"{number * 7919 % 1009:04}") for number in range(1, 150)]
        keys = [f"{each:04}" for each in ids] if "text" in columns else ids
        rows = [{"id": key, "x": 1} for key in [*keys[:50], type(keys[0])(0), *keys[50:]]]
        assert written(server, table, rows, "upsert") == {}
        found = connection.execute(f"SELECT id FROM copied.{table} WHERE id <> '0' ORDER BY {by}").fetchall()
    assert copies == [150], "by the temporary table; the first COPY was refused"
    assert [key for (key,) in found] == (sorted(keys) if is_sorted else keys)


@pytest.mark.parametrize("mode", ["upsert", "ignore", "add"])
def test_new_rows_are_copied_into_the_table_until_one_of_them_is_there(server, monkeypatch, mode):
    statements = []
    real = sql_copy.Copied._copy

    def noting(self, connection, statement, write, turns):
        statements.append("pg_temp" in statement)
        return real(self, connection, statement, write, turns)

    monkeypatch.setattr(sql_copy.Copied, "_copy", noting)
    table = table_of(server, "id bigint PRIMARY KEY, n int")
    sink = SqlSink(server.url("copied"), table, mode=mode, key="id")
    sink.open(Config(), TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id=table))
    sink.last_mark()
    for mark, first in ((b"1", 0), (b"2", 200), (b"3", 100), (b"4", 400)):
        assert sink.write(pa.record_batch({"id": range(first, first + 200), "n": [3] * 200}), mark) == {}
    assert statements == [False, False, False, True, True]
    assert [row[1] for row in rows_in(server, table)].count(6) == (200 if mode == "add" else 0)
    assert len(rows_in(server, table)) == 600


def test_few_rows_are_inserted(server, copies, monkeypatch):
    monkeypatch.setattr(sql_copy, "LEAST_ROWS", 100)
    table = table_of(server, COLUMNS.format("PRIMARY KEY"))
    assert written(server, table, orders(99), "insert") == {}
    assert copies == []


TRIGGER = (
    "CREATE FUNCTION copied.same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';"
    " CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION copied.same()"
)


@pytest.mark.parametrize(
    ("also", "refused"),
    [
        ("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", 0),
        ("CREATE RULE r AS ON INSERT TO {} WHERE new.id = 1 DO INSTEAD NOTHING", 0),
        ("ALTER TABLE {} DROP COLUMN id, ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY", None),
        ("ALTER TABLE {} DROP COLUMN id, ADD COLUMN id bigint GENERATED ALWAYS AS (n + 1) STORED", None),
        (TRIGGER, 0),
        ("ALTER TABLE {} ADD UNIQUE (id), ADD FOREIGN KEY (n) REFERENCES {} (id)", 0),
        ("ALTER TABLE {} ADD UNIQUE (name) DEFERRABLE", 0),
        ("CREATE DOMAIN copied.d AS bigint CHECK (value < 2); ALTER TABLE {} ALTER id TYPE copied.d", 1),
    ],
    ids=[
        "row security",
        "rule",
        "identity",
        "generated",
        "trigger",
        "self-reference",
        "deferrable",
        "domain",
    ],
)
def test_nothing_is_copied_where_an_insert_has_another_meaning(server, copies, also, refused):
    table = table_of(server, COLUMNS.format(""))
    with server.connect() as connection:
        connection.execute(also.replace("{}", f"copied.{table}"))
    if refused is None:
        with pytest.raises(ConnectorError, match="GeneratedAlways"):
            written(server, table, orders(3), "insert")
    else:
        assert len(written(server, table, orders(3), "insert")) == refused
    assert [row for row in rows_in(server, table) if row[0] == 1] == [] or "RULE" not in also
    assert copies == []


def test_a_second_unique_index_sees_the_rows_of_a_key_in_their_order(server, copies):
    rows = [{"id": at, "name": name} for at, name in [(1, "a"), (1, "a"), (1, "b"), (2, "b"), (2, "c")]]
    table = table_of(server, "id bigint PRIMARY KEY, name text UNIQUE")
    assert list(written(server, table, rows, "upsert")) == [3]
    assert rows_in(server, table) == [(1, "b"), (2, "c")]
    assert -1 not in copies


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MIN, MAX = datetime.min, datetime.max  # noqa: DTZ901  # of columns without a zone
AWARE = datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=5, minutes=45)))
TYPES = {
    "smallint": [1, -(2**15), 2**15, True, None],
    "int": [2**31 - 1, 2**31, 2.0, Decimal(3)],
    "bigint": [2**63 - 1, -(2**63), 1.0, 0.5, None],
    "float8": [0.1, 5e-324, -0.0, float("nan"), float("-inf"), None],
    "double precision": [2**53, 2**53 + 1, 7],
    "real": [0.1, 16777217.0, 1.0000000596046448, float("nan"), 1e39],
    "numeric": [0.1, 1e22, float("inf"), None],
    "numeric(40, 3)": [Decimal("9" * 30 + ".125"), Decimal("1.0005"), None],
    "text": ["", "NULL", "\\N", "\\.", "a\n\\.\nb", "\r\n,;\t\"'", "\0", "\U0001f600", None],
    "varchar(3)": ["abc", "abcd", "a  ", None],
    "char(3)": ["abc", "a", None],
    "bytea": [b"", b"\0\\x41\n", None],
    "boolean": [True, False, None],
    "date": [date(1, 1, 1), date(9999, 12, 31), None],
    "timestamp": [NOON.replace(tzinfo=None), MIN, MAX, None],
    "timestamp(3)": [MIN.replace(microsecond=1000), MIN.replace(microsecond=1)],
    "timestamptz": [AWARE, AWARE.astimezone(UTC), None],
    "time": [time(1, 2, 3, 4), None],
    "interval": [timedelta(days=-3, microseconds=5), None],
    "json": [{"a": [1, None], "b": {"c": "x"}}, None],
    "jsonb": [{"a": 1e300}, {"b": "\0"}, None],
    "uuid": [UUID(int=5), None],
    "copied.mood": ["glad", "sad", None],
    "int[]": [[1, None], [], None],
}
"""Values of one type of Arrow's, since a column of a batch has one; with those that are refused."""


@pytest.fixture(scope="module")
def mood(server):
    with server.connect() as connection:
        connection.execute("CREATE TYPE copied.mood AS ENUM ('glad', 'sore')")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("mood", "copies")
def test_a_copied_value_of_each_type_is_the_one_that_is_inserted(server, monkeypatch, kind):
    found = []
    values = [[each] for each in TYPES[kind]] if kind in ("smallint", "int", "bigint") else [TYPES[kind]]
    for some in values:
        rows = [{"id": at, "v": value} for at, value in enumerate(2 * some)]
        for mode in ("insert", "upsert"):
            for least in (2, NEVER):
                monkeypatch.setattr(sql_copy, "LEAST_ROWS", least)
                table = table_of(server, f"id bigint PRIMARY KEY, v {kind}")
                refused = written(server, table, rows, mode)
                found.append(repr((rows_in(server, table), refused)).replace(table, "T"))
            assert found[-1] == found[-2]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_odd_names_are_copied(server, copies, mode):
    with server.connect() as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS "my %s ""schema"')
        for name in ("select", "100%", 'Q"u', "acktree_copied"):
            quoted = name.replace('"', '""')
            connection.execute(f'DROP TABLE IF EXISTS "my %s ""schema"."{quoted}"')
            connection.execute(
                f'CREATE TABLE "my %s ""schema"."{quoted}"'
                ' (id bigint PRIMARY KEY, "order" int, "%(a)s" int, acktree_row int)'
            )
            rows = [{"id": at, "order": 1, "%(a)s": 2, "acktree_row": at % 3} for at in range(4)]
            rows.append({**rows[0], "order": 7}) if mode == "upsert" else None
            sink_rows = written(server, f'my %s "schema.{name}', rows, mode)
            assert sink_rows == {}, name
            found = connection.execute(f'SELECT * FROM "my %s ""schema"."{quoted}"').fetchall()
            assert sorted(found) == [
                (at, 7 if at == 0 and mode == "upsert" else 1, 2, at % 3) for at in range(4)
            ]
    assert copies, "no name is too odd"


def test_another_database_or_driver_is_not_asked(tmp_path):
    for url in ("sqlite://", "mysql+pymysql://h/d", "postgresql+asyncpg://h/d"):
        dialect = sa.make_url(url).get_dialect()()
        connection = SimpleNamespace(dialect=dialect)
        assert sql_copy.copied_of(connection, sa.Table("t", sa.MetaData()), (), None) is None


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
            "CREATE OR REPLACE FUNCTION copied.ends(bigint) RETURNS boolean LANGUAGE sql AS"
            " $$ SELECT pg_terminate_backend(pg_backend_pid()) $$"
        )
        connection.execute(f"ALTER TABLE copied.{table} ADD CHECK (copied.ends(id))")
    with pytest.raises(ConnectorError) as raised:
        written(server, table, orders(3), "insert")
    assert raised.value.can_retry
    assert raised.value.nothing_written
    assert rows_in(server, table) == []
    assert copies == []
