"""Gates: where a tuple leaves its tree, and goes on as a message of its own once its messages are ACKED.

There is a gate in front of each input of an exactly-once bolt, and behind each of its outputs; but not in
front of an input with ``gate=False``, whose tuples are questions, nor behind what is emitted for questions.
In a finished topology a gate is a spout, which the reader subscribes to in place of the source: its messages
have attempts, a ``Retry`` and dead letters as those of any spout. A gate has one reader, so two readers of a
stream have their own fates for a tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from acktree.core.ids import MAX_SPOUT_TASK, Int64s
from acktree.core.spouts.retry import Retry
from acktree.core.stats.counters import GATE
from acktree.errors import TopologyError
from acktree.spout import Spout, SpoutOutputCollector
from acktree.topology.component import Component, Subscription

if TYPE_CHECKING:
    import pyarrow as pa

    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.spouts.open_messages import OpenMessages

__all__ = ["GATE", "GateSpout", "Passed", "with_gates"]

_RETRY: Final = Retry(max_attempts=5)


class Passed(Protocol):
    """The tuples that gates let through. Any thread may call it."""

    def after(self, gate: str, start: int) -> Sequence[tuple[int, pa.RecordBatch]]:
        """The next messages of a gate from a number on: the number of the first of each batch. Or nothing."""

    def handed_over(self, gate: str, end: int) -> None:
        """Be told that the inbox has the messages of a gate before a number."""

    def settled(self, gate: str, end: int) -> None:
        """Be told that the messages of a gate before a number have their last verdicts."""

    def waiting(self, gate: str, start: int) -> int:
        """The tuples that wait for a verdict, and those that have passed, from a number on."""


class _Collector(Protocol):
    """The collector of a spout task."""

    def emit_encoded(self, batch: pa.RecordBatch, message_ids: Int64s, stream: str) -> None:
        """Emit rows as they are."""


class _OpenNumbers(Protocol):
    """The open messages of a spout task whose message ids are numbers."""

    def lowest_of_oldest(self) -> int | None:
        """The lowest number among the oldest messages; None when none is open."""


class GateSpout(Spout):
    """Hands what a gate lets through to the inbox, in order of micro-batch. Its message ids are numbers."""

    redelivers = False
    remembers = ("end",)
    keep_alive_secs = 5.0

    def __init__(self, stream: str) -> None:
        """A spout for the messages of one stream, not connected to its gate."""
        self._stream = stream
        self.end = 0
        self._noted = 0

    def connect(self, passed: Passed) -> None:
        """Say where the messages come from; before ``open``."""
        self._passed = passed

    def waiting(self, gate: str) -> int:
        """The tuples in front of the gate with this id, and those that have passed and are not emitted yet.

        An emitted one is an open message of the spout. Any thread may call it, also before ``open``.
        """
        return self._passed.waiting(gate, self.end)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        self._gate, self._collector = context.component_id, cast("_Collector", collector)
        self._passed.handed_over(self._gate, self.end)

    def next_tuple(self) -> None:
        if self._noted:
            self._passed.handed_over(self._gate, self._noted)
            self._noted = 0
        for first, batch in self._passed.after(self._gate, self.end):
            end = first + batch.num_rows
            self._collector.emit_encoded(batch, np.arange(first, end), self._stream)
            self.end = end

    def keep_alive(self, open_messages: OpenMessages) -> None:
        # Numbers ascend with the time of the first emit: so the lowest open one is among the oldest.
        lowest = cast("_OpenNumbers", open_messages).lowest_of_oldest()
        self._passed.settled(self._gate, self.end if lowest is None else lowest)

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        # Chunks are handed over in order: the inbox had all messages up to one that has its verdict.
        self._noted = max(self._noted, int(np.asarray(message_ids).max()) + 1)

    def fail_batch(self, failures: Sequence[tuple[Any, object]]) -> None:
        self.ack_batch([message_id for message_id, _ in failures])  # its dead letter says why


def with_gates(components: Sequence[Component]) -> list[Component]:
    """The components of a topology and its gates, sorted by id. The tasks of gates come after all others."""
    by_id = {component.id: component for component in components}
    read = {
        component.id: replace(component, inputs=tuple(_gated(component, by_id)), retry=_own_retry(component))
        for component in components
    }
    gates: list[Component] = []
    end = 1 + max((task for component in components for task in component.task_ids), default=0)
    for reader in components:
        for edge, passed in zip(reader.inputs, read[reader.id].inputs, strict=False):
            if edge.source != passed.source:
                gates.append(_gate(passed.source, edge, by_id[edge.source], reader, end + len(gates)))
    return sorted([*read.values(), *gates], key=lambda component: component.id)


def _own_retry(component: Component) -> Retry | None:
    return component.retry if component.kind == "spout" else None


def _gated(reader: Component, by_id: Mapping[str, Component]) -> Iterator[Subscription]:
    """The inputs of a component, in their order, with gates; then those by which answers come without."""
    answers: list[Subscription] = []
    for edge in reader.inputs:
        source = by_id[edge.source]
        is_gated = source.exactly_once or (reader.exactly_once and edge.gate)
        name = GATE + "/".join(map(_quoted, (reader.id, edge.source, edge.stream)))
        yield replace(edge, source=name) if is_gated else edge
        answers_at_once = not (reader.exactly_once and edge.gate)
        if source.exactly_once and answers_at_once and not all(asks.gate for asks in source.inputs):
            answers.append(replace(edge, answers_only=True))
    yield from answers


def _quoted(name: str) -> str:
    """Without a slash, so that no two gates have one name."""
    return name.replace("%", "%25").replace("/", "%2F")


def _gate(name: str, edge: Subscription, source: Component, reader: Component, task: int) -> Component:
    if task > MAX_SPOUT_TASK:
        what = f"a gate of {edge.subscriber!r} would have task {task}, and the highest is {MAX_SPOUT_TASK}"
        raise TopologyError(what, f"set_bolt({edge.subscriber!r}, ...)", "lower the parallelism of bolts")
    return Component(
        id=name,
        kind="spout",
        is_dataframe=False,
        user_object=GateSpout(edge.stream),
        parallelism=1,
        task_ids=(task,),
        streams={edge.stream: source.streams[edge.stream]},
        remembers=tuple(GateSpout.remembers),
        tick_secs=None,
        execute_timeout_secs=None,
        retry=reader.retry or _RETRY,
        inputs=(),
        latest_by=reader.latest_by,
        gated=source.id,
    )
