"""Takes what spout threads, the sink and the levels say of traced messages, and writes it on its own thread.

Rules of this file
------------------
1. No caller waits for the disk: what is given is queued. A full queue drops, and the drops are counted.
2. An error of the store is logged once and stops nothing but the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from acktree.core.data.frames import WireRow
from acktree.core.ids import Int64s, root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import TraceNumbers
from acktree.core.tracking.attempts import is_traced, number_of
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.observers.tracer import recording
from acktree.tasks.spouts.keys.labels import id_of, label_of
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.texts import searched_id
from acktree.traces.events import EventLog
from acktree.traces.store import TraceStore
from acktree.traces.writer import Writer

_MOST_OPEN: Final = 100_000
"""How many open traced messages are remembered."""
_TRIM_EVERY: Final = 200
_TRIM_BYTES: Final = 16 << 20
"""The store is looked at after this number of bytes was given, or that number of works."""
_MOST_IDS: Final = 1000
"""How many messages of one chunk are recorded with their ids at most."""

Row = tuple[Any, ...]
Body = tuple[int, int, bytes]
"""What a level told: its index, the partition, and the facts."""


class Export(Protocol):
    """Takes traces out of the process. Nothing waits for it."""

    exported: int
    """How many traces were taken."""
    dropped: int
    """How many were not."""

    def put(self, roots: Iterable[int]) -> None:
        """Export the traces of these roots, whose messages have their verdicts."""

    def close(self) -> None:
        """Export what waits, for a few seconds at most."""


class TraceRecorder:
    """Records the traces of one run.

    Args:
        store: Where they are stored; None: nothing is recorded.
        rate: The share of messages that is traced.
        run_salt: What root ids are made of.
        now_ms: The time; None for the clock of the micro-batch.
        export: Takes the traces of messages that have their verdicts out of the process.
        is_threaded: Whether to write on a thread of its own; False for tests, which have none.
    """

    def __init__(
        self,
        store: TraceStore | None,
        rate: float,
        run_salt: int,
        now_ms: Callable[[], int] | None = None,
        *,
        export: Export | None = None,
        is_threaded: bool = True,
    ) -> None:
        self.export = export
        self.store, self._salt, self._now_ms = store, run_salt, now_ms
        self._rate = rate if store is not None else 0.0
        self._open: dict[int, None] = {}
        self._writer = Writer("traces", is_threaded=is_threaded)
        self._written = self._untrimmed = self._beyond = 0
        self._put(self._note_stored)  # messages of earlier runs have their verdicts in this one

    @property
    def rate(self) -> float:
        """The share of messages that is traced."""
        return self._rate

    def set_rate(self, rate: float) -> None:
        """Trace another share of the messages that are emitted from now on."""
        if self.store is not None:
            self._rate = rate

    @recording
    def emitted(
        self, chunk: Chunk, message_ids: MessageIds, parents: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Note the ids of the traced messages of a chunk. Called by spout threads; never raises.

        Args:
            parents: Row of the chunk -> traceparent, of those messages that have one.
        """
        if self.store is None or chunk.attempts is None:
            return
        traced = is_traced(chunk.attempts)
        if self._rate > 0:  # all attempts after the first are, but for the bound
            self._beyond += int(np.count_nonzero((number_of(chunk.attempts) > 1) & ~traced))
        places = np.flatnonzero(traced)
        if not len(places):
            return
        self._beyond += max(0, len(places) - _MOST_IDS)
        roots = root_ids(self._salt, chunk.task, chunk.sequences[places]).tolist()
        attempts = number_of(chunk.attempts[places]).tolist()
        before = [None] * len(places)
        if chunk.retry_of is not None:
            before = root_ids(self._salt, chunk.task, chunk.retry_of[places]).tolist()
        rows: list[Row] = []
        for nth, at in enumerate(places.tolist()):
            has_id = nth < _MOST_IDS
            # Levels record each message; only the driver knows the attempt and the traceparent.
            if has_id or attempts[nth] > 1 or at in parents:
                rows.append((
                    roots[nth], chunk.component, chunk.task, chunk.stream,
                    shown_id(message_ids[at : at + 1]) if has_id else None,
                    attempts[nth], before[nth], chunk.emitted_ms, parents.get(at),
                    label_of(message_ids[at]) if has_id else None,
                ))  # fmt: skip
        self._put(lambda store: self._add_messages(store, rows, roots), 200 * len(rows))

    def judged(self, batch: MicroBatch, batches: Mapping[int, VerdictBatch]) -> None:
        """Note the verdicts of a micro-batch. Called by the sink; the messages are looked at later."""
        # What is queued may be a message that is traced; else all that are open are known.
        if self.store is not None and (not self._writer.is_at_rest or self._open):
            now_ms = batch.clock_ms if self._now_ms is None else self._now_ms()
            self._put(partial(self._add_verdicts, batches=batches, now_ms=now_ms), 1024)

    def add(self, batch: MicroBatch, rows: Iterable[WireRow]) -> None:
        """Note what levels recorded in a micro-batch: its rows of kind TRACE."""
        if self.store is None:
            return
        facts = sorted((row.sequence, row.source, bytes(row.body)) for row in rows)
        if facts:
            work = partial(self._add_facts, batch=batch, facts=facts)
            self._put(work, sum(len(body) for _, _, body in facts))

    def settle(self, timeout_secs: float = 10.0) -> bool:
        """Wait until all that was given is written. False when the time is over first."""
        return self._writer.settle(timeout_secs)

    def close(self) -> None:
        """Write and export what is queued, and end the threads. What was stored can be read further."""
        self._writer.close()
        if self.export is not None:
            self.export.close()

    def numbers(self, events: EventLog) -> TraceNumbers:
        """What became of the traces of this run, and of its events. Any thread may call it."""
        failed, export = self._writer.failed, self.export
        return TraceNumbers(
            0 if self.store is None else self.store.recorded,
            0 if export is None else export.exported,
            {
                "queue_full": self._writer.dropped - failed,
                "store_failed": failed,
                "bounds": self._beyond + (0 if self.store is None else self.store.left_out),
                "not_exported": 0 if export is None else export.dropped,
            },
            {"queue_full": events.dropped, "bounds": events.left_out},
        )

    def _put(self, work: Callable[[TraceStore], None], size: int = 64) -> None:
        if self.store is not None:
            self._writer.put(partial(self._do, self.store, work, size), size)

    def _do(self, store: TraceStore, work: Callable[[TraceStore], None], size: int) -> None:
        work(store)
        self._written += 1
        self._untrimmed += size
        if self._written % _TRIM_EVERY == 0 or self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            store.trim()

    # ---- what is queued -------------------------------------------------------------------------------

    def _add_messages(self, store: TraceStore, rows: Sequence[tuple[Any, ...]], roots: Sequence[int]) -> None:
        self._note_open(roots)
        store.add_messages(rows)

    def _note_stored(self, store: TraceStore) -> None:
        query = "SELECT root FROM messages WHERE verdict IS NULL ORDER BY emitted_ms DESC LIMIT ?"
        self._note_open(row["root"] for row in store.select(query, (_MOST_OPEN,)))

    def _note_open(self, roots: Iterable[int]) -> None:
        self._open |= dict.fromkeys(roots)
        while len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _add_facts(self, store: TraceStore, batch: MicroBatch, facts: Sequence[Body]) -> None:
        self._note_open(store.add_facts(batch.batch_id, batch.clock_ms, [body for _, _, body in facts]))

    def _add_verdicts(self, store: TraceStore, batches: Mapping[int, VerdictBatch], now_ms: int) -> None:
        if not self._open:
            return
        groups: list[tuple[Int64s, Failure | None]] = []
        for task, verdict_batch in batches.items():
            groups += [(self._roots_of(task, verdict_batch.acked), None), (verdict_batch.acked_roots, None)]
            groups += [
                (self._roots_of(task, sequences), failure) for sequences, failure in verdict_batch.failed
            ]
            groups += verdict_batch.failed_rows
        rows = self._traced_among(groups, now_ms)
        if rows:
            store.add_verdicts(rows)
        for *_, root in rows:
            self._open.pop(root, None)
        if self.export is not None:
            self.export.put(store.stored_among([root for *_, root in rows]))

    def _roots_of(self, task: int, sequences: Int64s) -> Int64s:
        return root_ids(self._salt, task, sequences)

    def _traced_among(self, groups: Sequence[tuple[Int64s, Failure | None]], now_ms: int) -> list[Row]:
        """The verdicts of the messages that are traced; each group is acked, or failed for one reason."""
        if not groups:
            return []
        roots = np.concatenate([roots for roots, _ in groups])
        group_of = np.repeat(np.arange(len(groups)), [len(roots) for roots, _ in groups])
        # Looked up once: groups may be as many as messages.
        traced = np.sort(np.fromiter(self._open, np.int64, len(self._open)))
        is_open = traced.take(np.searchsorted(traced, roots), mode="clip") == roots
        pairs = zip(roots[is_open].tolist(), group_of[is_open].tolist(), strict=True)
        return [_verdict(root, groups[at][1], now_ms) for root, at in pairs]


def shown_id(one: MessageIds) -> str:
    """A message id, in a list or array of its own, as it is searched: as ``acktree open`` shows it."""
    (message_id,) = one.tolist() if isinstance(one, np.ndarray) else one
    return searched_id(id_of(message_id))


def _verdict(root: int, failure: Failure | None, now_ms: int) -> Row:
    if failure is None:
        return ("ACKED", now_ms, None, None, None, root)
    return (failure.kind.value, now_ms, failure.reason, failure.component, failure.traceback, root)
