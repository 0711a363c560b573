"""Transactions of SQLite, for the stores that are files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["transaction"]


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
