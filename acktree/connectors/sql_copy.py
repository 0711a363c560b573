"""Rows of an ``SqlSink`` by PostgreSQL's COPY, which loads them several times as fast as INSERT.

Rules of this file
------------------
1. The rows leave what an INSERT of each, in their order, leaves. Where that is not sure nothing is copied: the
   caller inserts.
2. What a COPY refuses, the caller finds by INSERT of fewer rows: the reason comes from there.
3. Rows that may replace others are copied into a temporary table and inserted from it. One INSERT may touch a
   key once, so rows of one key go in turns, in their order.

Source: PostgreSQL's pages on COPY and INSERT, psycopg's on COPY.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa

__all__ = ["LEAST_ROWS", "Copied", "copied_of"]

LEAST_ROWS: Final = 100
"""Fewer are inserted: a temporary table costs some milliseconds."""
_MOST_TURNS: Final = 20
_COPIED: Final = "acktree_copied"
_ROW, _TURN = "acktree_row", "acktree_turn"
_TYPES: Final = (
    sa.Integer, sa.Numeric, sa.Float, sa.String, sa.Boolean, sa.Date, sa.DateTime, sa.Time, sa.LargeBinary, sa.JSON,
    sa.Uuid,
)  # fmt: skip
"""Types whose values a COPY reads as an INSERT does."""

Row = dict[str, Any]
Merge = Callable[[Sequence[str], sa.Select[Any]], sa.Executable]
"""Makes the statement that inserts these columns of a query's rows."""


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
    name = dialect.identifier_preparer.format_table(table)
    asked = sa.text(
        "SELECT relkind IN ('r', 'p') AND NOT relhasrules AND NOT relrowsecurity,"
        " has_database_privilege(current_database(), 'TEMP') FROM pg_class WHERE oid = to_regclass(:name)"
    )
    is_plain, may_make = connection.execute(asked, {"name": name}).one_or_none() or (False, False)
    is_able = is_plain if merge is None else may_make
    return Copied(dialect, table, key, merge) if is_able else None


class Copied:
    """Copies rows into one table."""

    def __init__(self, dialect: sa.Dialect, table: sa.Table, key: Sequence[str], merge: Merge | None) -> None:
        self._dialect, self._table, self._key, self._merge = dialect, table, key, merge
        self._types = {column.name: column.type for column in table.columns if _is_copied(column)}

    def load(self, connection: sa.Connection, rows: Sequence[Row]) -> Sequence[Row]:
        """Write rows of the same fields; returns those that are left to be inserted after them.

        Raises:
            DBAPIError: The database refuses a row, or does not answer.
        """
        names = list(rows[0])
        if len(rows) < LEAST_ROWS or not all(name in self._types for name in names):
            return rows
        if self._merge is None:
            self._copy(connection, self._dialect.identifier_preparer.format_table(self._table), names, rows)
            return ()
        turns = self._turns(rows)
        if turns is None:
            return rows
        numbered = [
            {**row, _ROW: at, _TURN: turn}
            for at, (row, turn) in enumerate(zip(rows, turns, strict=True))
            if turn < _MOST_TURNS
        ]
        left = [row for row, turn in zip(rows, turns, strict=True) if turn >= _MOST_TURNS]
        if len(numbered) < LEAST_ROWS:
            return rows
        self._insert(connection, names, numbered, 1 + max(row[_TURN] for row in numbered))
        return left

    def _turns(self, rows: Sequence[Row]) -> list[int] | None:
        """How many rows before each have its key; None if that cannot be told."""
        if not self._key:
            return [0] * len(rows)
        seen: Counter[tuple[Any, ...]] = Counter()
        turns: list[int] = []
        try:
            for row in rows:
                key = tuple(row[name] for name in self._key)
                turns.append(seen[key])
                seen[key] += 1
        except TypeError:  # such as a value of JSON
            return None
        return turns

    def _insert(
        self, connection: sa.Connection, names: Sequence[str], rows: Sequence[Row], turns: int
    ) -> None:
        """Insert rows from a temporary table, in so many turns."""
        assert self._merge is not None, "others are copied into the table itself"
        columns = [sa.Column(name, self._types[name]) for name in names]
        numbers = sa.Column(_ROW, sa.Integer), sa.Column(_TURN, sa.Integer)
        copied = sa.Table(
            _COPIED, sa.MetaData(), *columns, *numbers, prefixes=["TEMPORARY"], postgresql_on_commit="DROP"
        )
        connection.execute(sa.schema.CreateTable(copied))
        self._copy(connection, f"pg_temp.{_COPIED}", [*names, _ROW, _TURN], rows)
        for turn in range(turns):
            query = sa.select(*columns).where(numbers[1] == turn).order_by(numbers[0])
            connection.execute(self._merge(names, query))
        connection.execute(sa.schema.DropTable(copied))

    def _copy(self, connection: sa.Connection, table: str, names: Sequence[str], rows: Sequence[Row]) -> None:
        quote = self._dialect.identifier_preparer.quote
        processors = [(name, self._processor(name)) for name in names]
        columns = [
            [row[name] for row in rows] if process is None else [process(row[name]) for row in rows]
            for name, process in processors
        ]
        statement = f"COPY {table} ({', '.join(map(quote, names))}) FROM STDIN"
        raw: Any = connection.connection.driver_connection
        try:
            with raw.cursor() as cursor, cursor.copy(statement) as copy:
                for values in zip(*columns, strict=True):
                    copy.write_row(values)
        except connection.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(raw, statement, error) from error

    def _processor(self, name: str) -> Callable[[Any], Any] | None:
        kind = self._types.get(name)
        return None if kind is None else kind.dialect_impl(self._dialect).bind_processor(self._dialect)

    def _wrapped(self, raw: Any, statement: str, error: Exception) -> BaseException:  # noqa: ANN401
        """The error as SQLAlchemy raises it: it says whether the connection is lost."""
        dialect = self._dialect
        is_lost = raw.broken or dialect.is_disconnect(error, raw, None)  # type: ignore[arg-type]
        return sa.exc.DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, hide_parameters=True,
            connection_invalidated=is_lost, dialect=dialect,
        )  # fmt: skip


def _is_copied(column: sa.Column[Any]) -> bool:
    """Whether a column takes from COPY what it takes from INSERT: generated ones refuse only the latter."""
    is_made = column.computed is not None or (column.identity is not None and column.identity.always)
    return isinstance(column.type, _TYPES) and not isinstance(column.type, sa.Enum) and not is_made
