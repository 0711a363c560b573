"""Execution marks: the row that is being executed, in a small mapped file that outlives the process.

The files are in ``marks/`` of the checkpoint; with a checkpoint at a URL, in a folder of each executor's own:

    <batch>.<level>.<partition>.mark        the mark
    <batch>.<level>.<partition>.suspects    deaths, counted by row
    <batch>.<level>.<partition>.hung        the traceback that the watchdog wrote before it ended the process
    <batch>.<level>.<partition>.raised      the attempt of the Spark task that ended with an exception
    stays.<level>.<partition>.mark          of a task that stays: the mark, of whatever micro-batch it runs
    stays.<level>.<partition>.hung
    <batch>.<level>.<partition>.waits       what a sink's task waits for: see ``tasks/waits.py``

A mark costs one write to memory for each tuple. After a process died, the next attempt reads its mark and
counts the death against the marked row. These counts are in a second file, one for each micro-batch, level
and partition, with the number of workers that were lost. The watchdog reads the mark too: it interrupts a row
that stays marked longer than ``execute_timeout_secs``.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import ConnectorError
from acktree.spark.worker.printing import finish_lines, label
from acktree.spark.worker.watchdog import Hook, Watchdog
from acktree.system.private_files import DISK
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor, LeftOut
from acktree.tasks.bolts.rows.row_names import NOWHERE, MessageNames, Names, place_of
from acktree.tasks.waits import SUFFIX, Wait
from acktree.texts import printable
from acktree.topology.model import Component

DEATHS: Final = 2
"""A row is left out when this many workers died while they executed it."""
MARK: Final = struct.Struct("@7q")
"""The fields of a mark: the row, the frame's number, its number of rows, the first row's name by position,
whether names by message follow, the run in which a process executes the level, and the micro-batch."""
NO_RUN: Final = 0
"""The run in the mark of a process that has executed its level."""
NO_ROW: Final = -1
"""The mark while no row is executed."""
TOGETHER: Final = -2
"""The mark while all rows of a frame are executed in one call."""
SENDING: Final = -3
"""The mark while the tuples that the rows emitted are encoded and routed."""
HOOK: Final = -4
"""The mark while a hook is called that works on no tuple."""
HUNG_EXIT: Final = 71
"""The exit code of a process that is ended because of a row that cannot be given up."""
_UNTIMED: Final = frozenset({NO_ROW, SENDING, HOOK})


@dataclass
class Suspects:
    """The rows that are suspected to kill their worker, for one micro-batch, level and partition.

    A death in the first run is counted by position, a death in a child by message. Only a name by message
    leaves a row out: the same position may hold another row in the next run.

    Attributes:
        file: Where this is stored.
        deaths: Row name -> how many workers died while they executed the row.
        left_out: Row name -> cause and reason.
        cuts: Names of rows before which a frame is cut.
        lost: How many workers were lost, whatever they executed.
    """

    file: Path
    deaths: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, tuple[FailureCause, str]] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)
    lost: int = 0

    @classmethod
    def read(cls, file: Path) -> Suspects:
        """Read the file; empty if there is none."""
        try:
            deaths, left_out, cuts, *more = json.loads(file.read_text())
        except FileNotFoundError:
            return cls(file)
        out = {int(name): (FailureCause(cause), reason) for name, (cause, reason) in left_out.items()}
        return cls(file, {int(name): count for name, count in deaths.items()}, out, set(cuts), *more)

    def __bool__(self) -> bool:
        return bool(self.deaths or self.left_out or self.cuts)

    def blame(self, names: Names, cause: FailureCause, how: str) -> None:
        """Count the death of a process that executed these rows, and write the file.

        Rows without a name are not counted; they get names in the next run, in a child.
        """
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
        self._write()

    def note_lost(self) -> None:
        """Count a worker that was lost, and write the file."""
        self.lost += 1
        self._write()

    def _write(self) -> None:
        known = self.deaths, self.left_out, sorted(self.cuts), self.lost
        DISK.replace(self.file, json.dumps(known).encode())


class MarkingMonitor(ExecutionMonitor):
    """Marks the executed row in a file that outlives the process, and runs the watchdog."""

    def __init__(
        self,
        file: Path,
        suspects: Suspects,
        timeout_secs: float | None,
        *,
        in_child: bool = False,
        run: int = NO_RUN,
        stays: bool = False,
        may_have_run: bool = True,
        is_seen: bool = False,
    ) -> None:
        """Make the file, with an empty mark.

        Args:
            file: The file of the mark.
            suspects: The rows to leave out and the places to cut.
            timeout_secs: ``execute_timeout_secs`` of bolts that set none.
            in_child: Whether this is a run after a death: rows then get names by message.
            run: The run of the topology.
            stays: Whether it is used for one micro-batch after the other: see :meth:`begin_batch`.
            may_have_run: Whether another process may have executed the level in this micro-batch before.
            is_seen: Whether the driver sees the files.
        """
        super().__init__()
        self.may_have_run = may_have_run
        self._waits_file = file.with_suffix(SUFFIX) if is_seen else None
        self._waits_since_ms = 0
        self.waits_no_more()  # of an attempt that was ended while it waited
        self._suspects = suspects
        self._message_names = MessageNames() if in_child else None
        self._usual_secs = timeout_secs
        self._file = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, bytes(MARK.size), 0)  # no hole: with no room left, a mark in one is a SIGBUS
        self._map = mmap.mmap(self._file, MARK.size)
        self._hung_file = os.open(file.with_suffix(".hung"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._fields = memoryview(self._map).cast("q")
        self._fields[0], self._fields[5] = NO_ROW, run
        self.mark = self._fields
        self._frames = 0
        self._task = -1
        self.searches = in_child
        self._idle = 0, NOWHERE
        self._hook = "", "", 0
        self.watchdog = Watchdog(
            self._progress, self._hung_file, timeout_secs, stays=stays, hook=self._called_hook
        )

    def begin_batch(self, batch_id: int, run: int) -> None:
        """From now on a death is one over this micro-batch."""
        self._fields[0], self._fields[6] = NO_ROW, batch_id
        self._fields[5] = run  # last: what is before it counts from then on

    def end_batch(self) -> None:
        """The level has run, or raised."""
        finish_lines()
        self._fields[0], self._fields[5] = NO_ROW, NO_RUN

    def _progress(self) -> tuple[int, int] | None:
        """The row and the frame being executed; None if nothing with a timeout is executed."""
        row, frame = self._fields[0], self._fields[1]
        return None if row in _UNTIMED else (row, frame)

    def _called_hook(self) -> Hook | None:
        return self._hook if self._fields[0] == HOOK else None

    def names_of(self, frame: Frame, task: int, *, moves: bool) -> Names:
        self._task = task
        first = NOWHERE if moves else place_of(frame, task)
        named = () if self._message_names is None else self._message_names.of(frame, task)
        return Names(len(frame), first, named)

    def begin(self, component: Component, names: Names, *, together: bool) -> None:
        self._fields[0] = NO_ROW
        self.watchdog.allow(component.execute_timeout_secs or self._usual_secs, component.id)
        self._frames += 1
        label(component.id, task=self._task)
        self._fields[1], self._fields[2], self._fields[3] = self._frames, names.count, names.first
        if names.by_message:
            os.pwrite(self._file, array("q", names.by_message), MARK.size)
            self._fields[4] = True
        self._idle = names.count, names.first
        self._fields[0] = TOGETHER if together else NO_ROW

    def begin_calls(self, component: Component) -> None:
        self._fields[0] = NO_ROW
        self.watchdog.allow(component.execute_timeout_secs or self._usual_secs, component.id)
        self._idle = 0, NOWHERE  # rows of many frames: after a death they get names in a child
        label(component.id)  # of no one task: all tasks of the bolt in the partition execute at once
        self.pause()

    def resume(self, names: Names, row: int) -> None:
        self._fields[0] = NO_ROW
        self._fields[1] = self._next_moment()
        self._fields[2], self._fields[3] = names.count, names.first
        self._fields[0] = row

    def pause(self) -> None:
        self._fields[0] = NO_ROW
        self._fields[1] = self._next_moment()
        self._fields[2], self._fields[3] = self._idle
        self._fields[0] = TOGETHER

    def beat(self) -> None:
        self._fields[1] = self._next_moment()

    def end_process(self, names: Names, row: int) -> None:
        self.resume(names, row)
        faulthandler.dump_traceback(self._hung_file)
        os._exit(HUNG_EXIT)

    def _next_moment(self) -> int:
        self._frames += 1
        return self._frames

    def sending(self) -> None:
        self._fields[0] = SENDING

    def end(self) -> None:
        self._fields[0] = NO_ROW
        label("")
        self.watchdog.allow(self._usual_secs)  # engine code follows, no bolt's

    def waits(self, component: str, task: int, error: ConnectorError, tries: int) -> bool:
        if self._waits_file is None:
            return True
        self._waits_since_ms = self._waits_since_ms or time.time_ns() // 1_000_000
        wait = Wait(
            component, task, reason=printable(error.what), fix=error.fix, since_ms=self._waits_since_ms,
            tries=tries,
        )  # fmt: skip
        with suppress(OSError):  # no room: the log has it
            wait.write(self._waits_file)
        return True

    def waits_no_more(self) -> None:
        self._waits_since_ms = 0
        if self._waits_file is not None:
            self._waits_file.unlink(missing_ok=True)

    def enter(self, component: Component, hook: str) -> None:
        self._fields[0] = NO_ROW
        label(component.id)
        said = _said_of(component.id, hook)
        os.pwrite(self._file, said, MARK.size)
        self._fields[2] = len(said)
        self._hook = component.id, hook, self._hook[2] + 1
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
        """While a level runs, interrupt rows that exceed their timeout. Works in a main thread only."""
        with self.watchdog.on_watch():
            yield

    def close(self) -> None:
        """Close the file, and end lines that user code has begun to print."""
        finish_lines()
        self.watchdog.close()
        self.mark = [NO_ROW]
        self._fields[5] = NO_RUN
        self._fields.release()
        self._map.close()
        os.close(self._hung_file)
        os.close(self._file)


@lru_cache(maxsize=256)
def _said_of(bolt: str, hook: str) -> bytes:
    return json.dumps((bolt, hook)).encode()


def run_of(blob: bytes) -> int:
    """The run in which a process executes the level, or died over it; NO_RUN if it has executed it."""
    return int(MARK.unpack_from(blob)[5]) if len(blob) >= MARK.size else NO_RUN


def batch_of(blob: bytes) -> int:
    """The micro-batch that a process that stays executes, or died over."""
    return int(MARK.unpack_from(blob)[6])


def marked_of(blob: bytes) -> tuple[int, Names] | None:
    """Decode a mark.

    Returns:
        The index of the marked row (or TOGETHER or SENDING for all rows of the frame), and the names of the
        rows. None if no row is marked.
    """
    if len(blob) < MARK.size or not any(blob):  # the process died before it wrote the mark
        return None
    row, _, count, first, is_named, *_ = MARK.unpack_from(blob)
    if row in {NO_ROW, HOOK}:
        return None
    named = array("q", blob[MARK.size : MARK.size + 8 * count] if is_named else b"")
    return row, Names(count, first, named.tolist())
