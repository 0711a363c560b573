"""Traces as JSON for operators: pages of messages, and a tree in slices.

Roots and edges are texts: they have 64 bits, and JSON's readers in browsers round such numbers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from acktree.traces.events import MOST_EVENTS, Event
from acktree.traces.trace import Folded, Trace, TracedMessage, TracedTuple, fates_of, folded
from acktree.traces.traces import Traces
from acktree.ui.known_names import MOST_PAGE, WHOLE, limit_of, read_question

_USUAL_PAGE: Final = 50
_SLICE: Final = 200
"""The most lines of a slice of a tree."""
_MOST_OPENED: Final = 25
_OPENED_ANYWAY: Final = 5
"""At most 25 slices are opened at first: five, and then those with a tuple that was not acked."""
_MOST_NAMED: Final = 50

Row = dict[str, Any]


def page(traces: Traces, query: Mapping[str, str]) -> Row:
    """Messages that match, the newest first, and the key of the next page.

    Args:
        query: ``message_id``, ``label``, ``root``, ``verdict``, ``component``, ``reason``, ``since`` and
            ``before`` (in milliseconds since 1970), ``limit``, ``after``.

    Raises:
        ConfigError: A number that is none.
        MisuseError: There is no such verdict.
    """
    asked = read_question("traces", query)
    limit = limit_of(asked, _USUAL_PAGE, MOST_PAGE)
    messages = traces.find(
        **{
            name: asked.get(name)
            for name in ("message_id", "label", "root", "verdict", "component", "reason")
        },
        since_ms=asked.get("since"),
        before_ms=asked.get("before"),
        limit=limit,
        after=_key(asked.get("after")),
    )
    last = messages[-1] if len(messages) == limit else None
    return {
        "rate": traces.rate,
        "count": len(traces),
        "messages": [_message(message) for message in messages],
        "after": None if last is None else f"{last.emitted_ms}.{last.root}",
    }


def events(recent: Callable[[int, str | None], Sequence[Event]], query: Mapping[str, str]) -> Row:
    """The last tuples that were logged, the newest last.

    Args:
        recent: Gives the last ones: how many, and of which component.
        query: ``limit``, ``component``.

    Raises:
        ConfigError: The limit is no whole number above 0.
    """
    asked = read_question("events", query)
    logged = recent(limit_of(asked, _USUAL_PAGE, MOST_EVENTS), asked.get("component"))
    return {"events": [json.loads(event.to_json()) for event in logged]}


def tree_of(traces: Traces, root: int, query: Mapping[str, str]) -> Row | None:
    """A message with its tree, or a part of it; None if not stored.

    Args:
        query: ``edge`` and ``first``: what is below one of its tuples. ``all``: the whole tree.
    """
    asked = read_question("trace-of", query)
    return _slice_of(traces, root, asked) if "edge" in asked or asked.get("all") else whole(traces, root)


def whole(traces: Traces, root: int) -> Row | None:
    """A message with the first slices of its tree, what failed and who never acked; None if not stored.

    ``tree`` is what is below the message, ``slices`` what is shown below tuples before a reader opens more.
    """
    trace = traces.get(root)
    if trace is None:
        return None
    return {
        "message": _message(trace.message) | {"traceback": trace.message.traceback},
        "attempts": [_message(row) for row in traces.attempts(trace.message)],
        "tree": _slice(trace, root, 0),
        "slices": {str(edge): _slice(trace, edge, 0) for edge in opened_at_first(trace)},
        "failed": [_tuple(row) for row in trace.failed[:_MOST_NAMED]],
        "unacked": [_tuple(row) for row in trace.unacked[:_MOST_NAMED]],
        "unacked_count": len(trace.unacked),
        "more": dict(trace.more),
        "text": str(trace),
    }


def _slice_of(traces: Traces, root: int, asked: Mapping[str, Any]) -> Row | None:
    """The tuples below one, ``edge``, from number ``first`` on; alike ones folded. None if not stored.

    With ``all`` the whole tree: ``slices``, by the edge of the tuple that each is below.
    """
    trace = traces.get(root)
    if trace is not None and asked.get("all"):
        return {
            "slices": {
                str(edge): _slice(trace, edge, 0, len(below))
                for edge, below in trace.children.items()
                if below
            }
        }
    edge = asked.get("edge")
    if trace is None or edge is None or edge not in trace.children:
        return None
    return {"tree": _slice(trace, edge, asked.get("first", 0))}


def opened_at_first(trace: Trace) -> list[int]:
    """The tuples that are opened at first, level by level."""
    opened: list[int] = []
    fates = fates_of(trace)
    ahead = deque(folded(trace, trace.message.root)[:_SLICE])
    while ahead and len(opened) < _MOST_OPENED:
        edge = ahead.popleft().first.edge
        is_wanted = len(opened) < _OPENED_ANYWAY or fates[edge] - {"acked"}
        if trace.children[edge] and is_wanted and edge not in opened:
            opened.append(edge)
            ahead += folded(trace, edge)[:_SLICE]
    return opened


def _slice(trace: Trace, edge: int, first: int, most: int = _SLICE) -> Row:
    lines = folded(trace, edge)
    return {
        "edge": str(edge),
        "first": first,
        "count": len(lines),
        "lines": [_line(trace, row) for row in lines[first : first + most]],
    }


def _line(trace: Trace, row: Folded) -> Row:
    return _tuple(row.first) | {"alike": row.count, "below": len(trace.children[row.first.edge])}


def _message(message: TracedMessage) -> Row:
    shown = asdict(message) | {
        "root": str(message.root),
        "retry_of": None if message.retry_of is None else str(message.retry_of),
    }
    del shown["traceback"]
    return shown


def _tuple(tup: TracedTuple) -> Row:
    return asdict(tup) | {"edge": str(tup.edge), "parents": [str(parent) for parent in tup.parents]}


def _key(text: str | None) -> tuple[int, int] | None:
    """The key of the last message of a page."""
    if not text:
        return None
    emitted_ms, _, root = text.partition(".")
    where = "traces, after="
    return WHOLE.read(emitted_ms, where, is_text=True), WHOLE.read(root, where, is_text=True)
