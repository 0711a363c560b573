"""Databases: a sink that writes tuples as rows of a table. Needs ``acktree[sql]`` and the database's driver.

As a bolt it writes at least once. As an ``acktree.Sink`` it writes each row once: then the table
``acktree_marks``, in the schema of the table, has a row for each task. It is made if it is not there.

Rules of this file
------------------
1. A tuple is acked when the transaction that holds its row is committed, and not before.
2. A batch that the database refuses is halved until the refused row is alone. Only that row fails.
3. After a transient error (a lost connection, a deadlock) the whole batch is tried again, with growing
   pauses.
4. As an ``acktree.Sink`` it writes rows and the mark in one transaction, which begins with the mark: so it
   waits for one of another process. A refused row is found by halving, too, behind savepoints.
5. An error holds no password and no statement. Of a driver's text only the first line is shown: it may quote
   the value that was refused, but never the row.

Source: SQLAlchemy's Core, and its pages on ``INSERT ... ON CONFLICT`` of each dialect.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from acktree import Config, ConfigError, ConnectorError, OutputCollector, Sink, TaskContext, Tuple
from acktree.connectors.batch_sink import (
    BatchSink,
    Outcome,
    otherwise_marked,
    refusals_of,
    rows_of,
    writer_of,
)
from acktree.private_urls import masked_text, masked_url

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql, sqlite
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"acktree.connectors.sql needs {missing.name}: pip install 'acktree[sql]'", name=missing.name
    ) from missing

from acktree.connectors.sql_columns import Change, Takes, changes, takes_of

__all__ = ["SqlSink"]

# When a batch is refused, psycopg logs that its pipeline was aborted; the exception says why.
if logging.getLogger("psycopg").level == logging.NOTSET:
    logging.getLogger("psycopg").setLevel(logging.ERROR)

_Answer = TypeVar("_Answer")
_Rows = Mapping[int, dict[str, Any]]
"""Rows by their index in a batch."""
_Explain = Callable[[Exception], tuple[ConnectorError, bool]]

_CONNECT_SECS: Final = 5
_FIRST_PAUSE_SECS: Final = 0.1
_LONGEST_PAUSE_SECS: Final = 5.0
_MOST_WORDS: Final = 300
"""The most characters of a driver's text in an error."""

_CAN_UPSERT: Final = ("postgresql", "sqlite", "mysql", "mariadb")

# Errors by SQLSTATE (PostgreSQL) or the beginning of one, by MySQL's numbers, and by SQLite's names or the
# text of drivers that have neither. The groups are asked in this order. What is in none is the row's.
_LOGIN: Final = ("28",)
_MYSQL_LOGIN: Final = frozenset({1045, 1251, 1698, 1862, 2059, 2061})
_LOGIN_TEXTS: Final = ("password", "authentication", "role ")
_OF_THE_TABLE: Final = (
    "0A000", "3D", "3F", "42501", "42601", "42703", "42704", "42809", "42883", "428C9", "42P01", "42P10",
    "57P04", "XX001", "XX002",
)  # fmt: skip
_MYSQL_OF_THE_TABLE: Final = frozenset(
    {1044, 1046, 1049, 1054, 1064, 1142, 1143, 1146, 1194, 1195, 1227, 1305, 1356, 1370}
)
_OF_THE_TABLE_TEXTS: Final = (
    "SQLITE_AUTH", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_READONLY",
    "no such table", "no such column", "has no column", "readonly", "unable to open", " does not exist",
)  # fmt: skip
_PASSING: Final = (
    "08", "25", "26000", "40000", "40001", "40003", "40P01", "53", "55000", "55006", "55P03", "57", "58",
    "72",
)  # fmt: skip
_MYSQL_PASSING: Final = frozenset(
    {
        1021, 1037, 1038, 1040, 1041, 1053, 1077, 1079, 1080, 1114, 1129, 1135, 1152, 1158, 1159, 1160, 1161,
        1180, 1203, 1205, 1213, 1226, 1290, 1317, 1614, 1637, 1792, 1836, 1927, 2002, 2003, 2005, 2006, 2012,
        2013, 2014, 2055, 3024, 3100, 3572, 4031,
    }
)  # fmt: skip
_PASSING_TEXTS: Final = (
    "SQLITE_BUSY", "SQLITE_FULL", "SQLITE_INTERRUPT", "SQLITE_IOERR", "SQLITE_LOCKED", "SQLITE_NOMEM",
    "SQLITE_PROTOCOL", "SQLITE_SCHEMA", "locked", "is full", "disk I/O", "connect",
)  # fmt: skip


