"""Databases: a sink that writes tuples as rows of a table. Needs ``acktree[sql]`` and the database's driver.

As a bolt it writes at least once. As an ``acktree.Sink`` it writes each row once: then the table
``acktree_marks``, in the schema of the table, has a row for each task. It is made if it is not there.
What is known of the table, and its statements, are in ``sql_tables/sql_table.py``.

Rules of this file
------------------
1. A tuple is acked when the transaction that holds its row is committed, and not before.
2. A batch that the database refuses is halved until the refused row is alone. Only that row fails.
3. After a transient error (a lost connection, a deadlock) the whole batch is tried again, with growing
   pauses.
4. An error holds no password and no statement. Of a driver's text only the first line is shown: it may quote
   the value that was refused, but never the row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from acktree import Config, ConfigError, ConnectorError, OutputCollector, Sink, TaskContext, Tuple
from acktree.connectors.batch_sink import (
    BatchSink,
    Outcome,
    otherwise_marked,
    writer_of,
)
from acktree.errors import installing
from acktree.logs.private_urls import masked_text, masked_url

try:
    import sqlalchemy as sa
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"acktree.connectors.sql needs {missing.name}: {installing('sql')}", name=missing.name
    ) from missing

from acktree.connectors.sql_tables.sql_table import MarkedError, SqlTable, TableError, UnfitError

__all__ = ["SqlSink"]

# When a batch is refused, psycopg logs that its pipeline was aborted; the exception says why.
if logging.getLogger("psycopg").level == logging.NOTSET:
    logging.getLogger("psycopg").setLevel(logging.ERROR)

_Answer = TypeVar("_Answer")
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
    "55000", "57P04", "XX001", "XX002",
)  # fmt: skip
_MYSQL_OF_THE_TABLE: Final = frozenset(
    {1044, 1046, 1049, 1054, 1064, 1142, 1143, 1146, 1194, 1195, 1227, 1305, 1356, 1370}
)
_OF_THE_TABLE_TEXTS: Final = (
    "SQLITE_AUTH", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_READONLY",
    "no such table", "no such column", "has no column", "readonly", "unable to open", " does not exist",
)  # fmt: skip
_PASSING: Final = (
    "08", "25", "26000", "42P05", "40000", "40001", "40003", "40P01", "53", "55006", "55P03", "57", "58",
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

_OF_A_POOLER: Final = ("statement pooling mode", "unsupported startup parameter")
"""What PgBouncer says, with a SQLSTATE that it also has for what passes."""
_POOLER_FIX: Final = (
    "set pool_mode = transaction or session; leave options out of the URL, and name the table with its schema"
)
_ROW_FIX: Final = "correct the value, or the table's types and constraints"
_OF_A_ROW: Final = ("ExecWithCheckOptions", "exec_stmt_raise")
"""Functions of PostgreSQL that refuse one row, for a policy or by RAISE, whatever the SQLSTATE is."""


class SqlSink(BatchSink[dict[str, Any]], Sink):
    """Writes each tuple as a row of a table, and acks it when the database has committed it.

    At least once in ``set_bolt``; in ``set_sink`` each row once.

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
        key: The columns that name a row, for all modes but ``"insert"``, which uses none; None is as ``()``.
            The table needs a primary key or a unique index of exactly these. With a key of the message id
            (and, where a message makes several rows, the row's number) a message that is processed again
            writes the same rows. A bolt does not see message ids: emit the id as a field.
        batch_rows: In ``set_bolt``, how many rows a transaction writes at most.
        patience_secs: How long one micro-batch keeps trying after a transient error, such as a lost
            connection. After that the messages of tuples that are not committed wait, and use up no attempt.

    Rows are written at the end of the micro-batch, in the order of the tuples. A tuple fails alone if the
    database refuses its row, if its key has no value, or if a column would return another value than the
    tuple's: databases drop zones, round numbers and turn types into others without a word.

    Raises:
        ConfigError: The URL, table, mode or key cannot be used, or the database's driver is not installed.
    """

    page = None

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Literal["upsert", "ignore", "insert", "add"] = "upsert",
        key: str | Sequence[str] | None = (),
        batch_rows: int = 500,
        patience_secs: float = 3.0,
    ) -> None:
        where = f"SqlSink(..., {table!r})"
        texts: tuple[object, object] = url, table
        if not all(isinstance(each, str) for each in texts):
            what = f"the url is of type {type(url).__name__} and the table of type {type(table).__name__}"
            raise ConfigError(
                what, where, "give both as text: SqlSink('postgresql+psycopg://host/shop', 'orders')"
            )
        self.table, self.mode = table, mode
        self.key = (key,) if isinstance(key, str) else tuple(key or ())
        self.latest_by = self.key if mode == "upsert" else None
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
        self._kept = context.cached(key, lambda: SqlTable(self._url, self.table, self.mode, self.key))

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the table is there, has a column for each field and the key, and may be written.

        PostgreSQL is asked for each right that the sink will need, in ``set_sink`` on the table of marks,
        too.

        Raises:
            ConnectorError: It cannot be used as it is, or the database cannot be reached.
        """
        kept = SqlTable(self._url, self.table, self.mode, self.key)
        try:
            inputs = map(frozenset, context.input_fields.values())
            kept.check(inputs, has_marks=context.is_sink)
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
        self._kept.may_be_written = False
        try:
            refused = self._asked(lambda: self._written(batch, mark))
        except ConnectorError as error:
            error.nothing_written = not self._kept.may_be_written
            raise
        self._seen = mark
        return refused

    def _written(self, batch: pa.RecordBatch, mark: bytes) -> dict[int, str]:
        """Write rows, unless it is done. Returns why rows are refused."""
        if self._seen != mark:
            explain = partial(explained, where=self._where, url=self._url)
            with suppress(MarkedError):
                return self._kept.write((self._writer, self._seen, mark), batch, explain)
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
            except UnfitError as error:
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
    if isinstance(error, TableError):
        return ConnectorError(error.what, where, error.fix), False
    diagnosis = getattr(orig, "diag", None)
    is_refusal = getattr(diagnosis, "source_function", None) in _OF_A_ROW
    if is_refusal and not str(getattr(orig, "sqlstate", "")).startswith(_PASSING):
        return ConnectorError(f"the database refused the row: {words}", where, _ROW_FIX), True
    is_pooler = any(text in line for text in _OF_A_POOLER)
    if is_pooler or _is_one(error, orig, _LOGIN, _MYSQL_LOGIN, _LOGIN_TEXTS):
        what = "the pooler cannot be used so" if is_pooler else "the database refused the login"
        fix = "correct user and password in the URL, or where else the driver reads them"
        return ConnectorError(f"{what}: {words}", where, _POOLER_FIX if is_pooler else fix), False
    if _is_one(error, orig, _OF_THE_TABLE, _MYSQL_OF_THE_TABLE, _OF_THE_TABLE_TEXTS):
        fix = "see that the database, the table and its columns are there, and that the user may write them"
        return ConnectorError(f"the table cannot be written: {words}", where, fix), False
    is_gone = bool(getattr(error, "connection_invalidated", False)) or isinstance(error, _GONE)
    if is_gone or _is_one(error, orig, _PASSING, _MYSQL_PASSING, _PASSING_TEXTS):
        fix = "check that the database runs, is reachable and takes writes, and that its time limits suffice"
        what = f"the database does not answer: {words}"
        return ConnectorError(what, where, fix, can_retry=True), False
    return ConnectorError(f"the database refused the row: {words}", where, _ROW_FIX), True


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
        of_postgresql = f"for postgresql+psycopg:// {installing('postgresql')}"
        fix = f"give an SQLAlchemy URL and install its driver; {of_postgresql}"
        raise ConfigError(what, where, fix) from None
    if dialect.is_async:
        what = f"the driver of {masked_url(url)} is an asynchronous one"
        raise ConfigError(what, where, "name one that blocks: postgresql+psycopg://, mysql+pymysql://")
    return str(dialect.name)
