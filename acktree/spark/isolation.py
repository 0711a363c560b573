"""Messages that kill their worker, or hold it for ever, found and left out; their neighbours go on.

A level marks the row that it executes in a small mapped file: one store a tuple, and the file outlives the
process. When Spark runs the task again, the mark names a suspect, and the level runs in a forked child, whose
death costs nothing: the parent reads the mark, remembers it, and forks again. A row that a worker died over
twice is left out and its message fails, with the cause; whoever was there by accident runs the second time.
Rows that are executed together (an ``ArrowBolt``'s), or whose children are too many to be sent, are cut in
halves until one is alone. To run out of memory, outside of user code, is a death like the others.

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
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from acktree.core.frames import WireRow
from acktree.core.state import StateStore
from acktree.core.verdicts import FailureCause
from acktree.errors import BoltError, ExecuteTimeoutError, ProtocolError
from acktree.tasks.sentry import LeftOut, Sentry
from acktree.topology.model import Component

DEATHS: Final = 2
"""A row is left out when so many workers died over it."""
UNGUARDED: Final = "ACKTREE_UNGUARDED"
"""In the environment of workers: nothing is marked and nobody watches. For the benchmark of what it costs."""
_MARK: Final = struct.Struct("@4q")
"""What a mark says: the row, the frame's number, how many rows it has, the name of its first."""
_NOBODY: Final = -1
_TOGETHER: Final = -2
"""The mark of a frame that is executed whole."""
_SENDING: Final = -3
"""The mark of a frame whose tuples were executed, while what they emitted is made ready."""
_HOOK: Final = -4
"""The mark of a hook that has no tuple to blame."""
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
        """Begin with a clean mark; the timeout is for bolts that have none of their own."""
        super().__init__()
        self._suspects = suspects
        self._usual_secs = self._timeout_secs = timeout_secs
        self._bolt = ""
        self._is_on_watch = False
        self._file = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, bytes(_MARK.size), 0)  # no hole: with no room left, a mark in one is a SIGBUS
        self._map = mmap.mmap(self._file, _MARK.size)
        self._hung_file = file.with_suffix(".hung").open("w")
        self._fields = memoryview(self._map).cast("q")
        self._fields[0] = _NOBODY
        self.mark = self._fields
        self._frames = 0
        self._seen: tuple[int, int, float] = (_NOBODY, 0, 0.0)

    def begin(self, component: Component, first: int, count: int, *, together: bool) -> None:
        self._fields[0] = _NOBODY
        self._bolt = component.id
        self._keep_time(component.execute_timeout_secs or self._usual_secs)
        self._frames += 1
        self._fields[1], self._fields[2], self._fields[3] = self._frames, count, first
        self._fields[0] = _TOGETHER if together else _NOBODY

    def sending(self) -> None:
        self._fields[0] = _SENDING

    def end(self) -> None:
        self._fields[0] = _NOBODY
        self._keep_time(self._usual_secs)  # what follows is ours, and no bolt's

    def enter(self, component: Component, hook: str) -> None:
        self._fields[0] = _NOBODY
        said = json.dumps((component.id, hook)).encode()
        os.pwrite(self._file, said, _MARK.size)
        self._fields[2] = len(said)
        self._fields[0] = _HOOK

    def left_out(self, first: int, count: int) -> Sequence[LeftOut]:
        known = self._suspects.left_out
        return [LeftOut(name - first, *known[name]) for name in _within(first, count, known)]

    def cuts(self, first: int, count: int) -> Sequence[int]:
        return [name - first for name in _within(first, count, self._suspects.cuts)]

    @contextmanager
    def on_watch(self) -> Iterator[None]:
        """While a level runs: interrupt what takes too long. Only a main thread can be."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._look)
        self._is_on_watch = True
        self._keep_time(self._usual_secs, anew=True)
        try:
            yield
        finally:
            self._is_on_watch = False
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

    def _keep_time(self, secs: float | None, *, anew: bool = False) -> None:
        """Set the clock to a timeout, or stop it where there is none."""
        if secs == self._timeout_secs and not anew:
            return
        self._timeout_secs = secs
        if self._is_on_watch:
            tick = 0 if secs is None else secs / _TICKS
            signal.setitimer(signal.ITIMER_REAL, tick, tick)
            faulthandler.cancel_dump_traceback_later()
            if secs is not None:
                self._let_go_on(secs)

    def _look(self, *_: object) -> None:
        """The clock's tick."""
        if self._timeout_secs is None:
            return  # it was stopped just now
        row, frame, now = self._fields[0], self._fields[1], time.monotonic()
        if (row, frame) != self._seen[:2] or row in {_NOBODY, _SENDING, _HOOK}:
            self._seen = row, frame, now
            self._let_go_on(self._timeout_secs)
        elif now - self._seen[2] >= self._timeout_secs:
            self._seen = row, frame, now
            raise ExecuteTimeoutError(
                f"execute took longer than execute_timeout_secs={self._timeout_secs:g}",
                f"bolt {self._bolt!r}",
                "mend what it waits for, or give it longer: set_bolt(...).set_execute_timeout_secs(...)",
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
        if UNGUARDED in os.environ:
            return level(Sentry(), store)
        suspects = Suspects.read(self._file("suspects"))
        if not self.attempt and not suspects:
            return self._here(level, store, suspects)
        self._read_mark(suspects, "its worker was lost")
        while True:
            told = self._in_a_child(level, store, suspects)
            if told is not None:
                _write(store, told[1])
                return told[0]

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
            if isinstance(raised, MemoryError) and self._read_mark(suspects, "its worker ran out of memory"):
                return None
            if raised is not None:
                raise raised
            return rows, writes
        hook = self._marked_hook()
        if self._read_mark(suspects, _words(status)):
            return None
        where = f"micro-batch {self.batch_id}, partition {self.partition}"
        if hook is not None:
            raise BoltError(
                f"bolt {hook[0]!r} ended its process in {hook[1]}(): {_words(status)}",
                where,
                "Spark tries a few times more, then the topology stops; mend the hook and submit it again",
            )
        raise ProtocolError(
            f"a child that ran level {self.level} died and had marked nothing ({_words(status)})",
            where,
            "Spark tries the task again; if this comes back, please report it",
        )

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
        if not any(blob):  # it died before it had begun
            return False
        row, _, count, first = _MARK.unpack_from(blob)
        if row in {_NOBODY, _HOOK}:
            return False
        names = range(first, first + count)
        is_hung = self._file("hung").stat().st_size > 0
        cause = FailureCause.HUNG if is_hung else FailureCause.KILLED_WORKER
        suspects.blame(names[row : row + 1] if row >= 0 else names, cause, how)
        return True

    def _marked_hook(self) -> tuple[str, str] | None:
        """The bolt and the hook that a dead process was in, if it was in one."""
        file = self._file("mark")
        blob = (file.read_bytes() if file.exists() else b"") or bytes(_MARK.size)
        row, _, length, _ = _MARK.unpack_from(blob)
        if row != _HOOK:
            return None
        bolt, hook = json.loads(blob[_MARK.size : _MARK.size + length])
        return bolt, hook

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


def _within(first: int, count: int, known: Iterable[int]) -> list[int]:
    """Which of some names are of these rows, ascending."""
    return sorted(name for name in known if first <= name < first + count)


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
