"""From a drawn topology to one that runs, and from what was seen to an :class:`Outcome`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from acktree import Config, Topology, TopologyBuilder
from acktree.core.stats.statistics import Stats
from acktree.core.tracking.verdicts import FailureKind
from acktree.testing import LocalCluster
from acktree.testing.local_topology import LocalTopology
from tests.generated.scripted import (
    STREAMS,
    BoltSpec,
    Drawn,
    ScriptedArrow,
    ScriptedBasic,
    ScriptedGrouping,
    ScriptedHand,
    ScriptedJoin,
    ScriptedSpout,
    message_values,
)
from tests.generated.tracker import Outcome, Tracker

Spouts = Mapping[str, ScriptedSpout]


def build(drawn: Drawn, name: str = "drawn") -> tuple[Topology, Spouts]:
    """A topology and its spouts: feed them, and read their verdicts."""
    builder = TopologyBuilder(name)
    spouts = {spout: ScriptedSpout(drawn.part(spout)) for spout in drawn.spouts}
    for spout_id, spout in spouts.items():
        builder.set_spout(spout_id, spout)
    expected = Tracker(drawn).expected
    for spec in drawn.bolts:
        declarer = builder.set_bolt(spec.id, _bolt(drawn, spec, expected), spec.parallelism)
        for read in spec.inputs:
            further: list[object] = []
            if read.grouping in {"fields", "partial_key"}:
                further.append(["key"])
            elif read.grouping == "custom":
                further.append(ScriptedGrouping(drawn.part(read.source), spec.id))
            add: Callable[..., object] = getattr(declarer, f"{read.grouping}_grouping")
            add(read.source, *further, stream=read.stream)
    return builder.create_topology(), spouts


def _bolt(drawn: Drawn, spec: BoltSpec, expected: Mapping[str, Mapping[str, int]]):
    part = drawn.part(spec.id)
    if spec.kind == "join":
        return ScriptedJoin(part, dict(expected[spec.id]))
    return {"basic": ScriptedBasic, "hand": ScriptedHand, "arrow": ScriptedArrow}[spec.kind](part)


def feed(drawn: Drawn, spouts: Spouts, batch: int) -> None:
    """Feed the messages of one batch."""
    for number, message in enumerate(drawn.messages):
        if message.batch == batch:
            stream, values = message_values(drawn.part(message.spout), number, message)
            message_id = number if message.is_tracked else None
            spouts[message.spout].feed(values, message_id=message_id, stream=stream)


def batches(drawn: Drawn) -> range:
    """The batches in which messages are fed."""
    return range(max((message.batch for message in drawn.messages), default=-1) + 1)


def run_locally(
    drawn: Drawn,
    config: Config,
    look: Callable[[LocalTopology], object] = lambda _: None,
    begin: Callable[[LocalTopology], object] = lambda _: None,
) -> Outcome:
    """Run it in a ``LocalCluster``; each batch runs through before the next is fed.

    Args:
        look: Called at the end.
        begin: Called before anything is fed.
    """
    topology, spouts = build(drawn)
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=config)
        begin(running)
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
            cluster.advance()
        for spout in spouts.values():
            spout.end()
        for _ in range(len(drawn.messages) + 1):  # where few may be open, each waits for the one before
            cluster.advance(config.message_timeout_secs * 1.2)
        assert running.has_ended, "some message has no verdict"
        look(running)
        return seen(drawn, spouts, running.stats(), emitted_by(drawn, running))


def emitted_by(drawn: Drawn, running: LocalTopology) -> Counter[tuple[str, str, str]]:
    """How often each tuple was emitted."""
    return Counter(
        (component, stream, repr(tuple(values)))
        for component in (*drawn.spouts, *(bolt.id for bolt in drawn.bolts))
        for stream in STREAMS
        for values in running.tuples(component, stream)
    )


def seen(drawn: Drawn, spouts: Spouts, stats: Stats, tuples: Counter[tuple[str, str, str]]) -> Outcome:
    """What an engine made of a drawn topology.

    Args:
        stats: The engine's, at the end.
        tuples: All that was emitted. An engine that cannot report them gives the :class:`Tracker`'s.
    """
    verdicts: dict[int, str] = {}
    blamed: dict[int, frozenset[str]] = {}
    for spout in spouts.values():
        delivered = [*((number, "ACKED") for number in spout.acked)]
        delivered += [(number, failure.kind.value) for number, failure in spout.failed]
        for number, verdict in delivered:
            verdicts[number] = f"{verdicts[number]} and {verdict}" if number in verdicts else verdict
        for number, failure in spout.failed:
            # Of a message that times out the first bolt that forgot a tuple is named, if any did.
            if failure.component is not None and failure.kind is FailureKind.FAILED:
                blamed[number] = frozenset({failure.component})
    counts = {
        (component, what): getattr(stats[component].total, what)
        for component in (*drawn.spouts, *(bolt.id for bolt in drawn.bolts))
        for what in ("emitted", "transferred", "executed", "acked", "failed", "timed_out")
    }
    return Outcome(verdicts, blamed, tuples, counts)
