"""The mark: which row is being executed, in a small mapped file that outlives the process.

One store a tuple. Whoever finds the mark of a dead process knows whom to suspect; what is known of suspects
is kept beside it, by micro-batch. An eye is kept on the clock too: a row that stays marked for longer than
its bolt's ``execute_timeout_secs`` is interrupted.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.private_files import make_private_file, write_private
from acktree.spark.worker.watchdog import Watchdog
from acktree.tasks.bolts.monitor import ExecutionMonitor, LeftOut
from acktree.tasks.bolts.row_names import NOWHERE, MessageNames, Names, place_of
from acktree.topology.model import Component

DEATHS: Final = 2
"""A row is left out when so many workers died over it."""
MARK: Final = struct.Struct("@5q")
"""What a mark says: the row, the frame's number, how many rows it has, the name of its first by place, and
whether the names of all by their messages follow."""
NOBODY: Final = -1
TOGETHER: Final = -2
"""The mark of a frame that is executed whole."""
SENDING: Final = -3
"""The mark of a frame whose tuples were executed, while what they emitted is made ready."""
HOOK: Final = -4
"""The mark of a hook that has no tuple to blame."""
_UNTIMED: Final = frozenset({NOBODY, SENDING, HOOK})


@dataclass
class Suspects:
    """What is known of the rows of one micro-batch, level and partition.

    Who died in a worker's own run is known by its place; all others by their messages, and only so is anybody
    left out: what is said of a place could be said of a neighbour next time.

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

    def blame(self, names: Names, cause: FailureCause, how: str) -> None:
        """A process died while it executed these rows. Those that have no name yet get one in a child."""
        called = names.by_message or names.by_place
        if not called:
            return
        if len(called) > 1:
            self.cuts |= {called[len(called) // 2]}
        else:
            (name,) = called
            self.deaths[name] = self.deaths.get(name, 0) + 1
            count = sum(self.deaths.get(known, 0) for known in {*names.by_message, *names.by_place})
            if count >= DEATHS:
                times = f"{count} times over this tuple"
                self.left_out[name] = cause, f"{how}, {times}: it is not executed any more"
        new = self.file.with_name(f"new-{self.file.name}")
        write_private(new, json.dumps((self.deaths, self.left_out, sorted(self.cuts))).encode())
        new.rename(self.file)


class MarkingMonitor(ExecutionMonitor):
    """Marks what is executed in a file that outlives the process, and keeps an eye on the clock."""

    def __init__(
        self, file: Path, suspects: Suspects, timeout_secs: float | None, *, in_child: bool = False
    ) -> None:
        """Begin with a clean mark.

        Args:
            timeout_secs: For bolts that have none of their own.
            in_child: Whether somebody may have died here before: rows are named by their messages then.
        """
        super().__init__()
        self._suspects = suspects
        self._message_names = MessageNames() if in_child else None
        self._usual_secs = timeout_secs
        self._file = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, bytes(MARK.size), 0)  # no hole: with no room left, a mark in one is a SIGBUS
        self._map = mmap.mmap(self._file, MARK.size)
        hung = file.with_suffix(".hung")
        make_private_file(hung)
        self._hung_file = hung.open("w")
        self._fields = memoryview(self._map).cast("q")
        self._fields[0] = NOBODY
        self.mark = self._fields
        self._frames = 0
        self.watchdog = Watchdog(self._progress, self._hung_file, timeout_secs)

    def _progress(self) -> tuple[int, int] | None:
        """What is being executed, as a pair that changes with each row; None for nothing that is timed."""
        row, frame = self._fields[0], self._fields[1]
        return None if row in _UNTIMED else (row, frame)

    def names_of(self, frame: Frame, task: int, *, moves: bool) -> Names:
        first = NOWHERE if moves else place_of(frame, task)
        named = () if self._message_names is None else self._message_names.of(frame, task)
        return Names(len(frame), first, named)

    def begin(self, component: Component, names: Names, *, together: bool) -> None:
        self._fields[0] = NOBODY
        self.watchdog.allow(component.execute_timeout_secs or self._usual_secs, component.id)
        self._frames += 1
        self._fields[1], self._fields[2], self._fields[3] = self._frames, names.count, names.first
        if names.by_message:
            os.pwrite(self._file, array("q", names.by_message), MARK.size)
            self._fields[4] = True
        self._fields[0] = TOGETHER if together else NOBODY

    def sending(self) -> None:
        self._fields[0] = SENDING

    def end(self) -> None:
        self._fields[0] = NOBODY
        self.watchdog.allow(self._usual_secs)  # what follows is ours, and no bolt's

    def enter(self, component: Component, hook: str) -> None:
        self._fields[0] = NOBODY
        said = json.dumps((component.id, hook)).encode()
        os.pwrite(self._file, said, MARK.size)
        self._fields[2] = len(said)
        self._fields[0] = HOOK

    def left_out(self, names: Names) -> Sequence[LeftOut]:
        known = self._suspects.left_out
        return [LeftOut(row, *known[name]) for row, name in enumerate(names.by_message) if name in known]

    def cuts(self, names: Names) -> Sequence[int]:
        cuts = self._suspects.cuts
        by_message = {row for row, name in enumerate(names.by_message) if name in cuts}
        return sorted(by_message | {name - names.first for name in cuts if name in names.by_place})

    @contextmanager
    def on_watch(self) -> Iterator[None]:
        """While a level runs: interrupt what takes too long. Only a main thread can be interrupted."""
        with self.watchdog.on_watch():
            yield

    def close(self) -> None:
        """Let go of the file."""
        self.mark = [NOBODY]
        self._fields.release()
        self._map.close()
        self._hung_file.close()
        os.close(self._file)


def marked_of(blob: bytes) -> tuple[int, Names] | None:
    """What a mark says of rows: which of them, its place or how they were executed, and what all are called.

    None if it speaks of no row.
    """
    if len(blob) < MARK.size or not any(blob):  # its process died before it had begun
        return None
    row, _, count, first, is_named = MARK.unpack_from(blob)
    if row in {NOBODY, HOOK}:
        return None
    named = array("q", blob[MARK.size : MARK.size + 8 * count] if is_named else b"")
    return row, Names(count, first, named.tolist())
