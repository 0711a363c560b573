"""A traced message and its tree, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

__all__ = ["Trace", "TracedMessage", "TracedTuple"]

_DONE: Final = frozenset({"acked", "failed"})


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """One attempt of a message that was traced.

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
        known = {each.edge for each in self.tuples}
        below: dict[int, list[TracedTuple]] = {edge: [] for edge in known | {self.message.root}}
        for each in self.tuples:
            if each.edge == self.message.root:
                continue
            above = [parent for parent in each.parents if parent in known] or [self.message.root]
            for parent in above:
                below[parent].append(each)
        return below

    @cached_property
    def failed(self) -> Sequence[TracedTuple]:
        """The tuples that were failed."""
        return [each for each in self.tuples if each.fate == "failed"]

    @cached_property
    def unacked(self) -> Sequence[TracedTuple]:
        """The tuples that were neither acked nor failed: who holds a message up, or let it time out."""
        return [each for each in self.tuples if each.fate not in _DONE and each.edge != self.message.root]

    def __str__(self) -> str:
        """The message and its tree as text; alike tuples are drawn once, with their number."""
        from acktree.traces.drawing import drawn  # noqa: PLC0415  # it draws values of this module

        return drawn(self)
