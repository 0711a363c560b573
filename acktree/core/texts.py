"""Texts of users and of strangers: how much of one is kept, and how one is shown.

Rules of this file
------------------
1. What is kept of a text is bounded where it is made, and says how much was left out.
2. What is shown on a terminal or in a line of a log holds no line break and no character that a terminal
   obeys: those are shown escaped. What is printable stays as it is.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MOST_REASON", "MOST_TRACEBACK", "bounded", "printable", "printable_lines", "words_of"]

MOST_REASON: Final = 4_096
"""Characters of a reason that are kept, about."""
MOST_TRACEBACK: Final = 32_768
"""Characters of a traceback that are kept, about."""


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


def words_of(exception: BaseException) -> str:
    """The type and the words of an exception, bounded, whatever its ``__str__`` does."""
    name = type(exception).__name__
    try:
        words = str(exception)
    except Exception:  # noqa: BLE001  # user code, and while another exception is being told
        words = "its own text cannot be had"
    return bounded(f"{name}: {words}" if words else name, MOST_REASON)
