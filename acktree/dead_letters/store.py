"""Where messages that were given up are kept: one SQLite file, beside the checkpoint unless said otherwise.

Rules of this file
------------------
1. When ``put`` returns, the letters outlive a power cut: only then may a spout be told of its dead message.
2. ``put`` is idempotent by (topology, root). After a crash the same verdict comes again; it is one letter.
3. Nothing is unpickled here. A letter whose class is gone can still be listed, counted and read.
4. A file that is not ours is refused and left as it was.

SQLite, since it is durable, in every Python, and can be opened by other programs while the topology runs.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from acktree.core.verdicts import FailureCause, FailureKind
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import CheckpointError, ConnectorError, MisuseError

__all__ = ["DeadLetters"]

VERSION: Final = 1
"""Of the tables below. Raise it with each change of them, and convert older files in ``_prepare``."""

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
    UNIQUE (topology, root) -- two topologies that share a file and a run salt do have equal roots
);
"""

_COLUMNS: Final = tuple(field.name for field in fields(DeadLetter))
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM dead_letters"  # noqa: S608 - the names are our own
_INSERT: Final = (
    f"INSERT INTO dead_letters ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - likewise
    # Not OR IGNORE: that would swallow a missing column as well.
    " ON CONFLICT (topology, root) DO NOTHING"
)
_COUNT: Final = """
SELECT count(*) FROM dead_letters
WHERE (:topology IS NULL OR topology = :topology) AND (:spout IS NULL OR spout = :spout)
  AND (:component IS NULL OR component = :component)
  AND (:kind IS NULL OR kind = :kind) AND (:cause IS NULL OR cause = :cause)
  AND (:redriven IS NULL OR (redriven_ms IS NOT NULL) = :redriven)
"""
_PAGE: Final = 100
_OPENING: Final = threading.Lock()
"""Held while this process opens a store: making the file, and its change to WAL, do not wait for others."""