class SqlSink(BatchSink[dict[str, Any]], Sink):
    """Writes each tuple as a row of a table, and acks it when the database has committed it. At least once.

    Args:
        url: An SQLAlchemy URL with a driver that blocks: ``postgresql+psycopg://me@host/shop``. It is sent to
            the workers with the bolt, including its password: better put that into ``PGPASSFILE`` or the
            like.
        table: The table, or ``schema.table``. It must exist. Each field of a tuple is written into the column
            of its name.
        mode: What happens when there is a row with the same key. ``"upsert"``: its other columns get the new
            values. ``"ignore"``: it stays as it is. ``"add"``: the numbers in its other columns grow by the
            new ones. ``"insert"``: no key is looked at. In ``set_bolt`` a message that is processed twice is
            added twice, and leaves two rows if no constraint of the table refuses the second.
        key: The columns that name a row, for all modes but ``"insert"``; the table needs a primary key or a
            unique index of exactly these. With a key of the message id (and, where a message makes several
            rows, the row's number) a message that is processed again writes the same rows. A bolt
            does not see message ids: emit the id as a field.
        batch_rows: How many rows a transaction writes at most.
        patience_secs: How long one micro-batch keeps trying after a transient error, such as a lost
            connection. After that the messages of tuples that are not committed wait, and use up no attempt.

    Rows are written at the end of the micro-batch, in the order of the tuples. A tuple fails alone if the
    database refuses its row, if its key has no value, or if a column would return another value than the
    tuple's: databases drop zones, round numbers and turn types into others without a word.

    Raises:
        ConfigError: The URL, mode or key cannot be used, or the database's driver is not installed.
    """

    page = None

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Literal["upsert", "ignore", "insert", "add"] = "upsert",
        key: str | Sequence[str] = (),
        batch_rows: int = 500,
        patience_secs: float = 3.0,
    ) -> None:
        where = f"SqlSink(..., {table!r})"
        self.table, self.mode = table, mode
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.batch_rows, self.patience_secs = batch_rows, patience_secs
        self._url = url
        self._where = f"table {table!r} at {masked_url(url)}"
        dialect = dialect_of(url, where)
        if mode not in ("upsert", "ignore", "insert", "add"):
            raise ConfigError(f"mode is {mode!r}", where, 'give "upsert", "ignore", "insert" or "add"')
        if mode != "insert" and not self.key:
            fix = 'name the columns of the key: key="id"; or give mode="insert"'
            raise ConfigError(f"mode={mode!r} has no key", where, fix)
        if mode != "insert" and dialect not in _CAN_UPSERT:
            what = f"mode={mode!r} is not known for {dialect}"
            raise ConfigError(what, where, f'give mode="insert", or use one of {", ".join(_CAN_UPSERT)}')
        if batch_rows < 1 or patience_secs < 0:
            what = f"batch_rows is {batch_rows!r} and patience_secs {patience_secs!r}"
            raise ConfigError(what, where, "give at least 1 row, and 0 seconds or more")

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        """Connect at the first row; the connection stays with the process."""
        super().prepare(config, context, collector)
        self._connect(context)

    def _connect(self, context: TaskContext) -> None:
        key = ("sql", self._url, self.table, self.mode, self.key, context.task_id)
        self._kept = context.cached(key, lambda: _Kept(self._url, self.table, self.mode, self.key))

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the table is there, has a column for each field and the key, and may be written.

        Raises:
            ConnectorError: It cannot be used as it is, or the database cannot be reached.
        """
        kept = _Kept(self._url, self.table, self.mode, self.key)
        try:
            kept.check(map(frozenset, context.input_fields.values()))
        except Exception as error:  # noqa: BLE001  # drivers raise many types
            raise explained(error, self._where, self._url)[0] from None

    def open(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """Connect at the first call; the connection stays with the process."""
        self._connect(context)
        self._writer, self._seen = writer_of(context), b""

    def last_mark(self) -> bytes | None:
        """The mark in the table ``acktree_marks``."""
        self._seen, _ = self._asked(lambda: self._kept.marked(self._writer))
        return self._seen or None

    def write(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str]:
        """Write rows and the mark in one transaction."""
        rows, unreadable = rows_of(batch)
        refused = self._asked(lambda: self._written(rows, unreadable, mark))
        self._seen = mark
        return refused

    def _written(self, rows: _Rows, unreadable: Mapping[int, str], mark: bytes) -> dict[int, str]:
        """Write rows, unless it is done. Returns why rows are refused."""
        if self._seen != mark:
            explain = partial(explained, where=self._where, url=self._url)
            with suppress(_MarkedError):
                return self._kept.write((self._writer, self._seen, mark), rows, unreadable, explain)
        found, refused = self._kept.marked(self._writer)
        if found != mark:
            raise otherwise_marked(self._where)
        return refused

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask the database, again after a transient error. Raises ConnectorError."""
        deadline, pause = time.monotonic() + self.patience_secs, _FIRST_PAUSE_SECS
        while True:
            try:
                return ask()
            except ConnectorError:
                raise
            except Exception as error:  # noqa: BLE001  # drivers raise many types
                refusal, _ = explained(error, self._where, self._url)
            if not refusal.can_retry or time.monotonic() + pause > deadline:
                self._kept.forget_table()
                raise refusal from None  # the driver's exception may quote a row
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECS)

    def entry(self, tup: Tuple) -> dict[str, Any]:
        """A row; its values are checked when the table's columns are known."""
        return tup.as_dict()

    def send(self, tuples: Sequence[Tuple], entries: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """Write rows in transactions of ``batch_rows`` rows with the same fields."""
        deadline = time.monotonic() + self.patience_secs
        end = 0
        for _, group in groupby(tuples, lambda tup: tup.fields):
            start, end = end, end + len(list(group))
            for first in range(start, end, self.batch_rows):
                indexes = range(first, min(first + self.batch_rows, end))
                yield from self._commit(indexes, entries[first : indexes.stop], deadline)

    def _commit(
        self, indexes: Sequence[int], rows: Sequence[dict[str, Any]], deadline: float
    ) -> Iterator[Outcome]:
        """Commit rows of the same fields. Of those that the database refuses each is found by halving."""
        refused = self._try(rows, deadline)
        if not refused:
            yield indexes, None
        elif not isinstance(refused, ConnectorError):
            yield from (([indexes[number]], reason) for number, reason in refused.items())
            if rest := [number for number in range(len(rows)) if number not in refused]:
                yield from self._commit([indexes[n] for n in rest], [rows[n] for n in rest], deadline)
        elif len(rows) == 1:
            yield indexes, refused
        else:
            middle = len(rows) // 2
            yield from self._commit(indexes[:middle], rows[:middle], deadline)
            yield from self._commit(indexes[middle:], rows[middle:], deadline)

    def _try(
        self, rows: Sequence[dict[str, Any]], deadline: float
    ) -> Mapping[int, ConnectorError] | ConnectorError:
        """Commit rows in one transaction.

        Returns:
            The rows that do not fit the columns, by their number; then nothing is written. Or the error, if
            the database refuses one of them.

        Raises:
            ConnectorError: The table cannot be written.
        """
        pause = _FIRST_PAUSE_SECS
        while True:
            try:
                self._kept.commit(rows)
                return {}
            except _UnfitError as error:
                return {
                    number: ConnectorError(what, self._where, fix)
                    for number, (what, fix) in error.rows.items()
                }
            except Exception as error:  # noqa: BLE001  # drivers raise many types over a value
                refusal, is_rows = explained(error, self._where, self._url)
            if is_rows:
                return refusal
            if not refusal.can_retry or time.monotonic() + pause > deadline:
                self._kept.forget_table()
                raise refusal from None  # the driver's exception may quote a row
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECS)


