"""Spark's micro-batch loop in a page, to die in at every step; the driver's own parts are the real ones.

What Spark does, in this order, and what it finds after a crash: offsets logged -> rows read -> state of the
levels -> sink, and in it the acker's files and the journal -> commit logged. A micro-batch whose commit is
missing runs again, on the state before it and with its own clock. In a folder the state is in files of ours;
at a URL it is Spark's.

A death is an exception that no part catches; the next :class:`Driver` starts from the folder and the queue,
which is all that is left of the last one.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from acktree import (
    BasicBolt,
    Bolt,
    Config,
    EndOfStream,
    IterableSpout,
    Retry,
    Spout,
    Topology,
    TopologyBuilder,
)
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind, read_chunk
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import CommitLog
from acktree.checkpoint.logs.gate_log import GateLog, gate_log_of
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.checkpoint.migrated_state import SeededStore
from acktree.checkpoint.staged_files import FOLDER_NAME, put_apart
from acktree.core.state.store import MemoryStore, StateStore
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import DeadLetters
from acktree.driver.assembly import journal_of, recovered_log, run_orders
from acktree.driver.batch import BatchResults
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import RunLog
from acktree.driver.query import ENDED_QUERY
from acktree.driver.resume import ordering, recover, redrive_ordered, send
from acktree.driver.run import Run
from acktree.driver.spouts.spout_threads import SpoutThread, Threads
from acktree.driver.supervisor import Supervisor
from acktree.errors import AcktreeError
from acktree.spark.query.operators import carried_by
from acktree.spark.query.sink import QuerySink
from acktree.spark.query.source import InboxReader
from acktree.spark.query.wire import batch_of
from acktree.tasks.bolts.level import run_level
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.task import SpoutTask
from acktree.topology.gates import GateSpout
from tests.unit.tasks.spouts.spout_harness import HostOf


class DriverDied(BaseException):
    """The process is gone. Not an Exception: nothing in a driver survives its death."""


class World:
    """What a driver's death leaves: a folder, a queue, and what people saw."""

    def __init__(self, folder: Path, count: int, *, redelivers: bool, retry: Retry | None = None):
        self.folder, self.count, self.redelivers, self.retry = folder, count, redelivers, retry
        self.queue = set(range(count))
        self.verdicts: list[tuple[str, int]] = []
        self.delivered_before_commit: list[int] = []
        self.letters: dict[int, int] = {}  # root -> message id
        self.delivered_before_letter: list[int] = []
        self.effects: dict[int, list[int]] = {}  # micro-batch -> what it processed, as its last run has it
        self.ran_for_nobody: list[int] = []  # what a run processed that an earlier run had been given
        self.run = 0
        self.most_letters: int | None = None  # of one run: beyond it the topology stops in order
        self.stops = 0
        self.deaths: list[str] = []
        self.died_at: list[str] = []
        self.weather: Callable[[int, int, int], bool] = lambda number, attempt, run: False
        self.now_ms = 1_800_000_000_000
        self.timeout_secs: float | None = None
        self.take: Callable[[], Checkpoint] = lambda: Checkpoint(folder / "checkpoint")
        self.between_runs: Callable[[], None] = lambda: None  # what an operator does when a driver died
        self.wants_redrive = False  # an operator orders all letters to be sent again, once
        self.build: Callable[[str, Spout, Retry | None], Topology] = _topology
        self.memory: dict[tuple[str, int], dict[int, int]] = {}  # of bolts that write it here in flush()
        self.spark: Path | None = None  # where Spark's part is, if it is not in the checkpoint's folder
        self.has_keys = False  # the queue's messages have keys, and each is delivered twice
        self.salt = 7
        self.is_tracked = True  # else messages have no ids, and nobody waits for them
        self.spout: Callable[[str], Spout] | None = None  # instead of the usual ones

    def lives_until(self, *points: str) -> None:
        """Die at these points, one after the other; ``"delivered*3"`` is the third time that it is passed."""
        self.deaths = list(points)

    def passed(self, point: str) -> None:
        """Die here, if that is what comes next."""
        if not self.deaths:
            return
        name, _, left = self.deaths[0].partition("*")
        if name not in {point, "any"}:
            return
        if int(left or 1) > 1:
            self.deaths[0] = f"{name}*{int(left) - 1}"
            return
        self.deaths.pop(0)
        self.died_at.append(point)
        raise DriverDied(point)

    def committed_effects(self, last: int) -> Counter[int]:
        """How often each number was processed, in micro-batches that are committed."""
        return Counter(
            number for batch, numbers in self.effects.items() if batch <= last for number in numbers
        )


