"""Redis's client: connections, and its errors as ours. Needs ``acktree[redis]``.

Source: Redis's page on error replies, and redis-py's table of the exceptions that it makes of them.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from acktree import ConnectorError
from acktree.connectors import client_errors
from acktree.connectors.client_errors import Cause

try:
    import redis
    import redis.exceptions
except ModuleNotFoundError as missing:
    raise client_errors.missing_client(missing, "redis") from missing

__all__ = ["BUSY", "ERRORS", "client_of", "connector_error", "host_of"]

_CONNECT_SECS: Final = 5.0

_ACCESS: Final = Cause(
    "Redis refused access", "give the user the commands of streams on this key (ACL SETUSER)"
)
_ABSENT: Final = Cause(
    "there is no such stream, or it has no such group",
    "create it: XGROUP CREATE stream group 0 MKSTREAM; or correct its name, and submit again",
)
BUSY: Final = Cause(
    "Redis cannot serve this now", "see what it says; it is tried again until then", passes=True
)
_ELSEWHERE: Final = Cause(
    "another server of the cluster has this stream",
    "give the URL of the server that has it: CLUSTER KEYSLOT, CLUSTER SLOTS",
)
_WRONG: Final = Cause("Redis does not answer as it should", "see what the server says, and submit again")
_UNSENDABLE: Final = Cause(
    "redis-py cannot send this value", "give a dict of bytes, texts and numbers, with a field at least"
)
ERRORS: Final = {
    "LOADING": BUSY, "BUSY": BUSY, "NOREPLICAS": BUSY, "MISCONF": BUSY, "OOM": BUSY, "READONLY": BUSY,
    "MASTERDOWN": BUSY, "CLUSTERDOWN": BUSY, "TRYAGAIN": BUSY, "ASK": BUSY, "UNBLOCKED": BUSY,
    "ERR max number of clients": BUSY,
    "NOAUTH": None, "WRONGPASS": None, "ERR invalid password": None, "ERR AUTH": None,
    "ERR wrong number of arguments for 'auth' command": None,
    "NOPERM": _ACCESS, "DENIED": _ACCESS, "NOGROUP": _ABSENT, "MOVED": _ELSEWHERE, "CROSSSLOT": _ELSEWHERE,
    "WRONGTYPE": _WRONG, "EXECABORT": _WRONG, "NOSCRIPT": _WRONG, "NOPROTO": _WRONG, "ERR": _WRONG,
}  # fmt: skip
"""By what Redis's answer begins with, the longest first. None: it refused the login."""
_CODES: Final = {
    redis.exceptions.BusyLoadingError: "LOADING", redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.OutOfMemoryError: "OOM", redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.MasterDownError: "MASTERDOWN", redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN", redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK", redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.ExecAbortError: "EXECABORT", redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.AuthenticationError: "NOAUTH",
    redis.exceptions.AuthenticationWrongNumberOfArgsError: "NOAUTH",
}  # fmt: skip
"""What redis-py cuts from the beginning of an answer, by the type of its exception."""


def client_of(url: str) -> Any:  # noqa: ANN401  # on purpose: RESP2 and RESP3 answer differently
    """A client that waits for five seconds. It connects at the first command."""
    return redis.Redis.from_url(
        url, socket_connect_timeout=_CONNECT_SECS, socket_timeout=_CONNECT_SECS, health_check_interval=0
    )


def host_of(url: str, where: str) -> str:
    """The host and port of a URL, or its socket. Raises a ConfigError that does not show the URL."""
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # no error may show the URL
        raise client_errors.unreadable_url(
            "Redis", error, where, "redis://user:password@host:6379/0"
        ) from None
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def connector_error(error: BaseException, where: str) -> ConnectorError:
    """What the client raised, as a ConnectorError: what it means, whether to try again, and the fix."""
    words = str(error)
    if any(isinstance(each, ssl.SSLError) for each in client_errors.causes_of(error)):
        return client_errors.tls_mismatch("Redis", where, "rediss://", "redis://")
    if isinstance(error, redis.exceptions.DataError):
        return _UNSENDABLE.error(words, where)
    code = getattr(error, "status_code", None) or _CODES.get(type(error), "")
    answer = words if words.startswith(code) else f"{code} {words}"
    known = [each for each in ERRORS if f"{answer} ".startswith(f"{each} ")]
    if not known:
        return client_errors.gone("Redis", words, where)
    cause = ERRORS[max(known, key=len)]
    return client_errors.login_refused("Redis", where) if cause is None else cause.error(answer, where)