_GONE: Final = (
    sa.exc.TimeoutError, sa.exc.DisconnectionError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError,
)  # fmt: skip
"""What SQLAlchemy itself raises of a connection that is gone, or that its pool does not give in time."""


def explained(error: Exception, where: str, url: str) -> tuple[ConnectorError, bool]:
    """What a database's driver raised, as a ConnectorError, and whether a row caused it.

    Args:
        error: What was raised.
        where: The table.
        url: The URL of the database, which no error may show.
    """
    orig = getattr(error, "orig", None) or error
    line = next(iter(str(orig).splitlines()), "")  # the others may quote a row
    words = masked_text(f"{type(orig).__name__}: {line}", url)[:_MOST_WORDS]  # masked before it is cut
    if isinstance(error, _TableError):
        return ConnectorError(error.what, where, error.fix), False
    if _is_one(error, orig, _LOGIN, _MYSQL_LOGIN, _LOGIN_TEXTS):
        fix = "correct user and password in the URL, or where else the driver reads them"
        return ConnectorError(f"the database refused the login: {words}", where, fix), False
    if _is_one(error, orig, _OF_THE_TABLE, _MYSQL_OF_THE_TABLE, _OF_THE_TABLE_TEXTS):
        fix = "see that the database, the table and its columns are there, and that the user may write them"
        return ConnectorError(f"the table cannot be written: {words}", where, fix), False
    is_gone = bool(getattr(error, "connection_invalidated", False)) or isinstance(error, _GONE)
    if is_gone or _is_one(error, orig, _PASSING, _MYSQL_PASSING, _PASSING_TEXTS):
        fix = "check that the database runs and is reachable"
        what = f"the database does not answer: {words}"
        return ConnectorError(what, where, fix, can_retry=True), False
    fix = "correct the value, or the table's types and constraints"
    return ConnectorError(f"the database refused the row: {words}", where, fix), True


