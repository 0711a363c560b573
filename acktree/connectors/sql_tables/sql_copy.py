"""Rows of an ``SqlSink`` by PostgreSQL's COPY, which loads them several times as fast as INSERT.

Rules of this file
------------------
1. The rows leave what an INSERT of each, in their order, leaves. Where that is not sure nothing is copied:
   the caller inserts.
2. What a COPY refuses, the caller finds by INSERT of fewer rows: the reason comes from there.
3. Rows that may replace others are copied into a temporary table and inserted from it. One INSERT may touch a
   key once, so rows of one key go in turns, in their order. Until one of them has replaced another they are
   copied into the table itself: where all are new, that is the same.
4. Arrow writes the text of columns whose values need no check: they become no objects of Python.

Source: PostgreSQL's pages on COPY and INSERT, psycopg's on COPY.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import csv
from sqlalchemy.dialects import postgresql

__all__ = ["LEAST_ROWS", "Copied", "copied_of", "quoted"]

LEAST_ROWS: Final = 100
"""Fewer are inserted: a temporary table costs some milliseconds."""
_MOST_TURNS: Final = 20
_COPIED: Final = "acktree_copied"
_TURN: Final = "acktree_turn"
_KINDS: Final[Sequence[tuple[type[Any], frozenset[type]]]] = (
    (sa.Integer, frozenset({int})),
    (sa.Double, frozenset({float, int})),
    (sa.Float, frozenset()),  # an INSERT rounds a float twice, by way of double precision
    (sa.Numeric, frozenset({int, float, Decimal})),
    (sa.Enum, frozenset()),
    (sa.String, frozenset({str})),
    (sa.Boolean, frozenset({bool})),
    (sa.DateTime, frozenset({datetime})),
    (sa.Date, frozenset({date})),
    (sa.Time, frozenset({time})),
    (sa.LargeBinary, frozenset({bytes})),
    (sa.JSON, frozenset({dict, list, str, int, float, bool})),
    (sa.Uuid, frozenset({UUID, str})),
)
"""Types of columns, and those of values that a COPY reads as an INSERT does. The first that fits counts."""
_INTEGERS: Final = frozenset(
    kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
)
"""By number: a type of a user's may not be hashable."""
_ASKED: Final = sa.text("""
    SELECT c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT c.relrowsecurity
        AND NOT EXISTS (SELECT FROM pg_trigger t WHERE NOT t.tgisinternal AND
            (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid))))
        AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.confrelid = c.oid)
        AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate),
        has_database_privilege(current_database(), 'TEMP') AND has_table_privilege(c.oid, 'SELECT'),
        (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion))
    FROM pg_class c WHERE c.oid = to_regclass(:name)""")
"""Whether one statement for all rows means the same, whether it may use a temporary table, unique indexes."""

Row = dict[str, Any]
Merge = Callable[[Sequence[str], sa.Select[Any]], sa.Executable]
"""Makes the statement that inserts these columns of a query's rows."""
_Write = Callable[[Any, Sequence[int] | None], None]
"""Gives rows to psycopg's Copy, with their turns."""


def copied_of(
    connection: sa.Connection, table: sa.Table, key: Sequence[str], merge: Merge | None
) -> Copied | None:
    """What copies rows into a table; None where they have to be inserted.

    Args:
        connection: Of the table's database.
        table: As it was read from the database.
        key: The columns of which one INSERT may have each value once; none where it may have them often.
        merge: For rows that may replace others; None: a row that is there refuses another.
    """
    dialect = connection.dialect
    if (dialect.name, dialect.driver) != ("postgresql", "psycopg"):
        return None
    found = connection.execute(_ASKED, {"name": quoted(table.schema, table.name)}).one_or_none()
    is_plain, may_make, uniques = found or (False, False, 0)
    is_able = is_plain and (merge is None or (may_make and table.name != _COPIED))
    return (
        Copied(dialect, table, key, merge, most_turns=_MOST_TURNS if uniques == 1 else 1) if is_able else None
    )


