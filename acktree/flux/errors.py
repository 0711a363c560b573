"""The error of a Flux file, and the place in a file that it names."""

from __future__ import annotations

from dataclasses import dataclass

from acktree import TopologyError
from acktree.texts import bounded, printable

__all__ = ["FluxError", "Place"]

_MOST: int = 1_000


class FluxError(TopologyError):
    """A Flux file is wrong, or a file that it includes. Its text is one line, ``file:line: what; fix``.

    Attributes:
        file: The file, as it was named.
        line: The line, from 1.
    """

    def __init__(self, what: str, where: str, fix: str, *, file: str = "", line: int = 1) -> None:
        super().__init__(what, where, fix)
        self.file, self.line = file, line

    def __str__(self) -> str:
        return f"{printable(self.where)}: {self.what}; {self.fix}"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file.

    >>> print(Place("topology.yaml", 3).mistake("there is no bolt 'cuont'", "did you mean 'count'?"))
    topology.yaml:3: there is no bolt 'cuont'; did you mean 'count'?
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def mistake(self, what: str, fix: str) -> FluxError:
        """The error that names this place; both texts become one line."""
        return FluxError(_line(what), str(self), _line(fix), file=self.file, line=self.line)


def _line(text: str) -> str:
    return bounded(printable(" ".join(text.split())), _MOST)
