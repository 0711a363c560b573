"""Messages that kill their worker, or hold it for ever, found and left out; their neighbours go on.

A level marks the row that it executes in a small mapped file: one store a tuple, and the file outlives the
process. When Spark runs the task again, the mark names a suspect, and the level runs in a forked child, whose
death costs nothing: the parent reads the mark, remembers it, and forks again. A row that a worker died over
twice is left out and its message fails, with the cause; whoever was there by accident runs the second time.
Rows that are executed together (an ``ArrowBolt``'s) are cut in halves until one is alone.

What is known of a micro-batch is kept by its id, so that a re-run after a crash of the driver leaves out the
same. Time is bounded too: a row that is executed for longer than ``execute_timeout_secs`` is interrupted, and
code that cannot be interrupted loses its process and is a suspect like the others.

Storm replays such a message until somebody stops the topology.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from acktree.core.frames import WireRow
from acktree.core.ids import UInt64s
from acktree.core.state import StateStore
from acktree.core.verdicts import FailureCause
from acktree.errors import ExecuteTimeoutError, ProtocolError
from acktree.tasks.sentry import LeftOut, Sentry

DEATHS: Final = 2
"""A row is left out when so many workers died over it."""
_HEADER: Final = 64
"""Bytes before the names: the row, the frame's number, how many rows, whether they are executed together."""
_NOBODY: Final = -1
_TOGETHER: Final = -2
"""The mark of a frame that is executed whole."""
_TICKS: Final = 4
"""A clock looks so often in ``execute_timeout_secs``."""
_PATIENCE: Final = 1.5
"""Code that cannot be interrupted loses its process after so many times the timeout."""


@dataclass
class Suspects:
    """What is known of the rows of one micro-batch, level and partition.

    Attributes:
        deaths: Row (by name) -> how many workers died over it.
        left_out: Row -> cause and reason.
        cuts: Rows before which a frame is cut.
    """

    file: Path
    deaths: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, tuple[FailureCause, str]] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, file: Path) -> Suspects:
        """What was written, or nothing."""
        try:
            deaths, left_out, cuts = json.loads(file.read_text())
        except FileNotFoundError:
            return cls(file)
        out = {int(name): (FailureCause(cause), reason) for name, (cause, reason) in left_out.items()}
        return cls(file, {int(name): count for name, count in deaths.items()}, out, set(cuts))

    def __bool__(self) -> bool:
        return bool(self.deaths or self.left_out or self.cuts)

    def blame(self, names: Sequence[int], cause: FailureCause, how: str) -> None:
        """A process died while it executed these rows."""
        if len(names) > 1:
            self.cuts |= {names[len(names) // 2]}
        else:
            (name,) = names
            self.deaths[name] = self.deaths.get(name, 0) + 1
            if self.deaths[name] >= DEATHS:
                times = f"{self.deaths[name]} times over this tuple"
                self.left_out[name] = cause, f"{how}, {times}: it is not executed any more"
        new = self.file.with_name(f"new-{self.file.name}")
        new.touch(mode=0o600)
        new.write_text(json.dumps((self.deaths, self.left_out, sorted(self.cuts))))
        new.rename(self.file)


class MarkingSentry(Sentry):
    """Marks what is executed in a file that outlives the process, and keeps an eye on the clock."""

    def __init__(self, file: Path, suspects: Suspects, timeout_secs: float | None) -> None:
        """Begin with a clean mark."""
        super().__init__()
        self._suspects, self._timeout_secs = suspects, timeout_secs
        self._file = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, bytes(_HEADER), 0)  # no hole: with no room left, a mark in one is a SIGBUS
        self._map = mmap.mmap(self._file, _HEADER)
        self._hung_file = file.with_suffix(".hung").open("w")
        self._fields = memoryview(self._map).cast("q")
        self._fields[0] = _NOBODY
        self.mark = self._fields
        self._frames = 0
        self._seen: tuple[int, int, float] = (_NOBODY, 0, 0.0)

    def begin(self, names: UInt64s, *, together: bool) -> None:
        self._fields[0] = _NOBODY
        os.pwrite(self._file, np.ascontiguousarray(names).data, _HEADER)
        self._frames += 1
        self._fields[1], self._fields[2] = self._frames, len(names)
        self._fields[0] = _TOGETHER if together else _NOBODY

    def end(self) -> None:
        self._fields[0] = _NOBODY

    def left_out(self, names: UInt64s) -> Sequence[LeftOut]:
        known = self._suspects.left_out
        return [LeftOut(row, *known[int(names[row])]) for row in _rows_of(names, known)]

    def cuts(self, names: UInt64s) -> Sequence[int]:
        return _rows_of(names, self._suspects.cuts)

    @contextmanager
    def on_watch(self) -> Iterator[None]:
        """While a level runs: interrupt what takes too long. Only a main thread can be."""
        secs = self._timeout_secs
        if secs is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, secs / _TICKS, secs / _TICKS)
        self._let_go_on(secs)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)

    def close(self) -> None:
        """Let go of the file."""
        self.mark = [_NOBODY]
        self._fields.release()
        self._map.close()
        self._hung_file.close()
        os.close(self._file)

    def _look(self, *_: object) -> None:
        """The clock's tick."""
        assert self._timeout_secs is not None, "there is a clock only with a timeout"
        row, frame, now = self._fields[0], self._fields[1], time.monotonic()
        if (row, frame) != self._seen[:2] or row == _NOBODY:
            self._seen = row, frame, now
            self._let_go_on(self._timeout_secs)
        elif now - self._seen[2] >= self._timeout_secs:
            self._seen = row, frame, now
            raise ExecuteTimeoutError(
                f"execute took longer than execute_timeout_secs={self._timeout_secs:g}",
                "the bolt that executed this tuple",
                "mend what it waits for, or raise execute_timeout_secs",
            )

    def _let_go_on(self, secs: float) -> None:
        """Something moved: code that holds the interpreter has so long again before its process goes."""
        faulthandler.dump_traceback_later(_PATIENCE * secs + 1, exit=True, file=self._hung_file)


