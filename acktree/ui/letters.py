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
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

from acktree.dead_letters.export import plain_value, texts_of
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.store import DeadLetters
from acktree.dead_letters.table import COLUMNS, Filters
from acktree.errors import MisuseError
from acktree.texts import bounded
from acktree.ui.known_names import FILTERS, MOST_PAGE, limit_of, read_order, read_question
from acktree.ui.snapshot import exact, plain

_USUAL_PAGE: Final = 50
_MOST_ORDERED: Final = 100_000
_MOST_VALUE: Final = 2_000


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


def page(store: DeadLetters, given: Mapping[str, Any]) -> dict[str, Any]:
    """A page of the letters that match, lowest id first, and how many match in all.

    Args:
        given: Filters; ``after``: only ids above this one; ``limit``: the largest number of letters.

    Raises:
        ConfigError: A name that is unknown, or a value that no letter can have.
    """
    asked = read_question("dead-letters", given)
    filters, limit = _filters_in(asked), limit_of(asked, _USUAL_PAGE, MOST_PAGE)
    found = store.page(asked.get("after", 0), limit, **filters)
    again = store.dead_again(found)
    return {
        "count": store.count(**filters),
        "not_redriven": 0 if filters.get("redriven") else store.count(**filters | {"redriven": False}),
        "letters": [shown(letter, again) for letter in found],
        "after": found[-1].id if len(found) == limit else None,
    }


def count(store: DeadLetters, given: Mapping[str, Any]) -> int:
    """How many letters match the filters of a question. Raises as :func:`page`."""
    return store.count(**filters_of(given))


def filters_of(given: Mapping[str, Any]) -> Filters:
    """The filters of a question. Raises as :func:`page`."""
    return _filters_in(read_question("dead-letters", given))


def _filters_in(read: Mapping[str, Any]) -> Filters:
    return cast("Filters", {name: value for name, value in read.items() if name in FILTERS})


def whole(store: DeadLetters, number: int) -> dict[str, Any]:
    """One letter with its traceback. NoLetterError if there is none of this number."""
    try:
        (letter,) = store.get([number])
    except MisuseError as error:
        raise NoLetterError(error.what, error.where, error.fix) from error
    return shown(letter, store.dead_again([letter])) | {"traceback": letter.traceback}


def shown(letter: DeadLetter, again: Mapping[int, int] = MappingProxyType({})) -> dict[str, Any]:
    """A letter without payload and traceback, its values as JSON, with numbers that a browser can read.

    ``texts`` are the values that are bytes of UTF-8, as texts. ``dead_again_id`` is the letter that its
    message became when it was sent again.

    Args:
        again: What :meth:`DeadLetters.dead_again` says.
    """
    parts = {name: getattr(letter, name) for name in COLUMNS if name not in ("payload", "traceback")}
    values = {name: _short(plain_value(value)) for name, value in letter.plain_values.items()}
    more = {
        "root": str(letter.root), "values": values, "texts": texts_of(letter, _MOST_VALUE),
        "origins": letter.plain_origins, "dead_again_id": again.get(letter.id or 0),
    }  # fmt: skip
    shown_parts: dict[str, Any] = exact(plain(parts | more))
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
    read = read_order(f"dead-letters/{order}", given)
    filters, expected = _filters_in(read), read.get("expected_count")
    _refuse_ambiguous(filters, order, is_all=read.get("all", False))
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
    if len(ids) != expected:
        raise CountChangedError(
            f"{len(ids)} dead letters match now, and not {expected}",
            order,
            "look again, then order again",
        )
    return ids


def _refuse_ambiguous(filters: Filters, order: str, *, is_all: bool) -> None:
    """Let an order name letters in exactly one way: ids, filters, or all."""
    choosing = filters.keys() - {"topology"}  # a store shows letters of its own topology alone
    if (is_all and choosing) or ("ids" in choosing and len(choosing) > 1):
        raise MisuseError(
            "ids, filters and all together are ambiguous", order, "give ids, or filters, or all"
        )
    if not choosing and not is_all:
        raise MisuseError(
            f"{order} without ids or a filter would be about every dead letter", order,
            f'give ids, or a filter ({", ".join([*FILTERS][2:])}), or "all": true, with expected_count',
        )  # fmt: skip
