"""A resident query in one thread: its readers, levels, shuffle and connections, a step at a time.

The rules of epochs are the real ones: ``ResidentQuery``, its ``Epochs``, and in each task ``ResidentLevel``
with its ``Alignment``. Simulated here, in place of Spark, its processes and the sockets:

* rows and markers travel from each sender to each target in order; of several senders any may come first;
* reports of a task arrive in order; those of several tasks in any;
* a task dies, and Spark ends the query. Tasks of that incarnation may go on for a while, and report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

import pyarrow as pa

from acktree.core.data.frames import WireRow
from acktree.core.state.store import StateStore
from acktree.errors import AcktreeError
from acktree.spark.query.operators import Places
from acktree.spark.realtime.connections import (
    FRAME,
    REPORT,
    SOURCE_LEVEL,
    Address,
    ConnectionLostError,
    Moments,
    OnReport,
    Peer,
    Report,
)
from acktree.spark.realtime.epochs import Alignment, Place
from acktree.spark.realtime.frames import Frame, frames_in
from acktree.spark.realtime.level import DRIVER, ResidentLevel, _Memory, whole_by
from acktree.spark.realtime.query import ResidentQuery
from acktree.system.private_files import Disk
from acktree.tasks.plan import Plan

Rows = list[WireRow]


class Bolts(Protocol):
    """What the levels execute."""

    plan: Plan
    disk: Disk
    random: Random

    def read_chunks(self, partition: int, rows: Rows) -> tuple[Rows, Rows]:
        """Level 0: rows for level 1, and for the driver."""

    def run_bolts(self, partition: int, epoch: int, rows: Rows, memory: StateStore) -> Rows:
        """Level 1: rows for the driver."""


class _Level(ResidentLevel):
    """The real one, with the simulator's bolts."""

    def __init__(self, bolts: Bolts, level: int, partition: int, places: Places) -> None:
        self._bolts, self._plan, self._places = bolts, bolts.plan, places
        self._level, self._partition = level, partition
        self._memory = None

    def _run(self, epoch: int, rows: Rows) -> tuple[Rows, Rows]:
        if self._level == 0:
            return self._bolts.read_chunks(self._partition, rows)
        if self._memory is None:
            state = Path(self._places.state or "")
            self._memory = _Memory(state, epoch, self._places.state_from, self._bolts.disk)
        self._memory.begin(epoch)
        return [], self._bolts.run_bolts(self._partition, epoch, rows, self._memory)

    def _written_memory(self) -> Iterator[WireRow]:
        if self._memory is None:
            return iter(())
        return self._memory.commit(self._partition, f"{self._bolts.random.getrandbits(64):016x}")


class _Task:
    """A level in a partition, until the end of Spark's batch."""

    def __init__(self, level: _Level, senders: Sequence[int], incarnation: int) -> None:
        self._level, self._incarnation = level, incarnation
        self._alignment: Alignment[WireRow] = Alignment(senders)
        self.inputs: dict[int, deque[Frame]] = {sender: deque() for sender in senders}
        self._running: Iterator[pa.RecordBatch] | None = None
        self.reports: deque[Report] = deque()

    @property
    def has_work(self) -> bool:
        """Whether there is something to do beside reports."""
        return self._running is not None or any(self.inputs.values())

    def step(self, random: Random) -> list[Frame]:
        """Take a frame, or go on with an epoch that is whole. Returns what goes to the next level."""
        if self._running is None:
            frames = random.choice([frames for frames in self.inputs.values() if frames])
            frame = frames.popleft()
            rows = whole_by(self._alignment, frame)
            if rows is not None:
                self._running = self._level.run_whole(frame.epoch, rows, self._incarnation, self._report)
            return []
        batch = next(self._running, None)
        if batch is None:
            self._running = None
            return []
        return [*frames_in([batch])]

    def _report(self, data: bytes) -> None:
        epoch, length, *moments = REPORT.unpack(data[: REPORT.size])
        assert length == len(data) - REPORT.size
        self.reports.append(Report(epoch, data[REPORT.size :], Moments(*moments)))


