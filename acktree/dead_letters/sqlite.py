"""Dead letters in an SQLite file: the default store, which needs no database server.

Rules of this file
------------------
1. Inserted letters survive a power cut. Only then may the spout's ``fail`` be called.
2. A file of another program is refused and not changed.

SQLite is durable, part of every Python, and lets other programs read the file while the topology runs.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from acktree.dead_letters.table import (
    COLUMNS,
    VERSION,
    Cause,
    Condition,
    Row,
    Table,
    Which,
    matching,
    parts_of,
    redriven_as,
)
from acktree.errors import CheckpointError, ConnectorError
from acktree.system.private_files import make_private_file, make_private_folder
from acktree.system.sqlite_files import transaction

IN_MEMORY: Final = ":memory:"
"""No file: the letters are lost when the process ends."""

_TABLES: Final = """
CREATE TABLE acktree_dead_letters_version (version INTEGER NOT NULL);
CREATE TABLE dead_letters (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    topology         TEXT    NOT NULL,
    spout            TEXT    NOT NULL,
    task_id          INTEGER NOT NULL,
    stream           TEXT    NOT NULL,
    root             INTEGER NOT NULL,
    message_id_repr  TEXT    NOT NULL,
    fields           TEXT    NOT NULL, -- a JSON list
    payload          BLOB    NOT NULL, -- Arrow IPC, one row
    reason           TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    cause            TEXT    NOT NULL,
    component        TEXT,
    exception_type   TEXT,
    traceback        TEXT,
    attempts         INTEGER NOT NULL,
    first_emitted_ms INTEGER NOT NULL,
    dead_ms          INTEGER NOT NULL,
    redriven_ms      INTEGER,
    settled_ms       INTEGER,
    label            TEXT,
    origins          TEXT, -- a JSON list
    UNIQUE (topology, root) -- two topologies that share a file and a run salt do have equal roots
);
"""

_INSERT: Final = (
    f"INSERT INTO dead_letters ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - the names are our own
    # Not OR IGNORE: that would also ignore a missing column.
    " ON CONFLICT (topology, root) DO NOTHING"
)
_BUSY_SECS: Final = 10
"""The longest wait of a statement for another program that writes."""
_EMPTY_SECS: Final = 0.5
"""The pause between two attempts to empty the write-ahead log."""
_OPENING: Final = threading.Lock()
"""Held while this process opens a store: creating the file and changing it to WAL do not wait for a lock."""


class SqliteTable(Table):
    """The table in one file.

    Args:
        path: The file, or :data:`IN_MEMORY`. Created if missing, readable only by its owner (0600); a folder
            created for it is private too (0700), because payloads are users' data.

    Raises:
        CheckpointError: The file belongs to another program, or to a newer acktree.
        ConnectorError: It cannot be opened, or is damaged; ``can_retry`` when another process holds it.
    """

    def __init__(self, path: Path | str) -> None:
        self.place = str(path)
        self._path = Path(path).absolute()  # the program may change its folder
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._emptying: threading.Thread | None = None
        with _OPENING, self._connector_errors("open"):
            if self.place != IN_MEMORY:
                # SQLite gives its -wal and -shm files the permissions of this one. An existing file is not
                # opened here: closing it would release the locks of another store of this process.
                make_private_folder(Path(path).parent)
                make_private_file(Path(path))
            # Autocommit: each BEGIN below is written out. One connection for all threads, behind the lock.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECS, isolation_level=None, check_same_thread=False
            )
            self._close_connection = weakref.finalize(self, self._connection.close)
            try:
                self._prepare()
            except BaseException:
                self._close_connection()
                raise
            self._file = self._file_now()

    def insert(self, rows: Sequence[Row]) -> int:
        with self._transaction("store dead letters in") as connection:
            before = connection.total_changes
            connection.executemany(_INSERT, rows)
            return connection.total_changes - before

    def select(self, which: Which, after: int, most: int) -> list[Row]:
        where, values = _where(which.conditions, which.ids)
        query = (
            f"SELECT {', '.join(COLUMNS)} FROM dead_letters"  # noqa: S608 - the names are our own
            f" WHERE id > ? AND {where} ORDER BY id LIMIT ?"
        )
        with self._reading() as connection:
            return connection.execute(query, (after, *values, most)).fetchall()

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        known: set[int] = set()
        with self._reading() as connection:
            for part in parts_of(roots):
                marks = ", ".join("?" * len(part or ()))
                query = f"SELECT root FROM dead_letters WHERE topology = ? AND root IN ({marks})"  # noqa: S608
                known.update(root for (root,) in connection.execute(query, (topology, *(part or ()))))
        return known

    def messages(self, topology: str, roots: Sequence[int]) -> dict[int, tuple[str, int]]:
        found: dict[int, tuple[str, int]] = {}
        with self._reading() as connection:
            for part in parts_of(roots):
                marks = ", ".join("?" * len(part or ()))
                query = (
                    "SELECT root, message_id_repr, first_emitted_ms FROM dead_letters"  # noqa: S608
                    f" WHERE topology = ? AND root IN ({marks})"
                )
                for root, *message in connection.execute(query, (topology, *(part or ()))):
                    found[root] = (message[0], message[1])
        return found

    def count(self, which: Which) -> int:
        total = 0
        with self._reading() as connection:
            for ids in parts_of(which.ids):
                where, values = _where(which.conditions, ids)
                query = f"SELECT count(*) FROM dead_letters WHERE {where}"  # noqa: S608 - the names are our own
                (number,) = connection.execute(query, values).fetchone()
                total += int(number)
        return total

    def causes(self, which: Which) -> list[Cause]:
        found: list[Cause] = []
        with self._reading() as connection:
            for ids in parts_of(which.ids):
                where, values = _where(which.conditions, ids)
                query = (
                    "SELECT cause, component, exception_type, reason, count(*), min(id) FROM dead_letters"  # noqa: S608
                    f" WHERE {where} GROUP BY cause, component, exception_type, reason"
                )
                found += [Cause(*row) for row in connection.execute(query, values)]
        return found

    def again(self, ids: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        query = (
            "SELECT max(later.id) FROM dead_letters AS later JOIN dead_letters AS letter"
            " ON later.topology = letter.topology AND later.dead_ms >= letter.redriven_ms"
            " WHERE letter.id = ? AND later.message_id_repr = ?"
        )
        with self._reading() as connection:
            for number in ids:
                (later,) = connection.execute(query, (number, redriven_as(number))).fetchone()
                if later is not None:
                    found[number] = later
        return found

    def mark(self, ids: Sequence[int], marks: Mapping[str, int | None]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in marks)
        with self._transaction("mark dead letters in") as connection:
            for part in parts_of(ids):
                where, values = _where((), part)
                change = f"UPDATE dead_letters SET {assignments} WHERE {where}"  # noqa: S608 - likewise
                connection.execute(change, (*marks.values(), *values))

    def delete(self, which: Which) -> int:
        gone = 0
        with self._transaction("delete dead letters from") as connection:
            for ids in parts_of(which.ids):
                where, values = _where(which.conditions, ids)
                gone += connection.execute(f"DELETE FROM dead_letters WHERE {where}", values).rowcount  # noqa: S608
        if gone and self.place != IN_MEMORY and not self._empty_log():
            self._empty_log_later()
        return gone

    def _empty_log(self) -> bool:
        """Remove deleted letters from the write-ahead log too. False while another program reads it."""
        with self._reading() as connection:
            connection.execute("PRAGMA busy_timeout = 0")  # do not wait for a program that reads
            try:
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {1000 * _BUSY_SECS}")
            return not is_busy

    def _empty_log_later(self) -> None:
        """Retry in a thread until no other program reads the log; :meth:`close` empties it too."""
        with self._lock:
            if self._emptying is not None and self._emptying.is_alive():
                return
            self._emptying = threading.Thread(
                target=_empty_until_done, args=(weakref.ref(self), self._closed), daemon=True,
                name="acktree dead letters",
            )  # fmt: skip
            self._emptying.start()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._close_connection()

    def _prepare(self) -> None:
        tables = {
            name
            for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if tables and "acktree_dead_letters_version" not in tables:
            raise CheckpointError(
                "this file is a database, but not a store of dead letters",
                f"dead letters in {self.place}",
                "name another file for the dead letters",
            )
        # The first write: a file of another program must not be changed.
        self._connection.execute("PRAGMA journal_mode = WAL")  # readers do not block writers, nor vice versa
        self._connection.execute("PRAGMA synchronous = FULL")  # WAL's usual NORMAL may lose the last commits
        self._connection.execute("PRAGMA secure_delete = ON")  # purged payloads are overwritten
        with transaction(self._connection) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                # Not executescript: it commits the transaction; two processes may create the file at once.
                for table in filter(str.strip, _TABLES.split(";\n")):
                    connection.execute(table)
                connection.execute("INSERT INTO acktree_dead_letters_version VALUES (?)", (VERSION,))
            versions = self._versions()
        if versions != [VERSION]:
            raise CheckpointError(
                f"the dead letters have version {versions}, and this acktree reads version {VERSION}",
                f"dead letters in {self.place}",
                "run the acktree that wrote them; or keep this file and name another",
            )

    def _versions(self) -> list[int]:
        return [
            version for (version,) in self._connection.execute("SELECT * FROM acktree_dead_letters_version")
        ]

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connector_errors(doing):
            self._refuse_replaced(doing)
            with transaction(self._connection) as connection:
                yield connection
            self._refuse_replaced(doing)  # else it was written into a file that nobody finds

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connector_errors("read"):
            self._refuse_replaced("read")
            yield self._connection

    def _file_now(self) -> tuple[int, int] | None:
        """Which file has the name of this one; None for no file."""
        if self.place == IN_MEMORY:
            return None
        with suppress(FileNotFoundError):
            found = self._path.stat()
            return found.st_dev, found.st_ino
        return None

    def _refuse_replaced(self, doing: str) -> None:
        """ConnectorError where the file was deleted, moved or replaced since it was opened."""
        if self._file_now() != self._file:
            raise ConnectorError(
                f"cannot {doing} {self.place}: the file was deleted, moved or replaced while it was open",
                "the store of dead letters",
                "bring that file back, or stop the topology and submit it again: it then makes a new one",
            )

    @contextmanager
    def _connector_errors(self, doing: str) -> Iterator[None]:
        """Convert an error of SQLite or the operating system to a ConnectorError."""
        try:
            yield
        except (sqlite3.Error, OSError) as refused:
            raise _explained(refused, f"cannot {doing} {self.place}") from refused


def _empty_until_done(table: weakref.ref[SqliteTable], closed: threading.Event) -> None:
    """Empty the write-ahead log once no program reads it; end when the store is closed or collected."""
    while not closed.wait(_EMPTY_SECS):
        store = table()
        if store is None:
            return
        with suppress(ConnectorError):  # such as a full disk: retried later
            if closed.is_set() or store._empty_log():  # noqa: SLF001  # its own thread
                return
        del store


_LIKE: Final = {
    "contains": "lower({}) LIKE '%' || lower(?) || '%' ESCAPE '\\'",
    "is named": "lower('.' || {}) LIKE '%.' || lower(?) ESCAPE '\\'",
}


def _where(conditions: Sequence[Condition], ids: Sequence[int] | None) -> tuple[str, list[object]]:
    """A condition in SQL, and the values of its placeholders."""
    tests = [f"id IN ({', '.join('?' * len(ids))})"] if ids is not None else []
    values: list[object] = list(ids or ())
    for condition in conditions:
        if condition.test in _LIKE:
            test, value = _LIKE[condition.test], matching(str(condition.value))
            tests.append(test.format(condition.column))
            values.append(value)
            continue
        takes_value = not condition.test.startswith("is ")
        tests.append(f"{condition.column} {condition.test}{' ?' * takes_value}")
        values += [condition.value] * takes_value
    return " AND ".join(tests) or "TRUE", values


def _explained(refused: Exception, what: str) -> ConnectorError:
    code = getattr(refused, "sqlite_errorcode", 0) & 0xFF  # the low byte is the error, the others its details
    is_full = code == sqlite3.SQLITE_FULL or getattr(refused, "errno", None) in {errno.ENOSPC, errno.EDQUOT}
    is_held = code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    if is_full:
        fix = "free some space; this call stored nothing and gave no message up"
    elif code == sqlite3.SQLITE_IOERR:
        fix = (
            "check the disk, its quota and the limit of file sizes; this call stored nothing and gave no "
            "message up"
        )
    elif is_held:
        fix = "end the program that locks the file, unless it ends by itself"
    elif code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        fix = "the file is damaged, or not a database: move it away, keep it, and try `sqlite3 FILE .recover`"
    else:
        fix = "check that the file and its folder are writable, and that the store is not closed"
    return ConnectorError(f"{what}: {refused}", "the store of dead letters", fix, can_retry=is_held)
