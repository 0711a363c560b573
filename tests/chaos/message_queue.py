"""The queue that the spouts drink from: one SQLite file, and a diary of all that was done to each message.

A message is ready, delivered, acked or dead. What was delivered and not acked when the driver died is ready
again when the next one opens, as with any broker. Verdicts are written down as they are delivered, whether
they fit or not: ``account.py`` judges them.

SQLite withstands the death of a process between any two instructions; that is all this file relies on.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_BUSY_SECS: Final = 60.0
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, state TEXT NOT NULL, delivery INTEGER NOT NULL, failures INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS by_state ON messages (state, number);
CREATE TABLE IF NOT EXISTS diary (
    place INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, run INTEGER NOT NULL,
    number INTEGER NOT NULL, delivery INTEGER NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL
);
"""


class State(StrEnum):
    """The state of a message."""

    READY = "ready"
    DELIVERED = "delivered"
    ACKED = "acked"
    DEAD = "dead"


class What(StrEnum):
    """What was done to a message, or reported of it."""

    OPENED = "opened"
    """A spout task opened; of no message."""
    DELIVERED = "delivered"
    REDELIVERED = "redelivered"
    """It was open when the driver died, and is ready again."""
    FAILED = "failed"
    """Told as failed, and ready again."""
    ACKED = "acked"
    DEAD = "dead"
    """Told as failed for good."""


@dataclass(frozen=True)
class Entry:
    """A line of the diary.

    Attributes:
        run: Which start of the driver did it, from 1.
        delivery: Which delivery of the message it is about, from 1.
        detail: Of a failure, its kind, cause and reason.
    """

    at: float
    run: int
    number: int
    delivery: int
    what: What
    detail: str = ""


@dataclass(frozen=True)
class Message:
    """A message as the queue has it at the end."""

    number: int
    state: State
    delivery: int
    failures: int


class MessageQueue:
    """The queue, for one thread."""

    def __init__(self, file: Path, run: int = 0) -> None:
        """Open it; the file is made if it is not there.

        Args:
            run: Which start of the driver this is, for the diary.
        """
        self._run = run
        self._db = sqlite3.connect(file, timeout=_BUSY_SECS, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")  # processes die here, machines do not
        if run == 0:
            self._db.executescript(_TABLES)

    def put(self, numbers: Iterable[int]) -> None:
        """Add messages, ready to be delivered."""
        rows = [(number, State.READY) for number in numbers]
        self._db.executemany("INSERT INTO messages VALUES (?, ?, 0, 0)", rows)

    def note(self, what: What, number: int = -1, delivery: int = 0, detail: str = "") -> None:
        """Write into the diary."""
        row = (time.monotonic(), self._run, number, delivery, what, detail)
        self._db.execute(
            "INSERT INTO diary (at, run, number, delivery, what, detail) VALUES (?, ?, ?, ?, ?, ?)", row
        )

    def reconnect(self, task: int, tasks: int) -> None:
        """Begin a run: what this task had delivered and nobody judged is ready again."""
        with self._changing():
            mine = self._db.execute(
                "SELECT number, delivery FROM messages"
                " WHERE state = ? AND number % 2 = 0 AND number / 2 % ? = ?",
                (State.DELIVERED, tasks, task),
            ).fetchall()
            for number, delivery in mine:
                self._set(number, State.READY)
                self.note(What.REDELIVERED, number, delivery)

    def take(self, task: int, tasks: int, most: int) -> list[Message]:
        """Deliver some of a task's messages of even numbers."""
        with self._changing():
            rows = self._db.execute(
                "SELECT number, delivery, failures FROM messages"
                " WHERE state = ? AND number % 2 = 0 AND number / 2 % ? = ? ORDER BY number LIMIT ?",
                (State.READY, tasks, task, most),
            ).fetchall()
            return [self._dispatch(*row) for row in rows]

    def take_at(self, number: int) -> Message | None:
        """Deliver the message of a number, also once more: a log of messages does not know who asks."""
        with self._changing():
            row = self._db.execute(
                "SELECT number, delivery, failures FROM messages WHERE number = ?", (number,)
            ).fetchone()
            return None if row is None else self._dispatch(*row)

    def ack(self, acked_pairs: Sequence[tuple[int, int]]) -> None:
        """Messages and deliveries that are done."""
        with self._changing():
            for number, delivery in acked_pairs:
                self._close(number, delivery, State.ACKED)
                self.note(What.ACKED, number, delivery)

    def record(self, number: int, delivery: int, why: str) -> None:
        """A message failed for good."""
        with self._changing():
            self._close(number, delivery, State.DEAD)
            self.note(What.DEAD, number, delivery, why)

    def fail(self, number: int, delivery: int, why: str, most: int) -> None:
        """A message failed: ready again, or dead at its n-th failure."""
        with self._changing():
            ((failures,),) = self._db.execute("SELECT failures FROM messages WHERE number = ?", (number,))
            state = State.READY if failures + 1 < most else State.DEAD
            if self._close(number, delivery, state):
                self._db.execute("UPDATE messages SET failures = failures + 1 WHERE number = ?", (number,))
            self.note(What.FAILED if state is State.READY else What.DEAD, number, delivery, why)

    def count(self, *states: State) -> int:
        """How many messages are in one of these states."""
        marks = ", ".join("?" * len(states))
        found = self._db.execute(f"SELECT count(*) FROM messages WHERE state IN ({marks})", states)
        return int(found.fetchone()[0])

    def place(self) -> int:
        """How long the diary is: it grows while anything happens."""
        return int(self._db.execute("SELECT coalesce(max(place), 0) FROM diary").fetchone()[0])

    def has_opened(self, run: int, tasks: int) -> bool:
        """Whether all spout tasks of a run are open."""
        found = self._db.execute("SELECT count(*) FROM diary WHERE run = ? AND what = ?", (run, What.OPENED))
        return int(found.fetchone()[0]) >= tasks

    def messages(self) -> list[Message]:
        """All messages, ascending."""
        rows = self._db.execute("SELECT number, state, delivery, failures FROM messages ORDER BY number")
        return [Message(number, State(state), delivery, fails) for number, state, delivery, fails in rows]

    def diary(self) -> list[Entry]:
        """All that happened, in order."""
        rows = self._db.execute("SELECT at, run, number, delivery, what, detail FROM diary ORDER BY place")
        return [
            Entry(at, run, number, delivery, What(what), detail)
            for at, run, number, delivery, what, detail in rows
        ]

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _dispatch(self, number: int, delivery: int, failures: int) -> Message:
        self._db.execute(
            "UPDATE messages SET delivery = delivery + 1, state = iif(state = ?, ?, state) WHERE number = ?",
            (State.READY, State.DELIVERED, number),
        )
        self.note(What.DELIVERED, number, delivery + 1)
        return Message(number, State.DELIVERED, delivery + 1, failures)

    def _close(self, number: int, delivery: int, state: State) -> bool:
        """Change the state if this is the delivery that is open; a broker ignores any other."""
        changed = self._db.execute(
            "UPDATE messages SET state = ? WHERE number = ? AND state = ? AND delivery = ?",
            (state, number, State.DELIVERED, delivery),
        )
        return changed.rowcount == 1

    def _set(self, number: int, state: State) -> None:
        self._db.execute("UPDATE messages SET state = ? WHERE number = ?", (state, number))

    def _changing(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