_worlds: dict[str, World] = {}
_running: dict[str, list[int]] = {}


class Weathered(BasicBolt):
    """Raises where the weather says so; else it notes that it has processed a number."""

    outputs = ["n"]

    def __init__(self, world: str):
        self.world = world

    def execute(self, tup, collector):
        world = _worlds[self.world]
        if world.weather(tup["n"], tup.attempt, world.run):
            raise ValueError(f"{tup['n']} had bad weather in run {world.run}")
        _running[self.world].append(tup["n"])
        collector.emit([tup["n"]])


class Holds(Bolt):
    """Keeps every third tuple un-acked until it ticks, some micro-batches later: its message stays open."""

    outputs = []
    remembers = ["held"]
    tick_secs = 1

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        if tup["n"] % 3 == 1:
            self.held = [*self.held, tup]
        else:
            self.collector.ack(tup)

    def tick(self, tup):
        for held in self.held:
            self.collector.ack(held)
        self.held = []


class _NotesVerdicts:
    """Notes verdicts where the test can see them, as a queue or a log would."""

    world: str

    def ack(self, message_id):
        world, driver = _worlds[self.world], _drivers[self.world]
        world.verdicts.append(("acked", message_id))
        if not world.committed_effects(driver.held.last_committed())[message_id]:
            world.delivered_before_commit.append(message_id)
        world.queue.discard(message_id)
        world.passed("delivered")

    def fail(self, message_id, failure):
        world = _worlds[self.world]
        if failure.final or (world.retry is None and not world.redelivers):
            world.verdicts.append(("failed", message_id))
            if world.retry is not None and message_id not in world.letters.values():
                world.delivered_before_letter.append(message_id)
            world.queue.discard(message_id)
        self.again(message_id)
        world.passed("delivered")

    def again(self, message_id):
        """What a spout does with what failed."""


class Range(_NotesVerdicts, IterableSpout):
    """A spout that replays by position."""

    def __init__(self, world: World, name: str):
        super().__init__(range(world.count), ["n"])
        self.world = name


class KeyedRange(_NotesVerdicts, Spout):
    """A spout that replays by position, and emits each number twice, with its key; or once, without an id."""

    outputs = ["n"]
    redelivers = False
    remembers = ["position"]

    def __init__(self, name: str):
        self.world, self.position = name, 0

    def open(self, config, context, collector):
        self.collector, self.count = collector, _worlds[self.world].count

    def next_tuple(self):
        world = _worlds[self.world]
        if self.position == (1 + world.is_tracked) * self.count:
            raise EndOfStream
        if world.is_tracked:
            number = self.position // 2
            self.collector.emit([number], message_id=number, key=f"key {number}")
        else:
            self.collector.emit([self.position])
        self.position += 1


class Queue(_NotesVerdicts, Spout):
    """A spout whose queue brings back messages without a verdict."""

    outputs = ["n"]

    def __init__(self, name: str):
        self.world = name

    def open(self, config, context, collector):
        self.collector = collector
        world = _worlds[self.world]
        self.ready = sorted([*world.queue] * (1 + world.has_keys), reverse=True)
        self.ready = self.ready[::2] + self.ready[1::2] if world.has_keys else self.ready

    def next_tuple(self):
        if self.ready:
            number = self.ready.pop()
            key = f"key {number}" if _worlds[self.world].has_keys else None
            self.collector.emit([number], message_id=number, key=key)

    def again(self, message_id):
        if message_id in _worlds[self.world].queue:
            self.ready.insert(0, message_id)


class DyingInbox(FileInbox):
    """Dies before and after it writes."""

    world: World

    def _write(self, blobs: Sequence[Any], *, only_here: bool = False) -> int:
        self.world.passed("emitted")
        number = super()._write(blobs, only_here=only_here)
        self.world.passed("handed over")
        return number

    def committed(self, end: int) -> None:
        super().committed(end)
        self.world.passed("chunks deleted")


class DyingAcker(DurableAcker):
    """Dies before it judges, and after."""

    world: World

    def judge(self, *arguments: Any, **further: Any) -> Any:
        self.world.passed("in the sink")
        judged = super().judge(*arguments, **further)
        self.world.passed("judged")
        return judged


class DyingLog(CommitLog):
    """Dies after it wrote."""

    world: World

    def write(self, *arguments: Any) -> None:
        super().write(*arguments)
        self.world.passed("logged")


