"""Short leases under long micro-batches, and CPU at rest.

Heartbeat, lease or poll limit are 4 seconds; a micro-batch takes 30; the topology is deactivated for 60 while
messages are open. Every spout has two tasks: what one of them loses, the other is given.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    RunningTopology,
    Topology,
    TopologyBuilder,
    Tuple,
    submit,
)
from benchmarks.machine import Clock
from benchmarks.record_rates import server_secs
from tests.brokers.queues import Queue, number_in, spout_of
from tests.chaos.effects import effects_in, leave

PAGE: Final = 40
TASKS: Final = 2
_LONG: Final = "long"
"""While this file is there, a micro-batch takes long."""
_WAIT_SECS: Final = 240
_CONNECTED: Final = "01"


@dataclass(frozen=True)
class Times:
    """Seconds."""

    lease: int = 4
    micro_batch: float = 30
    deactivated: float = 60
    settle: float = 60
    rest: float = 60


@dataclass
class Found:
    """What a run came to.

    Attributes:
        twice: How many messages were delivered more than once.
        attempts: How many effects there are of each attempt; a second one was not expected.
        connections: How many connections the spout had after its start, and how many of these at the end;
            None where it holds none.
        core_share: CPU of driver, JVM and workers at rest, as a share of one core.
        driver_share: ... of this the driver's Python, in which the spout is.
    """

    messages: int = 0
    lost: int = 0
    twice: int = 0
    attempts: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    connections: tuple[int, int] | None = None
    core_share: float = 0.0
    driver_share: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, in either sense, and nothing came twice."""
        kept = self.connections is None or self.connections[0] == self.connections[1] > 0
        return kept and not (self.lost or self.twice or self.errors) and set(self.attempts) == {1}

    def to_json(self) -> dict[str, Any]:
        """For the one line."""
        return {"clean": self.is_clean, **vars(self), "attempts": dict(self.attempts)}


class Slow(BasicBolt):
    """Leaves an effect, and makes each micro-batch long."""

    outputs = []

    def __init__(self, folder: Path, secs: float) -> None:
        self.folder, self.secs = folder, secs

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        leave(self.folder / "effects", "slow", number_in(tup.values), 0, tup.attempt, 0)

    def flush(self, collector: BasicOutputCollector) -> None:
        if (self.folder / _LONG).exists():
            time.sleep(self.secs)


class _Run:
    """A topology that runs, and the messages that were put."""

    def __init__(self, folder: Path, queue: Queue, running: RunningTopology) -> None:
        self.running = running
        self.wanted = 0
        self._effects, self._queue = folder / "effects", queue

    def put(self, pages: int = 1) -> None:
        """Put some messages."""
        for _ in range(pages):
            self._queue.put(range(self.wanted, self.wanted + PAGE))
            self.wanted += PAGE

    def await_effects(self, count: int) -> None:
        """Wait until ``count`` messages have an effect."""
        deadline = time.monotonic() + _WAIT_SECS
        while len({each.number for each in effects_in(self._effects)}) < count:
            assert time.monotonic() < deadline, f"not {count} messages within {_WAIT_SECS} s"
            time.sleep(0.1)

    def await_idle(self) -> None:
        """Wait until nothing is open."""
        assert self.running.await_idle(_WAIT_SECS), "something stays open"


def perform(folder: Path, queue: Queue, session: Any, times: Times, say: Callable[[str], object]) -> Found:
    """Run it, in a folder that exists."""
    (folder / "effects").mkdir()
    (folder / _LONG).touch()
    found = Found()
    topology = _topology(folder, queue, session, times)
    config = Config(partitions=2, message_timeout_secs=600, max_spout_pending=1000)
    before = _connections(queue.server_port())
    with submit(topology, checkpoint=folder / "checkpoint", spark=session, config=config) as running:
        run = _Run(folder, queue, running)
        queue.await_members(TASKS)  # a partition that moves to a task that joins later is delivered again
        run.put()
        run.await_effects(1)
        opened = _connections(queue.server_port()) - before
        run.put(2)  # taken from the queue now, and executed when this micro-batch is over
        run.await_effects(run.wanted)
        run.await_idle()
        say(f"{run.wanted} messages in micro-batches of {times.micro_batch:g} s")
        run.put()
        run.await_effects(run.wanted - PAGE + 1)
        running.deactivate()
        run.put()
        time.sleep(times.deactivated)
        say(f"deactivated for {times.deactivated:g} s")
        running.activate()
        run.await_effects(run.wanted)
        (folder / _LONG).unlink()
        run.await_idle()
        time.sleep(times.settle)
        found.core_share, found.driver_share = _core_shares(queue, times.rest)
        say(f"at rest {found.core_share:.2%} of a core, {found.driver_share:.2%} the driver's Python")
        if queue.connections_stay:
            found.connections = len(opened), len(opened & _connections(queue.server_port()))
        found.errors = [f"{each.component}: {each.reason:.200}" for each in running.errors]
        found.messages = run.wanted
    times_seen = Counter(each.number for each in effects_in(folder / "effects"))
    found.attempts = Counter(each.attempt for each in effects_in(folder / "effects"))
    found.lost = run.wanted - len(times_seen) + queue.left()[0]
    found.twice = sum(count > 1 for count in times_seen.values())
    return found


def _topology(folder: Path, queue: Queue, session: Any, times: Times) -> Topology:
    builder = TopologyBuilder("leases")
    settings = queue.settings()
    tasks = 1 if settings["spout"] == "kafka-native" else TASKS
    builder.set_spout("orders", spout_of(settings, session), tasks)
    builder.set_bolt("slow", Slow(folder, times.micro_batch)).shuffle_grouping("orders")
    return builder.create_topology()


def _core_shares(queue: Queue, secs: float) -> tuple[float, float]:
    """CPU of this process and what it started, without the server; and that of this process alone."""
    clock, server = Clock(), server_secs(queue.server)
    time.sleep(secs)
    cost = clock.cost()
    return round((cost.ours - (server_secs(queue.server) - server)) / secs, 4), round(cost.driver / secs, 4)


def _connections(port: int) -> set[int]:
    """The local ports of connections from this machine to a port of the loopback interface."""
    return set(_local_ports(port))


def _local_ports(port: int) -> Iterator[int]:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == _CONNECTED and int(remote.partition(":")[2], 16) == port:
            yield int(local.partition(":")[2], 16)
