"""Run a topology to its end over fixed tuples: Storm's ``Testing.completeTopology``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acktree.config import Config
from acktree.core.context import TaskContext
from acktree.core.statistics import Stats
from acktree.core.verdicts import Failure, Verdict
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import MisuseError
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector
from acktree.testing.local_cluster import LocalCluster, LocalTopology
from acktree.topology.model import Topology

Fixed = Sequence[Sequence[Any]] | Mapping[str, Sequence[Sequence[Any]]]
"""Tuples of the default stream, or of each stream."""

VerdictKey = tuple[str, int]
"""(spout, position among its fixed tuples)."""


class VerdictTable(Mapping[VerdictKey, Verdict]):
    """The verdict of every fixed tuple, by (spout, position)."""

    def __init__(self, told: Mapping[VerdictKey, Verdict]) -> None:
        """A table of what was told."""
        self._told = dict(sorted(told.items()))

    def __getitem__(self, key: VerdictKey) -> Verdict:
        return self._told[key]

    def __iter__(self) -> Iterator[VerdictKey]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def of(self, spout: str) -> list[Verdict]:
        """The verdicts of one spout's tuples, in their order."""
        return [verdict for (name, _), verdict in self._told.items() if name == spout]

    def count(self, verdict: Verdict) -> int:
        """How many tuples met this fate."""
        return list(self._told.values()).count(verdict)


@dataclass(frozen=True)
class CompletedTopology:
    """What became of a topology that ran to its end.

    Attributes:
        verdicts: The last word on each fixed tuple. With a ``Retry``: on its last attempt.
        failures: Why, for those that were not acked.
        dead_letters: Messages given up.
    """

    verdicts: VerdictTable
    failures: Mapping[VerdictKey, Failure]
    dead_letters: Sequence[DeadLetter]
    _ran: LocalTopology

    def tuples(self, component: str, stream: str = "default") -> list[list[Any]]:
        """All that a component emitted on a stream."""
        return self._ran.tuples(component, stream)

    def stats(self) -> Stats:
        """The numbers of the run."""
        return self._ran.stats()


def complete_topology(
    topology: Topology, spouts: Mapping[str, Fixed], config: Config | None = None
) -> CompletedTopology:
    """Replace spouts by fixed tuples and run until every one has its verdict.

    Args:
        topology: Run as it is, but for the spouts named.
        spouts: The tuples of each spout, as lists of values; each is a message, its position the message id.

    Raises:
        MisuseError: A name that is no spout, or a spout left out.
    """
    wanted = {spout.id for spout in topology.spouts}
    if wanted != spouts.keys():
        raise MisuseError(
            f"fixed tuples for {sorted(spouts)}, but the spouts are {sorted(wanted)}",
            f"complete_topology({topology.name!r})",
            "give a list of tuples for each spout, an empty one if it shall emit nothing",
        )
    told: dict[VerdictKey, Verdict] = {}
    failures: dict[VerdictKey, Failure] = {}
    components = {
        name: replace(component, user_object=_FixedSpout(name, spouts[name], told, failures))
        if name in spouts
        else component
        for name, component in topology.components.items()
    }
    with LocalCluster() as cluster:
        running = cluster.submit(replace(topology, components=components), config=config)
        cluster.advance()
        while not running.has_ended and (due_ms := running.due_ms()) is not None:
            cluster.advance(max(0, due_ms - cluster.now_ms) / 1000)
    return CompletedTopology(VerdictTable(told), failures, running.dead_letters, running)


class _FixedSpout(Spout):
    """Emits what it was given; its task 0 does, so that positions are message ids."""

    def __init__(
        self, name: str, fixed: Fixed, told: dict[VerdictKey, Verdict], failures: dict[VerdictKey, Failure]
    ) -> None:
        streams = fixed if isinstance(fixed, Mapping) else {"default": fixed}
        self._left = [(stream, values) for stream, tuples in streams.items() for values in tuples]
        self._name, self._told, self._failures = name, told, failures
        self._at = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _FixedSpout:
        copied = _FixedSpout(self._name, [], self._told, self._failures)
        copied._left = self._left
        return copied

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self._collector, self._is_first = collector, context.task_index == 0

    def next_tuple(self) -> None:
        if not self._is_first or self._at == len(self._left):
            raise EndOfStream
        stream, values = self._left[self._at]
        self._collector.emit(values, message_id=self._at, stream=stream)
        self._at += 1

    def ack(self, message_id: int) -> None:
        self._told[self._name, message_id] = Verdict.ACKED

    def fail(self, message_id: int, failure: Failure) -> None:
        self._told[self._name, message_id] = Verdict(failure.kind.value)
        self._failures[self._name, message_id] = failure
