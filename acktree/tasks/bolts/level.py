"""Runs one level in one partition and micro-batch: wire rows in, wire rows out.

Rules of this file
------------------
1. The same input rows give the same output rows, because Spark runs a level again after a failure and
   delivers rows in any order. So frames are sorted by (source task, sequence) before user code is called.
2. A task runs in exactly one partition, and all of its frames of a micro-batch arrive there.
3. Rows for other levels do not come here; the caller (Spark's operator or ``LocalCluster``) passes them on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.frames import Frame, Kind, WireRow, put_together
from acktree.core.data.row_hashes import hash_rows_anyhow
from acktree.core.data.slices import Slice
from acktree.core.data.values import batch_from_bytes
from acktree.core.ids import Int32s, Int64s, root_ids, row_root_ids
from acktree.core.spouts.keys import column_digests
from acktree.core.state.store import Draft, StateStore
from acktree.core.tracking.attempts import CHOSEN
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.sampling import is_sampled
from acktree.errors import MisuseError, ProtocolError
from acktree.tasks.bolts.bolt_tasks import bolt_task
from acktree.tasks.bolts.concurrent.concurrent_kinds import ConcurrentTask, run_together
from acktree.tasks.bolts.observer import Observe
from acktree.tasks.bolts.outputs.emission import PIECE_BYTES, Emission
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.outputs.router import Router
from acktree.tasks.bolts.prepared import Stock
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.bolts.task import BoltTask
from acktree.tasks.broadcast import Broadcast, OperatorOrder
from acktree.tasks.chunk import Chunk, chunks_together
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.topology.model import Component

ReadChunk = Callable[[str], Chunk]
"""Reads the chunk with a name from the inbox."""


FRAME_MESSAGES: Final = 1 << 16
"""Consecutive messages of a spout task are joined to frames of at most this many messages. The cost per frame
is then small beside the cost per message."""


def run_level(
    plan: Plan,
    index: int,
    partition: int,
    rows: Iterable[WireRow],
    store: StateStore | None = None,
    read_chunk: ReadChunk | None = None,
    observe: Observe | None = None,
    monitor: ExecutionMonitor | None = None,
    batch_id: int | None = None,
    stock: Stock | None = None,
) -> Iterator[WireRow]:
    """Run the bolts of one level over the rows addressed to it.

    Args:
        plan: The plan of the topology.
        index: The level; 0 is the source level, where chunks of spouts become frames.
        partition: The partition.
        rows: Rows of this level and partition, in any order.
        store: State of this partition; None if no bolt of the level is stateful.
        read_chunk: Reads a chunk from the inbox; for the source level.
        observe: Makes the observers; None for none.
        monitor: Notes which row is executed; a no-op monitor by default.
        batch_id: The number of the micro-batch, for the log and for sinks.
        stock: Prepared copies of bolts, where they stay from one micro-batch to the next.

    Returns:
        Rows for other levels and for the driver. Nothing runs before the first is read.
    """
    mine = sorted(rows, key=lambda row: (row.source, row.sequence, row.head))
    if not mine:
        return
    clock_ms = mine[0].clock_ms
    broadcast = Broadcast.of(mine)
    begun = partial(
        _begun, plan, observe, broadcast.order,
        partition=partition, level=index, clock_ms=clock_ms, monitor=monitor, batch_id=batch_id,
        stock=stock, is_first=broadcast.is_first,
    )  # fmt: skip
    outputs = begun()
    _begin_worker(outputs)
    wholes: list[WireRow] = []
    frames: dict[str, list[Frame]] = {}
    chunks: list[Chunk] = []
    for row in mine:
        if row.kind == Kind.FRAME:
            frame = Frame.from_wire(row)
            frames.setdefault(frame.subscriber, []).append(frame)
        elif row.kind == Kind.CHUNK and read_chunk is not None:
            part = Slice.of_head(row.head)
            chunk = read_chunk(part.chunk).slice(part.first, part.end)
            # The queue redelivers these, so a micro-batch of an earlier run that runs again leaves them out.
            if not (chunk.is_tracked and plan.is_void(chunk.task, chunk.first_sequence)):
                chunks.append(chunk)
        elif row.kind == Kind.ROWS:
            _emit_rows(row, outputs, broadcast.order)
        elif row.kind != Kind.BROADCAST:
            what = f"a row of kind {row.kind} reached level {index}"
            raise ProtocolError(what, f"partition {partition}", "this is a bug in acktree: please report it")
    for chunk in chunks_together(chunks, FRAME_MESSAGES, PIECE_BYTES):
        _emit_messages(chunk, outputs)
    for bolt in plan.levels[index].bolts:
        component = plan.topology.components[bolt]
        given = frames.get(bolt, []) + outputs.local.pop(bolt, [])
        is_whole = component.exactly_once and not component.is_sink  # a sink fails rows, and writes once
        run = partial(_run_exactly_once, begun, outputs) if is_whole else partial(_run_part, outputs)
        wholes += run(component, given, _tick_secs(broadcast, bolt, plan), store)
    yield from outputs.wire_rows()
    yield from wholes


def _begun(
    plan: Plan,
    observe: Observe | None,
    order: OperatorOrder | None,
    **place: Any,  # noqa: ANN401  # as Outputs takes it
) -> Outputs:
    """Empty outputs with observers of their own, which know what operators order."""
    observers = () if observe is None else observe(plan, place["clock_ms"])
    for observer in observers if order is not None else ():
        assert order is not None
        observer.ordered(order)
    return Outputs(plan, observers=observers, **place)


def _begin_worker(outputs: Outputs) -> None:
    """Start the worker hooks; what these raise is reported."""
    plan, index = outputs.plan, outputs.level
    if not plan.worker_hooks or not plan.levels[index].bolts:
        return
    bolt = plan.topology.components[plan.levels[index].bolts[0]]
    for error in plan.worker.begin():
        outputs.error(bolt.id, bolt.task_ids[0], failure_of(error, bolt.id))


def _tick_secs(broadcast: Broadcast, bolt: str, plan: Plan) -> float | None:
    """The interval of the tick of a bolt that is due; an earlier run may have sent one to one without."""
    return broadcast.ticks.get(bolt) if bolt in plan.ticks else None


def _run_part(
    outputs: Outputs,
    component: Component,
    frames: list[Frame],
    tick_secs: float | None,
    store: StateStore | None,
) -> Iterable[WireRow]:
    """Run a bolt; its rows are in the outputs of the level."""
    _run_bolt(component, frames, tick_secs, outputs, store)
    return ()


def _run_exactly_once(
    begun: Callable[[], Outputs],
    outputs: Outputs,
    component: Component,
    frames: list[Frame],
    tick_secs: float | None,
    store: StateStore | None,
) -> Iterator[WireRow]:
    """Run an exactly-once bolt, and then let it answer questions, on the memory that it has now."""
    asking = {edge.source for edge in component.inputs if not edge.gate}
    passed = [frame for frame in frames if frame.component not in asking]
    wholes = _run_whole(begun, component, passed, tick_secs, store)
    if len(passed) < len(frames):
        questions = [frame for frame in frames if frame.component in asking]
        draft = None if store is None else Draft(store)  # never committed: a question changes nothing
        _run_bolt(component, questions, None, outputs, draft, are_questions=True)
    return chain.from_iterable(whole.wire_rows() for whole in wholes)


def _run_whole(
    begun: Callable[[], Outputs],
    component: Component,
    frames: list[Frame],
    tick_secs: float | None,
    store: StateStore | None,
) -> list[Outputs]:
    """Run an exactly-once bolt: of a tuple that fails neither memory nor what was emitted for it stays.

    It runs again without the tuples that failed, on the memory from before. If others fail then, they do so
    at random: the rest runs in pieces, each of which stays if none of its tuples fails. A bolt with a
    ``flush`` of its own is not run in pieces, since it ends its micro-batch there. Whatever is emitted here
    goes through gates. Returns the outputs of the runs that stay; the failures of the others are in the
    first.
    """
    failures, wholes = begun(), list[Outputs]()
    memory = None if store is None else Draft(store)
    waiting = [(frames, tick_secs, 0)]
    while waiting:
        frames, tick_secs, runs = waiting.pop()
        outputs, draft = begun(), None if memory is None else Draft(memory)
        flushes = _run_bolt(component, frames, tick_secs, outputs, draft)
        failed = outputs.failed_roots
        if not len(failed):
            if draft is not None:
                draft.commit()
            wholes.append(outputs)
            continue
        failures.take_failures(outputs)
        rest = [frame.rows(_rows_without(frame, failed)) for frame in frames]
        count = sum(map(len, rest))
        if count == sum(map(len, frames)):
            raise ProtocolError(
                f"exactly-once bolt {component.id!r} failed messages that it was not given",
                f"level {outputs.level}",
                "this is a bug in acktree: please report it",
            )
        is_cut = runs and not flushes
        pieces = min(len(failed) + 1, max(1, count)) if is_cut else 1
        cut = [_piece(rest, count * n // pieces, count * (n + 1) // pieces) for n in range(pieces)]
        ticks = [tick_secs] + [None] * (pieces - 1)
        waiting += [(piece, tick, runs + 1) for piece, tick in zip(cut, ticks, strict=True)][::-1]
    if memory is not None:
        memory.commit()
    wholes[0].take_failures(failures)
    return wholes


def _piece(frames: Iterable[Frame], first: int, end: int) -> list[Frame]:
    """The rows ``first`` to ``end`` of frames that follow each other."""
    found, begin = [], 0
    for frame in frames:
        rows = np.arange(max(0, first - begin), max(0, min(len(frame), end - begin)))
        begin += len(frame)
        if len(rows):
            found.append(frame.rows(rows))
    return found


def _rows_without(frame: Frame, roots: Int64s) -> Int64s:
    """The rows of a frame that hang on none of these roots."""
    lineage = frame.lineage.sparse()
    return np.setdiff1d(np.arange(len(lineage)), lineage.row_of_pair[np.isin(lineage.roots, roots)])


def _run_bolt(
    component: Component,
    frames: list[Frame],
    tick_secs: float | None,
    outputs: Outputs,
    store: StateStore | None,
    *,
    are_questions: bool = False,
) -> bool:
    """Run the tasks of a bolt; returns whether the bolt has a ``flush`` of its own."""
    flushes = False
    by_task: dict[int, list[Frame]] = {}
    for frame in put_together(frames):
        for task, part in frame.by_task():
            by_task.setdefault(task, []).append(part)
    concurrent: list[ConcurrentTask] = []
    for task in outputs.plan.hosted(component, outputs.partition):
        given = by_task.get(task, [])
        is_asked = component.is_sink and outputs.is_first
        if not given and tick_secs is None and not is_asked:
            continue
        running: BoltTask = bolt_task(component, task, outputs, store, are_questions=are_questions)
        flushes = running.flushes
        if tick_secs is not None:
            running.tick(tick_secs)
        for frame in given:
            running.run(frame)
        if isinstance(running, ConcurrentTask):
            concurrent.append(running)  # its tuples are executed with those of the other tasks
        else:
            running.finish()
    if concurrent:
        outputs.monitor.begin_calls(component)
        run_together(concurrent)
        outputs.monitor.end()
    for running in concurrent:
        running.finish()
    return flushes


def _emit_rows(row: WireRow, outputs: Outputs, order: OperatorOrder | None) -> None:
    """Emit rows of a DataFrame as messages, with a root each; add what the driver keeps of each.

    That is the values, with a retry policy, and the message ids, for an acknowledger.
    """
    plan = outputs.plan
    rate = plan.trace_rate if order is None else order.trace_rate
    name, batch_id, place, is_tracked = json.loads(row.head)
    component = plan.topology.components[name]
    (task,) = component.task_ids
    values = batch_from_bytes(row.body)
    fields, count = component.streams[DEFAULT_STREAM].fields, values.num_rows
    if is_tracked and plan.is_tracking:
        roots = row_root_ids(plan.run_salt, batch_id, place, hash_rows_anyhow(values, fields))
        lineage: Lineage = Runs.of_messages(roots, _attempts(roots, rate))
    else:
        roots = np.zeros(0, dtype=np.int64)
        lineage = Sparse.untracked(count)
    rows = InboundRows(name, DEFAULT_STREAM, task, fields, lineage)
    router = Router(component, task, outputs, outputs.observers, chunk_at=row.sequence)
    for observer in outputs.observers:
        observer.opened(rows, name, values)
    refused = router.route(Emission(DEFAULT_STREAM, values, np.arange(count), {}), rows)
    if len(roots):
        # The owner is minus the task: these roots have no sequence. See tasks/spouts/verdict_batch.py.
        outputs.open_rows(roots, rows.ack_values, -task)
        if component.retry is not None:
            outputs.payload(roots, row.body)
        if component.told_columns:
            outputs.ids(roots, values.select(list(component.told_columns)))
        if component.key_column is not None:
            refused = {**refused, **_keys_of_rows(component, values, roots, outputs)}
    for refused_row, error in refused.items():
        outputs.refuse(name, task, rows.lineage.roots_of(np.array([refused_row])), error)


def _keys_of_rows(
    component: Component, values: pa.RecordBatch, roots: Int64s, outputs: Outputs
) -> dict[int, MisuseError]:
    """Tell the driver the keys of rows of a DataFrame; returns the rows whose keys are refused."""
    column = values.column(component.streams[DEFAULT_STREAM].fields.index(str(component.key_column)))
    where = f"spout {component.id!r}, column {component.key_column!r}"
    digests, refused = column_digests(component.id, column, where)
    has_key = np.array([bool(digest) for digest in digests])
    if has_key.any():
        outputs.keys(roots[has_key], [digest for digest in digests if digest])
    return refused


def _attempts(roots: Int64s, trace_rate: float) -> Int32s | None:
    """The first attempts of rows of a DataFrame, with a mark on a sample of them; None if none is marked."""
    sampled = is_sampled(roots, trace_rate)
    return np.where(sampled, np.int32(CHOSEN | 1), np.int32(1)) if sampled.any() else None


def _emit_messages(chunk: Chunk, outputs: Outputs) -> None:
    """Route the messages of a spout's chunk to their subscribers, and add their inits."""
    plan, count = outputs.plan, len(chunk)
    component = plan.topology.components[chunk.component]
    fields = component.streams[chunk.stream].fields
    if chunk.is_tracked:
        roots = root_ids(plan.run_salt, chunk.task, chunk.sequences)
        lineage: Lineage = Runs.of_messages(roots, chunk.attempts)
    else:
        lineage = Sparse.untracked(count)
    rows = InboundRows(chunk.component, chunk.stream, chunk.task, fields, lineage)
    # A subscriber gets one frame of a slice in each partition, so the first sequence defines the order.
    router = Router(component, chunk.task, outputs, outputs.observers, chunk_at=chunk.first_sequence)
    for observer in outputs.observers:
        observer.opened(rows, chunk.component, chunk.values)
    emission = Emission(chunk.stream, chunk.values, np.arange(count), {}, chunk.tasks)
    refused = {**router.route(emission, rows), **_without_target(chunk, plan)}
    if chunk.is_tracked:
        outputs.open(chunk.task, chunk.first_sequence, rows.ack_values)
    for row, error in refused.items():
        outputs.refuse(component.id, chunk.task, rows.lineage.roots_of(np.array([row])), error)


def _without_target(chunk: Chunk, plan: Plan) -> dict[int, Exception]:
    """Directly emitted messages whose target task no longer reads them: these must fail, not be acked."""
    if chunk.tasks is None:
        return {}
    readers = plan.topology.subscribers(chunk.component, chunk.stream)
    here = [task for reader in readers for task in plan.topology.tasks[reader.subscriber]]
    return {
        row: MisuseError(
            f"a message was emitted directly to task {chunk.tasks[row]}, which no longer reads this stream",
            f"spout {chunk.component!r}, stream {chunk.stream!r}",
            "it was emitted before its reader was changed: let its spout emit it again",
        )
        for row in np.flatnonzero(~np.isin(chunk.tasks, np.array(here, dtype=np.int32))).tolist()
    }
