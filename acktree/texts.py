"""Texts of users and of strangers: how much of one is kept, and how one is shown.

Rules of this file
------------------
1. What is kept of a text is bounded where it is made, and says how much was left out.
2. What is shown on a terminal or in a line of a log holds no line break and no character that a terminal
   obeys: those are shown escaped. What is printable stays as it is.
"""

from __future__ import annotations

import reprlib
from typing import Final

__all__ = ["MOST_REASON", "MOST_TRACEBACK", "bounded", "error_text", "printable", "printable_lines"]

MOST_REASON: Final = 4_096
"""Characters of a reason that are kept, about."""
MOST_TRACEBACK: Final = 32_768
"""Characters of a traceback that are kept, about."""


_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def bounded(text: str, most: int) -> str:
    """The text, or its first and its last part when it is longer than ``most`` characters.

    >>> bounded("a" * 6 + "b" * 6, most=4)
    'aa [8 characters left out] bb'
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[: most - half]} [{left_out:,} characters left out] {text[-half:]}"


def printable(text: str) -> str:
    r"""The text in one line, each character that cannot be printed escaped: line ends, controls, bidi.

    >>> printable("bad\n\x1b[2J\u202e")
    'bad\\n\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    r"""The text with its lines kept, each of them :func:`printable`; a tab becomes spaces.

    >>> printable_lines("one\n\x07two")
    'one\n\\x07two'
    """
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


def error_text(error: BaseException) -> str:
    """The type and the text of an exception, bounded, whatever its ``__str__`` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except (Exception, SystemExit):  # noqa: BLE001  # user code, and while another error is reported
        text = "its own text cannot be had"
    return bounded(f"{name}: {text}" if text else name, MOST_REASON)


def short_repr(value: object) -> str:
    """A short ``repr`` of a user's value, on one line; of one whose own ``repr`` raises, its type."""
    try:
        return " ".join(_REPR.repr(value).split())
    except (Exception, SystemExit):  # noqa: BLE001  # user code, and while another error is reported
        return f"<{type(value).__name__}, whose repr raises>"
