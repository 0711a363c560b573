"""The spout task of a DataFrame: its rows become messages inside the query, and only verdicts come here.

They are counted, and delivered to the acknowledger if there is one. With a retry policy, a row that failed is
either a dead letter or is *parked* in the inbox, durably, until its next attempt is due; from then on it is a
message like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core import durable
from acktree.core.data.batches import alone
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.reading import decoded
from acktree.core.data.values import batch_to_bytes
from acktree.core.spouts.keys import column_digests
from acktree.core.spouts.retry import Retry, RetryAt
from acktree.core.tracking.verdicts import Failure
from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import MisuseError
from acktree.tasks.chunk import Chunk, in_parts
from acktree.tasks.payloads import Payload, is_among
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.dependencies import dependency_of
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.keys.labels import Labelled, id_of
from acktree.tasks.spouts.retries import NO_CHUNK, Attempt, Redriven, RedrivenLetter, concat_rows
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.texts import kept_label
from acktree.topology.model import Component

_OF_EARLIER_RUN: Final = "what was away in the earlier run"
_AT_ONCE: Final = 10_000
"""The most rows that are given up and recorded together: each holds its values in memory until then."""


@dataclass(frozen=True)
class _Parked:
    """A failed row on its way to its next attempt."""

    due_ms: int
    message_id: object
    values: pa.RecordBatch
    root: int
    dependency: str | None = None  # what it waits for, if a bolt could not reach it


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
    ) -> None:
        """Take the verdicts of a DataFrame's rows."""
        super().__init__(spout, component, task, plan, spout_host, first_sequence=first_sequence)
        self._acknowledger = spout.acknowledger
        fields = component.streams[DEFAULT_STREAM].fields
        self._parked: set[int] = set()  # roots of rows that an earlier run parked before it died
        self._id_columns = [fields.index(name) for name in spout.id_columns]
        self._left_open: list[object] = []  # ids of rows that an earlier run left open, until `open`

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

    def not_asked_because(self) -> None:
        """None: it is never asked, and that needs no reason."""

    def note_open(self, message_ids: pa.RecordBatch) -> None:
        """Before ``open``: rows are open that an earlier run read."""
        self._left_open += _ids_in(message_ids)

    def _recovered_ids(self) -> tuple[object, ...]:
        return (*self._left_open, *super()._recovered_ids())

    def recover_parked(self, number: int, chunk: Chunk, now_ms: int) -> None:
        """Let rows that an earlier run parked wait again, but for those it emitted before it died."""
        self._chunks.keep(number, chunk.stream)
        if chunk.retry_of is not None:
            self._parked.update(chunk.retry_of.tolist())
        ids = durable.loads(chunk.message_ids)
        attempts = [1] * len(ids) if chunk.attempts is None else chunk.attempts.tolist()
        for row, sequence in enumerate(chunk.sequences.tolist()):
            if sequence not in self._retries.earlier.tried_again:
                attempt = Attempt(
                    ids[row], number, row, sequence, attempt=1, first_emitted_ms=chunk.emitted_ms,
                    stream=chunk.stream,
                )  # fmt: skip
                if attempts[row]:
                    self._retries.add(now_ms, attempt)
                else:  # no attempt of it counts
                    self._retries.hold(attempt, _OF_EARLIER_RUN, now_ms)
        self._chunks.release_unneeded({number})

    def _take_rows(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        if self._acknowledger is not None:
            self._deliver_to_acknowledger(verdict_batch)
        if verdict_batch.acked_rows:
            self._reporter.count_verdicts(DEFAULT_STREAM, "acked", verdict_batch.acked_rows)
            self._reporter.note_acked(verdict_batch.acked_rows, now_ms)
        for roots, failure in verdict_batch.failed_rows:
            self._reporter.count_failed(DEFAULT_STREAM, failure, len(roots))
            self._delivery.note_failed(len(roots), (), failure)
        if self.component.retry is not None and verdict_batch.failed_rows:
            for part in in_parts(
                self._to_park(verdict_batch, self.component.retry, now_ms), lambda one: one.values.nbytes
            ):
                self._park(part, now_ms)

    def _deliver_to_acknowledger(self, verdict_batch: VerdictBatch) -> None:
        """Deliver verdicts; a row that fails with a retry policy follows when it is parked or given up."""
        assert self._acknowledger is not None
        for message_ids in verdict_batch.left_open:
            self._hooks.call(self._acknowledger.open_batch, _ids_in(message_ids))
        acked = np.sort(verdict_batch.acked_roots)
        for roots, message_ids in verdict_batch.ids if len(acked) else ():
            is_acked = is_among(roots, acked)
            if is_acked.all():
                self._hooks.ack(_ids_in(message_ids))
            elif is_acked.any():
                self._hooks.ack(_ids_in(message_ids.filter(pa.array(is_acked))))
        if self.component.retry is None and verdict_batch.failed_rows:
            failed = _failed_rows(verdict_batch, verdict_batch.ids)
            failures = [(_ids_in(one)[0], failure) for _, one, failure in failed]
            if failures:
                self._hooks.fail(failures)

    def _to_park(self, verdict_batch: VerdictBatch, policy: Retry, now_ms: int) -> Iterator[_Parked]:
        """Decide failed rows: returns those that wait for their next attempt, one by one."""
        for root, values, failure in _failed_rows(verdict_batch, verdict_batch.payloads):
            if root in self._parked:  # delivered again after a crash, and parked already
                continue
            message_id = self._message_id(values)
            is_over = root in self._retries.earlier.dead_letters or self._key(values)[1]
            dependency = None if is_over else dependency_of(failure)
            if dependency is not None:
                yield _Parked(now_ms, message_id, values, root, dependency)
                continue
            fate = None if is_over else policy.decide(failure, root, now_ms, now_ms)
            if isinstance(fate, RetryAt):
                yield _Parked(fate.due_ms, message_id, values, root)
            else:
                letter = RedrivenLetter(NO_CHUNK, DEFAULT_STREAM, values)
                attempt = Attempt.of_letter(letter, message_id, 1, now_ms)
                self._retries.give_up(attempt, replace(failure, final=True), root)
                if len(self._retries.records) >= _AT_ONCE and self._retries.may_record(now_ms):
                    self._given_up.record(now_ms)

    def _park(self, parked: list[_Parked], now_ms: int) -> None:
        try:
            values = concat_rows([one.values for one in parked])
        except MisuseError:  # one batch cannot hold them
            middle = len(parked) // 2
            self._park(parked[:middle], now_ms)
            self._park(parked[middle:], now_ms)
            return
        first = self._hand_over.sequences(len(parked))
        chunk = Chunk(
            self.component.id,
            self.task,
            DEFAULT_STREAM,
            is_tracked=True,
            first_sequence=first,
            emitted_ms=now_ms,
            values=values,
            attempts=np.array([one.dependency is None for one in parked], dtype=np.int32),
            retry_of=np.array([one.root for one in parked], dtype=np.int64),
            message_ids=durable.dumps([one.message_id for one in parked]),
        )
        number = self._host.inbox.append([], [chunk])
        self._chunks.keep(number, DEFAULT_STREAM)
        for row, one in enumerate(parked):
            attempt = Attempt(
                one.message_id, number, row, sequence=first + row, attempt=1, first_emitted_ms=now_ms,
                stream=DEFAULT_STREAM,
            )  # fmt: skip
            if one.dependency is None:
                self._retries.add(one.due_ms, attempt)
            else:
                self._retries.hold(attempt, one.dependency, now_ms)
        if self._acknowledger is not None:
            self._hooks.call(self._acknowledger.open_batch, [id_of(one.message_id) for one in parked])

    def _message_id(self, values: pa.RecordBatch) -> object:
        if not self._id_columns:
            return Redriven(NO_CHUNK)
        message_id, (digest, _) = _ids_in(values.select(self._id_columns))[0], self._key(values)
        label = self._label(values)
        return Labelled(message_id, label, digest) if label or digest else message_id

    def _label(self, values: pa.RecordBatch) -> str:
        """The label of a row; empty for none."""
        if self.component.label_column is None:
            return ""
        fields = self.component.streams[DEFAULT_STREAM].fields
        value = _value(values.column(fields.index(self.component.label_column)), 0)
        if isinstance(value, bytes):
            value = value.decode(errors="backslashreplace")
        return "" if value is None else kept_label(str(value))

    def _key(self, values: pa.RecordBatch) -> tuple[bytes, bool]:
        """The digest of the key of a row, empty for none; and whether it is refused."""
        if self.component.key_column is None:
            return b"", False
        key = values.column(self.component.streams[DEFAULT_STREAM].fields.index(self.component.key_column))
        [digest], refused = column_digests(self.component.id, key, "")
        return digest, bool(refused)


def _ids_in(message_ids: pa.RecordBatch) -> Sequence[object]:
    """The message ids in a batch of their columns: values, or tuples where there are several columns."""
    parts = [_values_of(column) for column in message_ids.columns]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _values_of(column: pa.Array) -> Sequence[object]:
    values = decoded(column, "the message id")
    return values if isinstance(values, list) else [_value(column, row) for row in range(len(column))]


def _value(column: pa.Array, row: int) -> object:
    """A value of a column of which Python cannot represent some: never an object of the engine's own."""
    cell = column.slice(row, 1)
    try:
        return decoded(cell, "the message id")[0]
    except MisuseError:  # a date beyond the year 9999: Arrow's own words name the row as well
        return _named_by_arrow(cell)


def _named_by_arrow(cell: pa.Array) -> object:
    """A substitute for a value that Python cannot represent; different for different values of a column."""
    kind = cell.type
    if pa.types.is_dictionary(kind):
        return _named_by_arrow(cell.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):  # its bytes are not UTF-8
        return cell.cast(pa.large_binary())[0].as_py()
    if not pa.types.is_temporal(kind):  # nested: an acknowledger is given no such ids
        packed = batch_to_bytes(pa.record_batch([cell], ["id"]))
        return f"{kind} {hashlib.blake2b(packed, digest_size=16).hexdigest()}"
    try:
        return str(cell.cast(pa.string())[0])
    except pa.ArrowException:  # a time zone that Arrow does not know
        return f"{kind} {cell.cast(pa.int64())[0]}"


def _failed_rows(
    verdict_batch: VerdictBatch, pieces: Iterable[Payload]
) -> Iterator[tuple[int, pa.RecordBatch, Failure]]:
    """Each failed row with what ``pieces`` hold of it and its failure; one piece after the other."""
    roots = np.concatenate([failed for failed, _ in verdict_batch.failed_rows])
    failures = np.repeat(
        np.arange(len(verdict_batch.failed_rows)), [len(failed) for failed, _ in verdict_batch.failed_rows]
    )
    order = np.argsort(roots)
    roots, failures = roots[order], failures[order]
    for stored_roots, values in pieces:
        for row in np.flatnonzero(is_among(stored_roots, roots)).tolist():
            at = int(np.searchsorted(roots, stored_roots[row]))
            yield int(stored_roots[row]), alone(values, row), verdict_batch.failed_rows[failures[at]][1]
