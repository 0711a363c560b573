"""What a log, an error or a ``repr`` may show of a URL that holds secrets.

Rules of this file
------------------
1. Only what is known to be harmless is shown: the scheme, hosts and ports, a plain path, and the values of
   a few options. All else is a secret, since a password may stand anywhere: in the user's part, in any
   option, in a connection string inside an option, or in a URL that is mistyped.
2. Nothing here fails, whatever it is given: it is called where an error is being told already.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, unquote_plus

__all__ = ["MASK", "is_url", "masked_text", "masked_url"]

MASK: Final = "***"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
# A user alone ends at the first @; with a password at the last @ of all: whatever a password is made of.
_USER: Final = re.compile(r"[^/?#:@;]*@|[^/?#@]*:.*@", re.DOTALL)
_HOSTS: Final = re.compile(r"(?:(?:[\w.-]*|\[[0-9A-Fa-f:.]*\])(?::\d*)?(?:,|$))*", re.ASCII)
_PATH: Final = re.compile(r"[^%=@]*")
_NAME: Final = re.compile(r"[\w.-]{1,40}", re.ASCII)
_VALUE: Final = re.compile(r"[\w.+-]{0,64}", re.ASCII)
_HARMLESS: Final = frozenset(
    {
        "cache", "charset", "check_same_thread", "client_encoding", "connect_timeout", "driver", "encrypt",
        "mode", "read_timeout", "ssl", "sslmode", "target_session_attrs", "timeout", "uri", "write_timeout",
    }
)  # fmt: skip
"""Options whose values are shown."""


def is_url(text: str) -> bool:
    """Whether a text begins as ``scheme://`` with something behind it."""
    scheme = _SCHEME.match(text)
    return scheme is not None and scheme.end() < len(text)


def masked_url(url: str) -> str:
    """A URL with ``***`` for its user and password, and for all else that may be a secret.

    What is no URL is a secret as a whole.

    >>> masked_url("postgresql://me:se@cret@host/db?sslpassword=1234&connect_timeout=5")
    'postgresql://***@host/db?sslpassword=***&connect_timeout=5'
    >>> masked_url("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dsecret")
    'mssql+pyodbc:///?odbc_connect=***'
    >>> masked_url("postgresql:/me:secret@host/db")
    '***'
    """
    shown, _ = _parts(url)
    return shown


def masked_text(text: str, url: str) -> str:
    """A text without the secrets of a URL that it may quote, whole or in part, escaped or not.

    >>> masked_text("no such user 'me' with 'a b'", "postgresql://me:a%20b@host/db")
    "no such user 'me' with '***'"
    """
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _parts(url: str) -> tuple[str, list[str]]:
    """What is shown of a URL, and what is not, as it stands there."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return (MASK, [url]) if url else ("", [])
    shown, rest, hidden = scheme[0], url[scheme.end() :], []
    user = _USER.match(rest)
    if user is not None:
        shown += f"{MASK}@"
        _, _, password = user[0].removesuffix("@").partition(":")
        hidden.append(password)
        rest = rest[user.end() :]
    place, separator, options = _split(rest, "?;#")
    hosts, slash, path = _split(place, "/")
    for part, harmless in ((hosts, _HOSTS), (slash + path, _PATH)):
        is_shown = harmless.fullmatch(part) is not None
        shown += part if is_shown else f"{part[: part.startswith('/')]}{MASK}"
        hidden += [] if is_shown else [part]
    shown += separator
    for option in re.split(r"([&;#])", options):
        seen, secret = _option(option)
        shown += seen
        hidden.append(secret)
    return shown, hidden


def _option(option: str) -> tuple[str, str]:
    """What is shown of ``name=value`` or of what stands between two, and what is not."""
    name, equals, value = option.partition("=")
    if option in {"", "&", ";", "#"}:
        return option, ""
    if not equals or not _NAME.fullmatch(name):
        return MASK, option
    if name.lower() in _HARMLESS and _VALUE.fullmatch(value):
        return option, ""
    return f"{name}={MASK}", value


def _split(text: str, ends: str) -> tuple[str, str, str]:
    """What stands before the first of some characters, that character, and the rest."""
    at = min((place for end in ends if (place := text.find(end)) >= 0), default=len(text))
    return text[:at], text[at : at + 1], text[at + 1 :]


def _secrets(url: str) -> set[str]:
    """What is hidden of a URL: as it stands there, unescaped, and the values of a connection string in it."""
    _, hidden = _parts(url)
    forms = {form for raw in hidden for form in (raw, unquote(raw), unquote_plus(raw))}
    inner = {piece.partition("=")[2].strip(" {}'\"") for form in forms for piece in re.split("[;&]", form)}
    return (forms | inner) - {"", MASK}
