"""The spout task of a DataFrame: its rows become messages inside the query, and only verdicts come here.

Without a retry policy they are counted. With one, a row that failed is either a dead letter or is *parked* in
the inbox, durably, until its next attempt is due; from then on it is a message like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from acktree.core import durable
from acktree.core.data.batches import alone
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.reading import decoded
from acktree.core.spouts.retry import Retry, RetryAt
from acktree.core.stats.counters import What
from acktree.core.tracking.verdicts import Failure, FailureKind
from acktree.errors import MisuseError
from acktree.spout import DataFrameSpout
from acktree.tasks.chunk import Chunk, in_parts
from acktree.tasks.payloads import is_among
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.retries import NO_CHUNK, Attempt, Redriven, RedrivenLetter, concat_rows
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.topology.model import Component

_AT_ONCE: Final = 10_000
"""So many rows that are given up are recorded together: each holds its values in memory until then."""


class ParkingInbox(Protocol):
    """An inbox that also keeps what shall not run yet."""

    def park(self, chunk: Chunk) -> int:
        """Keep a chunk until it is released, without running it; durable when this returns its number."""


@dataclass(frozen=True)
class _Parked:
    """A failed row on its way to its next attempt."""

    due_ms: int
    message_id: object
    values: pa.RecordBatch
    root: int


class DataFrameTask(SpoutTask):
    """The one task of a ``DataFrameSpout``."""

    def __init__(
        self,
        spout: DataFrameSpout,
        component: Component,
        task: int,
        plan: Plan,
        spout_host: SpoutHost,
        first_sequence: int,
        parking: ParkingInbox,
    ) -> None:
        """Take the verdicts of a DataFrame's rows."""
        super().__init__(spout, component, task, plan, spout_host, first_sequence)
        self._parking = parking
        fields = component.streams[DEFAULT_STREAM].fields
        self._parked: set[int] = set()  # roots of rows that an earlier run parked before it died
        self._id_column = None if spout.message_id is None else fields.index(spout.message_id)

    def end(self) -> None:
        """Called when the source has nothing more, if it is one that ends."""
        self.has_ended = True

    @property
    def ends(self) -> bool:
        """Whether the source is one that ends."""
        return isinstance(self.spout, DataFrameSpout) and self.spout.ends

    def may_emit(self) -> bool:
        """Never: Spark reads the rows."""
        return False

    def recover_parked(self, number: int, chunk: Chunk, now_ms: int) -> None:
        """Let rows that an earlier run parked wait again, but for those it emitted before it died."""
        self._chunks.keep(number, chunk.stream)
        if chunk.retry_of is not None:
            self._parked.update(chunk.retry_of.tolist())
        ids = durable.loads(chunk.message_ids)
        for row, sequence in enumerate(chunk.sequences.tolist()):
            if not self.recovery.has_tried_again(sequence):
                place = Attempt(ids[row], number, row, sequence, 1, chunk.emitted_ms, chunk.stream)
                self._retries.add(now_ms, place)
        self._chunks.release_unneeded({number})

    def _take_rows(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        if verdict_batch.acked_rows:
            self._count(DEFAULT_STREAM, "acked", verdict_batch.acked_rows)
            self._host.note_acked(self.component.id, verdict_batch.acked_rows, now_ms)
        for roots, failure in verdict_batch.failed_rows:
            what: What = "timed_out" if failure.kind is FailureKind.TIMED_OUT else "failed"
            self._count(DEFAULT_STREAM, what, len(roots))
            self._note_failed(len(roots), (), failure)
        if self.component.retry is not None and verdict_batch.failed_rows:
            for part in in_parts(
                self._to_park(verdict_batch, self.component.retry, now_ms), lambda one: one.values.nbytes
            ):
                self._park(part, now_ms)

    def _to_park(self, verdict_batch: VerdictBatch, policy: Retry, now_ms: int) -> Iterator[_Parked]:
        """Decide what becomes of failed rows: gives those that wait for their next attempt, one by one."""
        for root, values, failure in _failed_rows(verdict_batch):
            if root in self._parked:  # told anew after a crash, and parked already
                continue
            message_id = self._message_id(values)
            is_over = self.recovery.is_dead_letter(root)
            fate = None if is_over else policy.decide(failure, root, now_ms, now_ms)
            if isinstance(fate, RetryAt):
                yield _Parked(fate.due_ms, message_id, values, root)
            else:
                letter = RedrivenLetter(NO_CHUNK, DEFAULT_STREAM, values)
                place = Attempt(message_id, NO_CHUNK, 0, -1, 1, now_ms, DEFAULT_STREAM, letter)
                self._retries.give_up(place, replace(failure, final=True), root)
                if len(self._retries.records) >= _AT_ONCE and self._retries.may_record(now_ms):
                    self._record(now_ms)

    def _park(self, parked: list[_Parked], now_ms: int) -> None:
        try:
            values = concat_rows([one.values for one in parked])
        except MisuseError:  # one batch cannot hold them
            middle = len(parked) // 2
            self._park(parked[:middle], now_ms)
            self._park(parked[middle:], now_ms)
            return
        first = self._sequences(len(parked))
        chunk = Chunk(
            self.component.id,
            self.task,
            DEFAULT_STREAM,
            is_tracked=True,
            first_sequence=first,
            emitted_ms=now_ms,
            values=values,
            retry_of=np.array([one.root for one in parked], dtype=np.int64),
            message_ids=durable.dumps([one.message_id for one in parked]),
        )
        number = self._parking.park(chunk)
        self._chunks.keep(number, DEFAULT_STREAM)
        for row, one in enumerate(parked):
            place = Attempt(one.message_id, number, row, first + row, 1, now_ms, DEFAULT_STREAM)
            self._retries.add(one.due_ms, place)

    def _message_id(self, values: pa.RecordBatch) -> object:
        if self._id_column is None:
            return Redriven(NO_CHUNK)
        column = values.column(self._id_column)
        try:
            return decoded(column, "the message id")[0]
        except MisuseError:  # a date beyond the year 9999: Arrow's own words name the row as well
            return str(column.cast(pa.string())[0]) if _is_shown(column.type) else Redriven(NO_CHUNK)


def _is_shown(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))


def _failed_rows(verdict_batch: VerdictBatch) -> Iterator[tuple[int, pa.RecordBatch, Failure]]:
    """Each failed row with its one-row batch and its failure; one piece of the payloads after the other."""
    roots = np.concatenate([failed for failed, _ in verdict_batch.failed_rows])
    failures = np.repeat(
        np.arange(len(verdict_batch.failed_rows)), [len(failed) for failed, _ in verdict_batch.failed_rows]
    )
    order = np.argsort(roots)
    roots, failures = roots[order], failures[order]
    for held, values in verdict_batch.payloads:
        for row in np.flatnonzero(is_among(held, roots)).tolist():
            at = int(np.searchsorted(roots, held[row]))
            yield int(held[row]), alone(values, row), verdict_batch.failed_rows[failures[at]][1]
