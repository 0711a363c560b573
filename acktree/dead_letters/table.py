"""The interface between the store of dead letters and its database: columns, filters, operations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from numbers import Integral
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar

from acktree.core.tracking.origins import Origin
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import MisuseError
from acktree.texts import kept_label

VERSION: Final = 4
"""The version of the columns. Raise it with each change; from the first release on, convert older stores."""

COLUMNS: Final = tuple(field.name for field in fields(DeadLetter))

MOST_IDS: Final = 500
"""The most ids in one statement: databases limit the number of values."""

_Id = TypeVar("_Id")

Row = tuple[Any, ...]
"""A letter as columns: a ``DeadLetter``'s attributes in their order, ``fields`` and ``origins`` as JSON."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one column."""

    column: str
    test: Literal["=", "<", ">=", "is null", "is not null", "contains", "is named"]
    """The last two look at neither case nor, of a qualified name, what stands before its last part."""
    value: str | int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Letters that failed alike: how many there are, and the lowest id."""

    cause: str
    component: str | None
    exception_type: str | None
    reason: str
    count: int
    first_id: int


class Filters(TypedDict, total=False):
    """Filters for letters: a letter matches if it matches all given ones."""

    ids: Iterable[int]
    topology: str
    spout: str
    component: str
    """The component in which they failed, not the one that emitted them."""
    kind: FailureKind
    cause: FailureCause
    reason: str
    """A text that the reason contains, whatever its case."""
    label: str
    """What people call the message."""
    exception: str
    """The type of the exception: ``ValueError``, or with its module."""
    redriven: bool
    """Whether they were sent again at least once."""
    settled: bool
    """Whether the messages that they were sent again as have a final verdict."""
    before: datetime | int
    """Given up before this time: an aware datetime, or milliseconds since 1970."""
    since: datetime | int
    """Given up at this time or later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Which:
    """Parsed filters: conditions, and the ids if any were given."""

    conditions: tuple[Condition, ...]
    ids: Sequence[int] | None

    @classmethod
    def of(cls, filters: Filters, scope: str | None) -> Which:
        """Parse filters.

        Args:
            filters: The filters as given.
            scope: Only letters of this topology match; None for any.

        Raises:
            TypeError: A filter does not exist.
            MisuseError: A time has no time zone.
        """
        unknown = filters.keys() - Filters.__annotations__
        if unknown:
            raise TypeError(
                f"there is no filter {min(unknown)!r}; there are {', '.join(Filters.__annotations__)}"
            )
        conditions = [] if scope is None else [Condition("topology", "=", scope)]
        conditions += [
            Condition(name, "=", str(value))
            for name in ("topology", "spout", "component", "kind", "cause")
            if (value := filters.get(name)) is not None
        ]
        if filters.get("label") is not None:
            conditions.append(Condition("label", "=", kept_label(str(filters["label"]))))
        if filters.get("reason") is not None:
            conditions.append(Condition("reason", "contains", str(filters["reason"])))
        if filters.get("exception") is not None:
            conditions.append(Condition("exception_type", "is named", str(filters["exception"])))
        for name, column in (("redriven", "redriven_ms"), ("settled", "settled_ms")):
            wanted = filters.get(name)
            if wanted is not None:
                conditions.append(Condition(column, "is not null" if wanted else "is null"))
        if filters.get("before") is not None:
            conditions.append(Condition("dead_ms", "<", _ms(filters["before"])))
        if filters.get("since") is not None:
            conditions.append(Condition("dead_ms", ">=", _ms(filters["since"])))
        ids = filters.get("ids")
        return cls(conditions=tuple(conditions), ids=None if ids is None else _possible(ids))

    @property
    def is_everything(self) -> bool:
        """Whether no filter was given, except a scope."""
        return self.ids is None and all(condition.column == "topology" for condition in self.conditions)


