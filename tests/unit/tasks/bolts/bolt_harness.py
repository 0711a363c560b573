"""For looking into a running topology: every frame sent, every task that runs, every level run twice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, Config, Topology, TopologyBuilder
from acktree.core.data.frames import Frame, Kind, WireRow
from acktree.tasks.acker import Acker
from acktree.tasks.bolts import level
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.observers.usual import usual_observers
from acktree.testing import FeederSpout, LocalCluster, local_levels
from acktree.testing.local_topology import LocalTopology


@dataclass
class Seen:
    """What was seen: (root, edge) of every copy, and (task, partition) of every run of a task."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    hosts: set[tuple[int, int]] = field(default_factory=set)


@contextmanager
def looking() -> Iterator[Seen]:
    """Look at all topologies of this process while the block runs."""
    seen = Seen()
    send, make = Outputs.frame, level.bolt_task

    def sending(self: Outputs, partition: int, frame: Frame) -> None:
        seen.frames.append(frame)
        for row in range(len(frame.lineage)):
            seen.pairs += frame.lineage.anchors(row).items()
        send(self, partition, frame)

    def making(component: Any, task: int, outputs: Outputs, store: Any, **more: Any) -> Any:
        seen.hosts.add((task, outputs.partition))
        return make(component, task, outputs, store, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outputs, "frame", sending)
        patch.setattr(level, "bolt_task", making)
        yield seen


@contextmanager
def run_twice(random: Random) -> Iterator[list[int]]:
    """Run every level and the acker again with its rows in another order; both runs must say the same."""
    run_level, judge = local_levels.run_level, Acker.judge
    counted: list[int] = []

    def said(rows: list[WireRow]) -> list[WireRow]:
        return [row for row in rows if row.kind != Kind.STATISTICS]  # latencies are the machine's

    def level_again(plan: Any, index: int, partition: int, rows: Any, store: Any, **named: Any):
        shuffled, twin = random.sample(rows, len(rows)), copy.deepcopy(store)
        first = list(run_level(plan, index, partition, rows, store, **named))
        named["observe"] = usual_observers
        second = list(run_level(plan, index, partition, shuffled, twin, **named))
        assert said(first) == said(second)
        assert store is None or store.blobs == twin.blobs
        counted.append(len(rows))
        return first

    def acker_again(acker: Acker, rows: Any, clock_ms: int, *, is_first: bool):
        shuffled, twin = random.sample(rows, len(rows)), copy.deepcopy(acker)
        first = judge(acker, rows, clock_ms, is_first=is_first)
        second = judge(twin, shuffled, clock_ms, is_first=is_first)
        assert (first.to_bytes(), first.change) == (second.to_bytes(), second.change)
        counted.append(len(rows))
        return first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_levels, "run_level", level_again)
        patch.setattr(Acker, "judge", acker_again)
        yield counted


@dataclass
class Bench:
    """A topology of one spout ("source") on the bench."""

    cluster: LocalCluster
    feeder: FeederSpout
    running: LocalTopology

    def feed(self, *messages: Any, stream: str = "default") -> None:
        """Feed messages as one micro-batch; each is its own id, or (values, id)."""
        for message in messages:
            values, message_id = message if isinstance(message, tuple) else ([message], message)
            self.feeder.feed(values, message_id=message_id, stream=stream)
        self.cluster.advance()

    @property
    def acked(self) -> list[Any]:
        """Message ids acked so far."""
        return self.feeder.acked

    @property
    def failures(self) -> dict[Any, Any]:
        """Message id -> its last failure."""
        return dict(self.feeder.failed)

    def tuples(self, component: str, stream: str = "default") -> list[Any]:
        """What a component emitted; the value alone where there is one field."""
        emitted = self.running.tuples(component, stream)
        return [values[0] if len(values) == 1 else values for values in emitted]

    def reasons(self, component: str) -> list[str]:
        """What a component reported, the first lines."""
        return [e.reason.splitlines()[0] for e in self.running.errors if e.component == component]


@contextmanager
def bench(
    *bolts: Any,
    outputs: Any = ("value",),
    config: Config | None = None,
    retry: Any = None,
    build: Callable[[TopologyBuilder], object] | None = None,
    feeder: FeederSpout | None = None,
) -> Iterator[Bench]:
    """Put bolts in a row, each with one task that gets everything; or whatever ``build`` draws."""
    with LocalCluster() as cluster:
        mine = feeder or FeederSpout(list(outputs) if isinstance(outputs, tuple) else outputs)
        topology = in_a_row(mine, *bolts, retry=retry, build=build)
        yield Bench(cluster, mine, cluster.submit(topology, config=config))


def in_a_row(
    feeder: Any, *bolts: Any, retry: Any = None, build: Callable[[TopologyBuilder], object] | None = None
) -> Topology:
    """The topology of :func:`bench`; bolts are called b0, b1, ..."""
    builder = TopologyBuilder("bench")
    builder.set_spout("source", feeder, retry=retry)
    before = "source"
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt).global_grouping(before)
        before = f"b{number}"
    if build is not None:
        build(builder)
    return builder.create_topology()


class Calls(BasicBolt):
    """Calls a function with the bolt, the tuple and the collector; emits what it returns, if anything."""

    outputs = ["value"]

    def __init__(self, execute: Callable[..., Any], *, remembers: tuple[str, ...] = (), **attributes: Any):
        self.call, self.attributes, self.remembers = execute, attributes, remembers

    def prepare(self, config, context):
        for name, value in self.attributes.items():
            setattr(self, name, value() if callable(value) else copy.deepcopy(value))

    def execute(self, tup, collector):
        returned = self.call(self, tup, collector)
        if returned is not None:
            collector.emit([returned])


class CallsByHand(Bolt):
    """Calls a function with the bolt and the tuple; the collector is ``bolt.collector``."""

    outputs = ["value"]

    def __init__(self, execute: Callable[..., Any], *, remembers: tuple[str, ...] = (), **attributes: Any):
        self.call, self.attributes, self.remembers = execute, attributes, remembers

    def prepare(self, config, context, collector):
        self.collector, self.context = collector, context
        for name, value in self.attributes.items():
            setattr(self, name, value() if callable(value) else copy.deepcopy(value))

    def execute(self, tup):
        self.call(self, tup)


class Says(ArrowBolt):
    """Calls a function on each batch."""

    outputs = ["value"]

    def __init__(self, say):
        self.say = say

    def execute_batch(self, batch, collector):
        self.say(batch, collector)
