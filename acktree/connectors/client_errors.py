"""The errors that all connectors share: those that every broker has, and a client that is not installed.

Each connector has one table of its broker's errors: which pass by themselves, and what to do about others.

Rules of this file
------------------
1. An error says what is wrong in one line, and what to do; it never holds a URL.
2. An error that no table names may pass: it is reported as an outage and tried again. A topology that was
   stopped does not come back by itself.
3. Nothing here imports a client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from acktree import ConfigError, ConnectorError
from acktree.errors import installing

__all__ = [
    "SHORT", "Cause", "broken_by_a_message", "causes_of", "gone", "login_refused", "missing_client",
    "tls_mismatch",
    "unreadable_url",
]  # fmt: skip

SHORT: Final = 200
"""The largest number of characters shown of a broker's own words."""


class Cause(NamedTuple):
    """What an error of a broker means: a value in a connector's table of errors.

    Attributes:
        what: What is wrong; the broker's own words follow.
        fix: What to do.
        passes: Whether the same call may succeed later without any action.
    """

    what: str
    fix: str
    passes: bool = False

    def error(self, words: str, where: str) -> ConnectorError:
        """The error, with the broker's own words."""
        return ConnectorError(f"{self.what}: {words:.{SHORT}}", where, self.fix, can_retry=self.passes)


def missing_client(missing: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """What is raised where a connector is imported without its extra."""
    text = f"acktree.connectors.{extra} needs {missing.name}: {installing(extra)}"
    return ModuleNotFoundError(text, name=missing.name)


def unreadable_url(broker: str, error: Exception, where: str, form: str) -> ConfigError:
    """A URL that its client cannot read. The error does not show the URL."""
    return ConfigError(f"the URL of {broker} cannot be read: {type(error).__name__}", where, f"write {form}")


def login_refused(
    broker: str, where: str, fix: str = "correct user and password in the URL"
) -> ConnectorError:
    """The server knows no such user, or the password is wrong."""
    return ConnectorError(f"{broker} refused the login", where, f"{fix}; nothing was received")


def tls_mismatch(broker: str, where: str, secure: str, plain: str) -> ConnectorError:
    """One side speaks TLS and the other does not, or a certificate is not trusted.

    Args:
        secure: The scheme of a URL with TLS.
        plain: The scheme of a URL without.
    """
    fix = f"use {secure} with the port that speaks TLS and a certificate that is trusted, else {plain}"
    return ConnectorError(f"{broker} and this client do not agree on TLS", where, fix)


def gone(broker: str, words: str, where: str, hint: str = "") -> ConnectorError:
    """The connection is lost, refused or silent: a new attempt may succeed.

    Args:
        words: The client's own text.
        hint: What else to check; begins with a comma.
    """
    fix = f"check that the server runs and is reachable{hint}; it is tried again until then"
    return ConnectorError(f"the connection to {broker} is gone: {words:.{SHORT}}", where, fix, can_retry=True)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those behind it: its causes, members of a group, and exceptions among its arguments."""
    waiting: list[object] = [error]
    seen: list[BaseException] = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseException) and not any(each is other for other in seen):
            seen.append(each)
            yield each
            waiting += [each.__cause__, each.__context__, *each.args, *getattr(each, "exceptions", ())]


def broken_by_a_message(broker: str, words: str, where: str, fix: str) -> ConnectorError:
    """The connection was lost while a message was sent, and the server could be reached again at once."""
    what = f"the connection to {broker} broke while this message was sent, and could be made again"
    return ConnectorError(f"{what}: {words:.{SHORT}}", where, fix, can_retry=True)
