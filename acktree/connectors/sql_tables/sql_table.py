"""The table of an ``SqlSink``: its definition, its statements, and the marks beside it.

Rules of this file
------------------
1. A transaction with a mark begins with the mark: so it waits for one of another process.
2. A refused row is found by halving, behind savepoints. A database may undo the whole transaction instead:
   SQLite does where its disk is full. Then nothing more is written in it.
3. Many rows go by COPY, where it can: ``sql_copy.py``.
4. A table is looked up once. Each transaction asks at its end whether it is the same: from its first row on
   nobody can change it.

Source: SQLAlchemy's Core, and its pages on ``INSERT ... ON CONFLICT`` of each dialect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from acktree import ConnectorError
from acktree.connectors.batch_sink import refusals_of, rows_of
from acktree.connectors.sql_tables.sql_columns import Change, Takes, changes, takes_of
from acktree.connectors.sql_tables.sql_copy import Copied, copied_of, quoted
from acktree.connectors.sql_tables.sql_rights import (
    TableError,
    refuse_without_marks,
    refuse_without_rights,
    refuse_without_schema,
)
from acktree.system.poolers import prepare_nothing_in_a_pooler

__all__ = ["Explain", "MarkedError", "Rows", "SqlTable", "TableError", "UnfitError", "engine_of", "upsert"]

Rows = Mapping[int, dict[str, Any]]
"""Rows by their index in a batch."""
Explain = Callable[[Exception], tuple[ConnectorError, bool]]
_Result = TypeVar("_Result")
_CONNECT_SECS: Final = 5
_FORBIDDEN: Final = "42501"
_DEFINITION: Final = sa.text("""
    SELECT c.oid, c.xmin, c.relhasrules, c.relrowsecurity,
        (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
        (SELECT string_agg(i.indexrelid || ' ' || i.xmin, ' ' ORDER BY i.indexrelid)
            FROM pg_index i WHERE i.indrelid = c.oid),
        (SELECT string_agg(k.oid::text, ' ' ORDER BY k.oid) FROM pg_constraint k WHERE k.conrelid = c.oid),
        (SELECT string_agg(t.oid::text, ' ' ORDER BY t.oid) FROM pg_trigger t WHERE NOT t.tgisinternal AND
            (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid))))
    FROM pg_class c WHERE c.oid = to_regclass(:name)""")
"""Is another row whenever a table's columns, keys, rules or triggers are."""
_ENDS: Final = (
    "declare the constraint without ON CONFLICT ROLLBACK, and write RAISE(ABORT, ...) in triggers, "
    "so that a row is refused alone"
)


class ChangedError(Exception):
    """The table was changed since it was looked up: what was written may not be what is meant."""


class MarkedError(Exception):
    """The mark of a writer is not the expected one."""


