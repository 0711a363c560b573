"""Untrusted texts: how they are shortened and escaped.

Rules of this file
------------------
1. A text is shortened where it is made; the result says how many characters were left out.
2. Text for a terminal or a log line contains no line break and no control character: those are escaped.
   Printable characters are unchanged.
"""

from __future__ import annotations

import reprlib
from hashlib import blake2b
from typing import Final

__all__ = [
    "MOST_LABEL", "MOST_REASON", "MOST_TRACEBACK", "bounded", "error_text", "kept_label", "printable",
    "printable_lines",
]  # fmt: skip

MOST_REASON: Final = 4_096
"""The approximate maximum length of a reason, in characters."""
MOST_TRACEBACK: Final = 32_768
"""The approximate maximum length of a traceback, in characters."""
MOST_LABEL: Final = 200
"""The most characters of a label."""


_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def bounded(text: str, most: int) -> str:
    """The text, or its first and last part if it is longer than ``most`` characters.

    >>> bounded("a" * 6 + "b" * 6, most=4)
    'aa [8 characters left out] bb'
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[: most - half]} [{left_out:,} characters left out] {text[-half:]}"


def printable(text: str) -> str:
    r"""The text on one line, with all unprintable characters escaped: line ends, controls, bidi.

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
    """The type and the text of an exception, shortened; never raises, even if its ``__str__`` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except (Exception, SystemExit):  # noqa: BLE001  # user code, and while another error is reported
        text = "its __str__ raises"
    return bounded(f"{name}: {text}" if text else name, MOST_REASON)


def is_number(text: str) -> bool:
    """Whether a text is a whole number in the digits 0 to 9; ``isdigit`` takes those of all scripts.

    >>> is_number("12"), is_number("\u0663"), is_number("")
    (True, False, False)
    """
    return text.isascii() and text.isdigit()


def short_repr(value: object) -> str:
    """A short ``repr`` of a user's value, on one line; its type if its ``repr`` raises."""
    try:
        return " ".join(_REPR.repr(value).split())
    except (Exception, SystemExit):  # noqa: BLE001  # user code, and while another error is reported
        return f"<{type(value).__name__}, whose repr raises>"


def searched_id(message_id: object) -> str:
    """A message id as ``acktree open`` shows it; a shortened one has a digest, which tells it from others."""
    shown = short_repr(message_id)
    if "..." not in shown:  # nothing was left out
        return shown
    try:
        whole = repr(message_id)
    except (Exception, SystemExit):  # noqa: BLE001  # an id's own repr
        return shown
    whole_bytes = str.encode(whole, "utf-8", "surrogatepass")  # a repr may be a subclass of str
    return f"{shown} {blake2b(whole_bytes, digest_size=6).hexdigest()}"


def kept_label(label: str) -> str:
    r"""A label as it is kept and searched: on one line, a long one cut, with a digest of the whole behind it.

    >>> kept_label("order\n17"), len(kept_label("x" * 999)), kept_label("x" * 999)[-17:]
    ('order\\n17', 200, 'x... 1fa7022978ec')

    What is kept is found by the label and by what is shown of it:

    >>> kept_label(kept_label("x" * 999)) == kept_label("x" * 999)
    True
    """
    shown = printable(label)
    if len(shown) <= MOST_LABEL:
        return shown
    digest = blake2b(label.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{shown[: MOST_LABEL - len(digest) - 4]}... {digest}"
