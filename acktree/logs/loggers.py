"""The loggers of acktree. Their records cannot forge log lines or send control sequences to a terminal.

Rules of this file
------------------
1. Every logger of acktree is made here. Ids, reasons and values may be untrusted text: line breaks and
   control characters in the arguments of a record are escaped.
2. The application's logging configuration comes first, also one that is made later: acktree prints its own
   records only while neither it nor the root logger has a handler.
3. The template and the number of arguments are unchanged, for handlers that group records by template.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback

from acktree.logs.log_lines import LogFormat, LogFormatter
from acktree.texts import MOST_REASON, bounded, printable


def logger(name: str) -> logging.Logger:
    """The logger of this name, whose records are escaped; the same one at each call."""
    named = logging.getLogger(name)
    if not any(isinstance(log_filter, _Escaping) for log_filter in named.filters):
        named.addFilter(_Escaping())
    return named


def print_by_default(log_format: LogFormat | None = "text") -> None:
    """Print acktree's records of level INFO and above to stderr, unless the application has set up logging.

    ``submit``, the page and commands that carry out orders call it. To be rid of the lines:
    ``logging.getLogger("acktree").setLevel("WARNING")``. Warnings of other loggers, which Python prints then,
    have the same format.

    Args:
        log_format: What lines look like; None: as an earlier call has said, or text.
    """
    _quieten_py4j()
    ours = logging.getLogger("acktree")
    if log_format is None:
        if any(isinstance(handler, _UntilConfigured) for handler in ours.handlers):
            return
        log_format = "text"
    if isinstance(logging.lastResort, logging.Handler):  # prints warnings of loggers that nobody has set up
        logging.lastResort.setFormatter(LogFormatter(log_format))
    for handler in ours.handlers:
        if isinstance(handler, _UntilConfigured):
            handler.setFormatter(LogFormatter(log_format))
    if ours.hasHandlers() or not ours.propagate:
        return
    handler = _UntilConfigured()
    handler.setFormatter(LogFormatter(log_format))
    ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)


def _quieten_py4j() -> None:
    """Log no call of Spark's JVM and no start of a server for its calls, as py4j does at INFO.

    A level that the application has set stays.
    """
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        calls = logging.getLogger(name)
        if calls.level == logging.NOTSET:
            calls.setLevel(logging.WARNING)


class _UntilConfigured(logging.Handler):
    """Prints records to what is stderr now, until the root logger has a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or sys.stderr is None:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # closed, as by `... | head`
            pass
        except (Exception, SystemExit):  # noqa: BLE001  # an argument that has no text
            self.handleError(record)


class _Shown:
    """Wraps an argument of a record; its text is the argument's text, escaped."""

    def __init__(self, argument: object) -> None:
        self._argument = argument

    def __str__(self) -> str:
        return printable(bounded(str(self._argument), MOST_REASON))

    def __repr__(self) -> str:
        return printable(bounded(repr(self._argument), MOST_REASON))


class _Escaping(logging.Filter):
    """Passes every record, with its arguments and its traceback escaped."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_shown(argument) for argument in record.args)
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            # Indented, so that no line of an exception's text looks like a log record.
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n").split("\n")
            record.exc_text = "\n".join(f"  {printable(line)}" for line in lines)
        return True


def _shown(argument: object) -> object:
    return argument if isinstance(argument, int | float) or argument is None else _Shown(argument)


class FirstWords(logging.Filter):
    """Keeps the first that a library's logger says on this thread, instead of logging it, until it is closed.

    For libraries that log each try of a call whose failure is reported as an error.

    Args:
        name: The logger's name.

    Attributes:
        words: What was logged first; set it to "" before a call.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.words, self._thread = "", threading.get_ident()
        self._logger = logging.getLogger(name)
        self._logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged: those of other threads."""
        if record.thread != self._thread:
            return True
        self.words = self.words or record.getMessage()
        return False

    def close(self) -> None:
        """Let the logger log again."""
        self._logger.removeFilter(self)