class UndoneError(Exception):
    """A statement failed, and the database has undone the whole transaction: its mark is gone, too.

    Attributes:
        error: What the driver raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class UnfitError(Exception):
    """Rows do not fit the table's columns.

    Attributes:
        rows: What is wrong with each and the fix, by its number.
    """

    def __init__(self, rows: Mapping[int, Change]) -> None:
        super().__init__(rows)
        self.rows = rows


class SqlTable:
    """What outlives the bolt, which lives for one micro-batch: a connection, and the table's columns."""

    def __init__(self, url: str, table: str, mode: str, key: tuple[str, ...]) -> None:
        self._mode, self._key = mode, key
        schema, _, self._name = table.rpartition(".")
        self._schema = schema or None
        self._engine = engine_of(url)
        self._table: sa.Table | None = None
        self._definition = ""
        self._takes: Mapping[str, Takes] = {}
        self._statements: dict[frozenset[str], sa.Executable] = {}
        self._copied: Copied | None = None
        self._marks: sa.Table | None = None
        self.may_be_written = False

    def commit(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows of the same fields in one transaction. Raises UnfitError, or what the driver does."""
        self._unless_changed(lambda: self._commit(rows))

    def _commit(self, rows: Sequence[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            statement = self._statement(connection, frozenset(rows[0]))
            if unfit := dict(self._unfit(rows)):
                self._refuse_changed(connection)
                raise UnfitError(unfit)
            connection.execute(statement, rows)
            self._refuse_changed(connection)

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
        batch: pa.RecordBatch,
        explain: Explain,
    ) -> dict[int, str]:
        """Write rows and a mark in one transaction. Returns why rows are refused.

        Args:
            marks: The writer, the mark that it has, and its new mark.
            batch: The rows.
            explain: Explains what a driver raises.

        Raises:
            MarkedError: The writer has another mark.
        """
        return self._unless_changed(lambda: self._write(marks, batch, explain))

    def _write(
        self, marks: tuple[str, bytes, bytes], batch: pa.RecordBatch, explain: Explain
    ) -> dict[int, str]:
        table = self._marks_table()
        with self._engine.begin() as connection:
            _move_mark(connection, table, marks)
            refused: dict[int, str] = {}
            if not self._is_loaded(connection, batch, explain):
                rows, unreadable = rows_of(batch)
                refused = {**unreadable, **self._insert(connection, rows, explain)}
            if refused:
                noted = sa.update(table).where(table.c.writer == marks[0]).values(refused=json.dumps(refused))
                connection.execute(noted)
            self._refuse_changed(connection)
            self.may_be_written = True  # what is raised from here on, the commit raises
        return refused

    def _unless_changed(self, write: Callable[[], _Result]) -> _Result:
        """Write, again if the table was changed since it was looked up."""
        while True:
            try:
                return write()
            except ChangedError:
                self.forget_table()

    def _refuse_changed(self, connection: sa.Connection) -> None:
        """Raise ChangedError if the table is another one now."""
        if _definition(connection, self._schema, self._name) != self._definition:
            raise ChangedError

    def _marks_table(self) -> sa.Table:
        if self._marks is None:
            table = _table_of_marks(self._schema)
            try:
                table.create(self._engine, checkfirst=True)
            except sa.exc.SQLAlchemyError as error:  # another task makes it, too
                if not sa.inspect(self._engine).has_table(table.name, schema=self._schema):
                    if getattr(getattr(error, "orig", None), "sqlstate", None) == _FORBIDDEN:
                        with self._engine.connect() as connection:
                            refuse_without_marks(connection, table)
                    raise
            self._marks = table
        return self._marks

    def _is_loaded(self, connection: sa.Connection, batch: pa.RecordBatch, explain: Explain) -> bool:
        """Write a batch at once, if its columns can be copied as they are and no row is refused."""
        table, names = self._looked_up(connection), batch.schema.names
        if (
            self._copied is None
            or not {*names, *self._key} <= {*table.columns.keys()}
            or not self._is_whole(batch)
        ):
            return False
        try:
            with _savepoint(connection):
                is_loaded = self._copied.load_batch(connection, batch)
        except Exception as error:
            if not explain(error)[1]:
                raise
            return False
        return is_loaded

    def _is_whole(self, batch: pa.RecordBatch) -> bool:
        """Whether no key lacks a value, and what is added are numbers."""
        if self._mode == "insert":
            return True
        numbers = {*batch.schema.names} - {*self._key} if self._mode == "add" else set()
        return (
            {*self._key} <= {*batch.schema.names}
            and not any(batch.column(name).null_count for name in {*self._key} | numbers)
            and not any(map(_may_be_no_number, map(batch.column, numbers)))
        )

    def _insert(self, connection: sa.Connection, rows: Rows, explain: Explain) -> dict[int, str]:
        """Insert rows. Returns why others are refused."""
        if not rows:
            return {}
        indexes, plain = list(rows), list(rows.values())
        self._looked_up(connection)  # without a table nobody's row is wrong
        try:
            statement = self._statement(connection, frozenset(plain[0]))
            unfit = dict(self._unfit(plain))
        except TableError as error:  # it lacks a column
            statement, unfit = None, dict.fromkeys(range(len(plain)), (error.what, error.fix))
        refused = {indexes[at]: f"{what}; {fix}" for at, (what, fix) in unfit.items()}
        fitting = [index for index in indexes if index not in refused]
        if fitting and statement is not None:
            refused |= self._halved(connection, statement, {index: rows[index] for index in fitting}, explain)
        return refused

    def _halved(
        self, connection: sa.Connection, statement: sa.Executable, rows: Rows, explain: Explain
    ) -> dict[int, str]:
        """Execute a statement for rows behind savepoints. Returns why the database refuses some."""
        try:
            with _savepoint(connection):
                left: Sequence[dict[str, Any]] = list(rows.values())
                if self._copied is not None:
                    left = self._copied.load(connection, left)
                if left:
                    connection.execute(statement, left)
        except UndoneError as undone:
            refusal, is_rows = explain(undone.error)
            if not is_rows:
                raise undone.error from None
            what = f"a row ended the transaction of all rows: {refusal.what}"
            raise TableError(what, _ENDS) from None
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

    def check(self, inputs: Iterable[frozenset[str]], *, has_marks: bool) -> None:
        """Look at the table, its columns, its key and the user's rights. Raises as :meth:`commit`.

        Args:
            inputs: The fields of each stream.
            has_marks: Whether marks are written, too.
        """
        _refuse_missing_file(self._engine.url)
        try:
            with self._engine.connect() as connection:
                may_ask = connection.dialect.name == "postgresql"
                if may_ask:
                    refuse_without_schema(connection, self._schema, self._name)
                table = self._looked_up(connection)
                for fields in inputs:
                    self._statement(connection, fields)
                    if may_ask:
                        refuse_without_rights(connection, table, fields, self._key, self._mode)
                if has_marks and may_ask:
                    refuse_without_marks(connection, _table_of_marks(self._schema))
        finally:
            self._engine.dispose()

    def _statement(self, connection: sa.Connection, fields: frozenset[str]) -> sa.Executable:
        """The statement for rows of these fields."""
        if fields not in self._statements:
            table = self._looked_up(connection)
            unknown = sorted(fields - set(table.columns.keys()))
            if unknown:
                self.forget_table()
                what = f"the table has no column {', '.join(map(repr, unknown))}"
                fix = f"add it, or emit only fields that are columns: {', '.join(table.columns.keys())}"
                raise TableError(what, fix)
            self._statements[fields] = self._make(
                table, sorted(fields - set(self._key)), connection.dialect.name
            )
        return self._statements[fields]

    def _looked_up(self, connection: sa.Connection) -> sa.Table:
        """The table as it is in the database."""
        if self._table is None:
            definition = _definition(connection, self._schema, self._name)
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
                raise TableError(what, "create it, or correct its name; acktree never creates it") from None
            if self._mode != "insert":
                self._refuse_without_key(connection)
            self._table, self._definition = table, definition
            dialect = connection.dialect.name
            self._takes = {column.name: takes_of(column.type, dialect) for column in table.columns}
            turned = self._key if self._mode in ("upsert", "add") else ()
            self._copied = copied_of(
                connection, table, turned, None if self._mode == "insert" else self._merged
            )
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
            raise TableError(
                what, f"CREATE UNIQUE INDEX ON {self._name} ({columns}), or name the key that it has"
            )

    def _make(
        self, table: sa.Table, others: Sequence[str], dialect: str, rows: sa.Select[Any] | None = None
    ) -> sa.Executable:
        if self._mode == "insert":
            return sa.insert(table).inline()  # without RETURNING, which needs SELECT
        if self._mode == "add":
            return upsert(table, self._key, others, dialect, rows, adds=True)
        return upsert(table, self._key, others if self._mode == "upsert" else (), dialect, rows)

    def _merged(self, fields: Sequence[str], rows: sa.Select[Any]) -> sa.Executable:
        """The statement for the rows of a query, which selects these fields."""
        assert self._table is not None, "rows are copied into a table that was looked up"
        return self._make(self._table, sorted({*fields} - {*self._key}), "postgresql", rows)


def _definition(connection: sa.Connection, schema: str | None, name: str) -> str:
    """A text that changes with a table's definition; always empty where the database does not say."""
    dialect = connection.dialect
    if dialect.name == "sqlite":
        return str(connection.execute(sa.text("PRAGMA schema_version")).scalar())
    if dialect.name != "postgresql":
        return ""
    return str(connection.execute(_DEFINITION, {"name": quoted(schema, name)}).one_or_none())


def _is_whole(index: Mapping[str, Any]) -> bool:
    """Whether an index makes its columns unique in all rows. One with a WHERE does not."""
    options = index.get("dialect_options", {})
    return bool(index["unique"]) and not any(
        options[name] is not None for name in options if "_where" in name
    )


@contextmanager
def _savepoint(connection: sa.Connection) -> Iterator[None]:
    """What fails in it is undone, and may be followed by other statements. Deferred constraints are checked.

    Raises:
        UndoneError: More than that is undone. What followed would be committed without the mark.
    """
    nested = connection.begin_nested()
    try:
        yield
        _check_constraints(connection)
        nested.commit()
    except Exception as error:
        try:
            nested.rollback()
        except Exception:  # noqa: BLE001  # such as that there is no savepoint
            raise UndoneError(error) from error
        raise


def _check_constraints(connection: sa.Connection) -> None:
    """Check deferred ones now, that would refuse the commit."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")


def _may_be_no_number(values: pa.Array) -> bool:
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values)).as_py())
    return not pa.types.is_integer(values.type)


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
    """Replace a mark; waits for other transactions that do. Raises MarkedError if it is another one."""
    writer, seen, mark = marks
    if seen:
        is_seen = (table.c.writer == writer) & (table.c.mark == seen)
        if not connection.execute(sa.update(table).where(is_seen).values(mark=mark, refused="{}")).rowcount:
            raise MarkedError
        return
    try:
        connection.execute(sa.insert(table).values(writer=writer, mark=mark, refused="{}"))
    except sa.exc.IntegrityError:
        raise MarkedError from None


def upsert(
    table: sa.Table,
    key: Sequence[str],
    others: Sequence[str],
    dialect: str,
    rows: sa.Select[Any] | None = None,
    *,
    adds: bool = False,
) -> sa.Executable:
    """An INSERT that updates the columns ``others`` of an existing row; without any it leaves the row.

    Args:
        table: The table.
        key: The columns that name a row.
        others: The columns to update.
        dialect: The database's.
        rows: A query of PostgreSQL whose rows are inserted; None: they are given with the statement.
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
    statement = kind(table).inline()
    if rows is not None:
        statement = statement.from_select([column.name for column in rows.selected_columns], rows)
    if not others:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    values = {name: new(name, statement.excluded[name]) for name in others}
    return statement.on_conflict_do_update(index_elements=list(key), set_=values)


def _refuse_missing_file(url: sa.URL) -> None:
    """SQLite makes a file that is not there, and a check changes nothing."""
    name = url.database or ":memory:"
    is_file = url.get_backend_name() == "sqlite" and name != ":memory:" and not name.startswith("file:")
    if is_file and not Path(name).exists():
        raise TableError(f"there is no file {name}", "create it with its table, or correct the URL")


def engine_of(url: str) -> sa.Engine:
    """An engine with one connection. Where the URL sets no timeout of a connection attempt, it gets one."""
    made = sa.make_url(url)
    is_known = made.drivername.partition("+")[2] in ("psycopg", "psycopg2", "pymysql", "mysqldb")
    timeout = {"connect_timeout": _CONNECT_SECS} if is_known and "connect_timeout" not in made.query else {}
    engine = sa.create_engine(
        url, hide_parameters=True, pool_pre_ping=True, pool_size=1, connect_args=timeout
    )
    if made.get_backend_name() == "postgresql":
        sa.event.listen(engine, "connect", prepare_nothing_in_a_pooler)
    return engine
