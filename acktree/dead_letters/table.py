"""What a store of dead letters asks of the database that it lies in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypedDict

from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import MisuseError

__all__ = [
    "COLUMNS",
    "VERSION",
    "Condition",
    "Filters",
    "Row",
    "Table",
    "Which",
    "letter_of_row",
    "row_of",
    "runs_of",
]

VERSION: Final = 2
"""Of the columns. Raise it with each change of them, and convert what older versions wrote."""

COLUMNS: Final = tuple(field.name for field in fields(DeadLetter))

MOST_IDS: Final = 500
"""Ids go into a statement by so many: databases bound how many values one may have."""

Row = tuple[Any, ...]
"""A letter as columns: the parts of a ``DeadLetter`` in their order, ``fields`` as a JSON list."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a column must be."""

    column: str
    test: Literal["=", "<", ">=", "is null", "is not null"]
    value: str | int | None = None


class Filters(TypedDict, total=False):
    """Which letters are meant: those that fit all of what is given."""

    ids: Iterable[int]
    topology: str
    spout: str
    component: str
    """Where they failed, not who emitted them."""
    kind: FailureKind
    cause: FailureCause
    redriven: bool
    """Whether they were sent again at least once."""
    settled: bool
    """Whether what they were sent again as came to its end."""
    before: datetime | int
    """Given up before that time: aware, or in milliseconds since 1970."""
    since: datetime | int
    """Given up then or later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Which:
    """Filters, read: conditions, and ids if there were any."""

    conditions: tuple[Condition, ...]
    ids: Sequence[int] | None

    @classmethod
    def of(cls, filters: Filters, scope: str | None) -> Which:
        """Read filters.

        Args:
            scope: The topology whose letters there are; None for any.

        Raises:
            TypeError: There is no such filter.
            MisuseError: A time without a time zone.
        """
        unknown = filters.keys() - Filters.__annotations__
        if unknown:
            raise TypeError(
                f"there is no filter {min(unknown)!r}; there are {', '.join(Filters.__annotations__)}"
            )
        found = [] if scope is None else [Condition("topology", "=", scope)]
        found += [
            Condition(name, "=", str(value))
            for name in ("topology", "spout", "component", "kind", "cause")
            if (value := filters.get(name)) is not None
        ]
        for name, column in (("redriven", "redriven_ms"), ("settled", "settled_ms")):
            wanted = filters.get(name)
            if wanted is not None:
                found.append(Condition(column, "is not null" if wanted else "is null"))
        if filters.get("before") is not None:
            found.append(Condition("dead_ms", "<", _ms(filters["before"])))
        if filters.get("since") is not None:
            found.append(Condition("dead_ms", ">=", _ms(filters["since"])))
        ids = filters.get("ids")
        return cls(conditions=tuple(found), ids=None if ids is None else _possible(ids))

    @property
    def is_everything(self) -> bool:
        """Whether nothing was given but a scope."""
        return self.ids is None and all(condition.column == "topology" for condition in self.conditions)


class Table(Protocol):
    """Letters in some database. Any thread may call any method.

    Whatever the database refuses is a ConnectorError or CheckpointError, and changed nothing.
    """

    place: str
    """For people: where it is, without a password."""

    def insert(self, rows: Sequence[Row]) -> int:
        """Store rows, all or none, durably; those whose topology and root are there stay as they are.

        Ids that rows carry are ignored. Returns how many were new.
        """

    def select(self, which: Which, after: int, most: int) -> list[Row]:
        """Rows that fit, with ids above ``after``, lowest first, at most so many.

        ``which`` names no more ids than one statement takes: see :func:`runs_of`.
        """

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        """Those of the roots that have a letter of this topology."""

    def count(self, which: Which) -> int:
        """How many fit."""

    def mark(self, ids: Sequence[int], marks: Mapping[str, int | None]) -> None:
        """Set columns of rows, all or none; ids that are not there are passed over."""

    def delete(self, which: Which) -> int:
        """Delete what fits, all or none; returns how many."""

    def close(self) -> None:
        """Let go of the database; a second call does nothing, every other method raises from now on."""


def runs_of(ids: Sequence[int] | None) -> Iterator[Sequence[int] | None]:
    """Ids as far as one statement takes them; None, for no ids at all, is one run."""
    if ids is None:
        yield None
        return
    for first in range(0, len(ids), MOST_IDS):
        yield ids[first : first + MOST_IDS]


def row_of(letter: DeadLetter) -> Row:
    """A letter as columns."""
    parts: dict[str, Any] = {name: getattr(letter, name) for name in COLUMNS}
    # A reason may quote a file name that is no UTF-8, or a NUL: some database would refuse the letter.
    row = {name: _storable(part) if isinstance(part, str) else part for name, part in parts.items()}
    return tuple((row | {"id": None, "fields": json.dumps(letter.fields)}).values())


def letter_of_row(row: Row) -> DeadLetter:
    """The letter that :func:`row_of` took apart."""
    parts: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    parts["fields"] = tuple(json.loads(parts["fields"]))
    parts["kind"] = FailureKind(parts["kind"])
    parts["cause"] = FailureCause(parts["cause"])
    parts["payload"] = bytes(parts["payload"])
    return DeadLetter(**parts)


def _possible(ids: Iterable[object]) -> tuple[int, ...]:
    """Those that could be some letter's, ascending, each once: databases refuse the others."""
    return tuple(sorted({number for number in ids if isinstance(number, int) and 0 < number < 2**63}))


def _storable(text: str) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _ms(time: datetime | int) -> int:
    if not isinstance(time, datetime):
        return int(time)
    if time.tzinfo is None:
        raise MisuseError(
            f"{time} has no time zone, so nobody knows when it was",
            "before= or since=, of dead letters",
            "say datetime(..., tzinfo=UTC) or datetime.now().astimezone(), or milliseconds since 1970",
        )
    return int(time.timestamp() * 1000)