class Copied:
    """Copies rows into one table."""

    def __init__(
        self,
        dialect: sa.Dialect,
        table: sa.Table,
        key: Sequence[str],
        merge: Merge | None,
        *,
        most_turns: int,
    ) -> None:
        self._dialect, self._table, self._key, self._merge = dialect, table, key, merge
        self._most_turns = most_turns  # another unique index could see rows in another order
        self._are_new = True
        self._columns = {column.name: (column.type, _kinds_of(column)) for column in table.columns}

    def load_batch(self, connection: sa.Connection, batch: pa.RecordBatch) -> bool:
        """Write a batch none of whose values needs a check; whether it did.

        Raises:
            DBAPIError: The database refuses a row, or does not answer.
        """
        names = batch.schema.names
        if batch.num_rows < LEAST_ROWS or not all(
            self._columns[name][1] and _needs_no_check(self._columns[name][0], batch.column(name))
            for name in names
        ):
            return False
        keys = [batch.column(name) for name in self._key]
        turns: list[int] | None = []
        if not _are_distinct(keys):
            turns = self._turns(list(zip(*(each.to_pylist() for each in keys), strict=True)))
        if turns is None or max(turns, default=0) >= self._most_turns:
            return False

        def write(copy: Any, turns: Sequence[int] | None) -> None:  # noqa: ANN401  # psycopg's
            table = batch if turns is None else batch.append_column(_TURN, pa.array(turns))
            text = pa.BufferOutputStream()
            csv.write_csv(table, text, csv.WriteOptions(include_header=False))
            copy.write(memoryview(text.getvalue()))

        self._load(connection, names, write, turns, "(FORMAT csv, ENCODING 'UTF8')")
        return True

    def load(self, connection: sa.Connection, rows: Sequence[Row]) -> Sequence[Row]:
        """Write rows of the same fields; returns those that are left to be inserted after them.

        Raises:
            DBAPIError: The database refuses a row, or does not answer.
        """
        names = list(rows[0])
        if len(rows) < LEAST_ROWS or not all(
            {type(row[name]) for row in rows} <= {*self._columns[name][1], type(None)} for name in names
        ):
            return rows
        turns = self._turns([tuple(row[name] for name in self._key) for row in rows] if self._key else ())
        if turns is None:
            return rows
        last = [turn < self._most_turns for turn in turns] or [True] * len(rows)
        copied = [row for row, is_copied in zip(rows, last, strict=True) if is_copied]
        if len(copied) < LEAST_ROWS or (self._most_turns == 1 and len(copied) < len(rows)):
            return rows

        def write(copy: Any, turns: Sequence[int] | None) -> None:  # noqa: ANN401  # psycopg's
            columns: list[Sequence[Any]] = [self._bound(name, copied) for name in names]
            if turns is not None:
                columns.append(turns)
            for values in zip(*columns, strict=True):
                copy.write_row(values)

        self._load(connection, names, write, [turn for turn in turns if turn < self._most_turns])
        return [row for row, is_copied in zip(rows, last, strict=True) if not is_copied]

    def _turns(self, keys: Sequence[tuple[Any, ...]]) -> list[int] | None:
        """How many before each key are the same, none if all differ; None if that cannot be told."""
        try:
            if len({*keys}) == len(keys):  # nearly always true, and faster
                return []
            seen: Counter[tuple[Any, ...]] = Counter()
            turns: list[int] = []
            for key in keys:
                turns.append(seen[key])
                seen[key] += 1
        except TypeError:  # such as a value of JSON
            return None
        return turns

    def _load(
        self,
        connection: sa.Connection,
        names: Sequence[str],
        write: _Write,
        turns: Sequence[int],
        form: str = "",
    ) -> None:
        """Copy rows into the table itself, or insert them from a temporary one in their turns."""
        columns = ", ".join(map(quoted, names))
        table = quoted(self._table.schema, self._table.name)
        straight, count = f"COPY {table} ({columns}) FROM STDIN {form}", 1 + max(turns, default=0)
        if self._merge is None:
            self._copy(connection, straight, write, None)
            return
        if count == 1 and self._are_new:
            try:
                with connection.begin_nested():
                    self._copy(connection, straight, write, None)
            except sa.exc.IntegrityError:
                self._are_new = False
            else:
                return
        copied, turn = f"pg_temp.{_COPIED}", f", 0 AS {_TURN}" if count > 1 else ""
        made = f"CREATE TEMPORARY TABLE {copied} ON COMMIT DROP AS SELECT {columns}{turn} FROM {table}"  # noqa: S608  # quoted names
        again = f"DROP TABLE IF EXISTS {copied}; "  # of other rows of this transaction
        connection.exec_driver_sql(f"{again}{made} WITH NO DATA".replace("%", "%%"))
        columns += f", {_TURN}" if count > 1 else ""
        self._copy(
            connection, f"COPY {copied} ({columns}) FROM STDIN {form}", write, turns if count > 1 else None
        )
        source = sa.table(_COPIED, *map(sa.column, names), sa.column(_TURN), schema="pg_temp")
        for number in range(count):
            query = sa.select(*(source.c[name] for name in names)).order_by(*self._order(source, names))
            only = query.where(source.c[_TURN] == number) if count > 1 else query
            connection.execute(self._merge(names, only))

    def _order(self, source: sa.TableClause, names: Sequence[str]) -> Sequence[sa.ColumnElement[Any]]:
        """The order in which rows are inserted: their own where it can be seen, else that of the index."""
        columns = self._table.columns
        others = [column for column in columns if column.name not in names]
        if self._most_turns == 1 or not self._key or any(map(_is_made, others)):
            return [sa.literal_column("ctid")]
        # Texts are compared by the rules of a language: to sort them costs more than it saves.
        is_dear = any(isinstance(columns[name].type, sa.String) for name in self._key)
        return [] if is_dear else [source.c[name] for name in self._key]

    def _copy(
        self, connection: sa.Connection, statement: str, write: _Write, turns: Sequence[int] | None
    ) -> int:
        """Returns how many rows were copied."""
        raw: Any = connection.connection.driver_connection
        try:
            with raw.cursor() as cursor:
                with cursor.copy(statement) as copy:
                    write(copy, turns)
                return int(cursor.rowcount)
        except connection.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(raw, statement, error) from error

    def _bound(self, name: str, rows: Sequence[Row]) -> Sequence[Any]:
        """The values of a column as an INSERT gives them to the driver."""
        process = self._columns[name][0].dialect_impl(self._dialect).bind_processor(self._dialect)
        return [row[name] if process is None else process(row[name]) for row in rows]

    def _wrapped(self, raw: Any, statement: str, error: Exception) -> BaseException:  # noqa: ANN401
        """The error as SQLAlchemy raises it: it says whether the connection is lost."""
        dialect = self._dialect
        is_lost = raw.broken or dialect.is_disconnect(error, raw, None)  # type: ignore[arg-type]
        return sa.exc.DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, hide_parameters=True,
            connection_invalidated=is_lost, dialect=dialect,
        )  # fmt: skip


