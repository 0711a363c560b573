"""What user code prints and logs in a worker: whole lines, each with the component and task that wrote it.

The stderr of a worker arrives at the driver's through Spark's JVM. On a cluster it stays in the executor's
log, which Spark keeps.

Rules of this file
------------------
1. Nothing is done per tuple: the label changes with the frame.
2. The program's own logging configuration comes first. Where a worker has none, records of level INFO and
   above are printed; Python would print those of level WARNING and above.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any, Final, TextIO

__all__ = ["LabelledStream", "finish_lines", "label", "label_output"]

_QUIET: Final = ("py4j", "pyspark")
"""Loggers whose INFO records concern Spark's own work."""


class _Label:
    text = ""


def label(component: str, *, task: int | None = None) -> None:
    """Set the label of all further output.

    Args:
        component: The id of the bolt that prints; empty for no label, while engine code runs.
        task: The task that prints; None in a hook whose task is not known.
    """
    _Label.text = f"component={component} task={task} | " if task is not None else f"component={component} | "
    if not component:
        _Label.text = ""


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

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream
        self._parts = threading.local()

    def write(self, text: str) -> int:
        """Write a text. The part after its last line break is kept until the next one."""
        begun = getattr(self._parts, "begun", "")
        *lines, self._parts.begun = (begun + text).split("\n")
        if lines:
            self._stream.write("".join(f"{_Label.text}{line}\n" for line in lines))
        return len(text)

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
        """Other attributes of the stream: ``buffer``, whose bytes get no label, and ``reconfigure``."""
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
        sys.stderr.write(self.format(record) + "\n")


def label_output() -> None:
    """Label what this process prints and logs. Called in each task of a worker.

    Spark may replace the streams for a task, so each call checks them.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LabelledStream):
            setattr(sys, name, LabelledStream(stream))
    if not isinstance(logging.lastResort, _Printing):
        logging.lastResort = _Printing()
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        if root.level == logging.WARNING and not root.handlers:
            root.setLevel(logging.INFO)


def finish_lines() -> None:
    """End lines that were begun, and remove the label."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LabelledStream):
            stream.finish()
    label("")
