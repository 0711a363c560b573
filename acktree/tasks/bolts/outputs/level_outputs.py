"""The outputs of one level in one partition and micro-batch, encoded as wire rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.core.data.frames import SINK_LEVEL, Frame, Kind, WireRow, put_together
from acktree.core.data.instruments import Increment
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, pack
from acktree.core.runs import end_to_end
from acktree.core.stats.counters import (
    ACKER,
    ACKER_ACK,
    ACKER_FAIL,
    ACKER_INIT,
    ACKER_RESET,
    ACKER_TASK,
    NO_STREAM,
    Counters,
)
from acktree.core.stats.user_metrics import increments_to_bytes
from acktree.core.tracking.combining import split
from acktree.core.tracking.deltas import Deltas, as_sequence_sums
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.bolts.observer import Observer
from acktree.tasks.bolts.oldest_held import HeldOpen
from acktree.tasks.bolts.prepared import Stock
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan


class Outputs:
    """Collects frames, deltas for the acker, counters and errors, and makes wire rows of them at the end."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        level: int,
        clock_ms: int,
        observers: Sequence[Observer] = (),
        monitor: ExecutionMonitor | None = None,
        batch_id: int | None = None,
        stock: Stock | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """Start empty.

        Args:
            plan: The plan of the topology.
            partition: The partition that the level runs in.
            level: The level's index.
            clock_ms: The micro-batch's clock.
            observers: See what happens; none by default.
            monitor: Notes which row is executed; a no-op monitor by default.
            batch_id: The number of the micro-batch, for the log.
            stock: Prepared copies of bolts, where they stay from one micro-batch to the next.
            is_first: Whether a run begins with the micro-batch, for sinks.
        """
        self.observers = observers
        self.monitor = monitor or ExecutionMonitor()
        self.plan, self.partition, self.level, self.clock_ms = plan, partition, level, clock_ms
        self.batch_id, self.stock, self.is_first = batch_id, stock, is_first
        self.counters, self._began = Counters(), perf_counter()
        self.local: dict[str, list[Frame]] = {}
        self._frames: dict[tuple[int, int], list[Frame]] = {}
        self._errors: dict[str, list[dict[str, object]]] = {}
        self._opened: list[Opened] = []
        self._sequence_sums: list[SequenceSums] = []
        self._inits: list[tuple[Int64s, Int64s, Int32s]] = []
        self._acks: list[tuple[Int64s, Int64s]] = []
        self._fails: list[tuple[Int64s, int]] = []
        self._reasons: list[bytes] = []
        self._resets: list[Int64s] = []
        self._payloads: list[tuple[Int64s, Buffer]] = []
        self._ids: list[tuple[Int64s, pa.RecordBatch]] = []
        self._keys: list[tuple[Int64s, bytes]] = []
        self._staged: list[tuple[str, Sequence[Int64s], pa.RecordBatch]] = []
        self._forgotten: dict[str, list[Int64s]] = {}
        self._metrics: list[bytes] = []
        self._held: list[tuple[object, ...]] = []

    def frame(self, partition: int, frame: Frame) -> None:
        """Add a frame for a task in some partition, on this level or a higher one."""
        level = self.plan.level_of[frame.subscriber]
        if level == self.level:
            self.local.setdefault(frame.subscriber, []).append(frame)
        else:
            self._frames.setdefault((partition, level), []).append(frame)

    def count_for_acker(self, component: str, stream: str, count: int) -> None:
        """Count what a component sends to the acker; ``stream`` is Storm's name."""
        if self.plan.is_tracking:
            self.counters.add(ACKER, ACKER_TASK, f"{component}:{stream}", "executed", count)

    def open(self, task: int, first_sequence: int, sums: Int64s) -> None:
        """Add the inits of a spout task's consecutive messages.

        Args:
            task: The spout task.
            first_sequence: Sequence of the first message.
            sums: For each message the XOR of the edges of its copies, shape (n,).
        """
        self._opened.append(Opened(task, first_sequence, first_sequence + len(sums)))
        self._sequence_sums.append(SequenceSums(task, first_sequence, sums))
        self.count_for_acker(self._component_of(task), ACKER_INIT, len(sums))

    def open_rows(self, roots: Int64s, sums: Int64s, owner: int) -> None:
        """Add the inits of a DataFrame's rows, which have roots and no sequences."""
        self._inits.append((roots, sums, np.full(len(roots), owner, dtype=np.int32)))
        self.count_for_acker(self._component_of(-owner), ACKER_INIT, len(roots))

    def _component_of(self, task: int) -> str:
        return next((name for name, tasks in self.plan.topology.tasks.items() if task in tasks), "")

    def ack(self, roots: Int64s, deltas: Int64s, component: str = "", count: int = 0) -> None:
        """Add acks: the roots of acked tuples and the delta under each.

        Args:
            component: Whose acks they are.
            count: How many acks are summed here: one for each tuple and message.
        """
        self._acks.append((roots, deltas))
        self.count_for_acker(component, ACKER_ACK, count)

    def fail(self, roots: Int64s, failure: Failure) -> None:
        """Add fails of these roots, all with one failure."""
        if len(roots):
            self._reasons.append(failure.to_bytes())  # first: an exception in between leaves a reason unused
            self._fails.append((roots, len(self._reasons) - 1))
            self.count_for_acker(failure.component or "", ACKER_FAIL, len(roots))

    def refuse(self, component: str, task: int, roots: Int64s, error: BaseException) -> None:
        """Fail a spout's message on which a grouping raised, and report the error."""
        failure = failure_of(error, component)
        self.fail(roots, failure)
        self.error(component, task, failure)

    def payload(self, roots: Int64s, values: Buffer) -> None:
        """Add the values of messages as an encoded batch, one row each. Read if one fails or stays open."""
        self._payloads.append((roots, values))

    def ids(self, roots: Int64s, message_ids: pa.RecordBatch) -> None:
        """Add the message ids of rows of a DataFrame, one row each, for an ``Acknowledger``."""
        self._ids.append((roots, message_ids))

    def keys(self, roots: Int64s, digests: Sequence[bytes]) -> None:
        """Add the digests of the keys of rows of a DataFrame."""
        self._keys.append((roots, b"".join(digests)))

    def stage(self, gate: str, groups: Sequence[Int64s], values: pa.RecordBatch) -> None:
        """Add tuples in front of a gate.

        Args:
            gate: The gate.
            groups: Consecutive tuples that hang on the same roots: the number of tuples of each group, the
                number of its roots, both shape (g,), and the roots of all groups.
            values: The tuples.
        """
        self._staged.append((gate, groups, values))

    @property
    def failed_roots(self) -> Int64s:
        """The roots that failed here, in any order."""
        return end_to_end(roots for roots, _ in self._fails)

    def take_failures(self, other: Outputs) -> None:
        """Add the fails and errors of other outputs, and the executions of what failed.

        Nothing else of them counts.
        """
        first = len(self._reasons)
        self._reasons += other._reasons
        self._fails += [(roots, first + reason) for roots, reason in other._fails]
        for component, errors in other._errors.items():
            kept = self._errors.setdefault(component, [])
            kept += errors[: max(0, self.plan.config.max_error_report_per_interval - len(kept))]
        counts = other.counters.items()
        is_fail = f":{ACKER_FAIL}"
        fails = [(key, n) for key, n in counts if key[3] in ("failed", "errors") or key[2].endswith(is_fail)]
        self.counters.merge(Counters.of(fails))
        self.counters.add_executed_failures(other.counters)

    def forgotten(self, component: str, roots: Int64s) -> None:
        """Add roots that will time out, because a bolt neither acked, failed nor keeps a tuple of theirs."""
        self._forgotten.setdefault(component, []).append(roots)

    def metrics(self, component: str, task: int, grown: Mapping[str, Increment]) -> None:
        """Add what the metrics that user code of a task registered grew by."""
        if grown:
            self._metrics.append(increments_to_bytes(component, task, grown))

    def held(
        self,
        component: str,
        task: int,
        count: int,
        oldest_ms: int | None,
        oldest_open: Sequence[HeldOpen] = (),
    ) -> None:
        """Add what a task holds over micro-batches.

        Args:
            component: The bolt.
            task: The task.
            count: How many tuples it holds.
            oldest_ms: The clock that brought the oldest; None for none, or not known.
            oldest_open: The oldest ones that are open: of each the clock that brought it, and its roots.
        """
        self._held.append((component, task, count, oldest_ms, *([oldest_open] if oldest_open else ())))

    def reset(self, component: str, roots: Int64s) -> None:
        """Add resets: the age of these roots begins again."""
        self._resets.append(roots)
        self.count_for_acker(component, ACKER_RESET, len(roots))

    def error(self, component: str, task: int, failure: Failure) -> None:
        """Add an error to report. All are counted; a few for each component and micro-batch are kept."""
        self.counters.add(component, task, NO_STREAM, "errors", 1)
        kept = self._errors.setdefault(component, [])
        if len(kept) < self.plan.config.max_error_report_per_interval:
            kept.append({"task": task, "reason": failure.reason, "traceback": failure.traceback})

    def wire_rows(self) -> Iterator[WireRow]:
        """All outputs as wire rows, addressed to other levels or to the driver. The level has run."""
        if self.counters:  # one without tuples says nothing
            self.counters.add_level_time(perf_counter() - self._began)
        for (partition, level), frames in self._frames.items():
            for frame in self._in_few(frames):
                yield WireRow(
                    partition, level, Kind.FRAME, source=frame.source, sequence=frame.sequence,
                    clock_ms=self.clock_ms, head=frame.head(), body=frame.body(),
                )  # fmt: skip
        yield from self._rows_for_the_driver()

    def _in_few(self, frames: list[Frame]) -> list[Frame]:
        """Join small frames of bolts. Frames of spouts are not consecutive here and stay as they are."""
        components = self.plan.topology.components
        alone = [frame for frame in frames if components[frame.component].kind == "spout"]
        return alone + put_together(frame for frame in frames if components[frame.component].kind == "bolt")

    def _rows_for_the_driver(self) -> Iterator[WireRow]:
        deltas = self.deltas()
        if self.plan.is_tracking:
            yield from self._rows_of(deltas)
        for roots, values in self._payloads:
            yield self._row(Kind.PAYLOADS, pack(roots), values)
        for roots, message_ids in self._ids:
            yield self._row(Kind.IDS, pack(roots), batch_to_bytes(message_ids))
        for roots, digests in self._keys:
            yield self._row(Kind.KEYS, pack(roots), digests)
        for gate, groups, values in self._staged:
            yield self._row(Kind.STAGED, gate.encode(), pack(*groups, batch_to_bytes(values)))
        for component, forgotten in self._forgotten.items():
            yield self._row(Kind.FORGOTTEN, component.encode(), pack(np.concatenate(forgotten)))
        for observer in self.observers:
            yield from (self._row(*row) for row in observer.driver_rows())
        yield from self._numbers_and_errors()

    def _rows_of(self, deltas: Deltas) -> Iterator[WireRow]:
        """Deltas as rows for the combining tasks, if there are any, and for the driver."""
        shares: dict[int, Deltas] = {}
        if self.plan.combiners:
            shares, deltas = split(self.plan.run_salt, deltas, self.plan.combiners)
        for combiner, share in shares.items():
            row = self._row(Kind.DELTAS, b"", share.to_bytes())
            yield row._replace(partition=combiner, level=self.plan.combining_level)
        if deltas:
            yield self._row(Kind.DELTAS, b"", deltas.to_bytes())

    def _numbers_and_errors(self) -> Iterator[WireRow]:
        if self.counters or self._held:
            head = json.dumps(self._held).encode() if self._held else b""
            yield self._row(Kind.STATISTICS, head, self.counters.to_bytes())
        for metrics in self._metrics:
            yield self._row(Kind.METRICS, b"", metrics)
        for component, errors in self._errors.items():
            yield self._row(Kind.ERROR, component.encode(), json.dumps(errors).encode())

    def deltas(self) -> Deltas:
        """All inits, acks, fails and resets for the acker, summed by message."""
        acks = as_sequence_sums(self.plan.run_salt, self._acks)
        return Deltas(
            end_to_end(roots for roots, _, _ in self._inits), end_to_end(sums for _, sums, _ in self._inits),
            init_owners=np.concatenate([np.zeros(0, np.int32), *(owners for _, _, owners in self._inits)]),
            ack_roots=acks.ack_roots, ack_sums=acks.ack_sums,
            fail_roots=end_to_end(roots for roots, _ in self._fails),
            failures=end_to_end(np.full(len(roots), reason) for roots, reason in self._fails),
            reasons=tuple(self._reasons), reset_roots=end_to_end(self._resets), opened=tuple(self._opened),
            sequence_sums=(*self._sequence_sums, *acks.sequence_sums), sparse_sums=acks.sparse_sums,
        ).summed()  # fmt: skip

    def _row(self, kind: Kind, head: bytes, body: Buffer) -> WireRow:
        # Rows are sorted by level before partition, so the acker reads failures in the order of the data.
        carried: Any = body  # a buffer that is read like bytes, without a copy
        # With many partitions, the tasks between here and the driver share what they only pass on.
        through = self.partition if self.plan.combiners else 0
        return WireRow(
            through, SINK_LEVEL, kind, source=self.partition, sequence=self.level, clock_ms=self.clock_ms,
            head=head, body=carried,
        )  # fmt: skip
