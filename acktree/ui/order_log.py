"""The log's line of an operator's order: by which door it came, what it is about, and what came of it.

Rules of this file
------------------
1. Each process that carries out an order logs it: a driver, the page's process, a command.
2. A line holds what the operator gave under the names that the order takes, and the counts of the answer. It
   never holds a message or a letter, nor a URL that is not masked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from acktree.logs.loggers import logger
from acktree.logs.private_urls import is_url, masked_url
from acktree.texts import bounded, printable, short_repr
from acktree.ui.known_names import COMMANDS, ORDERS

log = logger("acktree")

CLI: Final = "cli"
PAGE: Final = "page"
SOCKET: Final = "socket"
"""A program that is neither of the two, or is of an earlier release."""
BY: Final = "X-Acktree-By"
"""The header by which a client of a driver's socket says which door it is."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]{0,40}://)\S+", re.IGNORECASE)
"""A URL in a text. It may have been shortened, so what of it is secret cannot be told. A scheme has a bound:
without one the search of a long text takes time that grows with the square of its length."""
_CLOSING: Final = "\"')]}.,;:"
"""What may follow a URL: a quotation mark inside it does not end it."""
_MOST_TEXT: Final = 200
_MOST_SHOWN: Final = 10
"""How many items of a list are shown."""


def _nowhere(_: Mapping[str, Any]) -> None:
    """The default: an order is logged, and not kept."""


Done = TypeVar("Done", bound=Mapping[str, Any])


def door_named(said: str | None) -> str:
    """The door that a request names; :data:`SOCKET` for any other text."""
    return said if said in (CLI, PAGE) else SOCKET


@dataclass(frozen=True, slots=True)
class Order:
    """One order.

    Attributes:
        name: As in :data:`~acktree.ui.known_names.ORDERS`, or a command.
        by: The door by which it came.
        topology: The topology's name; None where it is not known.
        place: The folder or URL of its checkpoint, or the URL of its dead letters.
        given: What came with it.
        keep: Is given what is logged, as values.
    """

    name: str
    by: str
    topology: str | None
    place: str
    given: Mapping[str, Any] = field(default_factory=dict)
    keep: Callable[[Mapping[str, Any]], None] = _nowhere

    def carry_out(self, how: Callable[[], Done]) -> Done:
        """Carry it out, and log what came of it. Returns the answer, or raises what refused it."""
        try:
            done = how()
        except Exception as error:
            self.is_refused(error)
            raise
        self.is_done(done)
        return done

    def is_refused(self, error: Exception) -> None:
        """Log why it was not carried out."""
        self._log(f"refused: {_reason(error)}")

    def is_done(self, done: Mapping[str, Any]) -> None:
        """Log that it was carried out, with the numbers of its answer."""
        numbers = (f" {name}={value}" for name, value in done.items() if _is_number(name, value))
        self._log(f"done{''.join(numbers)}")

    def _log(self, outcome: str) -> None:
        place = masked_url(self.place) if is_url(self.place) else self.place
        order, given, came = _safe(self.name), self._given(), _safe(outcome)
        log.info(
            "topology=%s order=%s by=%s checkpoint=%s given=%s outcome=%s",
            self.topology or "?", order, self.by, place, given, came,
        )  # fmt: skip
        at_ms = time.time_ns() // 1_000_000
        self.keep({"at_ms": at_ms, "order": order, "by": self.by, "given": given, "outcome": came})

    def _given(self) -> str:
        known = ORDERS.get(self.name) or COMMANDS.get(self.name, ())
        shown = [
            f"{name}={_shown(value)}"
            for name, value in self.given.items()
            if name in known and value is not None
        ]
        unknown = sum(name not in known for name in self.given)
        shown += [f"{unknown} unknown name{'s' * (unknown != 1)}"] if unknown else []
        return f"({', '.join(shown)})"


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        items = [*map(_shown, value[:_MOST_SHOWN]), *(["..."] if len(value) > _MOST_SHOWN else [])]
        return bounded(f"[{', '.join(items)}]", _MOST_TEXT)
    if isinstance(value, Mapping):
        pairs = [f"{_shown(name)}: {_shown(each)}" for name, each in list(value.items())[:_MOST_SHOWN]]
        pairs += ["..."] if len(value) > _MOST_SHOWN else []
        return bounded(f"{{{', '.join(pairs)}}}", _MOST_TEXT)
    if isinstance(value, str):
        return masked_url(value) if is_url(value) else bounded(short_repr(_without_urls(value)), _MOST_TEXT)
    return bounded(short_repr(value), _MOST_TEXT)


def _safe(text: str) -> str:
    """A text that may quote what an operator gave: on one line, and of URLs their scheme alone."""
    return printable(bounded(_without_urls(text), _MOST_TEXT + 100))


def _without_urls(text: str) -> str:
    return _URL.sub(_masked, text)


def _masked(url: re.Match[str]) -> str:
    end = url[0][len(url[0].rstrip(_CLOSING)) :]
    return f"{url[1]}***{end}"


def _is_number(name: str, value: object) -> bool:
    """Whether a part of an answer is a count or a setting; ``done`` is in every answer."""
    return name != "done" and isinstance(value, bool | int | float)


def _reason(error: Exception) -> str:
    """Why it was refused: what an error of ours says. The text of any other may quote a value."""
    return bounded(str(getattr(error, "what", type(error).__name__)), _MOST_TEXT)
