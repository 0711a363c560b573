"""What a log, an error or a ``repr`` may show of a URL that holds secrets.

Rules of this file
------------------
1. Rather too much is blotted out than too little: a password with an unescaped ``@``, ``/`` or ``?`` in it is
   the very one whose URL some driver will quote in an error.
2. Nothing here fails, whatever it is given: it is called where an error is being told already.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, unquote_plus

__all__ = ["MASK", "masked_text", "masked_url"]

MASK: Final = "***"

# From the first colon behind the user's name to the last @ of all: whatever a password is made of.
_PASSWORD: Final = re.compile(r"(?<=://)([^/?#:@]*:)(.*)(?=@)", re.DOTALL)
_OPTION: Final = re.compile(
    r"([?&;][^=&;]*(?:pass|pwd|secret|token|key|credential|signature)[^=&;]*=)([^&;]+)",
    re.IGNORECASE,
)


def masked_url(url: str) -> str:
    """A URL without its password, and without the values of options whose names sound like a secret's.

    >>> masked_url("postgresql://me:se@cret@host/db?sslpassword=1234&connect_timeout=5")
    'postgresql://me:***@host/db?sslpassword=***&connect_timeout=5'
    """
    return _OPTION.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}", url))


def masked_text(text: str, url: str) -> str:
    """A text without the secrets of a URL that it may quote, whole or in part, escaped or not.

    >>> masked_text("no such user 'me' with 'a b'", "postgresql://me:a%20b@host/db")
    "no such user 'me' with '***'"
    """
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _secrets(url: str) -> set[str]:
    """The secrets of a URL: as they stand in it, and unescaped."""
    without_password = _PASSWORD.sub(rf"\1{MASK}", url)
    found = {match[2] for match in _PASSWORD.finditer(url)}
    found |= {match[2] for match in _OPTION.finditer(without_password)}
    return {form for raw in found for form in (raw, unquote(raw), unquote_plus(raw))} - {"", MASK}
