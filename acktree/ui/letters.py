"""Dead letters as JSON for operators: pages of them, one whole, and orders that name the count that was seen.

Rules of this file
------------------
1. Nothing is unpickled: a pickled value is shown by its size.
2. An order over letters by filter names how many the operator has seen. If there are more or fewer now, it is
   refused and nothing is done.
3. An order names ids, or a filter, or says that it is about all. A name that is unknown is refused, since an
   order that ignores a filter is about too many letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, Final, cast

from acktree.dead_letters.export import plain_value
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.store import DeadLetters
from acktree.dead_letters.table import COLUMNS, Filters
from acktree.errors import ConfigError, MisuseError
from acktree.texts import bounded
from acktree.ui.known_names import FILTERS, MOST_PAGE, ORDERS, QUESTIONS, limit_of, refuse_unknown
from acktree.ui.snapshot import plain

__all__ = [
    "CountChangedError", "LettersChangedError", "NoLetterError", "filters_of", "page", "purge", "redrive",
    "shown", "whole",
]  # fmt: skip

_USUAL_PAGE: Final = 50
_MOST_NUMBER: Final = (1 << 63) - 1
"""The largest number that a database takes."""
_MOST_ORDERED: Final = 100_000
_MOST_VALUE: Final = 2_000
_TEXTS: Final = ("topology", "spout", "component", "kind", "cause")
_TIMES: Final = ("before", "since")
_TRUTHS: Final = {"true": True, "false": False, True: True, False: False}


class LettersChangedError(MisuseError):
    """The letters are not as the operator has seen them; nothing was done.

    Attributes:
        status: Of HTTP.
    """

    status: ClassVar[int]


class CountChangedError(LettersChangedError):
    """There are more or fewer letters than the operator has seen; nothing was done."""

    status = 409


class NoLetterError(LettersChangedError):
    """There is no letter of this number, or not any more."""

    status = 404


def filters_of(given: Mapping[str, Any]) -> Filters:
    """The filters among the parts of a request; one without a value is none.

    Raises:
        ConfigError: A value that no letter can have.
    """
    found: dict[str, Any] = {name: str(given[name]) for name in _TEXTS if _is_given(given, name)}
    try:
        found |= {name: _number(given, name) for name in _TIMES if _is_given(given, name)}
        found |= {name: _TRUTHS[given[name]] for name in ("redriven", "settled") if _is_given(given, name)}
        if given.get("ids") is not None:
            ids = given["ids"]
            found["ids"] = [int(each) for each in (ids.split(",") if isinstance(ids, str) else ids)]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"a filter of dead letters cannot be read: {error}",
            f"{dict(given)}"[:200],
            "times are milliseconds since 1970, redriven and settled true or false, ids numbers",
        ) from error
    return cast("Filters", found)


def _is_given(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) not in (None, "")


def _number(given: Mapping[str, Any], name: str) -> int:
    """A number of a request, within what a database takes, or 0. ConfigError for what is none."""
    try:
        return max(-_MOST_NUMBER, min(_MOST_NUMBER, int(given.get(name) or 0)))
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{given[name]!r:.60} is no number", f"{name}=", "give a whole number") from error


def page(store: DeadLetters, given: Mapping[str, Any]) -> dict[str, Any]:
    """Some letters that match, lowest id first, and how many match in all.

    Args:
        given: Filters; ``after``: only ids above this one; ``limit``: the largest number of letters.

    Raises:
        ConfigError: A name that is unknown, or a value that no letter can have.
    """
    refuse_unknown(given, QUESTIONS["dead-letters"], "dead-letters")
    filters = filters_of(given)
    after, limit = _number(given, "after"), limit_of(given, _USUAL_PAGE, MOST_PAGE)
    found = store.page(after, limit, **filters)
    return {
        "count": store.count(**filters),
        "letters": [shown(letter) for letter in found],
        "after": found[-1].id if len(found) == limit else None,
    }


def whole(store: DeadLetters, number: int) -> dict[str, Any]:
    """One letter with its traceback. NoLetterError if there is none of this number."""
    try:
        (letter,) = store.get([number])
    except MisuseError as error:
        raise NoLetterError(error.what, error.where, error.fix) from error
    return shown(letter) | {"traceback": letter.traceback}


def shown(letter: DeadLetter) -> dict[str, Any]:
    """A letter without payload and traceback, its values as JSON."""
    parts = {name: getattr(letter, name) for name in COLUMNS if name not in ("payload", "traceback")}
    values = {name: _short(plain_value(value)) for name, value in letter.plain_values.items()}
    # A root is 64 bits, and JavaScript's numbers have 53.
    shown_parts: dict[str, Any] = plain(parts | {"root": str(letter.root), "values": values})
    return shown_parts


def _short(value: object) -> object:
    return bounded(value, _MOST_VALUE) if isinstance(value, str) else value


def redrive(store: DeadLetters, given: Mapping[str, Any]) -> dict[str, Any]:
    """Send letters again: those with the ids, or all that match filters and the count that was seen."""
    return {"done": True, "redriven": store.redrive(_ordered(store, given, "redrive"))}


def ordered(store: DeadLetters, given: Mapping[str, Any]) -> list[int]:
    """The ids of the letters that an order to redrive is about; for a topology that nobody runs."""
    return _ordered(store, given, "redrive")


def purge(store: DeadLetters, given: Mapping[str, Any]) -> dict[str, Any]:
    """Delete letters: those with the ids, or all that match filters and the count that was seen."""
    ids = _ordered(store, given, "purge")
    return {"done": True, "purged": store.purge(ids=ids)}


def _ordered(store: DeadLetters, given: Mapping[str, Any], order: str) -> list[int]:
    """The ids of the letters that an order is about.

    Raises:
        ConfigError: A name that is unknown, or a value that no letter can have.
        MisuseError: It names no letters, or in two ways.
        CountChangedError: Another number matches now.
    """
    refuse_unknown(given, ORDERS[f"dead-letters/{order}"], order)
    filters, expected, is_all = filters_of(given), given.get("expected_count"), given.get("all", False)
    _refuse_ambiguous(filters, order, is_all=is_all)
    if "ids" in filters:
        return [letter.id for letter in store.get(filters["ids"]) if letter.id is not None]
    if expected is None:
        raise MisuseError(
            f"{order} by filter without a count", order, "name ids=, or expected_count= as you have seen it"
        )
    found = islice(store.find(**filters), _MOST_ORDERED + 1)
    ids = [letter.id for letter in found if letter.id is not None]
    if len(ids) > _MOST_ORDERED:
        raise MisuseError(
            f"more than {_MOST_ORDERED} dead letters match", order, "narrow it with a filter, such as before="
        )
    if len(ids) != int(expected):
        raise CountChangedError(
            f"{len(ids)} dead letters match now, and not {int(expected)}",
            order,
            "look again, then order again",
        )
    return ids


def _refuse_ambiguous(filters: Filters, order: str, *, is_all: object) -> None:
    """Let an order name letters in exactly one way: ids, filters, or all."""
    if not isinstance(is_all, bool):
        raise ConfigError(f"{is_all!r:.40} is no truth value", f"{order}, all=", "true or false")
    choosing = filters.keys() - {"topology"}  # a store shows letters of its own topology alone
    if (is_all and choosing) or ("ids" in choosing and len(choosing) > 1):
        raise MisuseError(
            "ids, filters and all together are ambiguous", order, "give ids, or filters, or all"
        )
    if not choosing and not is_all:
        raise MisuseError(
            f"{order} without ids or a filter would be about every dead letter", order,
            f'give ids, or a filter ({", ".join(FILTERS[2:])}), or "all": true, with expected_count',
        )  # fmt: skip
