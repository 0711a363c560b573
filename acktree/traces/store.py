"""The table of traces: an SQLite file in the checkpoint, or one in memory.

Rules of this file
------------------
1. The facts of a micro-batch are one row, in columns: see ``packs.py``. A second run of the micro-batch
   writes this row again, and adds nothing.
2. The store is bounded: :data:`MOST_MESSAGES`, :data:`MOST_BYTES`, and a number of tuples for each message.
   The oldest acked messages are deleted first; failed ones go only when they take half of it.
3. Readers of other processes are not waited for: the file is in WAL mode.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from acktree.core.tracking.trace_facts import TraceFacts
from acktree.errors import CheckpointError
from acktree.system.sqlite_files import (
    IN_MEMORY,
    SqliteStore,
    is_written,
    prepare_writer,
    transaction,
)
from acktree.traces.packs import Messages, left_out, packed, unpacked
from acktree.traces.tables import LATER, MESSAGE, TABLES, VERDICT, VERSION

__all__ = ["IN_MEMORY", "MOST_BYTES", "MOST_MESSAGES", "TraceStore"]

MOST_MESSAGES: Final = 100_000
MOST_BYTES: Final = 256 << 20
_NOT_ACKED: Final = "verdict IS NOT 'ACKED'"
_TRIMMED: Final = 0.9
"""What is left of the limits when something is deleted."""

Row = tuple[Any, ...]


def _clean(row: Row) -> Row:
    """A row that SQLite takes: of a text with a lone surrogate, which is no UTF-8, the escape."""
    return tuple(
        value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for value in row
    )


class TraceStore(SqliteStore):
    """Stored traces.

    Attributes:
        recorded: How many messages were stored since it was opened.
        left_out: How many tuples were counted by component instead of stored.
    """

    what = "traces"

    def __init__(
        self,
        path: Path | str,
        *,
        read_only: bool = False,
        most_messages: int = MOST_MESSAGES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.recorded = self.left_out = self._recorded_now = self._left_out_now = 0
        self._most_messages, self._most_bytes = most_messages, most_bytes
        super().__init__(path, read_only=read_only)

    def _open(self, *, read_only: bool) -> None:
        self._is_unchanging = read_only and not is_written(self.place)
        super()._open(read_only=read_only)

    def _prepare(self, *, read_only: bool) -> None:
        version = self._value("PRAGMA user_version")
        if version > VERSION:
            raise CheckpointError(
                f"the traces have version {version}, and this acktree reads version {VERSION}",
                self.place,
                "use the acktree that wrote them, or delete the file; messages are not in it",
            )
        if read_only:
            if 0 < version < VERSION:
                raise CheckpointError(
                    f"the traces have version {version}, and this acktree reads version {VERSION}",
                    self.place,
                    "use the acktree that wrote them, or submit the topology: new traces begin then",
                )
            return
        prepare_writer(self._connection)
        with transaction(self._connection) as connection:
            if 0 < version < VERSION:  # what is not of this run is not worth a second way of reading it
                ours = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                for (table,) in connection.execute(ours).fetchall():
                    connection.execute(f'DROP TABLE "{table}"')
            for statement in TABLES.split(";\n"):  # executescript() would commit what is before it
                connection.execute(statement)

    def close(self) -> None:
        """Close the file. Nothing can be read afterwards."""
        with self._lock:
            self._is_unchanging = False
            self._finalizer()

    # ---- writing --------------------------------------------------------------------------------------

    def add_messages(self, rows: Sequence[Row]) -> None:
        """Store messages.

        Args:
            rows: Root, spout, task, stream, message id, attempt, root before, emitted at (ms), traceparent,
                label.
        """
        with self._writing() as connection:
            self._insert_messages(connection, rows)

    def add_verdicts(self, rows: Iterable[Row]) -> None:
        """Store the verdicts of known messages: verdict, at (ms), reason, component, traceback, root."""
        with self._writing() as connection:
            self._execute(connection, VERDICT, [*rows])

    def add_facts(self, batch_id: int, clock_ms: int, bodies: Sequence[bytes]) -> list[int]:
        """Store what levels recorded in a micro-batch.

        Args:
            bodies: Of :class:`~acktree.core.tracking.trace_facts.TraceFacts`, lower levels first.

        Returns:
            The roots of the messages that were not stored before.
        """
        parts: Sequence[TraceFacts] = [TraceFacts.of_bytes(body) for body in bodies]
        with self._writing() as connection:
            query = "SELECT pack, body FROM packs WHERE batch_id = ? AND clock_ms = ?"
            pack, before = connection.execute(query, (batch_id, clock_ms)).fetchone() or (None, None)
            if pack is None:
                pack = self._value("SELECT coalesce(max(pack), 0) + 1 FROM packs")
            messages = Messages.of(parts)
            roots = messages.roots.tolist()
            messages = replace(messages, elsewhere=self._elsewhere(connection, roots, pack))
            stored = self._stored_among(connection, roots)
            known = stored | messages.emitted.keys()
            self._recorded_now += len(known) - len(stored)
            earlier = self._tuples_before(connection, messages.later_roots, pack)
            kept = messages.bounded(parts, known, earlier)
            if kept is not parts:
                parts, messages = kept, Messages.of(kept, messages.elsewhere)
            if not len(messages.roots):
                return []
            self._execute(connection, MESSAGE, messages.rows(pack, clock_ms))
            self._execute(connection, LATER, messages.later_rows(pack))
            self._left_out_now += left_out(parts) - (0 if before is None else left_out(unpacked(before)))
            connection.execute(
                "INSERT OR REPLACE INTO packs VALUES (?, ?, ?, ?)", (pack, batch_id, clock_ms, packed(parts))
            )
            return [*(known - stored)]

    @staticmethod
    def _elsewhere(connection: sqlite3.Connection, roots: Sequence[int], pack: int) -> set[int]:
        """Which of these messages have another pack as their first."""
        query = "SELECT root FROM messages WHERE root IN (SELECT value FROM json_each(?)) AND pack <> ?"
        return {root for (root,) in connection.execute(query, (json.dumps(roots), pack))}

    def _tuples_before(
        self, connection: sqlite3.Connection, roots: Iterable[int], pack: int
    ) -> dict[int, int]:
        """How many tuples of some messages are in other packs."""
        query = (
            "SELECT iif(pack = ?2, 0, tuples) + (SELECT coalesce(sum(tuples), 0) FROM later l"
            " WHERE l.root = m.root AND l.pack <> ?2) FROM messages m WHERE root = ?1"
        )
        rows = {root: connection.execute(query, (root, pack)).fetchone() for root in roots}
        return {root: row[0] for root, row in rows.items() if row is not None}

    @staticmethod
    def _execute(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
        """Execute a statement for all rows. A lone surrogate in a text is no UTF-8: it is stored escaped."""
        try:
            connection.executemany(statement, rows)
        except UnicodeEncodeError:
            connection.executemany(statement, map(_clean, rows))

    @staticmethod
    def _stored_among(connection: sqlite3.Connection, roots: Sequence[int]) -> set[int]:
        """Which of these messages are stored. Facts of others are left out: they could never be trimmed."""
        query = "SELECT value FROM json_each(?) WHERE value IN (SELECT root FROM messages)"
        return {root for (root,) in connection.execute(query, (json.dumps(roots),))}

    def stored_among(self, roots: Sequence[int]) -> list[int]:
        """Which of these messages are stored, in their order."""
        with self._lock, self._explained():
            known = self._stored_among(self._connection, roots)
        return [root for root in roots if root in known]

    def _insert_messages(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        roots = {row[0] for row in rows}
        self._recorded_now += len(roots - self._stored_among(connection, [*roots]))
        self._execute(connection, MESSAGE, [(*row, None, None, None, None) for row in rows])

    def trim(self) -> int:
        """Delete the oldest messages if there are too many, or too many bytes. Returns how many went."""
        with self._writing() as connection:
            count, used = self._value("SELECT count(*) FROM messages"), self._used_bytes()
            share = min(self._most_messages / max(1, count), self._most_bytes / max(1, used))
            if share >= 1:
                return 0
            surplus = count - int(count * share * _TRIMMED)
            acked = self._value("SELECT count(*) FROM messages WHERE verdict = 'ACKED'")
            target = count - surplus
            others = max(0, count - acked - max(target // 2, target - acked))
            packs: set[int] = set()
            for condition, most in (("verdict = 'ACKED'", surplus - others), (_NOT_ACKED, others)):
                roots = f"SELECT root FROM messages WHERE {condition} ORDER BY emitted_ms, root LIMIT ?"  # noqa: S608
                for query in (
                    f"SELECT pack FROM messages WHERE pack IS NOT NULL AND root IN ({roots})",  # noqa: S608
                    f"DELETE FROM later WHERE root IN ({roots}) RETURNING pack",  # noqa: S608
                    f"DELETE FROM messages WHERE root IN ({roots}) RETURNING coalesce(pack, 0)",  # noqa: S608
                ):
                    packs.update(pack for (pack,) in connection.execute(query, (most,)))
            for pack in packs:
                self._trim_pack(connection, pack)
        with self._lock:
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        return surplus

    def _trim_pack(self, connection: sqlite3.Connection, pack: int) -> None:
        """Delete from a pack the facts of messages that are not stored any more."""
        stored = connection.execute("SELECT body FROM packs WHERE pack = ?", (pack,)).fetchone()
        if stored is None:
            return
        parts = unpacked(stored[0])
        roots = Messages.of(parts).roots
        remaining = self._stored_among(connection, roots.tolist())
        if not remaining:
            connection.execute("DELETE FROM packs WHERE pack = ?", (pack,))
        elif len(remaining) < len(roots):
            kept = np.array([*remaining], np.int64)
            body = packed([part.only(kept) for part in parts])
            connection.execute("UPDATE packs SET body = ? WHERE pack = ?", (body, pack))

    # ---- reading --------------------------------------------------------------------------------------

    def select(self, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """The rows of a query of this room, as dicts. CheckpointError if the file is damaged."""
        with self._lock, self._explained():
            if self._is_unchanging and is_written(self.place):  # a driver runs since
                self._finalizer()
                self._open(read_only=True)
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def count(self) -> int:
        """How many messages are stored."""
        ((count,),) = (row.values() for row in self.select("SELECT count(*) FROM messages"))
        return int(count)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._recorded_now = self._left_out_now = 0
            with transaction(self._connection) as connection:
                yield connection
            self.recorded += self._recorded_now  # it is committed
            self.left_out += self._left_out_now
