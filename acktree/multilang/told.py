"""Errors that a Python child tells by a traceback: they have the name that they have in the child.

A child says what it raised by the message ``error``, whose text is a traceback, after a first line in
pystorm's children. What is made of it is named by that exception: ``TypeError``, or a class of the user's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from acktree.errors import BoltError
from acktree.texts import bounded

__all__ = ["ToldError", "told_error"]

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_RAISED: Final = re.compile(r"^(?P<type>[^\W\d][\w.<>]*)(?::[ ](?P<text>.*))?\Z", re.MULTILINE | re.DOTALL)
"""After the lines of a traceback, which are indented: the exception's type and text."""
_OF_OURS: Final = re.compile(r"(?P<what>.*)\n  where: (?P<where>.*)\n  fix:   (?P<fix>.*)", re.DOTALL)
_OURS: Final = "acktree.pystorm.exceptions.Component"
"""What the names of our own errors of a component begin with, before Python's."""
_MOST_PLACE: Final = 300


class ToldError(BoltError):
    """An exception that a child told of; its traceback is a note of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self).__module__, type(self).__name__, self.args), vars(self)


def told_error(text: str, where: str) -> ToldError | None:
    """The exception that a text tells of; None if it has no traceback.

    Args:
        text: What the child says.
        where: The component and its task.
    """
    first, traceback, rest = text.rstrip().rpartition(_TRACEBACK)
    raised = _RAISED.search(rest) if traceback else None
    if raised is None:
        return None
    full_name = raised["type"].replace(_OURS, "builtins.")
    module, _, name = full_name.rpartition(".")
    what, fix = raised["text"] or "an exception without a text", "correct what its traceback shows"
    if ours := _OF_OURS.fullmatch(what):
        what, where, fix = ours["what"], ours["where"], ours["fix"]
    elif " while processing " in first:
        where += (
            f", while processing {bounded(first.partition(' while processing ')[2].strip(), _MOST_PLACE)}"
        )
    error = _made(module or "builtins", name, (what, where, fix))
    error.add_note(text)
    return error


def _made(module: str, name: str, args: tuple[str, str, str]) -> ToldError:
    return _kind(module, name)(*args)


@lru_cache(maxsize=256)
def _kind(module: str, name: str) -> type[ToldError]:
    return type(name, (ToldError,), {"__module__": module, "__doc__": ToldError.__doc__})
