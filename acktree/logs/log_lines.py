"""Lines of the log, as text or JSON, with where in the topology each was logged.

Rules of this file
------------------
1. Nothing is done per tuple: a task says once a frame where it is. What a line says of that, the root of the
   tuple included, is computed when a record is formatted.
2. One record is one line that nothing in it can break: line breaks and control characters are escaped. A
   traceback has lines of its own as text, each indented.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

from acktree.texts import printable

LogFormat = Literal["text", "json"]
Roots = Callable[[], list[int]]
"""The roots of the tuple that is being executed."""

_NAMED: Final = re.compile(r"%%|(?:\b(\w+)=)?%[-#0 +]*[\d.]*[a-zA-Z]")
"""Each argument of a template, with the key in front of it."""
_KEYS: Final = ("topology", "component", "task", "micro_batch", "root")
_formatted: Final = threading.local()


class Place:
    """Where user code runs: a task, and the tuple that it executes."""

    __slots__ = ("_fields", "roots")

    def __init__(self, topology: str, component: str, task: int, micro_batch: int | None = None) -> None:
        """Make the place of a task; no tuple is executed.

        Args:
            micro_batch: Its number; None in a spout, which runs beside the micro-batches.
        """
        self._fields = {"topology": topology, "component": component, "task": task}
        if micro_batch is not None:
            self._fields["micro_batch"] = micro_batch
        self.roots: Roots | None = None

    def fields(self) -> dict[str, object]:
        """What a line of the log says of it. Roots are texts: other languages have no integers of 64 bits."""
        roots = self.roots
        try:
            named_roots = [] if roots is None else roots()
        except Exception:  # noqa: BLE001  # the frame has just ended
            named_roots = []
        return self._fields | ({"root": ",".join(map(str, named_roots))} if named_roots else {})


_here: Final[ContextVar[Place | None]] = ContextVar("acktree_place", default=None)
_label: Mapping[str, object] = {}


class standing:  # noqa: N801  # used like a function
    """Marks what this thread logs in the block as logged at a place.

    Args:
        place: The place.
        roots: Returns the roots of the tuple that is being executed; None where no tuple is.
    """

    __slots__ = ("_before", "_place")

    def __init__(self, place: Place, roots: Roots | None = None) -> None:
        self._place = place
        place.roots = roots

    def __enter__(self) -> None:
        self._before = _here.set(self._place)

    def __exit__(self, *_: object) -> None:
        _here.reset(self._before)
        self._place.roots = None  # it holds the rows of a frame


def stand(place: Place) -> None:
    """Mark what this thread, or this asyncio task, logs from now on as logged at a place."""
    _here.set(place)


def set_label(fields: Mapping[str, object]) -> None:
    """Set what lines of threads without a place say: of those that user code started in a worker."""
    global _label  # noqa: PLW0603  # one for each process
    _label = fields


def here() -> Mapping[str, object]:
    """Topology, component, task, micro-batch and root of the caller, as far as they are known."""
    place = _here.get()
    return _label if place is None else place.fields()


class LogFormatter(logging.Formatter):
    r"""Formats records as lines with the place in the topology where they were logged.

    For a handler of your own, in the driver or in a worker: ``handler.setFormatter(acktree.LogFormatter())``.
    acktree's own handlers use it, as ``Config(log_format=...)`` says.

    >>> record = logging.LogRecord("shop", logging.INFO, "", 1, "paid %s", ("7\n8",), None)
    >>> record.created = 0
    >>> LogFormatter().format(record).split(" ", 2)[2]
    'INFO shop paid 7\\n8'
    >>> LogFormatter("json").format(record)
    '{"time": "1970-01-01T00:00:00.000Z", "level": "INFO", "logger": "shop", "message": "paid 7\\n8"}'
    """

    def __init__(self, log_format: LogFormat = "text") -> None:
        """Make a formatter.

        Args:
            log_format: "text" or "json".
        """
        super().__init__()
        self._is_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; with its traceback several lines as text."""
        place = here()
        if self._is_json:
            line = json_line(
                time_text(record.created), record.levelname, record.name, fields={**place, **_named(record)},
                message=record.getMessage(), more=_traceback(record),
            )  # fmt: skip
        else:
            line = _text(record, self.formatTime(record), place)
        _formatted.line = line
        return line


def json_line(
    time: str, level: str, name: str, fields: Mapping[str, object], message: str, more: str = ""
) -> str:
    """A line of JSON."""
    shown = {"time": time, "level": level, "logger": name, **fields, "message": message}
    return json.dumps(shown | ({"traceback": more} if more else {}), default=str)


def is_formatted(text: str) -> bool:
    """Whether a text is the line that a :class:`LogFormatter` made last on this thread."""
    line = getattr(_formatted, "line", None)
    return line is not None and text == f"{line}\n"


def _text(record: logging.LogRecord, time: str, place: Mapping[str, object]) -> str:
    ours = record.name.partition(".")[0] == "acktree"  # its messages name the place already
    shown = "" if ours else "".join(f"{key}={printable(str(value))} " for key, value in place.items())
    bar = "| " if shown else ""
    name, message = printable(record.name), printable(record.getMessage())
    first = f"{time} {record.levelname} {name} {shown}{bar}{message}"
    lines = _traceback(record).splitlines()
    return "\n".join((first, *(f"  {printable(line)}" for line in lines)))


def time_text(secs: float) -> str:
    """A time in seconds since 1970 as text, UTC."""
    at = datetime.fromtimestamp(secs, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _traceback(record: logging.LogRecord) -> str:
    """The traceback and the stack of a record; empty for none."""
    error = record.exc_info[1] if record.exc_info else None
    parts = ["".join(traceback.format_exception(error)) if error is not None else record.exc_text or ""]
    return "\n".join(part.rstrip("\n") for part in (*parts, record.stack_info or "") if part)


def _named(record: logging.LogRecord) -> dict[str, object]:
    """The place that a record of acktree names in its template, as ``component=%s``."""
    if record.name.partition(".")[0] != "acktree" or not isinstance(record.args, tuple):
        return {}
    keys = [match[1] for match in _NAMED.finditer(str(record.msg)) if match[0] != "%%"]
    pairs = dict(zip(keys, record.args, strict=False))
    return {key: pairs[key] for key in _KEYS if pairs.get(key) is not None}
