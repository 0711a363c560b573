"""Values and exceptions of users as text, whatever their ``__repr__`` and ``__str__`` do."""

from __future__ import annotations

import reprlib
from typing import Final

__all__ = ["said", "shown"]

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def shown(value: object) -> str:
    """A short ``repr`` of a user's value, for an error; of one whose own ``repr`` raises, its type."""
    try:
        return " ".join(_REPR.repr(value).split())  # on one line, as an error's parts are
    except (Exception, SystemExit):  # noqa: BLE001  # user code, and while another error is being told
        return f"<{type(value).__name__}, whose repr raises>"


def said(error: BaseException) -> str:
    """The type of an exception and its words, whatever its ``__str__`` does."""
    name = type(error).__name__
    try:
        words = str(error)
    except (Exception, SystemExit):  # noqa: BLE001  # user code
        words = "its own text cannot be had"
    return f"{name}: {words}" if words else name
