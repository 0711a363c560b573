"""Writes tables and pictures into the pages of ``docs``, between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.pictures import FOLDER

BEGIN: Final = "<!-- measured: written by `python -m benchmarks table --write` -->"
END: Final = "<!-- end of measured -->"
MISSING: Final = "not measured yet"

Line = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; without rows it says that nothing was measured."""
    rows = list(rows)
    if not rows:
        return f"{MISSING.capitalize()}.\n"
    out = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in out)


def spread(ratio: Mapping[str, float]) -> str:
    """A ratio with the spread of its rounds."""
    return f"**{ratio['median']:.2f}** ({ratio['least']:.2f} to {ratio['greatest']:.2f})"


def when(line: Line) -> str:
    """The day of a measurement, and what was measured."""
    return f"{line['at'][:10]}, {line['machine']['acktree']}"


def picture(name: str) -> str:
    """A picture; empty if it was not drawn."""
    return f"![{name}](pictures/{name}.svg)" if (FOLDER / f"{name}.svg").exists() else ""


def written(page: Path, *blocks: str) -> str:
    """The page with its current tables: one block of them between each pair of marks."""
    first, *rest = page.read_text(encoding="utf-8").split(BEGIN)
    ends = [each.partition(END) for each in rest]
    marked = [mark for _, mark, _ in ends if mark]
    assert len(marked) == len(ends) == len(blocks), f"{page.name} has lost its marks: {BEGIN} and {END}"
    pieces = [f"{BEGIN}\n\n{block}\n{END}{after}" for block, (_, _, after) in zip(blocks, ends, strict=True)]
    return "".join([first, *pieces])
