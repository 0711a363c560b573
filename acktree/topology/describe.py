"""A description of a topology, as a value that can be printed, compared and drawn.

Rules of this file
------------------
1. A description is JSON data in a defined order. The text and the drawing are made only from this data.
2. It shows the levels, because a user cannot see in the program which bolts run together.

Source: ours, after Kafka Streams' ``Topology.describe()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from acktree.core.data.groupings import Fields, Grouping, PartialKey
from acktree.core.spouts.retry import longest_pauses_secs
from acktree.topology.component import Component
from acktree.topology.declared import code_name
from acktree.topology.drawing import html_of
from acktree.topology.levels import Level


@dataclass(frozen=True)
class Description:
    """The result of ``Topology.describe()``; equal for equal topologies.

    Attributes:
        data: ``name``, ``partitions``, ``components`` (id -> its kind, tasks, streams and settings),
            ``subscriptions`` and ``levels``; dicts, lists, strings and numbers only.
    """

    data: dict[str, Any]

    def __repr__(self) -> str:
        return f"Description({self.data['name']!r:.50}, {len(self.data['levels'])} levels)"

    def _repr_html_(self) -> str:
        """For notebooks: a drawing and a table."""
        return html_of(self.data)

    def __str__(self) -> str:
        """Level by level: the components with their tasks and inputs."""
        lines = [f"topology {self.data['name']} on {_count(self.data['partitions'], 'partition')}"]
        for level in self.data["levels"]:
            lines.append(f"  {_title(level)}")
            lines += [
                f"    {line}" for component in level["components"] for line in self._lines_of(component)
            ]
        return "\n".join(lines)

    def mermaid(self) -> str:
        """A Mermaid flowchart: a box for each level; a thick arrow is a shuffle to another level.

        Paste it into Markdown between ```` ```mermaid ```` and ```` ``` ````.
        """
        nodes = {component: f"c{number}" for number, component in enumerate(self.data["components"])}
        level_of = {name: level["index"] for level in self.data["levels"] for name in level["components"]}
        lines = ["flowchart LR"]
        for level in self.data["levels"]:
            lines.append(f'  subgraph level{level["index"]}["{_quoted(_title(level))}"]')
            for component in level["components"]:
                about = self.data["components"][component]
                left, right = ('(["', '"])') if about["kind"] == "spout" else ('["', '"]')
                label = f"{_quoted(component)}<br/>{_count(about['parallelism'], 'task')}"
                lines.append(f"    {nodes[component]}{left}{label}{right}")
            lines.append("  end")
        for edge in self.data["subscriptions"]:
            arrow = "-->" if level_of[edge["source"]] == level_of[edge["subscriber"]] else "==>"
            stream = "" if edge["stream"] == "default" else f"{edge['stream']}: "
            label = _quoted(stream + edge["grouping"])
            lines.append(f'  {nodes[edge["source"]]} {arrow}|"{label}"| {nodes[edge["subscriber"]]}')
        for gate, about in self.data["components"].items():
            if "gate_of" in about:
                lines.append(f'  {nodes[about["gate_of"]]} -.->|"once ACKED"| {nodes[gate]}')
        return "\n".join(lines)

    def _lines_of(self, component: str) -> list[str]:
        about = self.data["components"][component]
        tasks = about["task_ids"]
        numbers = f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {_ranges(tasks)}"
        extra = [f"remembers {', '.join(about['remembers'])}"] if about["remembers"] else []
        extra += [f"ticks every {about['tick_secs']:g} s"] if about["tick_secs"] else []
        extra += [f"executes for at most {secs:g} s"] if (secs := about["execute_timeout_secs"]) else []
        extra += (
            [f"messages time out after {secs:g} s"] if (secs := about.get("message_timeout_secs")) else []
        )
        extra += [about["retry"]] if about["retry"] else []
        extra += [about["promise"]] if "promise" in about else []
        if "gate_of" in about:
            return [f"gate {component}, {numbers}, {about['retry']}", f"  <- {about['gate_of']} once ACKED"]
        lines = [
            f"{about['kind']} {component} ({about['class']}), {numbers}" + "".join(f", {e}" for e in extra)
        ]
        for edge in self.data["subscriptions"]:
            if edge["subscriber"] == component:
                stream = "" if edge["stream"] == "default" else f":{edge['stream']}"
                lines.append(f"  <- {edge['source']}{stream} by {edge['grouping']}")
        for stream, names in about["streams"].items():
            lines.append(f"  -> {stream}({', '.join(names)})")
        return lines


def _ranges(tasks: Sequence[int]) -> str:
    """Ascending task ids as text; a rebalance can leave gaps.

    >>> _ranges([1, 2, 3, 5])
    '1-3, 5'
    """
    starts = [at for at, task in enumerate(tasks) if not at or tasks[at - 1] != task - 1]
    parts = [tasks[start:end] for start, end in pairwise([*starts, len(tasks)])]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def describe(
    name: str, components: Mapping[str, Component], levels: Sequence[Level], partitions: int
) -> Description:
    """Describe a topology.

    Args:
        name: The topology's name.
        components: Component id -> component, sorted by id.
        levels: From 0 upwards, for this number of partitions.
        partitions: The number of partitions of a level.
    """
    spouts = [component.id for component in components.values() if component.kind == "spout"]
    return Description(
        {
            "name": name,
            "partitions": partitions,
            "components": {
                component.id: _about(component) | _promise_of(component, components)
                for component in components.values()
            },
            "subscriptions": [
                {
                    "source": edge.source,
                    "stream": edge.stream,
                    "subscriber": edge.subscriber,
                    "grouping": _words(edge.grouping),
                }
                for component in components.values()
                for edge in component.inputs
            ],
            "levels": [
                {
                    "index": level.index,
                    "stateful": level.stateful,
                    "components": [*(spouts if level.index == 0 else ()), *level.bolts],
                }
                for level in levels
            ],
        }
    )


def _about(component: Component) -> dict[str, Any]:
    retry = component.retry
    return {
        "kind": component.kind,
        "class": code_name(component.user_object),
        "parallelism": component.parallelism,
        "task_ids": list(component.task_ids),
        "streams": {stream: list(declared.fields) for stream, declared in component.streams.items()},
        "remembers": list(getattr(component.user_object, "shown_memory", component.remembers)),
        "tick_secs": component.tick_secs,
        "execute_timeout_secs": component.execute_timeout_secs,
        "at_once": component.at_once,
        "message_timeout_secs": component.message_timeout_secs,
        "retry": None if retry is None else f"retries up to {retry.max_attempts} attempts",
        "retry_attempts": None if retry is None else retry.max_attempts,
        "retry_pauses_secs": None if retry is None else longest_pauses_secs(retry),
        "retry_max_age_secs": None if retry is None else retry.max_age_secs,
    }


def _promise_of(component: Component, components: Mapping[str, Component]) -> dict[str, Any]:
    """What is said of gates and beside gates; nothing in a topology without any."""
    if component.gated is not None:
        return {"gate_of": component.gated}
    if component.exactly_once:
        return {"promise": "exactly once"}
    is_behind = any(components[edge.source].gated is not None for edge in component.inputs)
    if is_behind and component.remembers:
        return {"promise": "at least once: it may remember a tuple twice, add exactly_once=True"}
    return {"promise": "at least once"} if is_behind else {}


def _words(grouping: Grouping) -> str:
    if isinstance(grouping, (Fields, PartialKey)):
        return f"{grouping.name} {', '.join(grouping.fields)}"
    return grouping.name


def _title(level: Mapping[str, Any]) -> str:
    what = "source" if level["index"] == 0 else "remembers" if level["stateful"] else "stateless"
    return f"level {level['index']}: {what}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _quoted(text: str) -> str:
    """Escape text for a quoted label of Mermaid, which has entities and no backslash escapes."""
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
