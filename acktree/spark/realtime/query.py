"""The driver's side of a resident query: it sends epochs, waits for reports, and starts the query again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from acktree.core.data.frames import WireRow
from acktree.core.packing import Buffer
from acktree.errors import ProtocolError
from acktree.logs.loggers import logger
from acktree.spark.query.operators import Places
from acktree.spark.realtime.connections import (
    FRAME,
    FRAME_TYPE,
    Address,
    ConnectionLostError,
    Connections,
    Moments,
    OnReport,
    Peer,
    Report,
)
from acktree.spark.realtime.epochs import MOST_UNDER_WAY, Epochs, Place
from acktree.spark.realtime.frames import FRAME_DDL, Frame, frames_of, unpacked
from acktree.spark.realtime.level import DRIVER, resident_level
from acktree.spark.realtime.session import SOURCE, query_settings
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.combiner import combined
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ResidentQuery"]

log = logger("acktree")

_BATCH: Final = "365 days"
"""Spark's longest batch. The driver ends it much earlier, between two epochs: see drive.py."""
_LOOK_SECS: Final = 0.1
"""How often a query that starts is asked whether it has failed."""
_FAILURE_SECS: Final = 10
"""How long to wait for the reason of a failure: connections are closed a moment before Spark tells it."""


class ResidentQuery:
    """A query that stays, and runs the epochs of a topology.

    One thread calls it. An epoch is cut by :meth:`send`, whole when :meth:`take` returns it, and over when
    :meth:`committed` is called. At most two are under way, or one with sinks or exactly-once bolts.

    Attributes:
        moments: By level and partition when the last epoch that :meth:`take` returned ran there.
    """

    def __init__(
        self,
        session: SparkSession,
        plan: Plan,
        shared: SharedPlan,
        places: Places,
        last_committed: int,
        connected: Callable[[int, OnReport], Connections] = Connections,
    ) -> None:
        """Prepare a query, which does not run yet.

        Args:
            session: What ``start_realtime_session`` made.
            plan: What runs.
            shared: The plan, for the workers.
            places: The folders that they need. The caller writes the head of each epoch that it commits.
            last_committed: The number of the last commit.
            connected: Makes its connections.
        """
        self._session, self._plan, self._shared, self._places = session, plan, shared, places
        whole = [(level, part) for level in range(len(plan.levels)) for part in range(plan.partitions)]
        most = 1 if plan.is_exact else MOST_UNDER_WAY
        self._epochs: Epochs[_Content, Report] = Epochs(whole, last_committed, most)
        self._connections = connected(plan.partitions, self._note_report)
        self._query: StreamingQuery | None = None
        self._checkpoint: Path | None = None
        self._is_interrupted = False
        self.moments: Mapping[Place, Moments] = {}

    def start(self) -> None:
        """Start the query, or start it again: epochs that are not committed run again as they were cut.

        Raises:
            ConnectionLostError: It failed, with Spark's reason as the cause.
        """
        self._end_query()
        with self._connections.changed:
            address = self._connections.begin()
            again = self._epochs.begin()
        self._query = self._started(address)
        self._await_readers()
        for content in again.values():
            self._send(content.frames)

    def send(self, rows: Iterable[WireRow]) -> int:
        """Cut an epoch and send it; returns its number. Call it while :attr:`can_send`.

        Raises:
            ConnectionLostError: The query failed. The epoch is cut, and is sent by :meth:`start`.
        """
        content = _content_of(self._epochs.next_number, rows, self._plan)
        with self._connections.changed:
            number = self._epochs.cut(content)
        self._send(content.frames)
        return number

    @property
    def under_way(self) -> int:
        """How many epochs are cut and not committed."""
        return self._epochs.under_way

    @property
    def can_send(self) -> bool:
        """Whether fewer epochs are under way than may be."""
        return self._epochs.can_cut

    def take(
        self, has_news: Callable[[], bool] = lambda: False, secs: float | None = None
    ) -> tuple[int, list[WireRow]] | None:
        """Wait for the oldest epoch; returns its number, and the rows for the driver.

        Args:
            has_news: Whether the caller has something else to do: then None is returned, if no epoch is
                whole. Asked again after :meth:`wake`.
            secs: The longest wait; then None is returned.

        Raises:
            ConnectionLostError: The query failed.
        """
        changed = self._connections.changed
        with changed:
            changed.wait_for(lambda: self._epochs.whole() or self._connections.lost or has_news(), secs)
            whole = self._epochs.whole()
        if whole is None:
            if self._connections.lost is None:
                return None
            raise self._failure()
        number, content, reports = whole
        self.moments = {place: report.moments for place, report in reports.items()}
        rows = [row for report in reports.values() for row in unpacked(report.body)]
        return number, [*content.for_driver, *combined(self._plan, rows)]

    def wake(self) -> None:
        """Let :meth:`take` ask for news. Any thread may call it."""
        with self._connections.changed:
            self._connections.changed.notify_all()

    def committed(self, number: int) -> None:
        """Note that an epoch is committed: it does not run again."""
        with self._connections.changed:
            self._epochs.committed(number)

    def run(self, rows: Iterable[WireRow]) -> list[WireRow]:
        """Run an epoch alone, and commit it."""
        self.send(rows)
        found = self.take()
        assert found is not None, "there are no news"
        number, for_driver = found
        self.committed(number)
        return for_driver

    def end_batch(self) -> None:
        """End Spark's batch; the next one begins by itself. No epoch may be under way.

        Raises:
            ConnectionLostError: The query failed.
        """
        if self._epochs.under_way:
            raise ProtocolError("a batch ends inside an epoch", "real time", "this is a bug in acktree")
        self._connections.end_batch()
        self._await_readers()

    def interrupt(self) -> None:
        """End :meth:`send` and :meth:`take` in another thread: they raise ConnectionLostError."""
        self._is_interrupted = True
        self._connections.give_up()

    def stop(self) -> None:
        """Stop the query, and close all connections."""
        try:
            self._connections.end_batch()  # else Spark logs a trace of each task that it kills
        except ConnectionLostError as error:
            if self._connections.lost is None:
                log.warning("topology=%s is stopped all the same: %s", self._plan.topology.name, error)
        try:
            self._end_query()
        finally:
            self._connections.close()

    def _started(self, address: Address) -> StreamingQuery:
        partitions = self._plan.partitions
        self._checkpoint = Path(tempfile.mkdtemp(prefix="acktree-realtime-"))
        with query_settings(self._session, partitions):
            reader = self._session.readStream.format(SOURCE).options(
                **address._asdict(), partitions=partitions
            )
            frame = reader.load()
            for level in range(len(self._plan.levels)):
                if level:
                    frame = frame.repartitionById(partitions, "target")
                run = resident_level(self._shared, level, address, self._places)
                frame = frame.mapInArrow(run, FRAME_DDL)
            name = f"{self._plan.topology.name} (real time)"
            writer = frame.writeStream.format("noop").outputMode("update").queryName(name)
            # Spark's checkpoint means nothing here, so each start has a new one.
            writer = writer.option("checkpointLocation", str(self._checkpoint))
            query: StreamingQuery = writer.trigger(realTime=_BATCH).start()  # type: ignore[call-overload]
            return query

    def _await_readers(self) -> None:
        assert self._query is not None, "start() was called"
        while not self._connections.await_readers(_LOOK_SECS):
            if not self._query.isActive:
                raise self._failure()

    def _send(self, frames: Sequence[bytes]) -> None:
        try:
            for partition, data in enumerate(frames):
                self._connections.send(partition, data)
        except ConnectionLostError:
            lost = self._failure()
            raise lost from lost.__cause__

    def _note_report(self, incarnation: int, peer: Peer, report: Report) -> bool:
        self._epochs.reported(incarnation, (peer.level, peer.partition), report.epoch, report)
        return self._epochs.whole() is not None

    def _failure(self) -> ConnectionLostError:
        """Why the query failed, as far as Spark tells: of one that was interrupted it tells nothing."""
        error = ConnectionLostError(f"the resident query failed: {self._connections.lost}")
        if self._is_interrupted:
            return error
        assert self._query is not None, "start() was called"
        try:
            self._query.awaitTermination(_FAILURE_SECS)
        except Exception as reason:  # noqa: BLE001  # to ask for it by exception() takes Spark a fifth of a second
            error.__cause__ = reason
        return error

    def _end_query(self) -> None:
        if self._query is not None:
            self._query.stop()
        if self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._query = self._checkpoint = None


class _Content(NamedTuple):
    """An epoch as it was cut.

    Attributes:
        frames: What is sent to the reader of each partition.
        for_driver: Rows that no level takes.
    """

    frames: Sequence[bytes]
    for_driver: Sequence[WireRow]


def _content_of(epoch: int, rows: Iterable[WireRow], plan: Plan) -> _Content:
    for_levels: list[WireRow] = []
    for_driver: list[WireRow] = []
    for row in rows:
        (for_levels if row.level < len(plan.levels) else for_driver).append(row)
    parts: list[list[Buffer]] = [[] for _ in range(plan.partitions)]
    for frame in frames_of(DRIVER, epoch, for_levels, range(plan.partitions)):
        parts[frame.target] += (_head(frame), frame.body)
    return _Content([b"".join(each) for each in parts], for_driver)


def _head(frame: Frame) -> bytes:
    return FRAME.pack(FRAME_TYPE, len(frame.body), frame.target, frame.sender, frame.kind, frame.epoch)
