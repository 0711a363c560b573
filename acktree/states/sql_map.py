"""The backing of a state in a table of a database. Needs ``acktree[sql]`` and the database's driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from acktree.connectors.sql import dialect_of, explained  # isort: skip  # names the extra
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from acktree.connectors.sql_tables.sql_table import engine_of, upsert
from acktree.logs.private_urls import masked_url
from acktree.states.map_state import MapBacking

__all__ = ["SqlMap"]

_PAGE: Final = 500
"""Keys that one statement names; SQLite takes 999 parameters."""
_Result = TypeVar("_Result")


class SqlMap(MapBacking):
    """A map in a table with the columns ``name`` and ``value``.

    Args:
        url: An SQLAlchemy URL with a driver that blocks, for PostgreSQL, SQLite or MySQL.
        table: The table, or ``schema.table``. It is made if it is not there.

    Each call is one transaction. A process keeps one connection for each URL.

    Raises:
        ConfigError: The URL cannot be used, or the database's driver is not installed.
    """

    def __init__(self, url: str, table: str) -> None:
        dialect_of(url, f"SqlMap(..., {table!r})")
        self._url, self._name = url, table

    @property
    def where(self) -> str:
        return f"SqlMap({masked_url(self._url)!r}, {self._name!r})"

    def get(self, keys: Sequence[str]) -> Sequence[str | None]:
        found = self._done(lambda connection: dict(_selected(connection, self._table, keys)))
        return [found.get(key) for key in keys]

    def put(self, texts: Mapping[str, str | None]) -> None:
        self._done(lambda connection: _put(connection, self._table, texts))

    @property
    def _table(self) -> sa.Table:
        return _table_of(self._name)

    def _done(self, work: Callable[[sa.Connection], _Result]) -> _Result:
        """Do something in a transaction. Raises ConnectorError."""
        try:
            with _connected(os.getpid(), self._url, self._name).begin() as connection:
                return work(connection)
        except sa.exc.SQLAlchemyError as error:
            raise explained(error, self.where, self._url)[0] from None  # it may quote a value


@lru_cache(maxsize=64)
def _table_of(name: str) -> sa.Table:
    schema, _, table = name.rpartition(".")
    # As JSON a key has ASCII letters only. MySQL compares others without regard to case, and needs a length.
    ascii_text = mysql.VARCHAR(700, charset="ascii", collation="ascii_bin")
    return sa.Table(
        table, sa.MetaData(),
        sa.Column("name", sa.Text().with_variant(ascii_text, "mysql", "mariadb"), primary_key=True),
        sa.Column(
            "value", sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"), nullable=False
        ),
        schema=schema or None,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _connected(process: int, url: str, name: str) -> sa.Engine:
    """An engine whose database has the table."""
    engine = _engine(process, url)
    with engine.begin() as connection:
        _table_of(name).create(connection, checkfirst=True)
    return engine


@lru_cache(maxsize=16)
def _engine(process: int, url: str) -> sa.Engine:  # noqa: ARG001  # a fork has its own connections
    return engine_of(url)


def _selected(connection: sa.Connection, table: sa.Table, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    for first in range(0, len(keys), _PAGE):
        page = keys[first : first + _PAGE]
        rows = connection.execute(sa.select(table).where(table.c.name.in_(page)))
        yield from ((name, value) for name, value in rows)


def _put(connection: sa.Connection, table: sa.Table, texts: Mapping[str, str | None]) -> None:
    # In the order of their names, so that two transactions never wait for each other.
    rows = [{"name": name, "value": texts[name]} for name in sorted(texts) if texts[name] is not None]
    if rows:
        connection.execute(upsert(table, ["name"], ["value"], connection.dialect.name), rows)
    gone = sorted(name for name in texts if texts[name] is None)
    for first in range(0, len(gone), _PAGE):
        connection.execute(sa.delete(table).where(table.c.name.in_(gone[first : first + _PAGE])))
