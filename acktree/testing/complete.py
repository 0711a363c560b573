"""Run a topology to its end over fixed tuples: Storm's ``Testing.completeTopology``."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from acktree.bolt import AnyBolt
from acktree.config import Config, given_config
from acktree.core.data.context import TaskContext
from acktree.core.stats.statistics import Stats
from acktree.core.tracking.verdicts import Failure, Verdict
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import AcktreeError, MisuseError
from acktree.sink import Sink
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector
from acktree.testing.local_cluster import LocalCluster
from acktree.testing.local_topology import LocalTopology
from acktree.topology.model import Topology, refuse_other_than_topology
from acktree.topology.validate import with_bolt

Fixed = Sequence[Sequence[Any]] | Mapping[str, Sequence[Sequence[Any]]]
"""Tuples of the default stream, or of each stream."""

VerdictKey = tuple[str, int]
"""(spout, position among its fixed tuples)."""

_PATIENCE: Final = 4
"""How many message timeouts may pass without a verdict; what is open after them will never have one."""


class VerdictTable(Mapping[VerdictKey, Verdict]):
    """The verdict of every fixed tuple, by (spout, position)."""

    def __init__(self, verdicts: Mapping[VerdictKey, Verdict]) -> None:
        """Sort the verdicts by their keys."""
        self._verdicts = dict(sorted(verdicts.items()))

    def __getitem__(self, key: VerdictKey) -> Verdict:
        return self._verdicts[key]

    def __iter__(self) -> Iterator[VerdictKey]:
        return iter(self._verdicts)

    def __len__(self) -> int:
        return len(self._verdicts)

    def __repr__(self) -> str:
        counts = Counter(verdict.value for verdict in self._verdicts.values())
        return f"VerdictTable({', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))})"

    def of(self, spout: str) -> list[Verdict]:
        """The verdicts of one spout's tuples, in their order."""
        return [verdict for (name, _), verdict in self._verdicts.items() if name == spout]

    def count(self, verdict: Verdict) -> int:
        """How many tuples met this fate."""
        return list(self._verdicts.values()).count(verdict)


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

    def __repr__(self) -> str:
        return f"CompletedTopology({self._ran.name!r:.50}, {len(self.failures)} failures)"

    def tuples(self, component: str, stream: str = "default") -> list[list[Any]]:
        """All that a component emitted on a stream.

        Raises:
            MisuseError: There is no such component, or it has no such stream.
        """
        return self._ran.tuples(component, stream)

    def stats(self) -> Stats:
        """The numbers of the run."""
        return self._ran.stats()


def complete_topology(
    topology: Topology,
    spouts: Mapping[str, Fixed],
    config: Config | None = None,
    *,
    bolts: Mapping[str, AnyBolt | Sink] = MappingProxyType({}),
) -> CompletedTopology:
    """Replace spouts by fixed tuples and run until every one has its verdict.

    Args:
        topology: Run as it is, but for the spouts and bolts named.
        spouts: The tuples of each spout, as lists of values; each is a message, its position the message id.
        bolts: What runs in the place of a bolt or sink, by its id; with the same outputs.

    Raises:
        MisuseError: A name that is no spout or no bolt, or a spout left out; a tuple that does not fit its
            stream.
        TopologyError: What replaces a bolt is none, or has other outputs. Or ``topology`` is none.
        ConfigError: ``config`` is none: a dict, for example.
    """
    refuse_other_than_topology(topology, "complete_topology")
    config = given_config(config, "complete_topology")
    wanted = {spout.id for spout in topology.spouts if spout.gated is None}
    given: object = spouts
    if not isinstance(given, Mapping):
        raise MisuseError(
            f"complete_topology() needs the tuples of each spout, and is given {given!r:.60}",
            f"complete_topology({topology.name!r})",
            f"give a dict, with a list of tuples for each of {sorted(wanted)}",
        )
    if wanted != spouts.keys():
        raise MisuseError(
            f"fixed tuples for {sorted(spouts)}, but the spouts are {sorted(wanted)}",
            f"complete_topology({topology.name!r})",
            "give a list of tuples for each spout, an empty one if it shall emit nothing",
        )
    unknown = bolts.keys() - {bolt.id for bolt in topology.bolts}
    if unknown:
        raise MisuseError(
            f"bolts for {sorted(unknown)}, which are not among the bolts",
            f"complete_topology({topology.name!r})",
            f"name some of {sorted(bolt.id for bolt in topology.bolts)}",
        )
    outcome = _Outcome()
    fixed = {
        name: replace(topology.components[name], user_object=_FixedSpout(name, tuples, outcome))
        for name, tuples in spouts.items()
    }
    others = {name: with_bolt(topology.components[name], bolt) for name, bolt in bolts.items()}
    components = {**topology.components, **fixed, **others}
    with LocalCluster() as cluster:
        running = cluster.submit(replace(topology, components=components), config=config)
        cluster.advance()
        quiet_ms = cluster.now_ms
        while not running.has_ended and (due_ms := running.due_ms()) is not None:
            decided_before = len(outcome.verdicts)
            cluster.advance(max(0, due_ms - cluster.now_ms) / 1000)
            # Ticks alone never end: without timeouts, what a bolt forgot would be waited for for ever.
            if len(outcome.verdicts) > decided_before or running.due_ms(with_ticks=False) is not None:
                quiet_ms = cluster.now_ms
            elif cluster.now_ms - quiet_ms > _PATIENCE * 1000 * config.message_timeout_secs:
                break
    if outcome.refused is not None:
        raise outcome.refused
    return CompletedTopology(
        VerdictTable(outcome.verdicts), outcome.failures, tuple(running.dead_letters), running
    )


@dataclass
class _Outcome:
    """The verdicts and failures that the fixed spouts of one run got, all together."""

    verdicts: dict[VerdictKey, Verdict] = field(default_factory=dict)
    failures: dict[VerdictKey, Failure] = field(default_factory=dict)
    refused: AcktreeError | None = None


class _FixedSpout(Spout):
    """Emits what it was given; its task 0 does, so that positions are message ids."""

    def __init__(self, name: str, fixed: Fixed, outcome: _Outcome) -> None:
        streams = fixed if isinstance(fixed, Mapping) else {"default": fixed}
        self._left = [(stream, values) for stream, tuples in streams.items() for values in tuples]
        self._name, self._outcome = name, outcome
        self._at = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return copy.copy(self)  # all tasks share the fixed tuples and the outcome

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        self._collector, self._is_first = collector, context.task_index == 0

    def next_tuple(self) -> None:
        if not self._is_first or self._at == len(self._left):
            raise EndOfStream
        stream, values = self._left[self._at]
        try:
            self._collector.emit(values, message_id=self._at, stream=stream)
        except AcktreeError as refused:  # the test's mistake: complete_topology raises it
            self._outcome.refused = self._outcome.refused or refused
        self._at += 1

    def ack(self, message_id: Any) -> None:  # noqa: ANN401  # a position
        self._outcome.verdicts[self._name, message_id] = Verdict.ACKED

    def fail(self, message_id: Any, failure: Failure) -> None:  # noqa: ANN401  # a position
        self._outcome.verdicts[self._name, message_id] = Verdict(failure.kind.value)
        self._outcome.failures[self._name, message_id] = failure