Writes = list[tuple[str, bytes | None]]
"""Blobs put (or deleted, None) under their names, in order."""


class _Overlay(StateStore):
    """A child's state: its parent reads it and, when all is done, makes the writes.

    The child must not ask Spark itself. Both have the one socket, and nothing on it says whose an answer is:
    what a child had asked for when it died would be told to the next one, under another name.
    """

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self.writes: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        if name in self.writes:
            return self.writes[name]
        self._parent.send(name)
        blob: bytes | None = self._parent.recv()
        return blob

    def put(self, name: str, blob: bytes) -> None:
        self.writes[name] = blob

    def delete(self, name: str) -> None:
        self.writes[name] = None


_Said = tuple[Exception | None, list[WireRow], Writes]
"""What a child says in the end: what it raised, else its rows and writes."""

Run = Callable[[Sentry, StateStore | None], Iterable[WireRow]]
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
        suspects = Suspects.read(self._file("suspects"))
        if not self.attempt and not suspects:
            return self._here(level, store, suspects)
        self._read_mark(suspects, "its worker was lost")
        while True:
            told = self._in_a_child(level, store, suspects)
            if told is not None:
                rows, writes = told
                _write(store, writes)
                return rows

    def _here(self, level: Run, store: StateStore | None, suspects: Suspects) -> Iterator[WireRow]:
        sentry = MarkingSentry(self._file("mark"), suspects, self.timeout_secs)
        try:
            with sentry.on_watch():
                yield from list(level(sentry, store))
        finally:
            sentry.close()

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
            if raised is not None:
                raise raised
            return rows, writes
        if not self._read_mark(suspects, _words(status)):
            raise ProtocolError(
                f"a child that ran level {self.level} died and had marked nothing ({_words(status)})",
                f"micro-batch {self.batch_id}, partition {self.partition}",
                "Spark tries the task again; if this comes back, please report it",
            )
        return None

    def _be_the_child(self, level: Run, suspects: Suspects, parent: Connection, *, has_state: bool) -> None:
        try:
            overlay = _Overlay(parent) if has_state else None
            rows: list[WireRow] = []
            raised: Exception | None = None
            try:
                rows = [_plain(row) for row in self._here(level, overlay, suspects)]
            except Exception as error:  # noqa: BLE001  # the parent's to raise
                raised = error
            writes = [] if overlay is None else list(overlay.writes.items())
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
        if not any(blob[:_HEADER]):  # it died before it had begun
            return False
        row, _, count = np.frombuffer(blob, dtype=np.int64, count=3).tolist()
        if row == _NOBODY:
            return False
        names = np.frombuffer(blob, dtype=np.uint64, count=count, offset=_HEADER)
        is_hung = self._file("hung").stat().st_size > 0
        cause = FailureCause.HUNG if is_hung else FailureCause.KILLED_WORKER
        suspects.blame(names.tolist() if row == _TOGETHER else [int(names[row])], cause, how)
        return True

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


def _rows_of(names: UInt64s, known: Iterable[int]) -> list[int]:
    """Where some names stand, ascending."""
    wanted = np.array(list(known), dtype=np.uint64)
    rows: list[int] = np.flatnonzero(np.isin(names, wanted)).tolist() if len(wanted) else []
    return rows


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
