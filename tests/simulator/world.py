"""What outlives every driver: the disk, the queues, what people saw; and what one seed wants to happen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, get_args

from acktree import Config, IterableSpout, Retry, Sink, Spout, Topology, TopologyBuilder
from acktree.core.tracking.verdicts import Failure
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.errors import CheckpointError
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from tests.simulator.damage import Damage
from tests.simulator.disk import Fault, ProcessDied, SimulatedDisk
from tests.unit.tasks.bolts.bolt_harness import Calls

SALT = 7
TIMEOUT_MS = 1000
FOREVER = 1 << 30
Drive = Literal["micro-batches", "epochs", "both"]
"""What runs the topology; with both each run of a driver is by one or the other."""
DRIVES: tuple[Drive, ...] = get_args(Drive)
RETRIES = (None, Retry(max_attempts=3, backoff_secs=(0.02, 0.1)), Retry(max_attempts=1))


class BrokenPromiseError(AssertionError):
    """A promise of docs/guarantee.md was broken."""


@dataclass(frozen=True)
class Source:
    """One spout of a scenario.

    Attributes:
        name: Its component.
        redelivers: Whether it is a queue's; else its messages are only in the inbox.
        count: How many messages it has, numbered from 0.
        has_keys: Whether its messages have keys.
    """

    name: str
    redelivers: bool
    count: int
    has_keys: bool = False


@dataclass(frozen=True)
class Scenario:
    """What a seed draws before anything runs."""

    sources: tuple[Source, ...]
    retry: Retry | None
    max_pending: int
    allowance: int
    times_out: bool
    survives_power_cut: bool
    faults: tuple[tuple[int, Fault], ...]
    has_gates: bool = False
    partitions: int = 1

    @classmethod
    def of(
        cls, random: Random, *, with_power_cuts: bool, with_gates: bool = False, partitions: int = 1
    ) -> Scenario:
        """Draw one."""
        kinds = random.choice(((True,), (False,), (True, False), (False, False)))
        sources = tuple(
            Source(f"s{at}", redelivers, max(2, random.choice((5, 5, 6, 8, 8, 12, 40)) // len(kinds)))
            for at, redelivers in enumerate(kinds)
        )
        what: tuple[Fault, ...] = ("kill", "kill", "full")
        if with_power_cuts:
            what = ("kill", "power", "power", "power", "full")
        reach = random.choice((30, 120, 250))
        faults = [(random.randint(1, reach), random.choice(what)) for _ in range(random.randint(0, 4))]
        survives = random.random() < (0.75 if with_power_cuts else 0.3)
        if with_gates:
            sources = tuple(replace(each, has_keys=random.random() < 0.5) for each in sources)
        return cls(
            sources, random.choice(RETRIES), random.choice((2, 5, 20, 20)), random.choice((8, 16, 8192)),
            random.random() < 0.4, survives,
            tuple(faults), with_gates, partitions,
        )  # fmt: skip

    @property
    def is_weak(self) -> bool:
        """Whether a power cut may undo verdicts that were delivered."""
        return not self.survives_power_cut and any(fault == "power" for _, fault in self.faults)


@dataclass
class Message:
    """What happens to one message, drawn before it is emitted.

    Attributes:
        fails: How many of its executions fail: the first ones, in whichever run they are.
        holds: For how many micro-batches its tree stays open.
        forgets: How many executions after the failed ones are never acked.
    """

    fails: int
    holds: int
    forgets: int
    executions: int = 0


@dataclass
class Database:
    """What a sink has written, with its last mark: it survives every death.

    Attributes:
        rows: How often each row was written.
        mark: The micro-batch of the last write, a hash of what it held, and which of it was refused.
        came: Rows that came before: a row may be refused the first time.
    """

    rows: Counter[str] = field(default_factory=Counter)
    mark: tuple[int, str, frozenset[int]] = (-1, "", frozenset())
    came: set[str] = field(default_factory=set)

    def write(
        self, batch_id: int, roots: list[int], rows: list[str], refuses: Callable[[str], bool]
    ) -> frozenset[int]:
        """Write rows and a mark at once, or find the mark; returns which rows are refused.

        Raises:
            CheckpointError: The mark is of other rows, after a power cut that need not be survived.
        """
        number, held, refused = self.mark
        if (number, held) == (batch_id, repr(roots)):
            return refused
        if number >= batch_id:
            raise CheckpointError(  # as a task of a sink raises
                f"micro-batch {batch_id} has other rows than its mark says",
                "the sink",
                "bring the newest copy back",
            )
        refused = frozenset(at for at, row in enumerate(rows) if row not in self.came and refuses(row))
        self.came.update(rows)
        self.rows.update(row for at, row in enumerate(rows) if at not in refused)
        self.mark = batch_id, repr(roots), refused
        return refused


@dataclass
class World:
    """All that survives a driver's death, and the account of delivered verdicts."""

    seed: int
    scenario: Scenario
    random: Random
    trace: list[str] | None = None
    now_ms: int = 1_800_000_000_000
    run: int = 0
    deaths: list[Fault] = field(default_factory=list)
    faults_left: list[tuple[int, Fault]] = field(default_factory=list)
    messages: dict[tuple[str, int], Message] = field(default_factory=dict)
    behind: dict[str, Message] = field(default_factory=dict)
    """Tuples behind the gate of the exactly-once bolt."""
    queues: dict[str, set[int]] = field(default_factory=dict)
    verdicts: dict[tuple[str, int], list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    letters_put: Counter[tuple[str, int]] = field(default_factory=Counter)
    decided: dict[int, Counter[tuple[str, str]]] = field(default_factory=dict)
    """By micro-batch, of its last execution: how many messages of a source got which verdict."""
    refused: str | None = None
    clean_stops: int = 0
    damages: Random | None = None
    """What is drawn of damages of files; None for none."""
    damaged: list[Damage] = field(default_factory=list)
    """What is damaged, and was not told yet."""
    told: Counter[str] = field(default_factory=Counter)
    """How many damages of each kind an error has told."""
    has_effect: Callable[[str, int], bool] = lambda name, number: True
    keyed_steps: int = 0
    """How many steps spouts with keys have taken."""
    copies_acked: set[tuple[str, int]] = field(default_factory=set)
    """Messages whose copy, which has the same key, was acked."""
    acks: Counter[str] = field(default_factory=Counter)
    """How often each source has heard ``ack``."""
    database: Database = field(default_factory=Database)
    drive: Drive = "micro-batches"
    workers_lost: int = 0
    """How many workers have died, by epochs."""

    def __post_init__(self) -> None:
        self.disk = SimulatedDisk(self.random, self.note if self.trace is not None else None)
        self.faults_left = list(self.scenario.faults)
        retries = self.scenario.retry is not None
        for source in self.scenario.sources:
            if source.redelivers:
                self.queues[source.name] = set(range(source.count))
            for number in range(source.count):
                fails = self.random.choice((0,) * 7 + (1, 2, 3))
                if self.random.random() < 0.06 and (retries or not source.redelivers):
                    fails = FOREVER
                forgets = int(self.scenario.times_out and self.random.random() < 0.08)
                holds = self.random.choice((0, 0, 0, 0, 0, 1, 2, 4))
                self.messages[source.name, number] = Message(fails, holds, forgets)
        self._letters: DeadLetters | None = None
        self.source_names = frozenset(source.name for source in self.scenario.sources)

    @classmethod
    def of(
        cls,
        seed: int,
        *,
        with_power_cuts: bool,
        with_damage: bool = False,
        with_gates: bool = False,
        drive: Drive = "micro-batches",
        is_traced: bool = False,
    ) -> World:
        """The world of a seed."""
        random = Random(seed)
        scenario = Scenario.of(
            random,
            with_power_cuts=with_power_cuts,
            with_gates=with_gates,
            partitions=1 if drive == "micro-batches" else 2,
        )
        damages = Random(seed) if with_damage else None
        return cls(seed, scenario, random, [] if is_traced else None, damages=damages, drive=drive)

    @property
    def letters(self) -> DeadLetters:
        """The dead letters, in SQLite in memory: they survive every death, as a file would."""
        if self._letters is None:
            self._letters = DeadLetters(IN_MEMORY)
        return self._letters

    def stored_letters(self, source: str, number: int) -> int:
        """How many dead letters there are of a message that only the inbox has."""
        if self._letters is None or not self.letters_put:
            return 0
        return sum(
            (letter.spout, letter.message_id_repr) == (source, str(number)) for letter in self._letters
        )

    def close(self) -> None:
        """Close the store of dead letters."""
        if self._letters is not None:
            self._letters.close()

    def note(self, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now_ms - 1_800_000_000_000:>6} ms  run {self.run}  {what}")

    def passed(self, where: str) -> None:
        """Die here, between two operations on the disk, if a fault is due."""
        disk = self.disk
        if disk.fault is not None and disk.fault[1] != "full":
            left, fault = disk.fault
            disk.fault = (left - 1, fault) if left > 1 else (1, fault)
            if left <= 1 and self.random.random() < 0.5:
                disk.fault, disk.is_dead = None, True
                self.note(f"    {fault} at: {where}")
                raise ProcessDied

    def share_of_drops(self, source: Source) -> float:
        """In how many of a spout's steps its connection drops; with keys often, but not for ever."""
        if not source.has_keys:
            return 0.01
        self.keyed_steps += 1
        return 0.1 if self.keyed_steps < 120 else 0.0

    def is_final(self, source: str, number: int) -> bool:
        """Whether a message has its final verdict."""
        return bool(self.verdicts[source, number])

    def deliver(self, verdict: str, source: str, number: int) -> None:
        """A spout gets a final verdict. The driver may die before the source has it, or after."""
        self.note(f"delivered: {source} {number} is {verdict}")
        self.passed(f"before {source} {number} is {verdict}")
        if verdict == "acked" and not self.has_effect(source, number):
            raise BrokenPromiseError(f"{source} {number} was acked, and no committed micro-batch executed it")
        if verdict == "dead" and (source, number) not in self.letters_put:
            raise BrokenPromiseError(f"{source} {number} was given up before its dead letter was stored")
        self.verdicts[source, number].append((verdict, self.run))
        if source in self.queues:
            self.queues[source].discard(number)
        self.passed(f"after {source} {number} is {verdict}")


class Unused(Sink):
    """Stands for the sink in the topology: the driver writes to the world's database."""

    def open(self, config, context):
        raise AssertionError("nobody calls it")

    def last_mark(self):
        raise AssertionError("nobody calls it")

    def close(self):
        raise AssertionError("nobody calls it")

    def write(self, batch, mark):
        raise AssertionError("nobody calls it")


def copy_of(number: int) -> int:
    """The number of a message that comes a second time, with the same key; and the other way round."""
    return -1 - number


class QueueSpout(Spout):
    """A queue's spout. A message id is (number, id of this delivery)."""

    outputs = ["n"]

    def __init__(self, world: World, source: Source) -> None:
        self.world, self.source = world, source
        self.delivered: dict[int, int] = {}

    def open(self, config, context, collector):
        self.collector = collector
        self.ready = sorted(self.world.queues[self.source.name], reverse=True)

    def redeliver(self) -> None:
        """The queue's connection drops: messages without a verdict are delivered again."""
        self.delivered.clear()
        self.ready = sorted(self.world.queues[self.source.name], reverse=True)

    def next_tuple(self):
        if self.ready:
            number = self.ready.pop()
            self.world.note(f"{self.source.name} emits {number}")
            delivery = self.world.random.getrandbits(32)
            self.delivered[number] = delivery
            key = f"{number}" if self.source.has_keys else None
            self.collector.emit([number], message_id=(number, delivery), key=key)

    def ack(self, message_id):
        self.world.acks[self.source.name] += 1
        number, delivery = message_id
        if self.delivered.get(number) == delivery:
            del self.delivered[number]
            self.world.deliver("acked", self.source.name, number)

    def fail(self, message_id, failure: Failure):
        number, delivery = message_id
        if self.delivered.get(number) != delivery:
            return
        del self.delivered[number]
        if failure.final:
            self.world.deliver("dead", self.source.name, number)
        else:
            self.world.note(f"delivered: {self.source.name} {number} failed; the queue redelivers it")
            self.ready.insert(0, number)


class PositionSpout(IterableSpout):
    """A position spout: only the inbox has its open messages."""

    def __init__(self, world: World, source: Source) -> None:
        super().__init__(range(source.count), ["n"])
        self.world, self.source = world, source

    def open(self, config, context, collector):
        super().open(config, context, collector)
        self.collector = collector

    def next_tuple(self):
        before = self.position
        if not self.source.has_keys or before == self.source.count:
            super().next_tuple()
        else:
            self.position += 1
            for number in (before, copy_of(before)):
                self.collector.emit([number], message_id=number, key=before)
        self.world.note(f"{self.source.name} emits {before}")

    def ack(self, message_id):
        self.world.acks[self.source.name] += 1
        if message_id < 0:
            self.world.copies_acked.add((self.source.name, copy_of(message_id)))
            return
        self.world.deliver("acked", self.source.name, message_id)

    def fail(self, message_id, failure: Failure):
        if message_id < 0:
            return
        self.world.deliver("dead" if failure.final else "failed", self.source.name, message_id)


_topologies: dict[tuple[object, ...], tuple[Topology, Config, Plan]] = {}


def topology_of(scenario: Scenario) -> tuple[Topology, Config, Plan]:
    """The topology of a scenario, made once for all that are alike."""
    key = (
        tuple(source.redelivers for source in scenario.sources), scenario.retry, scenario.max_pending,
        scenario.times_out, scenario.survives_power_cut, scenario.has_gates, scenario.partitions,
    )  # fmt: skip
    if key not in _topologies:
        builder = TopologyBuilder("simulated")
        bolt = builder.set_bolt("bolt", Calls(print, remembers=("effects",)))
        for source in scenario.sources:
            builder.set_spout(source.name, _prototype(source), retry=scenario.retry)
            bolt.shuffle_grouping(source.name)
        if scenario.has_gates:
            retry = RETRIES[1]
            once = builder.set_bolt(
                "once", Calls(print, remembers=("effects",)), exactly_once=True, retry=retry
            )
            once.global_grouping("bolt")
            builder.set_sink("table", Unused(), retry=retry).global_grouping("bolt")
        topology = builder.create_topology()
        config = Config(
            max_spout_pending=scenario.max_pending,
            message_timeout_secs=TIMEOUT_MS / 1000,
            enable_message_timeouts=scenario.times_out,
            survive_power_cut=scenario.survives_power_cut,
            run_salt=SALT,
        )
        _topologies[key] = topology, config, Plan.of(topology, config, scenario.partitions, SALT)
    return _topologies[key]


def _prototype(source: Source) -> Spout:
    return FeederSpout(["n"]) if source.redelivers else IterableSpout(range(1), ["n"])
