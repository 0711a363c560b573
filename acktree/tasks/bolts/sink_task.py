"""Runs a ``Sink``: the rows of a task and micro-batch are written in one call, with a mark.

Rules of this file
------------------
1. Rows fail, or wait for a server that is away, only when it is known that they are not written: it has said
   why it refuses them, it has another mark, or no attempt has begun to write. Otherwise the task waits until
   the mark can be read, as long as it takes, and the driver is told.
2. The mark names the micro-batch and its rows. A micro-batch that runs again has the same rows in the same
   order, since they come from a gate; so it finds its mark.
3. Whether a row kills its process is not looked for: all rows are written in one call.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.frames import Frame
from acktree.core.ids import Int64s
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError, ConnectorError, MisuseError, Unavailable
from acktree.logs.log_lines import standing
from acktree.logs.loggers import logger
from acktree.sink import Sink
from acktree.tasks.bolts.kinds import ArrowBoltTask
from acktree.tasks.bolts.prepared import Prepared
from acktree.tasks.bolts.rows.frame_rows import FAILED, ack_open

log = logger("acktree")

_MARK: Final = struct.Struct(">cq16s")
_VERSION: Final = b"1"
_PAUSES_SECS: Final = (0.2, 0.5, 1.0, 2.0, *(5.0,) * 12)
"""How long a task waits before each new attempt to reach a server of which it is not known what it has."""
_LONGEST_PAUSE_SECS: Final = 5.0
"""The pauses after these, where it may wait as long as it takes; else the task fails after a minute."""
_WRITES: Final = 7
"""How often rows are written that the server does not have after it, before they wait."""
_MS: Final = 1000.0
_Part = tuple[Frame, "pa.RecordBatch | MisuseError"]


@dataclass
class _Tried:
    """What was tried to write the rows of a micro-batch.

    Attributes:
        is_first: Whether no other attempt of the micro-batch may have written them.
        is_sure: Whether it is certain that nothing of them is written.
        failure: What the last write has raised.
        writes: How many have raised.
    """

    is_first: bool
    failure: Exception | None = None
    writes: int = 0

    def __post_init__(self) -> None:
        self.is_sure = self.is_first

    def note(self, error: Exception) -> None:
        """A write has raised."""
        self.failure, self.writes = error, self.writes + 1
        self.is_sure = self.is_sure and _is_nothing_written(error)

    @property
    def is_refused(self) -> bool:
        """Whether rows without a mark fail, or wait outside the task."""
        return not _can_retry(self.failure) or (self.is_first and self.writes >= _WRITES)

    @property
    def must_wait(self) -> bool:
        """Whether the task waits before it writes again: the attempt before may write them yet."""
        return self.writes >= _WRITES or (not self.is_first and _can_retry(self.failure))


class SinkTask(ArrowBoltTask):
    """Collects the rows of a micro-batch, and writes them at its end."""

    contract = Sink  # type: ignore[assignment]  # it shares no hook with bolts
    keeps_copies = False

    def _begin(self, store: StateStore | None, prepared: Prepared | None) -> None:  # noqa: ARG002  # the database is the memory
        self.services.close()
        self._frames: list[Frame] = []
        self._is_open = False

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Do nothing: a sink that cannot be opened may have written the rows in an earlier run."""

    def run(self, frame: Frame) -> None:
        """Keep the rows of a frame for the end of the micro-batch."""
        if self.broken is not None:
            super().run(frame)
        else:
            self._frames.append(frame)

    def finish(self) -> None:
        """Write the rows; some fail, the others are acked.

        Raises:
            ConnectorError: It is not known whether they are written.
            CheckpointError: The sink has a mark of rows that this checkpoint does not have.
        """
        if self.broken is None:
            started = perf_counter()
            if self.outputs.is_first and not self._frames:
                self._refuse_later()
            parts = [part for frame in self._frames for part in self._parts(frame)]
            reasons = self._reasons(parts)
            self._report([frame for frame, _ in parts], reasons, (perf_counter() - started) * _MS)
        super().finish()

    def call_cleanup(self) -> None:
        """Close the sink, if it is open."""
        if self._is_open:
            with self._calling("close"):
                self.bolt.close()

    @contextmanager
    def _calling(self, hook: str) -> Iterator[None]:
        """Mark that a hook of the sink is called: it is named if it does not return, or ends its process."""
        self.outputs.monitor.enter(self.component, hook)
        try:
            yield
        finally:
            self.outputs.monitor.end()

    def _parts(self, frame: Frame) -> Iterator[_Part]:
        """The frame as the sink takes it; each row alone that has values which no sink can be given."""
        try:
            yield frame, self._read(frame)[0].values
        except MisuseError as error:
            count = len(frame.lineage)
            if count == 1:
                yield frame, self._with_place(error, frame)
                return
            for start, end in pairwise((0, count // 2, count)):
                yield from self._parts(frame.rows(np.arange(start, end)))

    def _reasons(self, parts: Sequence[_Part]) -> list[str | Exception | None]:
        """Why each row fails; None where it is written."""
        joined: pa.Table | None = None
        reasons: list[str | Exception | None] = []
        places: list[int] = []  # of the rows that are written
        roots: list[Int64s] = []
        for frame, values in parts:
            count = len(frame.lineage)
            try:
                if isinstance(values, MisuseError):
                    raise values
                joined = _appended(joined, values)
            except (MisuseError, pa.ArrowException) as error:
                reasons += [error] * count
                continue
            places += range(len(reasons), len(reasons) + count)
            reasons += [None] * count
            roots.append(frame.lineage.roots_of(np.arange(count)))
        if joined is None:
            return reasons
        answer = self._write(joined, np.concatenate(roots))
        for row, place in enumerate(places):
            reasons[place] = answer if isinstance(answer, Exception) else answer.get(row)
        return reasons

    def _write(self, rows: pa.Table, roots: Int64s) -> Mapping[int, str] | Exception:
        (batch,) = rows.combine_chunks().to_batches()
        number = self.outputs.batch_id
        assert number is not None, "levels with sinks are told the number of the micro-batch"
        digest = hashlib.blake2b(roots.tobytes(), digest_size=16).digest()
        with standing(self.results.place):
            answer = self._settle(batch, _MARK.pack(_VERSION, number, digest))
        if isinstance(answer, Exception):
            self.results.error(answer)
        elif any(not 0 <= row < batch.num_rows for row in answer):
            raise MisuseError(
                f"{type(self.bolt).__name__}.write() refuses rows that are not there: {sorted(answer)[:5]}",
                f"sink {self.component.id!r}",
                "return indices of rows of the batch, from 0",
            )
        return answer

    def _settle(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str] | Exception:
        """Write rows; returns why some are refused, or why none is written."""
        tried = _Tried(is_first=not self.outputs.monitor.may_have_run)
        with self._waiting() as wait:
            while True:
                try:
                    last = self._last_mark()
                except Exception as error:
                    self._leave()
                    if tried.is_sure and isinstance(error, ConnectorError):
                        return error
                    if not _can_retry(error):
                        raise
                    wait(error)
                    continue
                self._refuse_other(last, mark)
                if tried.failure is not None and last != mark and tried.is_refused:
                    return tried.failure
                if tried.failure is not None and tried.must_wait:
                    wait(tried.failure)
                try:
                    with self._calling("write"):
                        written: Mapping[int, str] = self.bolt.write(batch, mark)
                except Exception as error:  # noqa: BLE001  # a sink of a user
                    self._leave()
                    tried.note(error)
                    if tried.is_sure:
                        return error
                else:
                    return written

    @contextmanager
    def _waiting(self) -> Iterator[Callable[[Exception], None]]:
        """What is called before each new attempt to reach the server; in a test at last it raises."""
        monitor, tries, pauses = self.outputs.monitor, 0, iter(_PAUSES_SECS)

        def wait(error: Exception) -> None:
            nonlocal tries
            if not (isinstance(error, ConnectorError) and error.can_retry):
                raise error
            tries += 1
            is_patient = monitor.waits(self.component.id, self.task, error, tries)
            pause_secs = next(pauses, _LONGEST_PAUSE_SECS if is_patient else None)
            if pause_secs is None:
                raise error
            if _is_said(tries):
                log.warning(
                    "component=%s task=%s micro_batch=%s waits until the server says if it has its rows, "
                    "tries=%s: %s (%s; %s)",
                    self.component.id, self.task, self.outputs.batch_id, tries,
                    error.what, error.where, error.fix,
                )  # fmt: skip
            time.sleep(pause_secs)

        try:
            yield wait
        finally:
            if tries:
                monitor.waits_no_more()
        if tries:
            log.info(
                "component=%s task=%s micro_batch=%s goes on, tries=%s",
                self.component.id, self.task, self.outputs.batch_id, tries,
            )  # fmt: skip

    def _last_mark(self) -> bytes | None:
        if not self._is_open:
            with self._calling("open"):
                self.bolt.open(self.plan.config, self.context)
            self._is_open = True
        with self._calling("last_mark"):
            mark: bytes | None = self.bolt.last_mark()
        return mark

    def _leave(self) -> None:
        with suppress(Exception), self._calling("close"):
            self.bolt.close()
        self._is_open = False

    def _refuse_later(self) -> None:
        """Refuse to begin a run if the sink has rows of this micro-batch or a later one.

        No message that the run emits is ACKED before this micro-batch is committed. Before rows come queues
        would hear of ACKs whose tuples only this checkpoint has, and no sink takes. A sink that cannot be
        asked here is asked then.
        """
        try:
            last = self._last_mark()
        except Exception as error:  # noqa: BLE001  # a sink of a user
            self._leave()
            log.info(
                "component=%s task=%s does not say yet which rows it has: %.300s",
                self.component.id, self.task, error,
            )  # fmt: skip
            return
        number = self.outputs.batch_id
        assert number is not None, "levels with sinks are told the number of the micro-batch"
        self._refuse_other(last, _MARK.pack(_VERSION, number, bytes(16)))

    def _refuse_other(self, last: bytes | None, mark: bytes) -> None:
        """Refuse to go on if the sink has rows of this micro-batch or a later one that are not these."""
        if last in (None, mark):
            return
        number = _number_of(last)
        if number is None or number >= _MARK.unpack(mark)[1]:
            what = "a mark of another program" if number is None else f"other rows of micro-batch {number}"
            raise CheckpointError(
                f"the sink has {what}: this checkpoint is an older copy, or was changed",
                f"sink {self.component.id!r}, task {self.task}, micro-batch {self.outputs.batch_id}",
                "bring the newest copy back; or begin with a new checkpoint and a target without these rows",
            )

    def _refused(self, reason: str) -> ConnectorError:
        """The error of rows that the sink refuses, which a ``Retry`` may call final."""
        fix = "correct what the reason names; with Retry(..., final=(ConnectorError,)) it is not tried again"
        return ConnectorError(reason, f"sink {self.component.id!r}", fix)

    def _report(
        self, frames: Sequence[Frame], reasons: Sequence[str | Exception | None], spent_ms: float
    ) -> None:
        start, total = 0, len(reasons)
        for frame in frames:
            count = len(frame.lineage)
            rows = self._account(frame, ())
            for observer in self.observers:
                observer.executed_batch(rows, frame.values, spent_ms * count / total)
            by_reason: dict[str | Exception, list[int]] = {}
            for row, reason in enumerate(reasons[start : start + count]):
                if reason is not None:
                    by_reason.setdefault(reason, []).append(row)
            for reason, which in by_reason.items():
                # A refused row is no wrong configuration: it fails alone, as that of a sink in `set_bolt`.
                if isinstance(reason, Exception):
                    self.results.fail(rows, np.array(which), reason, in_hook=True)
                else:
                    self.results.fail(rows, np.array(which), self._refused(reason), reason)
            ack_open(rows)
            self.results.count_executed(rows, spent_ms * count / total)
            self.results.count_processed(rows, spent_ms * count / total, count - rows.fate.count(FAILED))
            self.results.report_acked(rows)
            self._close(rows)
            start += count


def _number_of(mark: bytes | None) -> int | None:
    """The micro-batch of a mark; None if it is not one of ours."""
    if mark is None or len(mark) != _MARK.size or not mark.startswith(_VERSION):
        return None
    return int(_MARK.unpack(mark)[1])


def _is_said(tries: int) -> bool:
    """Whether this attempt is logged: the first, the second, the fourth, the eighth and so on.

    Where executors are apart, nothing else tells that a sink waits.
    """
    return tries.bit_count() == 1


def _is_nothing_written(error: Exception) -> bool:
    return isinstance(error, Unavailable) or (isinstance(error, ConnectorError) and error.nothing_written)


def _can_retry(error: Exception | None) -> bool:
    return isinstance(error, ConnectorError) and error.can_retry


def _appended(before: pa.Table | None, values: pa.RecordBatch) -> pa.Table:
    """Rows after others. Raises an ArrowException if no type fits both."""
    added = pa.Table.from_batches([values])
    if before is None:
        return added
    for name in values.schema.names:
        kinds = {_kind(before.schema.field(name).type), _kind(values.schema.field(name).type)}
        if len(kinds - {"null"}) > 1:
            raise MisuseError(
                f"the values of {name!r} are {' and '.join(sorted(kinds))} in one micro-batch",
                "a sink",
                "emit values of one kind: a table would have one of them as the other",
            )
    return pa.concat_tables([before, added], promote_options="permissive")


def _kind(data_type: pa.DataType) -> str:
    """The name of a type without width, precision and unit: Arrow joins these, and keeps the values."""
    if pa.types.is_integer(data_type):
        return "int"
    if pa.types.is_floating(data_type):
        return "float"
    text = str(data_type).removeprefix("large_").removeprefix("fixed_size_")
    return text[: next((at for at, letter in enumerate(text) if not letter.isalpha()), None)]
