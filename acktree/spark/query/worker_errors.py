"""Finds the error of acktree that has stopped a query in what Spark tells of it.

A level runs in a Python worker, and the sink in a call from the JVM. Spark passes on what they raise as text,
between traces and its own plan. The traceback in it ends with the three lines of the error.
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

_ERROR: Final = re.compile(
    r"^acktree(?:\.\w+)*\.(?P<kind>\w+): (?P<what>.*(?:\n(?!  where: |Traceback |acktree\.).*)*)"
    r"\n  where: (?P<where>.*(?:\n(?!  fix:   |Traceback |acktree\.).*)*)"
    r"\n  fix:   (?P<fix>.*)$",
    re.MULTILINE,
)
_HANDLING: Final = "During handling of the above exception, another exception occurred"
_LASTING: Final = (CheckpointError, ConfigError)


def explained(error: BaseException) -> BaseException:
    """The error of acktree that was raised in a worker or in the sink, if one was; else the error.

    What Spark tells is its cause only where somebody reads traces: for a bug, or with
    ``ACKTREE_TRACEBACK=full``.
    """
    if isinstance(error, AcktreeError):
        return error
    # A traceback begins with the causes.
    found = [*_ERROR.finditer(str(error))]
    if not found or _HANDLING in str(error)[found[-1].end() :]:  # another one ended the worker
        return error
    ours = _kind(found[-1]["kind"])(found[-1]["what"], found[-1]["where"], found[-1]["fix"])
    if errors.full_tracebacks or isinstance(ours, ProtocolError):
        ours.__cause__ = error
    return ours


def is_lasting(error: BaseException) -> bool:
    """Whether it is one of acktree's that the same query would meet again, however often it starts."""
    return isinstance(explained(error), _LASTING)


def _kind(name: str) -> type[AcktreeError]:
    """The class of an error; a public one in the place of one that is raised inside of acktree."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, AcktreeError)):
        return AcktreeError
    return ConnectorError if kind is Unavailable else kind  # it is made of a name
