"""A run of a driver by epochs, or by epochs and micro-batches in turn: see resident.py for what is real.

Each topology has two levels in two partitions: level 0 reads the chunks, level 1 is the bolt.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from acktree.checkpoint.inbox_files import read_chunk
from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.checkpoint.staged_files import put_apart
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.ids import root_ids
from acktree.core.state.store import StateStore
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.spark.query.operators import Places
from acktree.spark.realtime.drive import Drive
from acktree.tasks.chunk import Chunk
from tests.simulator.driver import EDGE, FOLDER, Done, Driver, deltas_row, loaded, staged_rows
from tests.simulator.resident import Rows, SimulatedQuery
from tests.simulator.world import SALT, World

MOST_DEATHS = 8
"""How many workers die in all runs of a seed."""


class _Pace:
    """How much an epoch takes at once: as the seed decides."""

    def __init__(self, allowance: int) -> None:
        self.allowance = allowance

    def ran(self, messages: int, secs: float) -> None:
        """It learns nothing from that."""


class EpochDriver(Driver):
    """What ``submit`` puts together with ``Config(real_time=True)``; or without it, on one checkpoint."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.random: Random = world.random
        by_epochs = world.drive == "epochs" or world.random.random() < 0.5
        world.note(f"runs by {'epochs' if by_epochs else 'micro-batches'}")
        self.query: SimulatedQuery | None = None
        if by_epochs:
            self.spark = self.epochs()

    # ---- epochs -------------------------------------------------------------------------------------------

    def epochs(self) -> Iterator[None]:
        """The drive and its tasks, a step at a time."""
        world, random, held = self.world, self.random, self.held
        places = Places(
            str(held.inbox), str(held.folder / "marks"), None, first_batch=held.first_batch,
            state=str(held.state), state_from=held.state_from or 0,
        )  # fmt: skip
        self.query = query = SimulatedQuery(self, places, held.last_committed())
        drive = Drive(query, held, self.inbox, self.plan, self.sink, self.supervisor.note_commit)
        drive._reader._pace = pace = _Pace(world.scenario.allowance)  # type: ignore[assignment]
        drive.start_up()
        before = 0
        while True:
            yield
            if random.random() < 0.02 and world.workers_lost < MOST_DEATHS:
                world.workers_lost += 1
                world.note("a worker dies")
                query.lose_worker()
            if random.random() < 0.5:
                for _ in range(random.choice((1, 4, 16))):
                    if not query.step():
                        break
                continue
            pace.allowance = random.choice((1, 3, world.scenario.allowance))
            drive.step()
            if query.under_way != before:
                before = query.under_way
                world.note(f"{before} epochs are under way, the next one is {drive._next}")

    def on_batch(self) -> None:
        """An epoch is judged and not committed: other threads may look for what is, and go on."""
        if self.query is None:
            return
        if self.random.random() < 0.2:
            self.supervisor.note_commit()
            self.world.passed("before the commit is logged")
        if self.gates is not None and self.spouts_are_open and self.random.random() < 0.2:
            for _ in range(self.random.choice((1, 4, 8))):
                self.spout_step(self.random.choice(list(self.threads.by_task.values())))
                self.world.passed("before the commit is logged")

    # ---- micro-batches ------------------------------------------------------------------------------------

    def _execute(self, batch_id: int, start: int, end: int) -> Rows:
        """All levels of a micro-batch, as Spark runs them."""
        log = self.disk.read(self.logs["offsets"] / str(batch_id)).splitlines()
        clock_ms = json.loads(log[1])["batchTimestampMs"]
        parts = self.reader.partitions({"chunk": start}, {"chunk": end})
        given = [[row._replace(clock_ms=clock_ms) for row in part.rows] for part in parts]
        out = [row for rows in given for row in rows if row.level == SINK_LEVEL]
        between: Rows = []
        for partition, rows in enumerate(given):
            onward, for_driver = self.read_chunks(partition, rows)
            between += onward
            out += for_driver
        for partition in range(self.plan.partitions):
            memory = MemoryOfBatch(self.held.state, batch_id, self.held.state_from or 0, self.disk)
            mine = [row for row in between if row.partition == partition]
            out += self.run_bolts(partition, batch_id, mine, memory)
            out += memory.commit(partition, f"{self.random.getrandbits(64):016x}")
        return out

    # ---- the levels ---------------------------------------------------------------------------------------

    def read_chunks(self, partition: int, rows: Rows) -> tuple[Rows, Rows]:
        """Level 0: open messages, and send each to the partition of the bolt that gets it."""
        done = Done(Counter())
        for_bolts: Rows = []
        for row in rows:
            if row.kind == Kind.CHUNK:
                for_bolts += self._read_chunk(row, done)
        return for_bolts, [deltas_row(partition, done.deltas())] if done.opened else []

    def _read_chunk(self, row: WireRow, done: Done) -> Iterator[WireRow]:
        name, first, last = json.loads(row.head)
        body = bytes(row.body)
        chunk = Chunk.from_bytes(body) if body else read_chunk(self.held.inbox, name, self.disk)
        sequence = chunk.first_sequence + first
        done.opened.append(Opened(chunk.task, sequence, sequence + last - first))
        done.sums.append(SequenceSums(chunk.task, sequence, np.full(last - first, EDGE)))
        values = chunk.values.column(0).to_pylist()[first:last]
        roots = root_ids(SALT, chunk.task, np.arange(sequence, sequence + last - first)).tolist()
        targets = range(self.plan.partitions if chunk.component in self.world.source_names else 1)
        for target in targets:
            found = [
                (root, value, 1 if chunk.attempts is None else int(chunk.attempts[first + at]))
                for at, (value, root) in enumerate(zip(values, roots, strict=True))
                if root % len(targets) == target
            ]
            if found:
                content = pickle.dumps((chunk.component, found))
                yield WireRow(target, 1, int(Kind.FRAME), chunk.task, sequence, row.clock_ms, b"", content)

    def run_bolts(self, partition: int, epoch: int, rows: Rows, memory: StateStore) -> Rows:
        """Level 1: the bolt, and what stands behind gates."""
        key = f"task/{1 + partition}/state"
        before = loaded(memory, key)
        done = Done(Counter(before["effects"]))
        for due, root in before["held"]:
            if due <= epoch:
                done.acked.append(root)
            else:
                done.held.append((due, root))
        given = sorted(pickle.loads(bytes(row.body)) for row in rows)  # as rows come in any order
        for component, messages in given:
            for root, value, attempt in messages:
                fate = self._run_reader(component, value, root, attempt, done)
                if fate == "acked":
                    done.acked.append(root)
                elif fate == "failed":
                    done.failed.append(root)
                elif fate != "forgotten":
                    done.held.append((epoch + int(fate), root))
        if done.written:
            self._write(epoch, done)
        memory.put(key, pickle.dumps({"effects": dict(done.effects), "held": done.held}))
        rows = [deltas_row(partition, done.deltas())]
        return rows if self.gates is None else [*rows, *self._staged(epoch, staged_rows(partition, done))]

    def _staged(self, epoch: int, rows: Iterator[WireRow]) -> Iterator[WireRow]:
        """What is before gates; the values are in a file in every second epoch."""
        attempt = f"{self.world.run:08x}{next(self._executions):08x}"
        least = 0 if epoch % 2 else 1 << 30
        return put_apart(str(FOLDER / "staged"), epoch, rows, self.disk, attempt=attempt, least_bytes=least)

    def _state(self, batch_id: int) -> dict[str, Any]:
        memory = MemoryOfBatch(self.held.state, batch_id + 1, self.held.state_from or 0, self.disk)
        states = [loaded(memory, f"task/{1 + part}/state") for part in range(self.plan.partitions)]
        effects: Counter[Any] = Counter()
        for state in states:
            effects.update(state["effects"])
        return {"effects": effects}
