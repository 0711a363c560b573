"""The versions that acktree needs, from its own metadata, and whether those that are installed fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires

from packaging.requirements import Requirement as Line
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

__all__ = ["Requirement", "fits", "python_range", "requirements"]


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
        lines = [Line(line) for line in requires("acktree") or ()]
        extras = metadata("acktree").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return
    for line in lines:
        for extra in ["", *extras]:
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                bounds = sorted(map(str, line.specifier), reverse=True)  # the least first
                yield Requirement(line.name, ",".join(bounds), extra)
                break


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
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True
