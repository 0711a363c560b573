"""A trace as spans of OpenTelemetry: ids, parents, links, times, status and attributes. Pure.

Rules of this file
------------------
1. All ids are derived, so a second run exports the same spans: the span id is the edge id, and the trace id
   comes from the root.
2. No values and no traceback of a message are in a span. The reason of a failure is.

Source: OpenTelemetry's semantic conventions for messaging spans, in development there; see :data:`SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from typing import Final

from acktree.core.tracking.trace_parent import TraceParent
from acktree.traces.trace import Trace, TracedMessage, TracedTuple

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions that the names of attributes follow."""

_ALL_ONES: Final = (1 << 64) - 1
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """One span.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        parent_id: The span id of its parent, for a message one outside; None for the first span of a trace.
        links: (trace id, span id) of the other spans that it follows from.
        start_ns: Nanoseconds since 1970.
        end_ns: The same; never before the start.
        error: Why it failed; None if it did not.
        events: (name, nanoseconds since 1970).
        is_consumer: Whether it is a message that was taken from a queue; else it is one of its tuples.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    links: tuple[tuple[int, int], ...]
    start_ns: int
    end_ns: int
    error: str | None
    attributes: Mapping[str, str | int | float]
    events: tuple[tuple[str, int], ...] = ()
    is_consumer: bool = False


def trace_id_of_root(root: int) -> int:
    """The trace id of a message: 128 bits that are derived from its root.

    >>> f"{trace_id_of_root(41):032x}"
    '1aef8c35431dbb16651187ed333e3dc3'
    """
    digest = blake2b(root.to_bytes(8, "big", signed=True), digest_size=16, person=b"acktree.trace").digest()
    return int.from_bytes(digest, "big") or 1


def span_id_of(edge: int) -> int:
    """The span id of an edge: its 64 bits without sign. 0 is no span id, and becomes 2**64 - 1.

    >>> f"{span_id_of(-2):016x}"
    'fffffffffffffffe'
    """
    return edge & _ALL_ONES or _ALL_ONES


def spans_of(trace: Trace, topology: str, systems: Mapping[str, str]) -> Iterator[Span]:
    """The spans of a trace, parents first: one of the message, and one of each recorded tuple.

    Args:
        trace: Of a message that has its verdict.
        topology: The topology's name.
        systems: Spout -> the messaging system that it reads; "acktree" for others.
    """
    message = trace.message
    yield _of_message(trace, topology, systems.get(message.spout, "acktree"))
    trace_id, _ = _above(message)
    known = {message.root, *(tup.edge for tup in trace.tuples)}
    starts_ms = {message.root: message.emitted_ms}
    for tup in trace.tuples:
        if tup.edge != message.root:
            above = [edge for edge in tup.parents if edge in known] or [message.root]
            # A tuple that was not executed has no time of its own.
            begun = starts_ms.get(above[0], message.emitted_ms) if tup.began_ms is None else tup.began_ms
            starts_ms[tup.edge] = begun
            yield _of_tuple(tup, trace_id, above, begun)


def _above(message: TracedMessage) -> tuple[int, int | None]:
    """The trace that a message belongs to, and the span that is above it there."""
    outside = None if message.traceparent is None else TraceParent.of(message.traceparent)
    return (trace_id_of_root(message.root), None) if outside is None else (outside.trace_id, outside.span_id)


def _of_message(trace: Trace, topology: str, system: str) -> Span:
    message = trace.message
    attributes: dict[str, str | int | float] = {
        "messaging.system": system,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": message.spout,
        "acktree.topology": topology,
        "acktree.component": message.spout,
        "acktree.stream": message.stream,
        "acktree.root": str(message.root),  # more bits than a number of JSON has
        "acktree.attempt": message.attempt,
        "acktree.verdict": message.verdict or "OPEN",
    }
    if message.message_id is not None:
        attributes["messaging.message.id"] = message.message_id
    if message.label:
        attributes["acktree.label"] = message.label
    if message.task_id is not None:
        attributes["acktree.task"] = message.task_id
    first = next((tup for tup in trace.tuples if tup.edge == message.root), None)
    if first is not None:
        attributes["acktree.micro_batch"] = first.batch_id
    if trace.more:
        attributes["acktree.tuples_not_recorded"] = sum(trace.more.values())
    error = None
    if message.verdict not in {"ACKED", None}:
        error = message.reason or str(message.verdict)
        attributes["error.type"] = str(message.verdict)
        if message.component is not None:
            attributes["acktree.failed_in"] = message.component
    start = _ns(message.emitted_ms)
    end = start if message.verdict_ms is None else max(start, _ns(message.verdict_ms))
    trace_id, parent = _above(message)
    links: tuple[tuple[int, int], ...] = ()
    if message.retry_of is not None:  # it belongs to the same trace outside, or to one of its own
        before = trace_id_of_root(message.retry_of) if parent is None else trace_id
        links = ((before, span_id_of(message.retry_of)),)
    return Span(
        f"process {message.spout}", trace_id, span_id=span_id_of(message.root), parent_id=parent,
        links=links, start_ns=start, end_ns=end, error=error, attributes=attributes,
        events=((str(message.verdict), end),), is_consumer=True,
    )  # fmt: skip


def _of_tuple(tup: TracedTuple, trace_id: int, above: Sequence[int], start_ms: int) -> Span:
    attributes: dict[str, str | int | float] = {
        "acktree.component": tup.component,
        "acktree.source": tup.source,
        "acktree.stream": tup.stream,
        "acktree.micro_batch": tup.batch_id,
        "acktree.fate": tup.fate,
    }
    if tup.task_id is not None:
        attributes["acktree.task"] = tup.task_id
    if tup.fate_batch_id is not None:
        attributes["acktree.fate_micro_batch"] = tup.fate_batch_id
    if tup.together > 1:
        attributes["acktree.executed_together"] = tup.together
    error = (tup.reason or "failed") if tup.fate == "failed" else None
    if error is not None:
        attributes["error.type"] = "FAILED"
    start = _ns(start_ms)
    parent, *others = map(span_id_of, dict.fromkeys(above))
    return Span(
        tup.component, trace_id, span_id=span_id_of(tup.edge), parent_id=parent,
        links=tuple((trace_id, other) for other in others), start_ns=start,
        end_ns=min(_ALL_ONES, start + _ns(tup.took_ms or 0)), error=error, attributes=attributes,
    )  # fmt: skip


def _ns(ms: float) -> int:
    """A time in nanoseconds, 0 to 2**64 - 1; 0 for what no clock gives. A span has no other times.

    >>> _ns(-5), _ns(1.5), _ns(float("inf")), _ns(2**63) == 2**64 - 1
    (0, 1500000, 0, True)
    """
    return min(_ALL_ONES, round(ms * _NS_PER_MS)) if isfinite(ms) and ms > 0 else 0
