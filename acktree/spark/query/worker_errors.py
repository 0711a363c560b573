"""Finds the error of acktree that has stopped a query in what Spark tells of it.

A level runs in a Python worker, and the sink in a call from the JVM. Spark passes on what they raise as text,
between traces and its own plan. Of exceptions that are chained the last one has ended the worker. It begins
the first line after its traceback that is not indented: the text of another error may quote one of acktree.
"""

from __future__ import annotations

import re
from typing import Final

from acktree import errors
from acktree.errors import (
    AcktreeError,
    CheckpointError,
    ConfigError,
    ConnectorError,
    ProtocolError,
    Unavailable,
)

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_FOLLOWED: Final = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
_RAISED: Final = re.compile(r"^\S", re.MULTILINE)
"""The lines of a traceback are indented, and are followed by the exception's type and text."""
_OF_SPARK: Final = ("pyspark.", "py4j.")
"""What the names of exceptions begin with that tell of one in a worker; its own traceback follows."""
_OURS: Final = re.compile(r"acktree(?:\.\w+)*\.(?P<kind>\w+): ")
_AFTER: Final = re.compile(r"\n(?: SQLSTATE: |=== Streaming Query ===|\tat |\t\.\.\. \d)")
"""What Spark writes after a traceback."""
_LASTING: Final = (CheckpointError, ConfigError)


def explained(error: BaseException) -> BaseException:
    """The error of acktree that was raised in a worker or in the sink, if one was; else the error.

    What Spark tells is its cause only where somebody reads traces: for a bug, or with
    ``ACKTREE_TRACEBACK=full``.
    """
    if isinstance(error, AcktreeError):
        return error
    raised = _raised_in(str(error))
    begin = _OURS.match(raised)
    if begin is None:  # another one ended the worker
        return error
    what, has_where, rest = raised[begin.end() :].rstrip().rpartition("\n  where: ")
    where, _, fix = rest.partition("\n  fix:   ")
    if not has_where:  # a user's code may leave out both lines
        what, where = where, ""
    ours = _kind(begin["kind"])(what, where, fix)
    if errors.full_tracebacks or isinstance(ours, ProtocolError):
        ours.__cause__ = error
    return ours


def _raised_in(text: str) -> str:
    """The type and the text of the exception that ended the worker; empty if the text tells of none."""
    *_, last = _FOLLOWED.split(text)
    for traceback in last.split(_TRACEBACK)[1:]:
        begin = _RAISED.search(traceback)
        if begin and not traceback.startswith(_OF_SPARK, begin.start()):
            return _AFTER.split(traceback[begin.start() :], maxsplit=1)[0]
    return ""


def is_lasting(error: BaseException) -> bool:
    """Whether it is one of acktree's that the same query would meet again, however often it starts."""
    return isinstance(explained(error), _LASTING)


def _kind(name: str) -> type[AcktreeError]:
    """The class of an error; a public one in the place of one that is raised inside of acktree."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, AcktreeError)):
        return AcktreeError
    return ConnectorError if kind is Unavailable else kind  # it is made of a name
