"""Messages that kill their worker, or hold it for ever, found and left out; their neighbours go on.

A level marks the row that it executes in a small mapped file: one store a tuple, and the file outlives the
process. When Spark runs the task again, the mark names a suspect, and the level runs in a forked child, whose
death costs nothing: the parent reads the mark, remembers it, and forks again. A row that a worker died over
twice is left out and its message fails, with the cause; whoever was there by accident runs the second time.
There, rows are known by their messages: a row left out before them in the same level does not move the blame.
Rows that are executed together (an ``ArrowBolt``'s), or whose children are too many to be sent, are cut in
halves until one is alone. To run out of memory, outside of user code, is a death like the others.

What is known of a micro-batch is kept by its id, so that a re-run after a crash of the driver leaves out the
same. Time is bounded too: a row that is executed for longer than ``execute_timeout_secs`` is interrupted, and
code that cannot be interrupted loses its process and is a suspect like the others.

Storm replays such a message until somebody stops the topology.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from acktree.core.data.context import forget_inherited
from acktree.core.data.frames import WireRow
from acktree.core.state.store import StateStore
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import BoltError, ProtocolError
from acktree.spark.worker.marks import HOOK, MARK, MarkingMonitor, Suspects, marked_of
from acktree.spark.worker.state_channel import Channel
from acktree.tasks.bolts.monitor import ExecutionMonitor

UNGUARDED: Final = "ACKTREE_UNGUARDED"
"""In the environment of workers: nothing is marked and nobody watches. For the benchmark of what it costs."""

IN_VAIN: Final = 100
"""After so many deaths in a row that leave nobody out the level gives up: one is found in twenty or so."""

Writes = list[tuple[str, bytes | None]]
"""Blobs put (or deleted, None) under their names, in order."""


class _Overlay(StateStore):
    """A child's state: its parent reads it and, when all is done, makes the writes.

    The child must not ask Spark itself. Both have the one socket, and nothing on it says whose an answer is:
    what a child had asked for when it died would be told to the next one, under another name.
    """

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self.channel = Channel()
        self.writes: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        if name in self.writes:
            return self.writes[name]
        with self.channel.question():
            self._parent.send(name)
            blob: bytes | None = self._parent.recv()
        return blob

    def put(self, name: str, blob: bytes) -> None:
        self.writes[name] = blob

    def delete(self, name: str) -> None:
        self.writes[name] = None


_Said = tuple[Exception | None, list[WireRow], Writes]
"""What a child says in the end: what it raised, else its rows and writes."""

Run = Callable[[ExecutionMonitor, StateStore | None], Iterable[WireRow]]
"""Runs a level: with who stands by, and its state."""


@dataclass(frozen=True)
class Isolation:
    """How one level of one partition is run in one micro-batch.

    Attributes:
        folder: Where marks and suspects lie: on a disk that every attempt can read.
        batch_id: The micro-batch.
        attempt: Which attempt of the Spark task this is, from 0.
        timeout_secs: ``execute_timeout_secs``.
    """

    folder: Path
    batch_id: int
    level: int
    partition: int
    attempt: int
    timeout_secs: float | None

    def run(self, level: Run, store: StateStore | None = None) -> Iterable[WireRow]:
        """Run it, in this process as long as nobody died."""
        if UNGUARDED in os.environ:
            return level(ExecutionMonitor(), store)
        suspects = Suspects.read(self._file("suspects"))
        if not self.attempt and not suspects:
            return self._here(level, store, suspects)
        self._read_mark(suspects, "its worker was lost")
        in_vain = 0
        while in_vain < IN_VAIN:
            found = len(suspects.left_out)
            told = self._in_a_child(level, store, suspects)
            if told is not None:
                _write(store, told[1])
                return told[0]
            in_vain = in_vain + 1 if len(suspects.left_out) == found else 0
        raise BoltError(
            f"{IN_VAIN} processes died one after the other, and hardly two over the same tuple",
            self._where(),
            "a bolt anchors tuples to other messages each time it runs, and the one behind it dies of them: "
            "mend what dies, or let the first put the same messages together in each run",
        )

    def _here(
        self, level: Run, store: StateStore | None, suspects: Suspects, *, in_child: bool = False
    ) -> Iterator[WireRow]:
        monitor = MarkingMonitor(self._file("mark"), suspects, self.timeout_secs, in_child=in_child)
        try:
            with monitor.on_watch():
                yield from list(level(monitor, store))
        finally:
            monitor.close()

    def _in_a_child(
        self, level: Run, store: StateStore | None, suspects: Suspects
    ) -> tuple[list[WireRow], Writes] | None:
        """Rows and writes of a run in a child; None if it died, and somebody was blamed."""
        mine, its = Pipe()
        child = os.fork()
        if child == 0:  # nothing of the worker's own may run in here again, whatever happens
            mine.close()
            self._be_the_child(level, suspects, its, has_state=store is not None)
        its.close()
        with mine:
            said = _attend(mine, store)
        _, status = os.waitpid(child, 0)
        if said is not None and os.waitstatus_to_exitcode(status) == 0:
            raised, rows, writes = said
            if isinstance(raised, MemoryError) and self._read_mark(suspects, "its worker ran out of memory"):
                return None
            if raised is not None:
                raise raised
            return rows, writes
        hook = self._marked_hook()
        if self._read_mark(suspects, _words(status)):
            return None
        if hook is not None:
            raise BoltError(
                f"bolt {hook[0]!r} ended its process in {hook[1]}(): {_words(status)}",
                self._where(),
                "Spark tries a few times more, then the topology stops; mend the hook and submit it again",
            )
        raise ProtocolError(
            f"a child that ran level {self.level} died and had marked nothing ({_words(status)})",
            self._where(),
            "Spark tries the task again; if this comes back, please report it",
        )

    def _be_the_child(self, level: Run, suspects: Suspects, parent: Connection, *, has_state: bool) -> None:
        try:
            overlay = _Overlay(parent) if has_state else None
            rows: list[WireRow] = []
            raised: Exception | None = None
            try:
                forget_inherited()
                rows = [_plain(row) for row in self._here(level, overlay, suspects, in_child=True)]
            except Exception as error:  # noqa: BLE001  # the parent's to raise
                raised = error
            writes = [] if overlay is None else list(overlay.writes.items())
            if overlay is not None:
                overlay.channel.refuse_if_lost()
            parent.send((raised, rows, writes))
            os._exit(0)
        finally:
            os._exit(70)

    def _read_mark(self, suspects: Suspects, how: str) -> bool:
        """Blame what the mark of a dead process names; False if it named nothing."""
        file = self._file("mark")
        if not file.exists():
            return False
        blob = file.read_bytes()
        file.unlink()
        marked = marked_of(blob)
        if marked is None:
            return False
        row, names = marked
        is_hung = self._file("hung").stat().st_size > 0
        cause = FailureCause.HUNG if is_hung else FailureCause.KILLED_WORKER
        suspects.blame(names.part(row, row + 1) if row >= 0 else names, cause, how)
        return True

    def _marked_hook(self) -> tuple[str, str] | None:
        """The bolt and the hook that a dead process was in, if it was in one."""
        file = self._file("mark")
        blob = (file.read_bytes() if file.exists() else b"") or bytes(MARK.size)
        row, _, length, _, _ = MARK.unpack_from(blob)
        if row != HOOK:
            return None
        bolt, hook = json.loads(blob[MARK.size : MARK.size + length])
        return bolt, hook

    def _where(self) -> str:
        return f"level {self.level}, micro-batch {self.batch_id}, partition {self.partition}"

    def _file(self, what: str) -> Path:
        return self.folder / f"{self.batch_id}.{self.level}.{self.partition}.{what}"


def _attend(child: Connection, store: StateStore | None) -> _Said | None:
    """Read state for a child until it is done: what it says then; None if it died."""
    while True:
        try:
            said = child.recv()
        except (EOFError, OSError):
            return None
        if not isinstance(said, str):
            done: _Said = said
            return done
        assert store is not None, "what has no state asks for none"
        blob = store.get(said)
        with suppress(OSError):  # it may have died over its question
            child.send(blob)


def _plain(row: WireRow) -> WireRow:
    return row._replace(head=bytes(row.head), body=bytes(row.body))


def _write(store: StateStore | None, writes: Writes) -> None:
    for name, blob in writes:
        assert store is not None, "what has no state writes none"
        if blob is None:
            store.delete(name)
        else:
            store.put(name, blob)


def _words(status: int) -> str:
    """How a child ended, for a person."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its worker exited with code {code}"
    return f"its worker was killed by {signal.Signals(-code).name}"