class DeadLetters:
    """The dead letters in one file. Any thread may call any method, and other processes may read meanwhile.

    Args:
        path: The SQLite file. Made if missing, readable by its owner alone (0600), as is a folder that has to
            be made for it (0700): payloads are users' data.
        send: Sends letters into the topology again, for :meth:`redrive`; None where none runs.

    Raises:
        CheckpointError: The file is of another program, or of a newer acktree.
        ConnectorError: It cannot be opened, or is damaged. Any method may raise this one too, with the path
            and what to do; ``can_retry`` when another process merely holds the file.
    """

    def __init__(self, path: Path | str, send: Callable[[Sequence[DeadLetter]], None] | None = None) -> None:
        self.path = Path(path)
        self._send = send
        self._lock = threading.Lock()
        with _OPENING, self._told("open"):
            _make_private(self.path)
            # Autocommit: each BEGIN below is written out. One connection for all threads, behind the lock.
            self._connection = sqlite3.connect(
                self.path, timeout=10, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Store letters, all or none; durable when this returns.

        A letter whose topology and root are in the store already is left as it stands there: the first story
        told is kept. Letters are numbered in the order given; an ``id`` that they carry is ignored.

        Returns:
            How many were new.
        """
        rows = [_row_of(letter) for letter in letters]
        with self._transaction("store dead letters in") as connection:
            before = connection.total_changes
            connection.executemany(_INSERT, rows)
            return connection.total_changes - before

    def __iter__(self) -> Iterator[DeadLetter]:
        """Every letter, lowest id first.

        Letters stored meanwhile are seen too, and nobody is kept from storing them.
        """
        last = 0
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    f"{_SELECT} WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE)
                ).fetchall()
            yield from map(_letter_of, rows)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def __len__(self) -> int:
        return self.count()

    def count(
        self,
        *,
        topology: str | None = None,
        spout: str | None = None,
        component: str | None = None,
        kind: FailureKind | None = None,
        cause: FailureCause | None = None,
        redriven: bool | None = None,
    ) -> int:
        """How many letters fit all of what is given; all of them when nothing is.

        Args:
            component: Where they failed, not who emitted them.
            redriven: True for those sent again at least once, False for those never.
        """
        wanted = {
            "topology": topology,
            "spout": spout,
            "component": component,
            "kind": kind,
            "cause": cause,
            "redriven": redriven,
        }
        with self._reading() as connection:
            (number,) = connection.execute(_COUNT, wanted).fetchone()
        return int(number)

    def get(self, ids: Iterable[int]) -> list[DeadLetter]:
        """The letters with these ids, in this order.

        Raises:
            MisuseError: One of them is not in the store.
        """
        found = []
        with self._reading() as connection:
            for asked in ids:
                row = connection.execute(f"{_SELECT} WHERE id = ?", (asked,)).fetchone()
                if row is None:
                    raise self._unknown(asked)
                found.append(_letter_of(row))
        return found

    def mark_redriven(self, ids: Iterable[int], now_ms: int) -> None:
        """Note that these letters were sent again at ``now_ms``; durable when this returns.

        Raises:
            MisuseError: One of them is not in the store; then none is marked.
        """
        with self._transaction("mark dead letters in") as connection:
            for asked in ids:
                marked = connection.execute(
                    "UPDATE dead_letters SET redriven_ms = ? WHERE id = ?", (now_ms, asked)
                )
                if marked.rowcount == 0:
                    raise self._unknown(asked)

    def redrive(self, ids: Iterable[int]) -> int:
        """Send letters again, as new messages with a first attempt; returns how many.

        Their source is through with them and is told nothing: one that is acked is done, one that fails for
        good becomes a dead letter again.

        Raises:
            MisuseError: One of them is not in the store, or the topology does not run; then none is sent.
        """
        letters = self.get(ids)
        if self._send is None:
            raise MisuseError(
                "dead letters can be sent again only into the running topology that gave them up",
                f"dead letters in {self.path}",
                "submit the topology, and call running.dead_letters.redrive(ids)",
            )
        self._send(letters)
        now_ms = time.time_ns() // 1_000_000
        self.mark_redriven([letter.id for letter in letters if letter.id is not None], now_ms)
        return len(letters)

    def close(self) -> None:
        """Let go of the file; a second call does nothing.

        Every other method raises ConnectorError from now on.
        """
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        tables = {
            name
            for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if tables and "acktree_dead_letters_version" not in tables:
            raise CheckpointError(
                "this file is a database, and not one of dead letters",
                f"dead letters in {self.path}",
                "name another file for the dead letters",
            )
        # Only now is anything written: a file that is not ours must stay as it was.
        self._connection.execute("PRAGMA journal_mode = WAL")  # readers do not hinder us, nor we them
        self._connection.execute("PRAGMA synchronous = FULL")  # WAL's usual NORMAL may lose the last commits
        with self._begun() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                # Not executescript: it commits what is open, and two processes may open a new file at once.
                for table in filter(str.strip, _TABLES.split(";\n")):
                    connection.execute(table)
                connection.execute("INSERT INTO acktree_dead_letters_version VALUES (?)", (VERSION,))
            versions = [
                version for (version,) in connection.execute("SELECT * FROM acktree_dead_letters_version")
            ]
        if versions != [VERSION]:
            raise CheckpointError(
                f"the dead letters have version {versions}, and this acktree reads version {VERSION}",
                f"dead letters in {self.path}",
                "run the acktree that wrote them, or newer; or keep this file and name another",
            )

    @contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told(doing), self._begun() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told("read"):
            yield self._connection

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Say what SQLite or the system refused in our words."""
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError) as refused:
            raise _explained(refused, f"cannot {doing} {self.path}") from refused

    def _unknown(self, asked: int) -> MisuseError:
        return MisuseError(
            f"there is no dead letter {asked!r}",
            f"dead letters in {self.path}",
            "take the ids from the letters: iterating over the store lists them",
        )


def _make_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its -wal and -shm files the rights of this one. An existing file keeps what it was given,
    # and is not even opened here: closing it would drop the locks that another store of ours has on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _row_of(letter: DeadLetter) -> tuple[object, ...]:
    parts: dict[str, Any] = {name: getattr(letter, name) for name in _COLUMNS}
    # A reason may quote a file name that is no UTF-8. SQLite would refuse it, and the letter would be lost.
    row = {name: _storable(part) if isinstance(part, str) else part for name, part in parts.items()}
    return tuple((row | {"id": None, "fields": json.dumps(letter.fields)}).values())


def _storable(text: str) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def _letter_of(row: tuple[Any, ...]) -> DeadLetter:
    parts: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    parts["fields"] = tuple(json.loads(parts["fields"]))
    parts["kind"] = FailureKind(parts["kind"])
    parts["cause"] = FailureCause(parts["cause"])
    return DeadLetter(**parts)


def _explained(refused: Exception, what: str) -> ConnectorError:
    code = getattr(refused, "sqlite_errorcode", 0) & 0xFF  # the low byte is the error, the rest its details
    is_full = code == sqlite3.SQLITE_FULL or getattr(refused, "errno", None) in {errno.ENOSPC, errno.EDQUOT}
    is_held = code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    if is_full:
        fix = "free some space; nothing was stored by this call, and no message was given up by it"
    elif is_held:
        fix = "end the program that holds the file, if it does not end by itself"
    elif code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        fix = "the file is damaged, or no database: move it away, keep it, and try `sqlite3 FILE .recover`"
    else:
        fix = "see that the file and its folder can be written, and that the store is not closed"
    return ConnectorError(f"{what}: {refused}", "the store of dead letters", fix, can_retry=is_held)
