"""Draws a trace as text, and folds tuples that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from acktree.texts import printable
from acktree.traces.trace import Trace, TracedTuple

__all__ = ["Folded", "drawn", "folded"]

_MOST_LINES: Final = 2000
_MOST_VALUES: Final = 60


@dataclass(frozen=True, slots=True)
class Folded:
    """Siblings that are alike: of one bolt and stream, with one fate and reason, and without children.

    Attributes:
        first: The first of them, which stands for all.
        count: How many there are.
    """

    first: TracedTuple
    count: int


def folded(trace: Trace, edge: int) -> list[Folded]:
    """The tuples below one, alike ones folded; failed and unacked ones first."""
    groups: dict[object, list[TracedTuple]] = {}
    for each in trace.children[edge]:
        key: object = (each.component, each.task_id, each.stream, each.fate, each.reason)
        groups.setdefault(each.edge if trace.children[each.edge] else key, []).append(each)
    found = [Folded(alike[0], len(alike)) for alike in groups.values()]
    return sorted(found, key=lambda each: (each.first.fate == "acked", each.first.fate != "failed"))


def drawn(trace: Trace) -> str:
    """A trace as text."""
    message = trace.message
    lines = [_title(trace)]
    if message.reason:
        lines.append(f"  reason: {printable(message.reason)}")
    lines += [f"    {printable(line)}" for line in (message.traceback or "").rstrip().splitlines()]
    root = next((each for each in trace.tuples if each.edge == message.root), None)
    values = message.values if root is None else root.values
    lines.append(f"{message.spout}{_task(message.task_id)} emitted {_shown(values)}")
    below = list(_below(trace, message.root))
    lines += below[:_MOST_LINES]
    if len(below) > _MOST_LINES:
        lines.append(f"... {len(below) - _MOST_LINES:,} lines more")
    for component, count in sorted(trace.more.items()):
        lines.append(f"{count:,} more at {component}, not recorded")
    if message.verdict != "ACKED":
        lines += [f"not acked: {_who(each)}" for each in trace.unacked[:20]]
    return "\n".join(lines)


def _title(trace: Trace) -> str:
    message = trace.message
    name = "" if message.message_id is None else f"message {printable(message.message_id)}, "
    attempt = f", attempt {message.attempt}" if message.attempt > 1 else ""
    took = "" if message.verdict_ms is None else f" after {_ms(message.verdict_ms - message.emitted_ms)}"
    where = f" in {message.component}" if message.component and message.verdict != "ACKED" else ""
    emitted = datetime.fromtimestamp(message.emitted_ms / 1000, UTC)
    return (
        f"{name}root {message.root}{attempt}: {message.verdict or 'open'}{where}{took}; "
        f"emitted {emitted:%Y-%m-%d %H:%M:%S}.{message.emitted_ms % 1000:03d} UTC"
    )


def _below(trace: Trace, root: int) -> Iterator[str]:
    """The lines of all tuples. The tuples below one with several anchors are drawn once."""
    seen: set[int] = set()
    ahead: list[tuple[Sequence[Folded], int, str]] = [(folded(trace, root), 0, "")]
    while ahead:
        siblings, at, indent = ahead.pop()
        if at == len(siblings):
            continue
        ahead.append((siblings, at + 1, indent))
        first, is_last = siblings[at].first, at == len(siblings) - 1
        count = f" x {siblings[at].count:,}" if siblings[at].count > 1 else ""
        again = " (drawn above)" if first.edge in seen else ""
        yield f"{indent}{'`-' if is_last else '|-'} {_line(first)}{count}{again}"
        if not again:
            seen.add(first.edge)
            ahead.append((folded(trace, first.edge), 0, indent + ("   " if is_last else "|  ")))


def _line(each: TracedTuple) -> str:
    stream = "" if each.stream == "default" else f" [{each.stream}]"
    took = "" if each.took_ms is None else f" {_ms(each.took_ms)}"
    of_n = f" of {each.together:,} together" if each.together > 1 else ""
    why = f": {printable(each.reason)}" if each.reason else ""
    return f"{each.component}{_task(each.task_id)}{stream} {_shown(each.values)} {each.fate}{took}{of_n}{why}"


def _who(each: TracedTuple) -> str:
    how = {
        "held": "holds it",
        "open": "neither acked nor failed it",
        "waiting": "has not executed it",
    }
    return f"{each.component}{_task(each.task_id)} {how.get(each.fate, each.fate)}: {_shown(each.values)}"


def _task(task: int | None) -> str:
    return "" if task is None else f" task {task}"


def _shown(values: Sequence[object]) -> str:
    text = ", ".join(map(repr, values))
    return printable(f"({text if len(text) <= _MOST_VALUES else text[: _MOST_VALUES - 3] + '...'})")


def _ms(ms: float) -> str:
    return f"{ms / 1000:,.3f} s" if ms >= 1000 else f"{ms:.3g} ms"  # noqa: PLR2004  # a second
