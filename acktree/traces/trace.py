"""A traced message and its tree, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from acktree import markup
from acktree.texts import printable

_MOST_LINES: Final = 2000
_MOST_ROWS: Final = 200
_MOST_TRACEBACK_LINES: Final = 40
_MOST_VALUES: Final = 60
_MOST_INDENTED: Final = 20
"""Below this depth a line says its depth: a terminal and a table have no room to indent it."""
_DONE: Final = frozenset({"acked", "failed"})


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """One attempt of a message that was tup.

    Attributes:
        root: The root id of the attempt.
        message_id: The message id as ``repr`` shows it, shortened; None where it is not known, as for rows
            of a DataFrame.
        attempt: Which attempt this is, from 1.
        retry_of: The root of the attempt before; None for the first.
        emitted_ms: When the attempt was emitted.
        values: The values, shortened; pickled values by their size.
        verdict: "ACKED", "FAILED" or "TIMED_OUT"; None while it is open.
        verdict_ms: When the verdict was made.
        reason: Why it failed or timed out; None otherwise.
        component: The bolt that failed it, or that left a tuple without ack; None where it is not known.
        traceback: Where it failed, if user code raised.
        tuples: How many tuples of it are recorded, the message itself included.
        traceparent: The W3C traceparent that its spout gave; None if it gave none.
        label: What people call the message: the label that its spout gave; None if it gave none.
    """

    root: int
    spout: str
    task_id: int | None
    stream: str
    message_id: str | None
    attempt: int
    retry_of: int | None
    emitted_ms: int
    values: Sequence[object]
    verdict: str | None
    verdict_ms: int | None
    reason: str | None
    component: str | None
    traceback: str | None
    tuples: int
    traceparent: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class TracedTuple:
    """One tuple of a traced message, as one bolt task received it.

    Attributes:
        edge: Its edge under the root of the message; of the message itself the root.
        parents: The edges of the tuples that it is anchored to; empty for the message, and where they are
            not recorded.
        component: The bolt that received it; of the message its spout.
        task_id: The task that received it.
        source: The component that emitted it.
        stream: The stream that it was emitted on.
        batch_id: The micro-batch in which it was executed; before that the one in which it was emitted.
        began_ms: When it was executed; None if it was not.
        took_ms: How long that took.
        together: How many tuples were executed in that call; more than 1 for bolts that take batches.
        fate: "acked", "failed", "held" by its task, "open" (executed, and neither), or "waiting" for its
            task; of the message "emitted".
        fate_batch_id: The micro-batch in which it was acked or failed.
        reason: Why it was failed; empty otherwise.
        values: The values, shortened; pickled values by their size.
    """

    edge: int
    parents: Sequence[int]
    component: str
    task_id: int | None
    source: str
    source_task_id: int | None
    stream: str
    batch_id: int
    began_ms: int | None
    took_ms: float | None
    together: int
    fate: str
    fate_batch_id: int | None
    reason: str
    values: Sequence[object]


@dataclass(frozen=True)
class Trace:
    """A message with its tree.

    Attributes:
        tuples: The recorded tuples, the message first, parents before children.
        more: Component -> how many further tuples it received that are not recorded.
    """

    message: TracedMessage
    tuples: Sequence[TracedTuple]
    more: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def children(self) -> Mapping[int, Sequence[TracedTuple]]:
        """Edge -> the tuples anchored to it. A tuple with several anchors is below each of them.

        Below the root are also tuples whose parents are not recorded.
        """
        known = {tup.edge for tup in self.tuples}
        below: dict[int, list[TracedTuple]] = {edge: [] for edge in known | {self.message.root}}
        for tup in self.tuples:
            if tup.edge == self.message.root:
                continue
            above = [parent for parent in tup.parents if parent in known] or [self.message.root]
            for parent in above:
                below[parent].append(tup)
        return below

    @cached_property
    def failed(self) -> Sequence[TracedTuple]:
        """The tuples that were failed."""
        return [tup for tup in self.tuples if tup.fate == "failed"]

    @cached_property
    def unacked(self) -> Sequence[TracedTuple]:
        """The tuples that were neither acked nor failed: who holds a message up, or let it time out."""
        return [tup for tup in self.tuples if tup.fate not in _DONE and tup.edge != self.message.root]

    def __str__(self) -> str:
        """The message and its tree as text; alike tuples are drawn once, with their number."""
        return drawn(self)

    def _repr_html_(self) -> str:
        """The message and its tree as a table, for notebooks."""
        return _html(self)


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
    for tup in trace.children[edge]:
        key: object = (tup.component, tup.task_id, tup.stream, tup.fate, tup.reason)
        groups.setdefault(tup.edge if trace.children[tup.edge] else key, []).append(tup)
    rows = [Folded(alike[0], len(alike)) for alike in groups.values()]
    return sorted(rows, key=lambda row: (row.first.fate == "acked", row.first.fate != "failed"))


def fates_of(trace: Trace) -> Mapping[int, AbstractSet[str]]:
    """Edge -> the fates of its tuple and of all below it."""
    fates: dict[int, AbstractSet[str]] = {}
    for tup in reversed(trace.tuples):
        below = (fates.get(child.edge, frozenset()) for child in trace.children[tup.edge])
        fates[tup.edge] = frozenset({tup.fate}).union(*below)
    return fates


def in_order(root: int, tuples: Sequence[TracedTuple]) -> list[TracedTuple]:
    """The message first, then level by level; siblings by when they began, then by edge.

    Tuples that are below themselves come last.
    """
    unplaced = {tup.edge: tup for tup in sorted(tuples, key=lambda tup: (tup.began_ms or 0, tup.edge))}
    ordered = [unplaced.pop(root)] if root in unplaced else []
    rank = {edge: at for at, edge in enumerate(unplaced)}
    levels = TopologicalSorter({edge: unplaced.keys() & tup.parents for edge, tup in unplaced.items()})
    with suppress(CycleError):
        levels.prepare()
    while level := levels.get_ready():
        ordered += [unplaced.pop(edge) for edge in sorted(level, key=rank.__getitem__)]
        levels.done(*level)
    return [*ordered, *unplaced.values()]


def drawn(trace: Trace) -> str:
    """A trace as text."""
    message = trace.message
    lines = [_title(trace)]
    if message.reason:
        lines.append(f"  reason: {printable(message.reason)}")
    lines += [f"    {printable(line)}" for line in (message.traceback or "").rstrip().splitlines()]
    root = next((tup for tup in trace.tuples if tup.edge == message.root), None)
    values = message.values if root is None else root.values
    lines.append(f"{message.spout}{_task(message.task_id)} emitted {_shown(values)}")
    below = list(_below(trace, message.root))
    lines += below[:_MOST_LINES]
    if len(below) > _MOST_LINES:
        lines.append(f"... {len(below) - _MOST_LINES:,} lines more")
    for component, count in sorted(trace.more.items()):
        lines.append(f"{count:,} more at {component}, not recorded")
    if message.verdict != "ACKED":
        lines += [f"not acked: {_who(tup)}" for tup in trace.unacked[:20]]
    return "\n".join(lines)


def _html(trace: Trace) -> str:
    """A trace as static HTML."""
    message = trace.message
    below = list(_placed(trace, message.root))
    parts = []
    if message.reason:
        parts.append(markup.note(f"reason: {message.reason}"))
    if message.traceback:
        lines = message.traceback.rstrip().splitlines()
        parts.append(markup.table(("traceback",), ([line] for line in lines[-_MOST_TRACEBACK_LINES:])))
    first = ("", message.spout, message.task_id, message.stream, _shown(message.values), "emitted", None, "")
    rows = [first, *(_cells(each) for each in below[:_MOST_ROWS])]
    parts.append(
        markup.table(("", "component", "task", "stream", "values", "fate", "took", "why"), rows, right_from=8)
    )
    if len(below) > _MOST_ROWS:
        parts.append(markup.note(f"{len(below) - _MOST_ROWS:,} lines more: print it"))
    parts += [
        markup.note(f"{count:,} more at {component}, not recorded")
        for component, count in sorted(trace.more.items())
    ]
    if message.verdict != "ACKED":
        parts += [markup.note(f"not acked: {_who(each)}") for each in trace.unacked[:20]]
    return markup.block(_title(trace), *parts)


def _cells(placed: _Placed) -> Sequence[object]:
    """The cells of a tuple; its depth is drawn with points, since HTML drops spaces."""
    tup = placed.folded.first
    count = f" x {placed.folded.count:,}" if placed.folded.count > 1 else ""
    together = f" of {tup.together:,} together" if tup.together > 1 else ""
    took = None if tup.took_ms is None else f"{_ms(tup.took_ms)}{together}"
    again = " (shown above)" if placed.is_again else ""
    depth = placed.depth
    points = "\u00b7 " * (depth + 1) if depth <= _MOST_INDENTED else f"depth {depth}"
    return (
        points, f"{tup.component}{count}{again}", tup.task_id, tup.stream,
        _shown(tup.values), tup.fate, took, tup.reason,
    )  # fmt: skip


def _title(trace: Trace) -> str:
    message = trace.message
    name = "" if message.message_id is None else f"message {printable(message.message_id)}, "
    name += f"label {printable(message.label)}, " if message.label else ""
    attempt = f", attempt {message.attempt}" if message.attempt > 1 else ""
    took = "" if message.verdict_ms is None else f" after {_ms(message.verdict_ms - message.emitted_ms)}"
    where = f" in {message.component}" if message.component and message.verdict != "ACKED" else ""
    emitted = datetime.fromtimestamp(message.emitted_ms / 1000, UTC)
    return (
        f"{name}root {message.root}{attempt}: {message.verdict or 'open'}{where}{took}; "
        f"emitted {emitted:%Y-%m-%d %H:%M:%S}.{message.emitted_ms % 1000:03d} UTC"
    )


class _Placed(NamedTuple):
    """A tuple at its place in the drawing.

    Attributes:
        depth: How many tuples are above it, the message aside.
        indent: What the lines above it leave room for.
        is_last: Whether it is the last of its siblings.
        is_again: Whether it, and what is below it, was drawn before.
    """

    folded: Folded
    depth: int
    indent: str
    is_last: bool
    is_again: bool


def _below(trace: Trace, root: int) -> Iterator[str]:
    """The lines of all tuples."""
    for alike, depth, indent, is_last, is_again in _placed(trace, root):
        count = f" x {alike.count:,}" if alike.count > 1 else ""
        again = " (drawn above)" if is_again else ""
        deep = f"depth {depth}: " if depth > _MOST_INDENTED else ""
        yield f"{indent}{'`-' if is_last else '|-'} {deep}{_line(alike.first)}{count}{again}"


def _placed(trace: Trace, root: int) -> Iterator[_Placed]:
    """All tuples, in the order of the drawing. The tuples below one with several anchors are there once."""
    seen: set[int] = set()
    ahead: list[tuple[Sequence[Folded], int, int, str]] = [(folded(trace, root), 0, 0, "")]
    while ahead:
        siblings, at, depth, indent = ahead.pop()
        if at == len(siblings):
            continue
        ahead.append((siblings, at + 1, depth, indent))
        edge, is_last = siblings[at].first.edge, at == len(siblings) - 1
        is_again = edge in seen
        yield _Placed(siblings[at], depth, indent, is_last, is_again)
        if not is_again:
            seen.add(edge)
            further = "" if depth >= _MOST_INDENTED else "   " if is_last else "|  "
            ahead.append((folded(trace, edge), 0, depth + 1, indent + further))


def _line(tup: TracedTuple) -> str:
    stream = "" if tup.stream == "default" else f" [{tup.stream}]"
    took = "" if tup.took_ms is None else f" {_ms(tup.took_ms)}"
    of_n = f" of {tup.together:,} together" if tup.together > 1 else ""
    why = f": {printable(tup.reason)}" if tup.reason else ""
    return f"{tup.component}{_task(tup.task_id)}{stream} {_shown(tup.values)} {tup.fate}{took}{of_n}{why}"


def _who(tup: TracedTuple) -> str:
    how = {
        "held": "holds it",
        "open": "neither acked nor failed it",
        "waiting": "has not executed it",
    }
    return f"{tup.component}{_task(tup.task_id)} {how.get(tup.fate, tup.fate)}: {_shown(tup.values)}"


def _task(task: int | None) -> str:
    return "" if task is None else f" task {task}"


def _shown(values: Sequence[object]) -> str:
    text = ", ".join(map(repr, values))
    return printable(f"({text if len(text) <= _MOST_VALUES else text[: _MOST_VALUES - 3] + '...'})")


def _ms(ms: float) -> str:
    return f"{ms / 1000:,.3f} s" if ms >= 1000 else f"{ms:.3g} ms"  # noqa: PLR2004  # a second
