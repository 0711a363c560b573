"""Where the components of a topology are drawn: columns by the longest path from a spout, few crossings.

Source: the layered drawing of Sugiyama, with barycentres.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

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
    for gate, about in graph["components"].items():
        if "gate_of" in about:
            before[gate].add(about["gate_of"])
            after[about["gate_of"]].add(gate)
    columns = _columns(before)
    ordered: dict[int, list[str]] = defaultdict(list)
    for name in sorted(before, key=natural):
        ordered[columns[name]].append(name)
    best, fewest = {column: [*names] for column, names in ordered.items()}, _crossings(ordered, before)
    for sweep in range(_SWEEPS):
        near, order = (before, sorted(ordered)) if sweep % 2 == 0 else (after, sorted(ordered, reverse=True))
        for column in order:
            _sort(ordered, column, near)
        crossings = _crossings(ordered, before)
        if crossings < fewest:  # else names stay in their order
            best, fewest = {column: [*names] for column, names in ordered.items()}, crossings
    tallest = max(map(len, best.values()), default=0)
    return {
        name: (column, at + (tallest - len(names)) / 2)
        for column, names in sorted(best.items())
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


def _places(ordered: Mapping[int, list[str]]) -> dict[str, float]:
    """The place of each component in its column, from 0 to 1."""
    return {name: at / max(1, len(names) - 1) for names in ordered.values() for at, name in enumerate(names)}


def _crossings(ordered: Mapping[int, list[str]], before: Mapping[str, set[str]]) -> int:
    """How many pairs of edges into one column cross."""
    places, count = _places(ordered), 0
    for names in ordered.values():
        passed: list[float] = []
        for _, at in sorted((places[source], places[name]) for name in names for source in before[name]):
            count += len(passed) - bisect_right(passed, at)
            insort(passed, at)
    return count


def _sort(ordered: Mapping[int, list[str]], column: int, near: Mapping[str, set[str]]) -> None:
    """Sort a column by the mean place of each component's neighbours."""
    places = _places(ordered)

    def mean(name: str) -> float:
        near_places = [places[neighbour] for neighbour in near[name]]
        return sum(near_places) / len(near_places) if near_places else places[name]

    ordered[column].sort(key=lambda name: (mean(name), natural(name)))