class Table(Protocol):
    """Letters in a database. Any thread may call any method.

    A method that the database refuses raises ConnectorError or CheckpointError, and changes nothing.
    """

    place: str
    """The location, for display: without a password."""

    def insert(self, rows: Sequence[Row]) -> int:
        """Store rows, all or none, durably. A row whose topology and root are already stored is ignored.

        The ids of the rows are ignored. Returns how many rows were new.
        """

    def select(self, which: Which, after: int, most: int) -> list[Row]:
        """The first rows that match with an id above ``after``, lowest id first, at most ``most``.

        ``which`` has no more ids than fit into one statement: see :func:`parts_of`.
        """

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        """The roots among these that have a letter of this topology."""

    def messages(self, topology: str, roots: Sequence[int]) -> dict[int, tuple[str, int]]:
        """This topology's letters with these roots: root -> ``message_id_repr``, ``first_emitted_ms``."""

    def count(self, which: Which) -> int:
        """The number of rows that match."""

    def causes(self, which: Which) -> list[Cause]:
        """The rows that match, by cause, component, exception and reason."""

    def again(self, ids: Sequence[int]) -> dict[int, int]:
        """The letters that were sent again and whose message became another letter, with its id."""

    def mark(self, ids: Sequence[int], marks: Mapping[str, int | None]) -> None:
        """Set columns of rows, all or none; unknown ids are ignored."""

    def delete(self, which: Which) -> int:
        """Delete the rows that match, all or none; returns how many."""

    def close(self) -> None:
        """Close the connection. A second call does nothing; every other method raises afterwards."""


def parts_of(ids: Sequence[int] | None) -> Iterator[Sequence[int] | None]:
    """Divide ids into parts that fit into one statement; None (no filter by id) is one part."""
    if ids is None:
        yield None
        return
    for first in range(0, len(ids), MOST_IDS):
        yield ids[first : first + MOST_IDS]


def row_of(letter: DeadLetter) -> Row:
    """A letter as columns."""
    parts: dict[str, Any] = {name: getattr(letter, name) for name in COLUMNS}
    # A reason may contain a file name that is not UTF-8, or a NUL, which some databases refuse.
    row = {name: _storable(part) if isinstance(part, str) else part for name, part in parts.items()}
    origins = json.dumps(letter.plain_origins) if letter.origins else None
    return tuple((row | {"id": None, "fields": json.dumps(letter.fields), "origins": origins}).values())


def letter_of_row(row: Row) -> DeadLetter:
    """The inverse of :func:`row_of`."""
    parts: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    parts["fields"] = tuple(json.loads(parts["fields"]))
    parts["origins"] = tuple(Origin(**fields) for fields in json.loads(parts["origins"] or "[]"))
    parts["kind"] = FailureKind(parts["kind"])
    parts["cause"] = FailureCause(parts["cause"])
    parts["payload"] = bytes(parts["payload"])
    return DeadLetter(**parts)


def _possible(ids: Iterable[object]) -> tuple[int, ...]:
    """The valid ids, ascending, each once: databases refuse the others."""
    numbers = {int(number) for number in listed_ids(ids) if isinstance(number, Integral)}
    return tuple(sorted(number for number in numbers if 0 < number < 2**63))


def listed_ids(ids: Iterable[_Id]) -> list[_Id]:
    """What a caller gives as ids, as a list.

    Raises:
        MisuseError: It is one value, not several.
    """
    given: object = ids
    if not isinstance(given, Iterable):
        raise MisuseError(
            f"ids is {given!r:.60}, and must be a list of the ids of dead letters",
            f"ids={given!r:.60}",
            "give a list, also of one id: [1]",
        )
    return list(ids)


def matching(text: str) -> str:
    r"""A text for LIKE with the escape character \, which matches itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def redriven_as(letter_id: int) -> str:
    """The ``message_id_repr`` of the letter that a redriven letter becomes if it is given up again."""
    return f"Redriven(letter_id={letter_id})"


def _storable(text: str) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _ms(time: datetime | int) -> int:
    if not isinstance(time, datetime):
        return int(time)
    if time.tzinfo is None:
        raise MisuseError(
            f"{time} has no time zone, so it is ambiguous",
            "before= or since=, of dead letters",
            "give datetime(..., tzinfo=UTC), datetime.now().astimezone(), or milliseconds since 1970",
        )
    return int(time.timestamp() * 1000)
