"""Connections to PostgreSQL that go by way of a pooler, such as PgBouncer.

A pooler may give each transaction another session of the server (transaction mode). psycopg prepares a
statement that it has executed five times, under a name, in one session; in another the name is missing, or
belongs to another statement.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def prepare_nothing_in_a_pooler(connection: Any, record: object = None) -> None:  # noqa: ANN401, ARG001  # a driver's
    """Let a new connection prepare statements only if it is certain that no pooler is between.

    A server tells the number of its process to who connects, and to who asks. A pooler cannot know the first:
    it has no session yet. Of drivers only psycopg prepares by itself. Never raises: what is wrong with the
    connection, its first statement says.

    Args:
        connection: The driver's.
        record: What SQLAlchemy gives to those that listen to "connect".
    """
    if not hasattr(connection, "prepare_threshold"):
        return
    usual, connection.prepare_threshold = connection.prepare_threshold, None
    with suppress(Exception), connection.cursor() as cursor:
        (found,) = cursor.execute("SELECT pg_backend_pid()").fetchone()
        if found == connection.info.backend_pid:
            connection.prepare_threshold = usual
    with suppress(Exception):
        connection.rollback()