class _TableError(Exception):
    """The table is not what the sink needs."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


class _MarkedError(Exception):
    """The mark of a writer is not the expected one."""


class _UnfitError(Exception):
    """Rows do not fit the table's columns.

    Attributes:
        rows: What is wrong with each and the fix, by its number.
    """

    def __init__(self, rows: Mapping[int, Change]) -> None:
        super().__init__(rows)
        self.rows = rows


class _Kept:
    """What outlives the bolt, which lives for one micro-batch: a connection, and the table's columns."""

    def __init__(self, url: str, table: str, mode: str, key: tuple[str, ...]) -> None:
        self._mode, self._key = mode, key
        schema, _, self._name = table.rpartition(".")
        self._schema = schema or None
        self._engine = engine_of(url)
        self._table: sa.Table | None = None
        self._takes: Mapping[str, Takes] = {}
        self._statements: dict[frozenset[str], sa.Executable] = {}
        self._marks: sa.Table | None = None

    def commit(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows of the same fields in one transaction. Raises _UnfitError, or what the driver does."""
        with self._engine.begin() as connection:
            statement = self._statement(connection, frozenset(rows[0]))
            if unfit := dict(self._unfit(rows)):
                raise _UnfitError(unfit)
            connection.execute(statement, rows)

    def marked(self, writer: str) -> tuple[bytes, dict[int, str]]:
        """The mark of a writer, empty for none, and the refusals of its last write."""
        marks = self._marks_table()
        with self._engine.begin() as connection:
            query = sa.select(marks.c.mark, marks.c.refused).where(marks.c.writer == writer)
            row = connection.execute(query).one_or_none()
        return (b"", {}) if row is None else (bytes(row.mark), refusals_of(row.refused))

    def write(
        self,
        marks: tuple[str, bytes, bytes],
        rows: _Rows,
        unreadable: Mapping[int, str],
        explain: _Explain,
    ) -> dict[int, str]:
        """Write rows and a mark in one transaction. Returns why rows are refused.

        Args:
            marks: The writer, the mark that it has, and its new mark.
            rows: By their index.
            unreadable: Why other rows are refused.
            explain: Explains what a driver raises.

        Raises:
            _MarkedError: The writer has another mark.
        """
        table = self._marks_table()
        with self._engine.begin() as connection:
            _move_mark(connection, table, marks)
            refused = {**unreadable, **self._insert(connection, rows, explain)}
            told = sa.update(table).where(table.c.writer == marks[0]).values(refused=json.dumps(refused))
            connection.execute(told)
        return refused

    def _marks_table(self) -> sa.Table:
        if self._marks is None:
            table = _table_of_marks(self._schema)
            try:
                table.create(self._engine, checkfirst=True)
            except sa.exc.SQLAlchemyError:  # another task makes it, too
                if not sa.inspect(self._engine).has_table(table.name, schema=self._schema):
                    raise
            self._marks = table
        return self._marks

    def _insert(self, connection: sa.Connection, rows: _Rows, explain: _Explain) -> dict[int, str]:
        """Insert rows. Returns why others are refused."""
        if not rows:
            return {}
        indexes, plain = list(rows), list(rows.values())
        self._looked_up(connection)  # without a table nobody's row is wrong
        try:
            statement = self._statement(connection, frozenset(plain[0]))
            unfit = dict(self._unfit(plain))
        except _TableError as error:  # it lacks a column
            statement, unfit = None, dict.fromkeys(range(len(plain)), (error.what, error.fix))
        refused = {indexes[at]: f"{what}; {fix}" for at, (what, fix) in unfit.items()}
        fitting = [index for index in indexes if index not in refused]
        if fitting and statement is not None:
            refused |= self._halved(connection, statement, {index: rows[index] for index in fitting}, explain)
        return refused

    def _halved(
        self, connection: sa.Connection, statement: sa.Executable, rows: _Rows, explain: _Explain
    ) -> dict[int, str]:
        """Execute a statement for rows behind savepoints. Returns why the database refuses some."""
        try:
            with connection.begin_nested():
                connection.execute(statement, list(rows.values()))
                if connection.dialect.name == "postgresql":  # deferred ones would refuse the commit
                    connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
        except Exception as error:
            refusal, is_rows = explain(error)
            if not is_rows:
                raise
        else:
            return {}
        if len(rows) == 1:
            return dict.fromkeys(rows, str(refusal))
        indexes, middle = list(rows), len(rows) // 2
        halves = indexes[:middle], indexes[middle:]
        first, second = ({index: rows[index] for index in half} for half in halves)
        return self._halved(connection, statement, first, explain) | self._halved(
            connection, statement, second, explain
        )

    def _unfit(self, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Change]]:
        """What is wrong with rows, by their number. Makes values plain."""
        for name in rows[0]:
            yield from changes(rows, name, self._takes[name])
        if self._mode == "add":
            for name in rows[0].keys() - set(self._key):
                words = f"{name!r} is no number", "emit the number to add, or leave the field out"
                yield from ((number, words) for number, row in enumerate(rows) if not _is_number(row[name]))
        if self._mode != "insert":
            words = f"the key {', '.join(self._key)} has no value", "emit a value for each column of the key"
            for name in self._key:
                yield from ((number, words) for number, row in enumerate(rows) if row.get(name) is None)

    def forget_table(self) -> None:
        """Read the table's definition again next time: it may have been corrected."""
        self._table = None
        self._statements.clear()

    def check(self, inputs: Iterable[frozenset[str]]) -> None:
        """Look at the table, its columns, its key and the user's rights. Raises as :meth:`commit`."""
        try:
            with self._engine.connect() as connection:
                for fields in inputs:
                    self._statement(connection, fields)
                self._refuse_without_rights(connection, self._looked_up(connection))
        finally:
            self._engine.dispose()

    def _refuse_without_rights(self, connection: sa.Connection, table: sa.Table) -> None:
        """Where the database can be asked: whether the user may write the table."""
        if connection.dialect.name != "postgresql":
            return
        name = connection.dialect.identifier_preparer.format_table(table)
        for right in ("INSERT", *("UPDATE",) * (self._mode in ("upsert", "add"))):
            asked = sa.select(sa.func.has_table_privilege(name, right))
            if not connection.execute(asked).scalar():
                what = f"the user may not {right} there"
                raise _TableError(what, f"GRANT {right} ON {name} TO the user of the URL")

    def _statement(self, connection: sa.Connection, fields: frozenset[str]) -> sa.Executable:
        """The statement for rows of these fields."""
        if fields not in self._statements:
            table = self._looked_up(connection)
            unknown = sorted(fields - set(table.columns.keys()))
            if unknown:
                self.forget_table()
                what = f"the table has no column {', '.join(map(repr, unknown))}"
                fix = f"add it, or emit only fields that are columns: {', '.join(table.columns.keys())}"
                raise _TableError(what, fix)
            self._statements[fields] = self._make(
                table, sorted(fields - set(self._key)), connection.dialect.name
            )
        return self._statements[fields]

    def _looked_up(self, connection: sa.Connection) -> sa.Table:
        """The table as it is in the database."""
        if self._table is None:
            try:
                table = sa.Table(
                    self._name,
                    sa.MetaData(),
                    schema=self._schema,
                    autoload_with=connection,
                    resolve_fks=False,
                )
            except sa.exc.NoSuchTableError:
                what = f"there is no table {self._name!r}" + (
                    f" in schema {self._schema!r}" if self._schema else ""
                )
                raise _TableError(what, "create it, or correct its name; acktree never creates it") from None
            if self._mode != "insert":
                self._refuse_without_key(connection)
            self._table = table
            dialect = connection.dialect.name
            self._takes = {column.name: takes_of(column.type, dialect) for column in table.columns}
        return self._table

    def _refuse_without_key(self, connection: sa.Connection) -> None:
        """Refuse a table without a unique key: a second write would double rows, in MySQL silently."""
        look = sa.inspect(connection)
        name, schema, wanted = self._name, self._schema, set(self._key)
        unique: list[Sequence[str | None]] = [look.get_pk_constraint(name, schema)["constrained_columns"]]
        unique += [each["column_names"] for each in look.get_unique_constraints(name, schema)]
        unique += [each["column_names"] for each in look.get_indexes(name, schema) if _is_whole(each)]
        if wanted not in [set(columns) for columns in unique]:
            columns = ", ".join(self._key)
            what = f"the table has neither a primary key nor a unique index of exactly {columns}"
            raise _TableError(
                what, f"CREATE UNIQUE INDEX ON {self._name} ({columns}), or name the key that it has"
            )

    def _make(self, table: sa.Table, others: Sequence[str], dialect: str) -> sa.Executable:
        if self._mode == "insert":
            return sa.insert(table)
        if self._mode == "add":
            return upsert(table, self._key, others, dialect, adds=True)
        return upsert(table, self._key, others if self._mode == "upsert" else (), dialect)


def _is_whole(index: Mapping[str, Any]) -> bool:
    """Whether an index makes its columns unique in all rows. One with a WHERE does not."""
    options = index.get("dialect_options", {})
    return bool(index["unique"]) and not any(
        options[name] is not None for name in options if "_where" in name
    )


def _is_number(value: object) -> bool:
    is_one = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return is_one and value == value  # noqa: PLR0124  # no NaN


def _table_of_marks(schema: str | None) -> sa.Table:
    return sa.Table(
        "acktree_marks", sa.MetaData(),
        sa.Column("writer", sa.Text().with_variant(mysql.VARCHAR(700), "mysql", "mariadb"), primary_key=True),
        sa.Column("mark", sa.LargeBinary, nullable=False),
        sa.Column("refused", sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"), nullable=False),
        schema=schema,
    )  # fmt: skip


def _move_mark(connection: sa.Connection, table: sa.Table, marks: tuple[str, bytes, bytes]) -> None:
    """Replace a mark; waits for other transactions that do. Raises _MarkedError if it is another one."""
    writer, seen, mark = marks
    if seen:
        is_seen = (table.c.writer == writer) & (table.c.mark == seen)
        if not connection.execute(sa.update(table).where(is_seen).values(mark=mark)).rowcount:
            raise _MarkedError
        return
    try:
        connection.execute(sa.insert(table).values(writer=writer, mark=mark, refused="{}"))
    except sa.exc.IntegrityError:
        raise _MarkedError from None


def upsert(
    table: sa.Table, key: Sequence[str], others: Sequence[str], dialect: str, *, adds: bool = False
) -> sa.Executable:
    """An INSERT that updates the columns ``others`` of an existing row; without any it leaves the row.

    Args:
        table: The table.
        key: The columns that name a row.
        others: The columns to update.
        dialect: The database's.
        adds: Whether the new values are added to those that are there.
    """

    def new(name: str, value: Any) -> Any:  # noqa: ANN401  # SQLAlchemy's
        return sa.func.coalesce(table.c[name], 0) + value if adds else value

    if dialect in ("mysql", "mariadb"):
        into = mysql.insert(table)
        # A column set to itself changes nothing. INSERT IGNORE would also drop rows that are refused.
        return into.on_duplicate_key_update(
            {name: new(name, into.inserted[name]) for name in others} or {key[0]: table.c[key[0]]}
        )
    kind = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = kind(table)
    if not others:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    values = {name: new(name, statement.excluded[name]) for name in others}
    return statement.on_conflict_do_update(index_elements=list(key), set_=values)


def _is_one(
    error: Exception,
    orig: BaseException,
    states: tuple[str, ...],
    numbers: frozenset[int],
    texts: tuple[str, ...],
) -> bool:
    """Whether a driver's error is in a group: by SQLSTATE, by number or, if it has neither, by text."""
    state = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
    if state:
        return str(state).startswith(states)
    number = orig.args[0] if orig.args else None
    if isinstance(number, int):
        return number in numbers
    name = getattr(orig, "sqlite_errorname", "SQLITE_ERROR")
    if name != "SQLITE_ERROR":
        return str(name).startswith(texts)
    is_of_the_database = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
    return is_of_the_database and any(text in str(orig) for text in texts)


def dialect_of(url: str, where: str) -> str:
    """The name of a URL's dialect. Raises a ConfigError that does not show the URL's secrets."""
    try:
        dialect = sa.make_url(url).get_dialect()
        dialect.import_dbapi()
    except (sa.exc.ArgumentError, sa.exc.InvalidRequestError, ImportError, TypeError, ValueError) as error:
        what = f"{masked_url(url)} cannot be used: {masked_text(str(error), url):.200}"
        fix = "give an SQLAlchemy URL and install its driver: pip install 'acktree[postgresql]' for postgresql+psycopg://"
        raise ConfigError(what, where, fix) from None
    if dialect.is_async:
        what = f"the driver of {masked_url(url)} is an asynchronous one"
        raise ConfigError(what, where, "name one that blocks: postgresql+psycopg://, mysql+pymysql://")
    return str(dialect.name)


def engine_of(url: str) -> sa.Engine:
    """An engine with one connection. Where the URL sets no timeout of a connection attempt, it gets one."""
    made = sa.make_url(url)
    is_known = made.drivername.partition("+")[2] in ("psycopg", "psycopg2", "pymysql", "mysqldb")
    timeout = {"connect_timeout": _CONNECT_SECS} if is_known and "connect_timeout" not in made.query else {}
    return sa.create_engine(url, hide_parameters=True, pool_pre_ping=True, pool_size=1, connect_args=timeout)
