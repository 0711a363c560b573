"""What user code prints and logs in a worker: whole lines, each with the component and task that wrote it.

The stderr of a worker arrives at the driver's through Spark's JVM. On a cluster it stays in the executor's
log, which Spark keeps.

Rules of this file
------------------
1. Nothing is done per tuple: the label changes with the frame.
2. A record of the log that ``LogFormatter`` formatted says itself where it was logged, and gets no label.
3. The program's own logging configuration comes first. Where a worker has none, records of level INFO and
   above are printed; Python would print those of level WARNING and above.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from typing import Any, Final, TextIO

from acktree.logs.log_lines import (
    LogFormat,
    LogFormatter,
    here,
    is_formatted,
    json_line,
    set_label,
    time_text,
)

_QUIET: Final = ("py4j", "pyspark")
"""Loggers whose INFO records concern Spark's own work."""


class _Label:
    text = ""
    log_format: LogFormat = "text"


def label(component: str, *, task: int | None = None) -> None:
    """Set the label of all further output.

    Args:
        component: The id of the bolt that prints; empty for no label, while engine code runs.
        task: The task that prints; None in a hook whose task is not known.
    """
    if not component:
        if _Label.text:
            _Label.text = ""
            set_label({})
        return
    _Label.text = f"component={component} task={task} | " if task is not None else f"component={component} | "
    set_label({"component": component} | ({} if task is None else {"task": task}))


class LabelledStream(io.TextIOBase):
    r"""A text stream that passes on whole lines, each with the label in front; also with several threads.

    >>> out = io.StringIO()
    >>> stream = LabelledStream(out)
    >>> label("show", task=5)
    >>> print("the", 2, file=stream)
    >>> label("")
    >>> out.getvalue()
    'component=show task=5 | the 2\n'
    """

    def __init__(self, stream: TextIO, name: str = "stdout") -> None:
        """Write to ``stream``, which a line of JSON calls by this name."""
        self._stream, self._name = stream, name
        self._parts = threading.local()

    def write(self, text: str) -> int:
        """Write a text. The part after its last line break is kept until the next one."""
        if is_formatted(text):
            self._stream.write(text)
            return len(text)
        begun = getattr(self._parts, "begun", "")
        *lines, self._parts.begun = (begun + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._labelled(line)}\n" for line in lines))
        return len(text)

    def _labelled(self, line: str) -> str:
        if _Label.log_format == "json" and _Label.text:
            return json_line(time_text(time.time()), "INFO", self._name, here(), line)
        return f"{_Label.text}{line}"

    def flush(self) -> None:
        """Flush whole lines."""
        self._stream.flush()

    def finish(self) -> None:
        """End the line that was begun."""
        if getattr(self._parts, "begun", ""):
            self.write("\n")
        self.flush()

    def fileno(self) -> int:
        """The file descriptor of the stream, for programs that write to it directly."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only
        """The encoding of the stream."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # read-only
        """The error handling of the stream."""
        return self._stream.errors

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as the stream has it
        """The stream's other attributes: ``buffer``, whose bytes get no label, and ``reconfigure``."""
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """True."""
        return True


class _Printing(logging.Handler):
    """Prints records that no configured handler takes."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name.partition(".")[0] in _QUIET:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001  # as every handler: a wrong call of the log fails no tuple
            self.handleError(record)


def label_output(log_format: LogFormat = "text") -> None:
    """Label what this process prints and logs. Called in each task of a worker.

    Spark may replace the streams for a task, so each call checks them.
    """
    _Label.log_format = log_format
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LabelledStream):
            setattr(sys, name, LabelledStream(stream, name))
    if not isinstance(logging.lastResort, _Printing):
        logging.lastResort = _Printing()
        root = logging.getLogger()
        if root.level == logging.WARNING and not root.handlers:
            root.setLevel(logging.INFO)
    logging.lastResort.setFormatter(LogFormatter(log_format))


def finish_lines() -> None:
    """End lines that were begun, and remove the label."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LabelledStream):
            stream.finish()
    label("")
