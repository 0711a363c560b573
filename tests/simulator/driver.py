"""One run of a driver in one thread, with a simulation of the parts of Spark that the driver sees.

Spout threads, the supervisor and Spark are *actors*; the seed decides which takes the next step. The driver's
parts are the real ones. Simulated here, in place of Spark, the machine's threads and its clock:

* offsets logged, micro-batch executed (perhaps twice), state written, sink called, commit logged: unsynced
  files of Spark, and steps between which other actors take theirs;
* a bolt: it acks, fails, keeps open or forgets a message, as the seed decides for each execution, and notes
  the execution in its state, which is committed with the micro-batch.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa

from acktree import Topology
from acktree.checkpoint import memory_files
from acktree.checkpoint.files import Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind, Taken, read_chunk
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.gate_log import gate_log_of
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.checkpoint.staged_files import put_apart
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import root_ids
from acktree.core.packing import pack
from acktree.core.state.store import StateStore
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.assembly import journal_of, recovered_log
from acktree.driver.batch import BatchResults
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import RunLog
from acktree.driver.metrics.total_counts import TotalCounts
from acktree.driver.query import ENDED_QUERY
from acktree.driver.resume import recover
from acktree.driver.run import Run
from acktree.driver.spouts.spout_threads import SpoutThread, Threads
from acktree.driver.supervisor import Supervisor
from acktree.driver.ticks import Ticks
from acktree.errors import ConnectorError
from acktree.spark.query.sink import QuerySink
from acktree.spark.query.source import InboxReader
from acktree.spark.query.wire import batch_of
from acktree.spout import Spout
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.simulator.world import (
    SALT,
    BrokenPromiseError,
    Message,
    PositionSpout,
    QueueSpout,
    World,
    copy_of,
    topology_of,
)
from tests.unit.tasks.spouts.spout_harness import HostOf

FOLDER = Path("/simulated/checkpoint")
EDGE = 5
MEMORY = "task/1/state"
ONCE = "once"
ONCE_GATE, TABLE_GATE = "__gate/once/bolt/default", "__gate/table/bolt/default"
MOST_STEPS = 10_000
KEPT_STATES = 6

_REASON = Failure(
    reason="the seed wants it", kind=FailureKind.FAILED, cause=FailureCause.EXCEPTION, component="bolt",
    exception=None, exception_types=(), traceback=None, attempt=1, final=False,
).to_bytes()  # fmt: skip


class _Frame:
    """As much of a DataFrame as the sink looks at."""

    def __init__(self, rows: Sequence[WireRow]) -> None:
        self.rows = rows

    def toArrow(self) -> _Frame:  # noqa: N802  # Spark's name
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return [batch_of(self.rows)]


class Driver:
    """What ``submit`` puts together on the world's disk."""

    def __init__(self, world: World) -> None:
        """Start, as far as the spouts' ``open``."""
        world.run += 1
        self.world, self.disk, self._executions = world, world.disk, count()
        self.in_step: SpoutThread | None = None
        self.spouts_are_open = False
        topology, config, self.plan = topology_of(world.scenario)
        files = Files(self.disk, survives_power_cut=world.scenario.survives_power_cut)
        self.held = Checkpoint(FOLDER, files)
        self.held.begin_run(topology, config, self.plan.partitions)
        world.has_effect = self.has_effect
        self.inbox = FileInbox(self.held.inbox, self.held.admitted(), 10**6, 10**9, files)
        errors, self.threads = ErrorLog(config), Threads()
        self.journal = None
        if world.scenario.has_gates or not all(source.redelivers for source in world.scenario.sources):
            self.journal = journal_of(self.held, self.inbox, self.threads)
        memory_files._known.clear()  # its workers are new processes
        self.acker = DurableAcker(self.plan, FOLDER, self.held.acker_from, files)
        self.recorder = DeadLetterRecorder(world.letters, topology, config, on_limit=lambda: None)
        self.totals = TotalCounts()
        keys = KeyLog(self.plan)
        self.gates = gate_log_of(self.plan, self.acker.still_open, keys, self.threads.ids_at, FOLDER, files)
        run = Run(
            plan=self.plan, checkpoint=self.held, inbox=self.inbox,
            results=BatchResults(self.plan, self.acker, errors, self.journal, totals=self.totals),
            threads=self.threads,
            dead_letters=world.letters, errors=errors, change=Event(), ended=Event(),
            stop_session=lambda: None, log=RunLog(topology.name), keys=keys,
            journal=self.journal, recorder=self.recorder, gates=self.gates,
        )  # fmt: skip
        commits = recovered_log(self.held, run, self.acker)
        self.progress = run.results.progress
        self.sink = QuerySink(
            run.results, self.inbox, commits, None, (), self.hold, self.on_batch,
            self.held.sync, lambda _: {}, self.held.first_batch, has_gates=self.gates is not None,
        )  # fmt: skip
        self.supervisor = Supervisor(run, ENDED_QUERY)
        spout_host = HostOf(
            self.inbox, keys.keys, record=self.record, reserve=self.held.reserve,
            letters_among=self.recorder.letters_among,
        )  # fmt: skip
        for name, spout in self._spouts(topology).items():
            bare = self.plan.topology.components[name]
            task = SpoutTask(spout, bare, bare.task_ids[0], self.plan, spout_host, self.held.first_sequence)
            self.totals.watch(name, task.task, task)
            self.threads.by_task[task.task] = SpoutThread(task, config, lambda: None, self.inbox.is_running)
        last_sequence = recover(run, self.held.last_committed(), self.held.lost_through)
        self.held.refuse_used_sequences(last_sequence)
        queues = [number for number, thread in self.threads.by_task.items() if thread.task.spout.redelivers]
        self.held.note_run(commits.sweep)
        firsts = dict.fromkeys(queues, self.held.first_sequence)
        self.acker.forget_before(firsts)
        self.inbox.append_control(ChunkKind.RUN, {"run": self.held.run, "first_sequences": firsts})
        options = {"partitions": str(self.plan.partitions), "interval_secs": "2"}
        self.reader = InboxReader({"inbox": str(self.held.inbox), **options}, self.disk)
        self.ticks = Ticks(self.plan, world.now_ms)
        self.logs = {name: self.held.spark / name for name in ("offsets", "commits")}
        self.logs["operator"] = self.held.spark / "state" / "0" / "_metadata" / "v2"
        for log in self.logs.values():
            self.disk.make_folder(log)
        if (last := self._last("operator")) >= 0:  # Spark reads it before it plans
            json.loads(self.disk.read(self.logs["operator"] / str(last)))
        self.spark = self.micro_batches()

    def _spouts(self, topology: Topology) -> dict[str, Spout]:
        spouts: dict[str, Spout] = {
            source.name: (QueueSpout if source.redelivers else PositionSpout)(self.world, source)
            for source in self.world.scenario.sources
        }
        for gate in topology.spouts:
            if gate.gated is not None:
                assert self.gates is not None, "a topology with gates has their log"
                spouts[gate.id] = copy.deepcopy(gate.user_object)
                spouts[gate.id].connect(self.gates)
        return spouts

    def hold(self, batch_id: int, batches: Mapping[int, VerdictBatch]) -> None:
        """Hold verdicts as the sink wants it, and note how many there are: a naive count by micro-batch."""
        decided: Counter[tuple[str, str]] = Counter()
        for task, batch in batches.items():
            name = self.threads.by_task[task].task.component.id
            decided[name, "acked"] += len(batch.acked)
            for sequences, failure in batch.failed:
                what = "timed_out" if failure.kind is FailureKind.TIMED_OUT else "failed"
                decided[name, what] += len(sequences)
        self.world.decided[batch_id] = decided
        self.threads.hold(batch_id, batches)

    def on_batch(self) -> None:
        """The sink has judged a micro-batch, which is not committed."""

    # ---- the actors ---------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let the actors take steps until everything has its verdict and nothing is under way."""
        random = self.world.random
        next(self.spark)
        for _ in range(MOST_STEPS):
            if self.progress.batch_id >= 0:  # the spouts open once the first micro-batch has run
                break
            next(self.spark)
        else:
            raise BrokenPromiseError("the first micro-batch never comes")
        for thread in self.threads.by_task.values():
            if thread.position:
                thread.task.remember(thread.position)
            thread.task.open()
            thread.task.activate()
        self.spouts_are_open = True
        for _ in range(MOST_STEPS):
            self.world.now_ms += random.choice((0, 1, 5, 20))
            who = random.random()
            if who < 0.5:
                next(self.spark)
            elif who < 0.8:
                self.spout_step(random.choice(list(self.threads.by_task.values())))
            else:
                self.supervisor_step()
            if self.is_waiting:
                self.world.now_ms += random.choice((20, 100, 300))  # something may be due
            if self.is_done:
                self.sweep()
                return
        raise BrokenPromiseError("it goes on for ever: " + self.what_is_open())

    def sweep(self) -> None:
        """A few micro-batches after which no file is needed any more."""
        for _ in range(3):
            self.inbox.append_control(ChunkKind.BEAT, {})
            for _ in range(MOST_STEPS):
                if self.is_waiting:
                    break
                next(self.spark)
                self.supervisor.note_commit()
            else:
                raise BrokenPromiseError("the last micro-batches never end")
            for thread in self.threads.by_task.values():
                self.spout_step(thread)
            if self.journal is not None:
                self.journal.note_delivered()

    def spout_step(self, thread: SpoutThread) -> None:
        """A turn of a spout's thread, as ``SpoutThread._loop`` takes them."""
        random, task = self.world.random, thread.task
        spout = task.spout
        if isinstance(spout, QueueSpout) and random.random() < self.world.share_of_drops(spout.source):
            self.world.note(f"{spout.source.name}: the connection drops, the queue brings back what is open")
            spout.redeliver()
        through = thread._verdicts_through
        self.in_step = thread
        moved = task.step(self.world.now_ms, enough=random.randint(1, 6))
        if task.buffered_count and (not moved or random.random() < 0.4):
            task.flush(self.world.now_ms)
        thread._note_delivered(through)
        self.in_step = None

    def supervisor_step(self) -> None:
        """A turn of ``Supervisor._supervise``."""
        self.supervisor.note_commit()
        if self.journal is not None:
            self.journal.note_delivered()
        self.supervisor._send_due(self.ticks)
        if self.world.random.random() < 0.3 and self.is_waiting:
            self.inbox.append_control(ChunkKind.BEAT, {})  # as a tick would

    def micro_batches(self) -> Iterator[None]:
        """Spark's loop, a step at a time."""
        world, disk, held = self.world, self.disk, self.held
        logged = self._last("offsets")
        batch_id = max(self._last("commits") + 1, logged)  # Spark goes on with the last that it logged
        start = self._end_of(batch_id - 1)
        while True:
            if logged < batch_id:
                news = () if start == self.inbox.last_number else self.reader._news(start)
                if not news:
                    yield
                    continue
                end = world.random.choice(news[-3:] if world.random.random() < 0.5 else news).number
                Taken(end, world.scenario.allowance).write(held.inbox, disk)
                log = ["v1", json.dumps({"batchTimestampMs": world.now_ms}), json.dumps({"chunk": end})]
                self._spark_writes("offsets", batch_id, "\n".join(log).encode())
                world.note(f"micro-batch {batch_id} is to run over {start + 1} to {end}")
                yield
            logged, end = batch_id, self._end_of(batch_id)
            if self._last("operator") < 0 or self.progress.batch_id < 0:
                self._spark_writes("operator", batch_id, b'{"version": 2}')
            if self.gates is not None:
                self.sink.begin(batch_id)  # a level may write into the database
            for _ in range(world.random.choice((1, 1, 2))):
                rows = self._execute(batch_id, start, end)
                yield
            self.sink(_Frame(rows), batch_id)  # type: ignore[arg-type]  # it looks at no more of it
            yield
            for _ in range(world.random.choice((0, 4, 8)) if self.gates is not None else 0):
                world.passed("before the commit is logged")
                yield
            self._spark_writes("commits", batch_id, b"v1\n{}")
            world.note(f"micro-batch {batch_id} is committed")
            for log in ("commits", "offsets"):
                disk.remove(self.logs[log] / str(batch_id - KEPT_STATES))
            start, batch_id = end, batch_id + 1
            yield

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """The store of dead letters: another place, which keeps what it has taken, and is away sometimes."""
        self.world.passed("before the dead letters are stored")
        if self.world.random.random() < 0.1 and self.world.faults_left:
            raise ConnectorError("the database is away", "the simulator", "wait", can_retry=True)
        self.recorder.record(records)
        for record in records:
            number = id_of(record.attempt.message_id)
            key = (record.component, number[0] if isinstance(number, tuple) else number)
            self.world.note(f"dead letter of {key}")
            self.world.letters_put[key] += 1
        self.world.passed("after the dead letters are stored")

    def stop(self) -> None:
        """In order, as ``Supervisor._stop`` does: whatever fails, the next step is taken."""
        self.world.note("is stopped in order")
        with suppress(Exception):
            self.supervisor.note_commit()
        for thread in self.threads.by_task.values():
            if thread is self.in_step:
                continue  # a step of its raised: a thread takes none after that
            with suppress(Exception):
                thread.task.deactivate()
                through = thread._verdicts_through
                thread.task.step(self.world.now_ms)
                thread.task.flush(self.world.now_ms)
                thread._note_delivered(through)
        if self.journal is not None:
            with suppress(Exception):
                self.journal.note_delivered()
        self.inbox.close()
        self.held.close()

    # ---- Spark and the bolt -------------------------------------------------------------------------------

    def _execute(self, batch_id: int, start: int, end: int) -> list[WireRow]:
        log = self.disk.read(self.logs["offsets"] / str(batch_id)).splitlines()
        clock_ms = json.loads(log[1])["batchTimestampMs"]
        parts = self.reader.partitions({"chunk": start}, {"chunk": end})
        given = [row._replace(clock_ms=clock_ms) for part in parts for row in part.rows]
        memory = MemoryOfBatch(self.held.state, batch_id, self.held.state_from or 0, self.disk)
        before = loaded(memory)
        done = Done(Counter(before["effects"]))
        for due, root in before["held"]:
            if due <= batch_id:
                done.acked.append(root)
            else:
                done.held.append((due, root))
        for row in given:
            if row.kind == Kind.CHUNK:
                self._run_chunk(row, batch_id, done)
        if done.written:
            self._write(batch_id, done)
        rows = [row for row in given if row.kind == Kind.BROADCAST and row.level == SINK_LEVEL]
        rows += [deltas_row(0, done.deltas()), *(staged_rows(0, done) if self.gates is not None else ())]
        memory.put(MEMORY, pickle.dumps({"effects": dict(done.effects), "held": done.held}))
        attempt = f"{self.world.run:08x}{next(self._executions):08x}"
        least = 0 if batch_id % 2 else 1 << 30
        staged = str(FOLDER / "staged")
        rows = [*put_apart(staged, batch_id, rows, self.disk, attempt=attempt, least_bytes=least)]
        return [*rows, *memory.commit(0, f"{self.world.random.getrandbits(64):016x}")]

    def _run_chunk(self, row: WireRow, batch_id: int, done: Done) -> None:
        name, first, last = json.loads(row.head)
        chunk = read_chunk(self.held.inbox, name, self.disk)
        sums = np.full(last - first, EDGE)
        sequence = chunk.first_sequence + first
        values = chunk.values.column(0).to_pylist()[first:last]
        roots = root_ids(SALT, chunk.task, np.arange(sequence, sequence + last - first)).tolist()
        for at, (value, root) in enumerate(zip(values, roots, strict=True)):
            attempt = 1 if chunk.attempts is None else int(chunk.attempts[first + at])
            fate = self._run_reader(chunk.component, value, root, attempt, done)
            if fate == "acked":
                sums[at] = 0
            elif fate == "failed":
                done.failed.append(root)
            elif fate != "forgotten":
                done.held.append((batch_id + int(fate), root))
        done.opened.append(Opened(chunk.task, sequence, sequence + last - first))
        done.sums.append(SequenceSums(chunk.task, sequence, sums))

    def _run_reader(self, component: str, value: Any, root: int, attempt: int, done: Done) -> str:
        """Give a message to its reader; returns its fate."""
        if component == TABLE_GATE:
            done.written.append((root, value))
            return "acked"  # one that is refused has failed, whatever its sum is
        if component == ONCE_GATE:
            return self._run_once(value, done.effects)
        fate = self._run_bolt(component, value, attempt, done.effects)
        vain = " in vain" if fate in ("failed", "forgotten") else ""
        done.staged.append((root, f"{component} {max(value, copy_of(value))}{vain}"))
        return fate

    def _write(self, batch_id: int, done: Done) -> None:
        """The sink: all rows of the micro-batch in one transaction."""
        roots, names = map(list, zip(*done.written, strict=True))
        refused = self.world.database.write(batch_id, roots, names, self._is_refused)
        done.failed += [roots[at] for at in sorted(refused)]
        self.world.note(f"writes {names}, refused {sorted(refused)}")
        self.world.passed("after the database's commit")

    def _run_bolt(self, component: str, number: int, attempt: int, effects: Counter[Any]) -> str:
        message = self.world.messages[component, max(number, copy_of(number))]
        message.executions += 1
        self.world.note(f"executes {component} {number}, attempt {attempt}")
        if message.executions <= message.fails:
            return "failed"
        effects[component, number, attempt] += 1
        if message.executions <= message.fails + message.forgets:
            return "forgotten"
        # Held for ever it would time out for ever: later executions ack at once.
        is_held = message.holds and message.executions <= message.fails + message.forgets + 2
        return str(message.holds) if is_held else "acked"

    def _run_once(self, name: str, effects: Counter[Any]) -> str:
        """The exactly-once bolt: it fails as often as the seed wants, and changes nothing then."""
        message = self.world.behind.setdefault(name, Message(self.world.random.choice((0, 0, 0, 1, 2)), 0, 0))
        message.executions += 1
        self.world.note(f"counts {name}")
        if message.executions <= message.fails:
            return "failed"
        effects[ONCE, name] += 1
        return "acked"

    def _is_refused(self, name: str) -> bool:
        return self.world.random.random() < 0.2

    def _state(self, batch_id: int) -> dict[str, Any]:
        return loaded(MemoryOfBatch(self.held.state, batch_id + 1, self.held.state_from or 0, self.disk))

    def _spark_writes(self, log: str, batch_id: int, content: bytes) -> None:
        new = self.logs[log] / f".{batch_id}.tmp"
        self.disk.write(new, content)
        self.disk.rename(new, self.logs[log] / str(batch_id))

    def _last(self, log: str) -> int:
        return max((int(name) for name in self.disk.names(self.logs[log]) if name.isdigit()), default=-1)

    def _end_of(self, batch_id: int) -> int:
        if batch_id < 0:
            return self.reader.initialOffset()["chunk"]
        lines = self.disk.read(self.logs["offsets"] / str(batch_id)).splitlines()
        return int(json.loads(lines[2])["chunk"])

    # ---- the account --------------------------------------------------------------------------------------

    def effects(self) -> Counter[tuple[str, int, int]]:
        """How often each attempt was executed, in committed micro-batches."""
        effects = self._state(self._last("commits"))["effects"]
        return Counter({key: times for key, times in effects.items() if key[0] != ONCE})

    def counted(self) -> Counter[str]:
        """How often the exactly-once bolt remembers each tuple."""
        effects = self._state(self._last("commits"))["effects"]
        return Counter({key[1]: times for key, times in effects.items() if key[0] == ONCE})

    def has_effect(self, name: str, number: int) -> bool:
        """Whether a committed micro-batch executed a message."""
        return any(key[:2] == (name, number) for key in self.effects())

    @property
    def is_done(self) -> bool:
        """Whether everything has its verdict, and nothing is under way."""
        queues_are_empty = not any(self.world.queues.values())
        return (
            queues_are_empty
            and self.inbox.is_drained
            and all(
                thread.task.is_idle
                and (
                    thread.task.spout.redelivers
                    or thread.task.has_ended
                    or thread.task.component.gated is not None
                )
                for thread in self.threads.by_task.values()
            )
            and (self.gates is None or self.gates.is_empty)
            and self.progress.open_count == 0
        )

    @property
    def is_waiting(self) -> bool:
        """Whether nothing happens before some time has passed."""
        return self.inbox.is_drained and self.supervisor._committed == self.progress.batch_id

    def what_is_open(self) -> str:
        """For the report of a run without an end."""
        tasks = {thread.task.component.id: thread.task.open_count for thread in self.threads.by_task.values()}
        return (
            f"queues {self.world.queues}, open at the spouts {tasks}, open at the acker "
            f"{self.progress.open_count}, drained {self.inbox.is_drained}, files {self.disk.list_all()}"
        )