class Frame:
    """As much of a DataFrame as the sink looks at."""

    def __init__(self, rows: Sequence[Any]):
        self.rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        return pa.Table.from_batches([batch_of(self.rows)])


_drivers: dict[str, Driver] = {}


def _topology(name: str, spout: Spout, retry: Retry | None) -> Topology:
    builder = TopologyBuilder("weathered")
    builder.set_spout("numbers", spout, retry=retry)
    builder.set_bolt("weathered", Weathered(name), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("holds", Holds(), parallelism=2).fields_grouping("weathered", ["n"])
    return builder.create_topology()


class Driver:
    """One run: what ``submit`` puts together, with a small Spark of its own."""

    def __init__(self, world: World):
        name = str(world.folder)
        _worlds[name], _drivers[name] = world, self
        self.world, self.name, self.is_open = world, name, False
        self.must_stop = False
        world.run += 1
        spout = (
            world.spout(name)
            if world.spout is not None
            else Queue(name)
            if world.redelivers
            else KeyedRange(name)
            if world.has_keys or not world.is_tracked
            else Range(world, name)
        )
        topology = world.build(name, spout, world.retry)
        config = Config(
            max_spout_pending=7,
            message_timeout_secs=world.timeout_secs or 30,
            enable_message_timeouts=world.timeout_secs is not None,
            run_salt=world.salt,
            dead_letter_limit_count=world.most_letters,
            dead_letter_limit_ratio=0,
        )
        self.held = world.take()
        self.is_folder = self.held.files.is_seen
        self.topology, self.threads = topology, Threads()
        place = self.held.dead_letters if self.is_folder else world.folder / "letters.sqlite"
        self.letters = DeadLetters(
            place, self.send, create=True,
            is_open=self.threads.has_open_letter, ordering=self.ordering, now_ms=lambda: world.now_ms,
        )  # fmt: skip
        self.recorder = DeadLetterRecorder(self.letters, topology, config, on_limit=self.note_limit)
        self.held.begin_run(topology, config, 2)
        self.plan = Plan.of(topology, config, 2, world.salt, self.held.first_sequence)
        self.inbox = DyingInbox(self.held.inbox, self.held.admitted(), 10**6, 10**9, self.held.files)
        self.inbox.world = world
        errors = ErrorLog(config)
        self.journal = None
        if any(not each.user_object.redelivers for each in topology.spouts):
            self.journal = journal_of(self.held, self.inbox, self.threads)
        acker = DyingAcker(self.plan, self.held.folder, self.held.acker_from, self.held.files)
        acker.world = world
        run = Run(
            plan=self.plan, checkpoint=self.held, inbox=self.inbox,
            results=BatchResults(self.plan, acker, errors, self.journal), threads=self.threads,
            dead_letters=self.letters, errors=errors, change=Event(), ended=Event(),
            stop_session=lambda: None, log=RunLog(topology.name), journal=self.journal,
            keys=(keys := KeyLog(self.plan)),
            gates=gate_log_of(
                self.plan, acker.still_open, keys, self.threads.ids_at,
                checkpoint=self.held.folder, files=self.held.files,
            ),
        )  # fmt: skip
        commits = recovered_log(self.held, run, acker)
        commits.__class__, commits.world = DyingLog, world
        self.sink = QuerySink(
            run.results, self.inbox, commits, None, (), self.threads.hold, lambda: None,
            self.held.sync, lambda _: {}, self.held.first_batch,
        )  # fmt: skip
        self.supervisor = Supervisor(run, ENDED_QUERY)
        spout_host = HostOf(
            self.inbox, keys.keys, record=self.record, reserve=self.held.reserve,
            letters_among=self.recorder.letters_among, mark_settled=self.settle,
        )  # fmt: skip
        [task_id] = topology.components["numbers"].task_ids
        bare = self.plan.topology.components["numbers"]
        self.task = SpoutTask(spout, bare, task_id, self.plan, spout_host, self.held.first_sequence)
        self.thread = SpoutThread(self.task, config, lambda: None)
        self.threads.by_task[task_id] = self.thread
        self.gates = run.gates
        if run.gates is not None:
            self._add_gates(run.gates, spout_host, config)
        last_sequence = recover(run, self.held.last_committed(), self.held.lost_through)
        self.held.refuse_used_sequences(last_sequence)
        self.held.note_run(commits.sweep)
        acker.forget_before(self.plan.first_sequences)
        self.inbox.append_control(ChunkKind.RUN, run_orders(self.held.run, self.plan))
        redrive_ordered(self.held, self.letters)
        options = {"inbox": str(self.held.inbox), "partitions": "2", "interval_secs": "2"}
        options |= {"after": str(self.held.begins_after), "carries": str(not self.is_folder).lower()}
        self.reader = InboxReader(options)
        self.held.files.begin(lambda: None)
        self.logs = {
            name: (world.spark or self.held.spark) / name for name in ("offsets", "commits", "state")
        }
        for log in self.logs.values():
            log.mkdir(parents=True, exist_ok=True)

    def _add_gates(self, passed: GateLog, spout_host: HostOf, config: Config) -> None:
        for each in self.topology.spouts:
            if isinstance(each.user_object, GateSpout):
                gate = copy.deepcopy(each.user_object)
                gate.connect(passed)
                [number] = each.task_ids
                bare = self.plan.topology.components[each.id]
                task = SpoutTask(gate, bare, number, self.plan, spout_host, self.held.first_sequence)
                self.threads.by_task[number] = SpoutThread(task, config, lambda: None)

    def close(self) -> None:
        """What the operating system does with a dead process, and a test with a live one."""
        for part in ("inbox", "letters", "held"):
            if part in vars(self):  # it may have died before it had all of them
                vars(self)[part].close()

    def dies_at(self, point: str) -> None:
        """Die here if that is what comes next, before anything that follows can be undone."""
        try:
            self.world.passed(point)
        except DriverDied:
            self.close()
            raise

    @contextmanager
    def ordering(self, letters: Sequence[DeadLetter], now_ms: int) -> Iterator[None]:
        with ordering(self.topology, self.threads, Event(), self.held, letters, now_ms):
            self.dies_at("ordered")
            yield

    def send(self, letters: Sequence[DeadLetter]) -> None:
        self.dies_at("marked")
        send(self.topology, self.threads, Event(), letters)
        self.dies_at("sent")

    def settle(self, letters: Sequence[int], now_ms: int) -> None:
        self.dies_at("not settled")
        self.letters.mark_settled(letters, now_ms)
        self.dies_at("settled")
        self.held.drop_settled(letters)

    def stop(self) -> None:
        """In order, as the supervisor does when there are too many dead letters."""
        self.world.stops += 1
        self.supervisor.note_commit()
        self.task.deactivate()
        self.spout_turns()
        assert self.journal is None or self.thread.delivered_through == self.held.last_committed()
        if self.journal is not None:
            self.journal.note_delivered()
        self.close()

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        self.recorder.record(records)
        for record in records:
            message_id = id_of(record.attempt.message_id)
            assert isinstance(message_id, int)
            self.world.letters[record.root] = message_id
        self.world.passed("recorded")

    def note_limit(self) -> None:
        self.must_stop = True

    def open(self) -> None:
        for thread in self.threads.by_task.values():
            if thread.position:
                thread.task.remember(thread.position)
            thread.task.open()
            thread.task.activate()
        self.is_open = True

    def spout_turns(self) -> None:
        """What the threads of spouts do between two micro-batches."""
        for thread in self.threads.by_task.values():
            for _ in range(30):
                through = thread._verdicts_through
                moved = thread.task.step(self.world.now_ms)
                self.world.now_ms += 1
                if not moved:
                    break
            else:
                through = -1
            thread.task.flush(self.world.now_ms)
            thread._note_delivered(through)

    def tick(self) -> None:
        """What the supervisor does when it is time."""
        if "holds" not in self.plan.level_of:
            self.inbox.append_control(ChunkKind.BEAT, {})
            return
        level = self.plan.level_of["holds"]
        self.inbox.append_control(ChunkKind.TICK, {str(level): {"holds": 1.0}})

    def micro_batch(self) -> bool:
        """The next one, or the last one again if its commit is missing. False if there is nothing new."""
        world = self.world
        last, committed = self._last("offsets"), self._last("commits")
        batch_id = committed + 1
        start = self._end_of(committed)
        if last == committed:
            end = start + len(self._following(start))
            if end == start:
                return False
            world.passed("before the offsets")
            lines = ["v1", json.dumps({"batchTimestampMs": world.now_ms}), json.dumps({"chunk": end})]
            (self.logs["offsets"] / str(batch_id)).write_text("\n".join(lines))
            world.passed("offsets logged")
        end = self._end_of(batch_id)
        clock_ms = json.loads((self.logs["offsets"] / str(batch_id)).read_text().splitlines()[1])
        rows = self._run(batch_id, start, end, clock_ms["batchTimestampMs"])
        if not self.is_open and world.redelivers:  # nothing was delivered in this run yet
            world.ran_for_nobody += _running[self.name]
        world.passed("state committed")
        self.sink(Frame(rows), batch_id)  # type: ignore[arg-type]  # it looks at no more of it
        if self.is_open:
            self.spout_turns()  # its thread waits for nobody
        world.passed("sink returned")
        (self.logs["commits"] / str(batch_id)).touch()
        world.passed("commit logged")
        self.supervisor.note_commit()
        world.passed("in the mailbox")
        return True

    def _run(self, batch_id: int, start: int, end: int, clock_ms: int) -> list[Any]:
        before = self.logs["state"] / str(batch_id - 1)
        stores = pickle.loads(before.read_bytes()) if before.exists() else {}
        _running[self.name] = []
        parts = self.reader.partitions({"chunk": start}, {"chunk": end})
        rows = [row._replace(clock_ms=clock_ms) for part in parts for row in part.rows]
        for level in self.plan.levels:
            mine = [row for row in rows if row.level == level.index]
            rows = [row for row in rows if row.level != level.index]
            for partition in range(2):
                here = [row for row in mine if row.partition == partition]
                store: StateStore = stores.setdefault((level.index, partition), MemoryStore())
                remembered = None
                if self.held.state is not None and level.stateful:
                    store = remembered = MemoryOfBatch(
                        self.held.state, self.held.first_batch + batch_id, self.held.state_from or 0
                    )
                if self.held.memory is not None:
                    store = SeededStore(store, self.held.memory)
                read = self._read if self.is_folder else carried_by(here)
                number = self.held.first_batch + batch_id
                ran = run_level(
                    self.plan, level.index, partition, here, store, read_chunk=read, batch_id=number
                )
                staged = str(self.held.folder / FOLDER_NAME) if self.is_folder else None
                rows += put_apart(staged, number, ran, least_bytes=0)
                rows += [] if remembered is None else remembered.commit(partition)
        if self.held.state is None:
            (self.logs["state"] / str(batch_id)).write_bytes(pickle.dumps(stores))
        self.world.effects[self.held.first_batch + batch_id] = _running[self.name]
        return rows

    def _read(self, name: str) -> Any:
        return read_chunk(self.held.inbox, name)

    def _following(self, start: int) -> list[int]:
        return [entry.number for entry in self.reader._news(start)]

    def _last(self, log: str) -> int:
        return max((int(file.name) for file in self.logs[log].iterdir()), default=-1)

    def _end_of(self, batch_id: int) -> int:
        if batch_id < 0:
            return self.reader.initialOffset()["chunk"]
        return int(json.loads((self.logs["offsets"] / str(batch_id)).read_text().splitlines()[2])["chunk"])

    @property
    def is_done(self) -> bool:
        """Whether everything has its verdict, and nothing is under way."""
        world = self.world
        is_dry = not world.queue if world.redelivers else self.task.has_ended
        are_idle = all(thread.task.is_idle for thread in self.threads.by_task.values())
        return is_dry and are_idle and self.inbox.is_drained and (self.gates is None or self.gates.is_empty)


def open_in_files(driver: Driver) -> int:
    """How many messages are open as of the last commit, as the next driver reads it."""
    acker = DurableAcker(driver.plan, driver.held.folder, driver.held.acker_from)
    CommitLog(driver.held.folder, [acker]).recover(driver.held.last_committed())
    return acker._acker.ledger.open_count


def live(world: World, turns: int = 400) -> Driver:
    """Run drivers, one after the other dying as the world wants, until the last one is done."""
    while True:
        driver = None
        try:
            driver = Driver(world)
            driver.micro_batch()  # the warm-up, or the last one again
            driver.open()
            if world.wants_redrive:
                world.wants_redrive = False
                driver.letters.redrive([each.id for each in driver.letters])
            for turn in range(turns):
                driver.spout_turns()
                if not driver.micro_batch() or turn % 3 == 0:
                    driver.tick()
                world.now_ms += 10
                if driver.must_stop:
                    driver.stop()
                    break
                if driver.is_done:
                    return driver
            else:
                raise AcktreeError("it goes on for ever", str(world.verdicts), f"died at {world.died_at}")
        except DriverDied:
            if driver is not None:
                driver.close()
            elif str(world.folder) in _drivers:
                _drivers[str(world.folder)].close()
            world.between_runs()
