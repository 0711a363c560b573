"""The versions that acktree needs, from its own metadata, and whether those that are installed fit.

Versions are compared as PEP 440 says, as far as the ranges of acktree go: ``packaging`` is no dependency.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from types import MappingProxyType
from typing import Any, Final

__all__ = ["Requirement", "fits", "python_range", "requirements"]

_REQUIREMENT: Final = re.compile(
    r"""(?P<name>[\w.-]+)(?:\[[^\]]*\])?\s*\(?(?P<range>[^;()]*)\)?(?:;.*\bextra\s*==\s*["'](?P<extra>[\w-]+)["'])?"""
)
_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*([\w.]+)\s*")
_VERSION: Final = re.compile(r"v?(\d+(?:\.\d+)*)[._-]?(a|b|rc|dev|alpha|beta|c|pre|preview)?", re.IGNORECASE)
_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        ">": operator.gt,
    }
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that acktree needs.

    Attributes:
        range: As pip takes it; empty for any version.
        extra: The extra that needs it; empty where acktree itself does.
    """

    name: str
    range: str
    extra: str

    @property
    def fix(self) -> str:
        """The command that installs a version that fits."""
        return f"pip install '{self.name}{self.range}'"


def requirements() -> Iterator[Requirement]:
    """All packages that acktree and its extras need; none where acktree was not installed."""
    try:
        lines = requires("acktree") or []
    except PackageNotFoundError:
        return
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is not None:
            bounds = sorted(found["range"].replace(" ", "").split(","), reverse=True)  # the least first
            yield Requirement(found["name"], ",".join(bounds), found["extra"] or "")


def python_range() -> str:
    """The versions of Python that acktree needs; empty where it was not installed."""
    try:
        return str(metadata("acktree").json.get("requires_python", ""))
    except PackageNotFoundError:
        return ""


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range. What cannot be read fits: pip has judged it.

    >>> fits("4.2.1", ">=4.2,<4.4"), fits("4.4.0", ">=4.2,<4.4"), fits("4.2.0.dev3", ">=4.2")
    (True, False, False)
    """
    bounds = (_BOUND.fullmatch(bound) for bound in wanted.split(","))
    return all(_is_within(version, bound[1], bound[2]) for bound in bounds if bound is not None)


def _is_within(version: str, compared: str, bound: str) -> bool:
    mine, other = _VERSION.match(version), _VERSION.match(bound)
    if mine is None or other is None:
        return True
    release, limit = _release(mine[1]), _release(other[1])
    if compared == "<":  # a pre-release of the limit is not below it
        return release < limit
    # A pre-release is before its release.
    return bool(_COMPARED[compared]((release, mine[2] is None), (limit, other[2] is None)))


def _release(text: str) -> tuple[int, ...]:
    """The numbers of a release, without the zeros at its end: 4.2.0 is 4.2."""
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
