"""A topology as a drawing: static SVG for notebooks, with a table of its components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from acktree import markup
from acktree.topology.layout import layout

_WIDE: Final = 150
_HIGH: Final = 44
_STEP_X: Final = 220
_STEP_Y: Final = 70
_MOST_DRAWN: Final = 60
"""A topology of more components is shown as a table alone."""
_MOST_LABEL: Final = 20


def svg_of(graph: Mapping[str, Any]) -> str:
    """The components as boxes from left to right, an arrow for each subscription.

    Args:
        graph: ``Description.data``.
    """
    places = {name: (x * _STEP_X + 8, y * _STEP_Y + 8) for name, (x, y) in layout(graph).items()}
    wide = max((x for x, _ in places.values()), default=0) + _WIDE + 8
    high = max((y for _, y in places.values()), default=0) + _HIGH + 8
    arrows = "".join(_arrow(*places[e["source"]], *places[e["subscriber"]]) for e in graph["subscriptions"])
    boxes = "".join(_box(name, about, *places[name]) for name, about in graph["components"].items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" role="img" '
        f'style="max-width:100%;font:13px sans-serif">{arrows}{boxes}</svg>'
    )


def _arrow(from_x: float, from_y: float, to_x: float, to_y: float) -> str:
    x, y, end, to = from_x + _WIDE, from_y + _HIGH / 2, to_x, to_y + _HIGH / 2
    bend = (x + end) / 2
    return (
        f'<path d="M{x:g},{y:g} C{bend:g},{y:g} {bend:g},{to:g} {end:g},{to:g}" fill="none" stroke="#888"/>'
        f'<path d="M{end:g},{to:g} l-8,-4 v8 z" fill="#888"/>'
    )


def _box(name: str, about: Mapping[str, Any], x: float, y: float) -> str:
    shown = name if len(name) <= _MOST_LABEL else f"{name[: _MOST_LABEL - 1]}\N{HORIZONTAL ELLIPSIS}"
    tasks = about["parallelism"]
    round_by = _HIGH / 2 if about["kind"] == "spout" else 4
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="{round_by:g}" fill="none" '
        f'stroke="currentColor"/><text x="{x + _WIDE / 2:g}" y="{y + 19:g}" text-anchor="middle" '
        f'fill="currentColor">{markup.text(shown)}</text><text x="{x + _WIDE / 2:g}" y="{y + 35:g}" '
        f'text-anchor="middle" fill="currentColor" opacity="0.7">{about["kind"]}, '
        f"{tasks} task{'' if tasks == 1 else 's'}</text>"
    )


def html_of(graph: Mapping[str, Any]) -> str:
    """The drawing, and below it a table of the components.

    Args:
        graph: ``Description.data``.
    """
    levels = {name: level["index"] for level in graph["levels"] for name in level["components"]}
    rows = [
        (
            name,
            about["kind"],
            about["class"],
            ", ".join(f"{stream}({', '.join(fields)})" for stream, fields in about["streams"].items()),
            "; ".join(_input(edge) for edge in graph["subscriptions"] if edge["subscriber"] == name),
            levels[name],
            about["parallelism"],
        )
        for name, about in graph["components"].items()
    ]
    head = ("component", "kind", "class", "emits", "reads", "level", "tasks")
    drawn = svg_of(graph) if len(graph["components"]) <= _MOST_DRAWN else ""
    return markup.block(f"topology {graph['name']}", drawn, markup.table(head, rows, right_from=5))


def _input(edge: Mapping[str, str]) -> str:
    stream = "" if edge["stream"] == "default" else f":{edge['stream']}"
    return f"{edge['source']}{stream} by {edge['grouping']}"
