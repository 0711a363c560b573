"""Where the components of a topology are drawn: columns by the longest path from a spout, few crossings.

Source: the layered drawing of Sugiyama, with barycentres.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["layout", "natural"]

_SWEEPS: Final = 4
_TEXT: Final = 10**18
"""Text is behind every number, as letters are behind digits."""


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """The key of an order in which numbers in names count as numbers.

    >>> sorted(["bolt-10", "bolt-2", "b", "2b"], key=natural)
    ['2b', 'b', 'bolt-2', 'bolt-10']
    """
    parts = re.findall(r"([0-9]{1,18})|([^0-9]+)", name)
    return (*((int(digits) if digits else _TEXT, text) for digits, text in parts), (-1, name))


def layout(graph: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """The column of each component, from 0, and its place in it, from 0.

    Args:
        graph: ``Description.data``.

    >>> edge = {"source": "a", "subscriber": "b"}
    >>> layout({"components": {"a": {}, "b": {}}, "subscriptions": [edge]})
    {'a': (0, 0.0), 'b': (1, 0.0)}
    """
    before: dict[str, set[str]] = {name: set() for name in graph["components"]}
    after: dict[str, set[str]] = {name: set() for name in graph["components"]}
    for edge in graph["subscriptions"]:
        before[edge["subscriber"]].add(edge["source"])
        after[edge["source"]].add(edge["subscriber"])
    columns = _columns(before)
    ordered: dict[int, list[str]] = defaultdict(list)
    for name in sorted(before, key=natural):
        ordered[columns[name]].append(name)
    for sweep in range(_SWEEPS):
        near, order = (before, sorted(ordered)) if sweep % 2 == 0 else (after, sorted(ordered, reverse=True))
        for column in order:
            _sort(ordered, column, near)
    tallest = max(map(len, ordered.values()), default=0)
    return {
        name: (column, at + (tallest - len(names)) / 2)
        for column, names in sorted(ordered.items())
        for at, name in enumerate(names)
    }


def _columns(before: Mapping[str, set[str]]) -> dict[str, int]:
    columns = dict.fromkeys(before, 0)
    for _ in before:  # a topology has no cycle: the longest path is shorter than the number of components
        moved = False
        for name, sources in before.items():
            wanted = max((columns[source] + 1 for source in sources), default=0)
            if wanted > columns[name]:
                columns[name], moved = wanted, True
        if not moved:
            break
    return columns


def _sort(ordered: Mapping[int, list[str]], column: int, near: Mapping[str, set[str]]) -> None:
    """Sort a column by the mean place of each component's neighbours."""
    places = {
        name: at / max(1, len(names) - 1) for names in ordered.values() for at, name in enumerate(names)
    }

    def mean(name: str) -> float:
        found = [places[each] for each in near[name]]
        return sum(found) / len(found) if found else places[name]

    ordered[column].sort(key=lambda name: (mean(name), natural(name)))
