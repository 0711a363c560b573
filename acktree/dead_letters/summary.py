"""What went wrong, in groups: letters are alike if their reasons differ in numbers, ids and quotes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from acktree.core.tracking.verdicts import FailureCause
from acktree.dead_letters.table import Cause, Filters

_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[\w.-]*\d[\w.-]*")
"""What differs between reasons of one cause: quoted texts, lists, and words with digits."""
_MOST_SHAPE: Final = 200
_LEAST_WORD: Final = 4


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Letters that failed alike.

    Attributes:
        count: How many there are.
        cause: As of a letter.
        component: The component in which they failed; None where that is not known.
        exception_type: The qualified name of the exception; None where none was raised.
        reason: The first line of their reasons; what differs between them is ``*``.
        first_id: The lowest id among them.
    """

    count: int
    cause: str
    component: str | None
    exception_type: str | None
    reason: str
    first_id: int

    @property
    def filters(self) -> Filters:
        """Filters that match them; others match, too, whose reason has the same words."""
        chosen = Filters(cause=FailureCause(self.cause))
        if self.component is not None:
            chosen["component"] = self.component
        if self.exception_type is not None:
            chosen["exception"] = self.exception_type.rpartition(".")[2]
        words = max((word.strip(" :,.()") for word in self.reason.split("*")), key=len)
        if len(words) >= _LEAST_WORD:
            chosen["reason"] = words
        return chosen


def grouped(causes: Iterable[Cause]) -> list[LetterGroup]:
    """Put causes together whose reasons are alike; the largest group first."""

    def key(cause: Cause) -> tuple[str, str, str, str]:
        return cause.cause, cause.component or "", cause.exception_type or "", _shape(cause.reason)

    groups = []
    for (_, _, _, reason), alike in groupby(sorted(causes, key=key), key):
        causes_alike = list(alike)
        count, first_id = sum(one.count for one in causes_alike), min(one.first_id for one in causes_alike)
        groups.append(
            LetterGroup(
                count,
                causes_alike[0].cause,
                component=causes_alike[0].component,
                exception_type=causes_alike[0].exception_type,
                reason=reason,
                first_id=first_id,
            )
        )
    return sorted(groups, key=lambda group: (-group.count, group.first_id))


def _shape(reason: str) -> str:
    r"""A reason without what differs between letters.

    >>> _shape("wrong types: ['e000130', 'c1188']"), _shape("order-17 costs 3.5\n  fix: no")
    ('wrong types: *', '* costs *')
    """
    first = (reason.splitlines() or [""])[0]
    return _VARIES.sub("*", first[: 4 * _MOST_SHAPE])[:_MOST_SHAPE]
