"""The table of traces: an SQLite file in the checkpoint, or one in memory.

Rules of this file
------------------
1. A fact is stored by (root, edge), so a second run of a micro-batch adds nothing.
2. The store is bounded: :data:`MOST_MESSAGES`, :data:`MOST_BYTES`, and a number of tuples for each message.
   The oldest acked messages are deleted first; failed ones go only when they take half of it.
3. Readers of other processes are not waited for: the file is in WAL mode.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from acktree.errors import CheckpointError
from acktree.private_files import make_private_file
from acktree.sqlite_files import is_damage, is_passing, transaction
from acktree.tasks.bolts.tracing import MOST_TUPLES
from acktree.traces.tables import EXECUTION, LINK, MESSAGE, MORE, TABLES, VERDICT, VERSION

__all__ = ["IN_MEMORY", "MOST_BYTES", "MOST_MESSAGES", "TraceStore"]

IN_MEMORY: Final = ":memory:"
MOST_MESSAGES: Final = 100_000
MOST_BYTES: Final = 256 << 20
_NOT_ACKED: Final = "verdict IS NOT 'ACKED'"
_TRIMMED: Final = 0.9
"""What is left of the limits when something is deleted."""
_BUSY_SECS: Final = 5

Row = tuple[Any, ...]


def _clean(row: Row) -> Row:
    """A row that SQLite takes: of a text with a lone surrogate, which is no UTF-8, the escape."""
    return tuple(
        each.encode("utf-8", "backslashreplace").decode() if isinstance(each, str) else each for each in row
    )


class TraceStore:
    """Stored traces. Any thread may call any method.

    Attributes:
        recorded: How many messages were stored since it was opened.
        left_out: How many tuples were counted by component instead of stored.

    Args:
        path: The file, made if it is not there and readable by its owner alone; or :data:`IN_MEMORY`.
        read_only: Open an existing file for reading.

    Raises:
        CheckpointError: The file is damaged or no store of traces, a newer acktree wrote it, or it cannot be
            read. Damage that is not at its beginning raises this when it is read.
        OSError, sqlite3.Error: It cannot be opened, for a reason that may pass.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        read_only: bool = False,
        most_messages: int = MOST_MESSAGES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.place = str(path)
        self.recorded = self.left_out = self._recorded_now = self._left_out_now = 0
        self._lock = threading.Lock()
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self._is_unchanging = False
        if not read_only and self.place != IN_MEMORY:
            make_private_file(Path(path))
        self._open(read_only=read_only)

    def _open(self, *, read_only: bool) -> None:
        named = self.place
        if read_only:
            # A reader would leave files beside a database that nobody writes: they are a writer's, and stay.
            self._is_unchanging = not self._is_written
            unchanging = "&immutable=1" if self._is_unchanging else ""
            named = f"{Path(self.place).absolute().as_uri()}?mode=ro{unchanging}"
        with self._explained():
            self._connection = sqlite3.connect(
                named, timeout=_BUSY_SECS, isolation_level=None, check_same_thread=False, uri=read_only
            )
        self._finalizer = weakref.finalize(self, self._connection.close)
        try:
            with self._explained():
                self._prepare(read_only=read_only)
        except BaseException:
            self._finalizer()
            raise

    @property
    def _is_written(self) -> bool:
        """Whether there is a file of changes: a writer has the store open, or ended without closing it."""
        return Path(f"{self.place}-wal").exists()

    def _prepare(self, *, read_only: bool) -> None:
        version = self._value(self._connection, "PRAGMA user_version")
        if version > VERSION:
            raise CheckpointError(
                f"the traces have version {version}, and this acktree reads version {VERSION}",
                self.place,
                "use the acktree that wrote them, or delete the file; messages are not in it",
            )
        if read_only:
            if self._is_old:
                self._connection.execute(
                    "CREATE TEMP VIEW messages AS SELECT *, NULL AS traceparent FROM main.messages"
                )
            return
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        with transaction(self._connection) as connection:
            if self._is_old:
                connection.execute("ALTER TABLE messages ADD COLUMN traceparent TEXT")
            for statement in TABLES.split(";\n"):  # executescript() would commit what is before it
                connection.execute(statement)

    @property
    def _is_old(self) -> bool:
        """Whether the file has version 1. Some have the column of version 2 already: it is looked for."""
        columns = {name for _, name, *_ in self._connection.execute("PRAGMA table_info (messages)")}
        return self._value(self._connection, "PRAGMA user_version") == 1 and "traceparent" not in columns

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise CheckpointError, unless the reason may pass."""
        try:
            yield
        except sqlite3.ProgrammingError:  # it was closed
            raise
        except sqlite3.DatabaseError as error:
            if is_passing(error):
                raise
            fix = "check the disk, and that the file and its folder can be read"
            if is_damage(error):
                fix = "delete the file; messages are not in it"
            raise CheckpointError(f"the traces cannot be read: {error}", self.place, fix) from error

    def close(self) -> None:
        """Close the file. Nothing can be read afterwards."""
        with self._lock:
            self._is_unchanging = False
            self._finalizer()

    # ---- writing --------------------------------------------------------------------------------------

    def add_messages(self, rows: Sequence[Row]) -> None:
        """Store messages.

        Args:
            rows: Root, spout, task, stream, message id, attempt, root before, emitted at (ms), traceparent.
        """
        with self._writing() as connection:
            self._insert_messages(connection, rows)

    def add_verdicts(self, rows: Iterable[Row]) -> None:
        """Store the verdicts of known messages: verdict, at (ms), reason, component, traceback, root."""
        with self._writing() as connection:
            connection.executemany(VERDICT, map(_clean, rows))

    def add_facts(self, batch_id: int, clock_ms: int, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Store what levels recorded in a micro-batch.

        Args:
            parts: The name of each level and partition, and its links, executions and further counts; lower
                levels first.
        """
        with self._writing() as connection:
            known: dict[int, set[int]] = {}
            for part, facts in parts:
                more = {(int(root), str(name)): int(n) for root, name, n in facts["more"]}
                self._add_links(connection, known, batch_id, clock_ms, facts["links"])
                self._add_executions(connection, known, batch_id, facts["executions"], more)
                self._add_more(connection, [(*whose, batch_id, part, n) for whose, n in more.items()])
            connection.executemany(
                "UPDATE messages SET tuples = ? WHERE root = ?",
                [(len(edges), root) for root, edges in known.items()],
            )

    def _add_links(
        self,
        connection: sqlite3.Connection,
        known: dict[int, set[int]],
        batch_id: int,
        clock_ms: int,
        links: Sequence[Sequence[Any]],
    ) -> None:
        messages = [link for link in links if link[0] == link[1]]
        self._insert_messages(
            connection,
            [(each[0], each[3], each[4], each[5], None, 1, None, clock_ms, None) for each in messages],
        )
        rows: list[Row] = []
        stored = self._stored_among(connection, (each[0] for each in links))
        for root, edge, parents, source, source_task, stream, component, task, shown in links:
            if root not in stored:
                continue
            edges = self._edges(connection, known, root)
            if edge not in edges and len(edges) >= MOST_TUPLES:
                continue
            edges.add(edge)
            rows.append((
                root, edge, json.dumps(parents), source, source_task, stream, component, task,
                json.dumps(shown), batch_id,
            ))  # fmt: skip
        connection.executemany(LINK, map(_clean, rows))

    def _add_executions(
        self,
        connection: sqlite3.Connection,
        known: dict[int, set[int]],
        batch_id: int,
        executions: Sequence[Sequence[Any]],
        more: dict[tuple[int, str], int],
    ) -> None:
        rows: list[Row] = []
        roots = (*(each[0] for each in executions), *(root for root, _ in more))
        stored = self._stored_among(connection, roots)
        for root, component in [*more]:
            if root not in stored:
                del more[root, component]
        for root, edge, component, task, began_ms, took_ms, together, fate, reason in executions:
            if root not in stored:
                continue
            edges = self._edges(connection, known, root)
            if edge not in edges and len(edges) >= MOST_TUPLES and fate != "failed":
                more[root, component] = more.get((root, component), 0) + 1
                continue
            edges.add(edge)
            decided = batch_id if fate in {"acked", "failed"} else None
            rows.append(
                (root, edge, component, task, began_ms, took_ms, together, fate, reason, batch_id, decided)
            )
        connection.executemany(EXECUTION, map(_clean, rows))

    def _add_more(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        query = "SELECT count FROM more WHERE root = ? AND component = ? AND batch_id = ? AND part = ?"
        for *key, count in rows:
            before = connection.execute(query, key).fetchone() or (0,)  # of another run of the micro-batch
            self._left_out_now += count - before[0]
        connection.executemany(MORE, rows)

    def _edges(self, connection: sqlite3.Connection, known: dict[int, set[int]], root: int) -> set[int]:
        """The edges that are stored of a message."""
        if root not in known:
            found = connection.execute("SELECT edge FROM tuples WHERE root = ?", (root,))
            known[root] = {edge for (edge,) in found}
        return known[root]

    @staticmethod
    def _stored_among(connection: sqlite3.Connection, roots: Iterable[int]) -> set[int]:
        """Which of these messages are stored. Facts of others are left out: they could never be trimmed."""
        query = "SELECT 1 FROM messages WHERE root = ?"
        return {root for root in {*roots} if connection.execute(query, (root,)).fetchone() is not None}

    def _insert_messages(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        roots = {row[0] for row in rows}
        self._recorded_now += len(roots - self._stored_among(connection, roots))
        connection.executemany(MESSAGE, map(_clean, rows))

    def trim(self) -> int:
        """Delete the oldest messages if there are too many, or too many bytes. Returns how many went."""
        with self._writing() as connection:
            count = self._value(connection, "SELECT count(*) FROM messages")
            used = self._used_bytes(connection)
            share = min(self._most_messages / max(1, count), self._most_bytes / max(1, used))
            if share >= 1:
                return 0
            surplus = count - int(count * share * _TRIMMED)
            acked = self._value(connection, "SELECT count(*) FROM messages WHERE verdict = 'ACKED'")
            target = count - surplus
            others = max(0, count - acked - max(target // 2, target - acked))
            for condition, most in (("verdict = 'ACKED'", surplus - others), (_NOT_ACKED, others)):
                roots = f"SELECT root FROM messages WHERE {condition} ORDER BY emitted_ms, root LIMIT ?"  # noqa: S608
                for table in ("tuples", "more", "messages"):
                    connection.execute(f"DELETE FROM {table} WHERE root IN ({roots})", (most,))  # noqa: S608
        with self._lock:
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        return surplus

    @property
    def used_bytes(self) -> int:
        """The size of what is stored, without free pages."""
        with self._lock, self._explained():
            return self._used_bytes(self._connection)

    def _used_bytes(self, connection: sqlite3.Connection) -> int:
        pages = self._value(connection, "PRAGMA page_count") - self._value(
            connection, "PRAGMA freelist_count"
        )
        return pages * self._value(connection, "PRAGMA page_size")

    # ---- reading --------------------------------------------------------------------------------------

    def select(self, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """The rows of a query of this room, as dicts. CheckpointError if the file is damaged."""
        with self._lock, self._explained():
            if self._is_unchanging and self._is_written:  # a driver runs since
                self._finalizer()
                self._open(read_only=True)
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def count(self) -> int:
        """How many messages are stored."""
        return self._one("SELECT count(*) FROM messages")

    def _one(self, query: str) -> int:
        (row,) = self.select(query)
        (value,) = row.values()
        return int(value)

    @staticmethod
    def _value(connection: sqlite3.Connection, query: str) -> int:
        (value,) = connection.execute(query).fetchone()
        return int(value)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._recorded_now = self._left_out_now = 0
            with transaction(self._connection) as connection:
                yield connection
            self.recorded += self._recorded_now  # it is committed
            self.left_out += self._left_out_now