def quoted(*names: str | None) -> str:
    """A name as PostgreSQL reads it, with its schema. SQLAlchemy doubles the percent signs in it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name)


def _is_made(column: sa.Column[Any]) -> bool:
    """Whether a row that has no value for a column may get another one than the row before."""
    is_made = column.server_default is not None or column.identity is not None
    return is_made or isinstance(column.type, postgresql.DOMAIN)


def _kinds_of(column: sa.Column[Any]) -> Collection[type]:
    """Types of values that a column takes from COPY as from INSERT; generated ones refuse only the latter."""
    is_made = column.computed is not None or (column.identity is not None and column.identity.always)
    known = next((kinds for kind, kinds in _KINDS if isinstance(column.type, kind)), frozenset())
    return frozenset() if is_made or column.name == _TURN else known


def _needs_no_check(kind: Any, values: pa.Array) -> bool:  # noqa: ANN401
    """Whether a column of this type returns all these values as they are, and Arrow's text is theirs."""
    of = values.type
    if isinstance(kind, sa.Integer):
        return of.id in _INTEGERS
    if isinstance(kind, sa.Double):
        return bool(of == pa.float64())
    if isinstance(kind, sa.Boolean):
        return bool(of == pa.bool_())
    if isinstance(kind, sa.String):
        is_free = kind.length is None and not isinstance(kind, sa.CHAR)
        return is_free and of in (pa.string(), pa.large_string())
    if isinstance(kind, sa.DateTime) and getattr(kind, "precision", None) is None:
        is_one = pa.types.is_timestamp(of) and of.unit == "us" and (of.tz is not None) == bool(kind.timezone)
        return is_one and of.tz in (None, "UTC") and _is_of_python(values)
    return False


def _are_distinct(columns: Sequence[pa.Array]) -> bool:
    """Whether Arrow can tell at once that no key comes twice. For a database 0.0 and -0.0 are one."""
    if len(columns) != 1 or pa.types.is_floating(columns[0].type):
        return not columns
    return len(pc.unique(columns[0])) == len(columns[0])


def _is_of_python(values: pa.Array) -> bool:
    """Whether times are in the years 1 to 9999."""
    ends = pc.min_max(values.cast(pa.int64())).as_py()
    first, last = _EPOCH_US
    return ends["min"] is None or (first <= ends["min"] and ends["max"] <= last)


def _micros(value: datetime) -> int:
    passed = value - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


_EPOCH_US: Final = _micros(datetime.min.replace(tzinfo=UTC)), _micros(datetime.max.replace(tzinfo=UTC))