class Tasks:
    """One incarnation; to ``ResidentQuery`` it is Spark's query."""

    def __init__(self, bolts: Bolts, places: Places, address: Address) -> None:
        self.incarnation = address.incarnation
        self.isActive = True
        self.reason: AcktreeError | OSError | None = None
        self._bolts, self._places = bolts, places
        self.begin_batch()

    def begin_batch(self) -> None:
        """Begin a batch of Spark's: all tasks are new."""
        partitions = range(self._bolts.plan.partitions)
        self.tasks: dict[Place, _Task] = {}
        for level, partition in product(range(len(self._bolts.plan.levels)), partitions):
            made = _Level(self._bolts, level, partition, self._places)
            self.tasks[level, partition] = _Task(made, partitions if level else [DRIVER], self.incarnation)

    def step(self, random: Random, on_report: OnReport) -> bool:
        """Let a task do something, or a report arrive; False if there is nothing to do."""
        able: list[tuple[Place, bool]] = []
        for place, task in self.tasks.items():
            if task.reports:
                able.append((place, True))
            if task.has_work:
                able.append((place, False))
        if not able:
            return False
        place, is_report = random.choice(able)
        task = self.tasks[place]
        if is_report:
            on_report(self.incarnation, Peer(*place), task.reports.popleft())
            return True
        try:
            for frame in task.step(random):
                self.tasks[place[0] + 1, frame.target].inputs[frame.sender].append(frame)
        except (AcktreeError, OSError) as error:  # Spark ends the query with its error
            self.isActive, self.reason = False, error
            del self.tasks[place]
        except KeyError:
            pass  # the next task is dead, and this one is a late one of an earlier incarnation
        return True

    def die(self, place: Place) -> None:
        """A worker dies, and Spark ends the query."""
        self.isActive = False
        self.tasks.pop(place, None)

    def stop(self) -> None:
        """End the query; tasks that still run do not notice at once."""
        self.isActive = False

    def awaitTermination(self, secs: float) -> bool:  # noqa: N802  # Spark's name
        if self.reason is not None:
            raise self.reason
        return True


class _Changed:
    """In place of a condition: whoever waits is asked again at its next turn, as after its longest wait."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait_for(self, predicate: Callable[[], Any], secs: float | None = None) -> Any:
        return predicate()


class SimulatedConnections:
    """In place of :class:`acktree.spark.realtime.connections.Connections`."""

    def __init__(self, partitions: int, on_report: OnReport) -> None:
        self.changed = _Changed()
        self.on_report = on_report
        self.given_up: Peer | None = None
        self.tasks: Tasks | None = None
        self._partitions, self._incarnation = partitions, 0

    @property
    def lost(self) -> Peer | None:
        """Who is gone in the middle of a batch."""
        is_dead = self.tasks is not None and not self.tasks.isActive
        return self.given_up or (Peer(SOURCE_LEVEL, 0) if is_dead else None)

    def begin(self) -> Address:
        self._incarnation += 1
        self.given_up = self.tasks = None
        return Address("nowhere", 0, "", self._incarnation)

    def await_readers(self, secs: float) -> bool:
        return self.tasks is not None and self.tasks.isActive

    def send(self, partition: int, frames: bytes) -> None:
        if self.tasks is None or self.lost is not None:
            raise ConnectionLostError("a task is gone")
        while frames:
            _, length, target, sender, kind, epoch = FRAME.unpack(frames[: FRAME.size])
            end = FRAME.size + length
            frame = Frame(target, sender, kind, epoch, frames[FRAME.size : end])
            self.tasks.tasks[0, partition].inputs[sender].append(frame)
            frames = frames[end:]

    def end_batch(self) -> None:
        if self.tasks is None or self.lost is not None:
            raise ConnectionLostError("a task is gone")
        self.tasks.begin_batch()

    def give_up(self) -> None:
        self.given_up = Peer(SOURCE_LEVEL, 0)


class SimulatedQuery(ResidentQuery):
    """A resident query whose tasks take a step when :meth:`step` is called."""

    _connections: Any

    def __init__(self, bolts: Bolts, places: Places, last_committed: int) -> None:
        nothing: Any = None  # neither a session nor a plan in a file
        simulated: Any = SimulatedConnections
        super().__init__(nothing, bolts.plan, nothing, places, last_committed, simulated)
        self._bolts = bolts
        self._late: list[Tasks] = []
        """Of earlier incarnations."""
        self.reasons: list[BaseException] = []
        """Why the query failed, each time."""

    def _started(self, address: Address) -> Any:
        tasks = Tasks(self._bolts, self._places, address)
        self._connections.tasks = tasks
        return tasks

    def _failure(self) -> ConnectionLostError:
        error = super()._failure()
        if error.__cause__ is not None:
            self.reasons.append(error.__cause__)
        return error

    def _end_query(self) -> None:
        tasks: Any = self._query
        super()._end_query()
        if tasks is not None and self._bolts.random.random() < 0.5:
            self._late.append(tasks)

    def step(self) -> bool:
        """Let a task of any incarnation do something; False if there is nothing to do."""
        random, now = self._bolts.random, self._connections.tasks
        if self._late and random.random() < 0.5:
            late = self._late[0]
            if not late.step(random, self._connections.on_report) or random.random() < 0.02:
                self._late.remove(late)  # it is gone
            return True
        return now is not None and now.isActive and now.step(random, self._connections.on_report)

    def lose_worker(self) -> None:
        """A worker dies."""
        tasks = self._connections.tasks
        if tasks is not None and tasks.isActive:
            tasks.die(self._bolts.random.choice([*tasks.tasks]))


def clock_of(now_ms: Callable[[], int]) -> SimpleNamespace:
    """In place of the module ``time``: the world's clock."""
    return SimpleNamespace(
        time_ns=lambda: now_ms() * 1_000_000,
        monotonic_ns=lambda: now_ms() * 1_000_000,
        monotonic=lambda: now_ms() / 1000,
    )
