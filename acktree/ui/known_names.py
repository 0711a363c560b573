"""What questions and orders take: their names, and how much one answer lists.

Other names are refused: an answer that ignores a filter is about too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from acktree.errors import ConfigError, nearest
from acktree.texts import is_number

__all__ = [
    "COMMANDS",
    "FILTERS",
    "MOST_OPEN",
    "MOST_ORDERS",
    "MOST_PAGE",
    "ORDERS",
    "QUESTIONS",
    "limit_of",
    "refuse_unknown",
]

MOST_OPEN: Final = 1000
"""The most open messages in an answer."""
MOST_PAGE: Final = 500
"""The most dead letters or traces in an answer."""

MOST_ORDERS: Final = 500
"""How many orders of a run are kept."""

FILTERS: Final = (
    "ids", "topology", "spout", "component", "kind", "cause", "redriven", "settled", "before", "since",
)  # fmt: skip
"""What chooses dead letters."""
_LETTER_ORDER: Final = (*FILTERS, "expected_count", "all")

QUESTIONS: Final = {
    "snapshot": ("most_age_secs",),
    "open": ("limit",),
    "audit": ("limit",),
    "log-levels": (),
    "history": ("since", "before", "limit"),
    "events": ("limit", "component"),
    "traces": (
        "message_id", "root", "verdict", "component", "reason", "since", "before", "limit", "after",
    ),
    "trace-of": ("edge", "first", "all"),
    "dead-letters": (*FILTERS, "limit", "after"),
    "dead-letter": (),
}  # fmt: skip
"""By question: the names of its query."""

ORDERS: Final = {
    "activate": (),
    "deactivate": (),
    "kill": ("wait_secs",),
    "log-levels": ("set", "reset"),
    "debug": ("on", "component", "percent"),
    "trace": ("rate", "message_ids", "secs"),
    "dead-letters/redrive": _LETTER_ORDER,
    "dead-letters/purge": _LETTER_ORDER,
}
"""By order: the names in its body."""

COMMANDS: Final = {
    "rebalance": ("component", "parallelism", "partitions", "by_key", "forget"),
    "reset-state": ("component",),
}
"""By command that changes a stopped checkpoint: its options that are logged."""


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse names that nothing here takes.

    Raises:
        ConfigError: A name is unknown; the fix has the nearest known one.
    """
    for name in given:
        if name not in known:
            fix = nearest(name, known) if known else "leave it out: nothing can be given here"
            raise ConfigError(f"there is no {name!r:.60}", where, fix)


def limit_of(given: Mapping[str, Any], usual: int, most: int) -> int:
    """How much the answer to a question lists.

    Args:
        given: The question's query; ``limit`` in it, or its absence.
        usual: The number without a limit.
        most: The largest number. A larger limit counts as this one.

    Raises:
        ConfigError: The limit is no whole number above 0.
    """
    limit = given.get("limit")
    if limit is None or limit == "":
        return usual
    digits = str(limit).lstrip("0")
    if not is_number(digits):
        raise ConfigError(
            f"{limit!r:.40} is no limit",
            "limit=",
            f"give a whole number above 0; {most:,} are listed at most",
        )
    return int(digits) if len(digits) <= len(str(most)) and int(digits) < most else most
