"""The event log: tuples that components emitted while debugging was on.

Rules of this file
------------------
1. Nobody waits for it: events are written by a thread of its own, and dropped where that cannot keep up.
2. Files are bounded: a new one each day or at :data:`FILE_BYTES`, and :data:`FILES_KEPT` are kept.

Source: Storm's ``metric/EventLoggerBolt`` and ``metric/FileBasedEventLogger``.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Final

from acktree.core.data.frames import WireRow
from acktree.system.private_files import make_private_file, make_private_folder
from acktree.traces.writer import Writer

FOLDER: Final = "events"
"""The folder of the default logger in a checkpoint."""
FILE_BYTES: Final = 100 << 20
FILES_KEPT: Final = 5
MOST_EVENTS: Final = 1000
"""How many of the last events of a run are kept in memory, and are in an answer at most."""
_NAMED: Final = re.compile(r"events-[0-9-]+-([0-9]{6,})\.jsonl")


@dataclass(frozen=True, slots=True)
class Event:
    """A tuple that was emitted.

    Attributes:
        time_ms: When, in milliseconds since 1970.
        root: The root of its message, the first of several; None for a tuple without one.
        values: The values, shortened; pickled values by their size.
    """

    time_ms: int
    component: str
    task_id: int
    stream: str
    root: int | None
    values: Sequence[object]

    def to_json(self) -> str:
        """One line of the log."""
        return json.dumps(asdict(self) | {"root": None if self.root is None else str(self.root)})

    @classmethod
    def from_json(cls, line: str) -> Event:
        """Read what :meth:`to_json` wrote. ValueError, KeyError or TypeError for another line."""
        parts = json.loads(line)
        root = parts["root"]
        return cls(
            int(parts["time_ms"]), str(parts["component"]), task_id=int(parts["task_id"]),
            stream=str(parts["stream"]), root=None if root is None else int(root),
            values=list(parts["values"]),
        )  # fmt: skip


class EventLogger(ABC):
    """Where events go: give one of your own to ``submit``. Its methods are called on one thread.

    What a method raises is logged once; the topology runs all the same.
    """

    def open(self, topology: str) -> None:  # a logger may need nothing
        """Called before the first event, with the topology's name."""

    @abstractmethod
    def log(self, events: Sequence[Event]) -> None:
        """Called with the events of each micro-batch, in the order in which their levels ran.

        A micro-batch that runs again after a crash of the driver may bring its events again.
        """

    def close(self) -> None:  # a logger may need nothing
        """Called when the run ends."""


class EventFiles(EventLogger):
    """The default logger: JSON Lines, one file a day or :data:`FILE_BYTES`.

    Args:
        folder: Made when the first event comes.
    """

    def __init__(self, folder: Path, most_bytes: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        self._folder, self._most_bytes, self._kept = folder, most_bytes, kept
        self._file: IO[str] | None = None
        self._day, self._bytes = "", 0

    def log(self, events: Sequence[Event]) -> None:
        for event in events:
            line = event.to_json() + "\n"
            self._turn(f"{datetime.fromtimestamp(event.time_ms / 1000, UTC):%Y-%m-%d}", len(line)).write(line)
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _turn(self, day: str, size: int) -> IO[str]:
        """The file that a line goes to."""
        if self._file is None or day > self._day or self._bytes + size > self._most_bytes:
            self.close()
            make_private_folder(self._folder)
            files = event_files(self._folder)
            number = 1 + (int(files[-1].stem.rpartition("-")[2]) if files else 0)
            file = self._folder / f"events-{day}-{number:06d}.jsonl"
            make_private_file(file)
            for old in [*files, file][: -self._kept]:
                with suppress(OSError):
                    old.unlink()
            self._file, self._day, self._bytes = file.open("a", encoding="utf-8"), day, 0
        self._bytes += size
        return self._file


class EventLog:
    """Takes the events of a run to its logger, and keeps the last ones.

    Args:
        logger: Where they go; None for nowhere else.
        topology: The topology's name.
        is_threaded: Whether the logger is called on a thread of its own.
    """

    def __init__(self, logger: EventLogger | None, topology: str, *, is_threaded: bool = True) -> None:
        self._logger, self._topology = logger, topology
        self._writer = Writer("events", is_threaded=is_threaded)
        self._recent: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._is_open = False
        self.left_out = 0
        """How many events the levels left out, as there were too many."""

    @property
    def dropped(self) -> int:
        """How often events were dropped, as the logger could not keep up or raised."""
        return self._writer.dropped

    def add(self, rows: Iterable[WireRow]) -> None:
        """Take what levels noted in a micro-batch: its rows of kind EVENTS."""
        noted = sorted((row.sequence, row.source, bytes(row.body)) for row in rows)
        if noted:
            self._writer.put(partial(self._log, [body for *_, body in noted]), sum(len(b) for *_, b in noted))

    def recent(self, limit: int, component: str | None = None) -> list[Event]:
        """The last events, the newest last."""
        self._writer.settle()
        events = [event for event in tuple(self._recent) if component in (None, event.component)]
        return events[-limit:]

    def close(self) -> None:
        """Log what is queued, and close the logger."""
        if self._logger is not None:
            self._writer.put(self._close_logger)
        self._writer.close()

    def _close_logger(self) -> None:
        if self._is_open and self._logger is not None:
            self._logger.close()

    def _log(self, bodies: Sequence[bytes]) -> None:
        events: list[Event] = []
        for body in bodies:
            noted = json.loads(body)
            events += [Event(*fields) for fields in noted["events"]]
            self.left_out += noted["dropped"]
        self._recent.extend(events)
        if self._logger is not None and events:
            if not self._is_open:
                self._is_open = True
                self._logger.open(self._topology)
            self._logger.log(events)


def event_files(folder: Path) -> list[Path]:
    """The files of a log, the oldest first; others, such as a copy that a user made, are left alone."""
    files = folder.iterdir() if folder.is_dir() else ()
    numbered = [(int(ours[1]), file) for file in files if (ours := _NAMED.fullmatch(file.name))]
    return [file for _, file in sorted(numbered)]


def read_events(folder: Path, limit: int, component: str | None = None) -> list[Event]:
    """The last events of the default logger's files, the newest last."""
    events: list[Event] = []
    for file in reversed(event_files(folder)):
        events = [*_last_in(file, limit - len(events), component), *events]
        if len(events) >= limit:
            break
    return events


def _last_in(file: Path, limit: int, component: str | None) -> Iterator[Event]:
    kept: deque[Event] = deque(maxlen=max(0, limit))
    with suppress(FileNotFoundError), file.open("rb") as opened:
        opened.seek(max(0, os.fstat(opened.fileno()).st_size - (16 << 20)))
        for line in opened:
            with suppress(ValueError, KeyError, TypeError):  # half of a line, at the beginning or end
                event = Event.from_json(line.decode())
                if component in (None, event.component):
                    kept.append(event)
    yield from kept
