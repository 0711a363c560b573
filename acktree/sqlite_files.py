"""Transactions and errors of SQLite, for the stores that are files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["is_damage", "is_passing", "transaction"]

_PASSING: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT,
})  # fmt: skip
_DAMAGE: Final = frozenset({
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_ERROR,  # there is no such table or column
})  # fmt: skip


def is_passing(error: sqlite3.Error) -> bool:
    """Whether SQLite says that another program holds a file, that the disk is full, or the like."""
    return _code_of(error) in _PASSING


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that a file is damaged, no database, or one with other tables.

    >>> is_damage(sqlite3.DatabaseError("Could not decode to UTF-8 column 'reason'"))
    True
    """
    return _code_of(error) in {*_DAMAGE, None}


def _code_of(error: sqlite3.Error) -> int | None:
    """What SQLite says, without details; None for an error of Python's, which reads texts."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that may write: committed at the end of the block, rolled back if it raises.

    Args:
        connection: Opened with ``isolation_level=None``: Python begins no transaction by itself.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
