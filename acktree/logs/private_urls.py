"""Masks the secrets of a URL for logs, errors and ``repr``.

Rules of this file
------------------
1. Only parts that are known to be harmless are shown: the scheme, hosts and ports, a plain path, and the
   values of a few options. All other parts are masked, since a password may be anywhere: in the user part, in
   any option, in a connection string inside an option, or in a mistyped URL.
2. These functions never raise: they are called while another error is reported.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, unquote_plus

MASK: Final = "***"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
# Without a password the user part ends at the first @; with one at the last @, as a password may contain any.
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
    """Whether a text is ``scheme://`` followed by at least one character."""
    scheme = _SCHEME.match(text)
    return scheme is not None and scheme.end() < len(text)


def masked_url(url: str) -> str:
    """A URL with ``***`` for its user and password, and for all other parts that may be secret.

    A text that is not a URL is masked as a whole.

    >>> masked_url("postgresql://me:se@cret@host/db?sslpassword=1234&connect_timeout=5")
    'postgresql://***@host/db?sslpassword=***&connect_timeout=5'
    >>> masked_url("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dsecret")
    'mssql+pyodbc:///?odbc_connect=***'
    >>> masked_url("postgresql:/me:secret@host/db")
    '***'
    """
    shown, _ = _parts(url)
    return shown


def masked_place(text: str) -> str:
    """A path as it is; a URL masked, also one whose scheme was left out.

    >>> masked_place("me:s3cret@host/letters"), masked_place("/data/letters@old.sqlite")
    ('***@host/letters', '/data/letters@old.sqlite')
    """
    if is_url(text):
        return masked_url(text)
    if text.startswith(("/", ".", "~")) or not re.search("[@?;#=]", text):
        return text
    return masked_url(f"a://{text}").removeprefix("a://")


def masked_text(text: str, url: str) -> str:
    """A text in which the secrets of a URL are masked, quoted or unquoted.

    >>> masked_text("no such user 'me' with 'a b'", "postgresql://me:a%20b@host/db")
    "no such user 'me' with '***'"
    """
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _parts(url: str) -> tuple[str, list[str]]:
    """The masked URL, and its hidden parts as they are written in it."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return (MASK, [url]) if url else ("", [])
    shown, rest, hidden = scheme[0], url[scheme.end() :], []
    user = _USER.match(rest)
    if user is not None:
        shown += f"{MASK}@"
        _, _, password = user[0].removesuffix("@").partition(":")
        hidden += [password, *re.split("[/?#]", password)]  # a library takes what is before these for a port
        rest = rest[user.end() :]
    location, separator, options = _split(rest, "?;#")
    hosts, slash, path = _split(location, "/")
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
    """The masked form of ``name=value`` or of a separator, and the hidden part."""
    name, equals, value = option.partition("=")
    if option in {"", "&", ";", "#"}:
        return option, ""
    if not equals or not _NAME.fullmatch(name):
        return MASK, option
    if name.lower() in _HARMLESS and _VALUE.fullmatch(value):
        return option, ""
    return f"{name}={MASK}", value


def _split(text: str, ends: str) -> tuple[str, str, str]:
    """Split at the first of some characters: the text before it, that character, and the rest."""
    at = min((location for end in ends if (location := text.find(end)) >= 0), default=len(text))
    return text[:at], text[at : at + 1], text[at + 1 :]


def _secrets(url: str) -> set[str]:
    """The hidden parts of a URL: as written, unquoted, and the values of a connection string in it."""
    _, hidden = _parts(url)
    forms = {form for raw in hidden for form in (raw, unquote(raw), unquote_plus(raw))}
    inner = {piece.partition("=")[2].strip(" {}'\"") for form in forms for piece in re.split("[;&]", form)}
    return (forms | inner) - {"", MASK}