@dataclass
class Done:
    """What the bolts did in a micro-batch.

    Attributes:
        effects: What the bolts remember.
        held: Roots that are open, and when each is acked.
        staged: (root, name) of tuples in front of gates.
        written: (root, name) of the sink's rows.
    """

    effects: Counter[Any]
    held: list[tuple[int, int]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    sums: list[SequenceSums] = field(default_factory=list)
    staged: list[tuple[int, str]] = field(default_factory=list)
    written: list[tuple[int, str]] = field(default_factory=list)

    def deltas(self) -> Deltas:
        """What the acker is told."""
        return Deltas(
            _int64s([]), _int64s([]), np.zeros(0, dtype=np.int32),
            _int64s(self.acked), _int64s([EDGE] * len(self.acked)),
            _int64s(self.failed), _int64s([0] * len(self.failed)), (_REASON,) if self.failed else (),
            _int64s([]), tuple(self.opened), tuple(self.sums),
        )  # fmt: skip


def deltas_row(partition: int, deltas: Deltas) -> WireRow:
    """What the acker is told, as a row for the driver."""
    return WireRow(partition, SINK_LEVEL, int(Kind.DELTAS), 0, 0, 0, b"", deltas.to_bytes())


def staged_rows(partition: int, done: Done) -> Iterator[WireRow]:
    """The tuples in front of both gates, as rows for the driver."""
    for gate in (ONCE_GATE, TABLE_GATE) if done.staged else ():
        roots, names = zip(*done.staged, strict=True)
        values = batch_to_bytes(pa.record_batch([pa.array(names)], names=["value"]))
        ones = _int64s([1] * len(roots))
        body = pack(ones, ones, _int64s(roots), values)
        yield WireRow(partition, SINK_LEVEL, int(Kind.STAGED), 0, 0, 0, gate.encode(), body)


def loaded(store: StateStore, name: str = MEMORY) -> dict[str, Any]:
    """The bolts' memory: one blob."""
    blob = store.get(name)
    state: dict[str, Any] = {"effects": {}, "held": []} if blob is None else pickle.loads(blob)
    return state


def _int64s(values: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)
