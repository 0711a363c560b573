"""The streaming query, as the supervisor sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

from acktree.checkpoint import disk_errors
from acktree.checkpoint.folder import Checkpoint
from acktree.driver.query import Query
from acktree.errors import AcktreeError, MisuseError
from acktree.spark.query import source_errors, worker_errors
from acktree.spark.query.phases import last_phases
from acktree.spark.session.gateway import java_that_ended, mute_stderr

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PART_LOST: Final = "shuffle map stage with indeterminate output was failed and retried"
_JAVA_ENDS_SECS: Final = 2.0
"""How long a JVM may take to end after it has closed its connections."""


class SparkQuery(Query):
    """A started query on a checkpoint; fulfils :class:`acktree.driver.supervisor.Query`."""

    def __init__(self, query: StreamingQuery, checkpoint: Checkpoint) -> None:
        self._query, self._checkpoint = query, checkpoint
        self._gateway = SparkContext._gateway  # noqa: SLF001
        self._context: Any = SparkContext._active_spark_context  # noqa: SLF001

    @property
    def is_active(self) -> bool:
        """Whether it has neither failed nor been stopped, nor its session.

        Spark calls a query of a stopped session active until its next micro-batch, and at rest there is none.
        """
        if self._is_session_stopped_here():
            return False
        try:
            return bool(self._query.isActive)
        except Exception:
            if self._lost_java() is None:
                raise
            return False

    @property
    def is_between_batches(self) -> bool:
        """Whether no micro-batch runs now."""
        status = self._query.status
        return not status["isTriggerActive"] or status["message"].startswith(("Waiting", "Getting offsets"))

    def failure(self) -> BaseException | None:
        """What stopped the query; None if it was stopped without an error."""
        lost = self._lost_java()
        if lost is None and self._is_session_stopped_here():
            return self._stopped_session()
        return lost or self._query.exception()

    def last_batch_secs(self) -> float | None:
        """How long the last micro-batch took; None before the first."""
        progress = self._query.lastProgress
        millis = None if progress is None else progress.durationMs.get("triggerExecution")
        return None if millis is None else millis / 1000

    def has_read_all(self) -> bool:
        """Whether the last micro-batch found nothing new in any source but the inbox."""
        progress = self._query.lastProgress
        if progress is None:
            return False
        frames = progress.sources[1:]  # the inbox is the first leaf of the plan: see ladder.py
        return all(source.startOffset == source.endOffset for source in frames)

    def explained(self, error: BaseException) -> BaseException:
        """The cause: a lost JVM, a stopped session, a full disk, a source, a worker's error, or the error."""
        if (lost := java_lost_by(error, self._gateway, self._checkpoint)) is not None:
            return lost
        if not isinstance(error, AcktreeError) and self._is_session_stopped():
            return self._stopped_session()
        if _PART_LOST in str(error):
            return self._lost_part(error)
        return self._checkpoint.files.explained(explained(source_errors.explained(error), self._checkpoint))

    def _lost_part(self, error: BaseException) -> AcktreeError:
        lost = AcktreeError(
            "an executor was lost while others had finished the last stage of a micro-batch, and Spark does "
            "not run its part again alone",
            f"checkpoint {self._checkpoint.place}",
            "submit it again on the same checkpoint: the micro-batch runs again as a whole, nothing is lost",
        )
        lost.__cause__ = error
        return lost

    def _lost_java(self) -> AcktreeError | None:
        return _lost_java(self._gateway, self._checkpoint)

    def _stopped_session(self) -> MisuseError:
        return MisuseError(
            "its Spark session was stopped while the topology ran",
            f"checkpoint {self._checkpoint.place}",
            "call kill() before spark.stop(); submit it again on the same checkpoint, in a new session",
        )

    def _is_session_stopped_here(self) -> bool:
        """Whether this program has stopped the session; asks no JVM."""
        return self._context is not None and self._context._jsc is None  # noqa: SLF001

    def _is_session_stopped(self) -> bool:
        with suppress(Exception):  # a JVM that is gone does not answer
            return bool(self._query._jsq.sparkSession().sparkContext().isStopped())  # noqa: SLF001
        return False

    def last_phases(self) -> tuple[int, Mapping[str, int]]:
        """Spark's number of the last micro-batch, and the milliseconds of each phase; (-1, {}) before it."""
        with suppress(Exception):  # the JVM may be ending; this is for display only
            # Python's `lastProgress` asks the JVM for each of its parts; this asks for one text.
            progress = self._query._jsq.lastProgress()  # noqa: SLF001
            if progress is not None:
                return last_phases(progress)
        return -1, {}

    def stop(self, *, at_once: bool) -> None:
        """Stop the query; with ``at_once`` without Spark's output about the interrupted micro-batch."""
        if self._lost_java() is not None:
            return
        if at_once:
            mute_stderr()
        self._query.stop()


def explained(error: BaseException, checkpoint: Checkpoint) -> BaseException:
    """The cause of what Spark tells: a full disk, an error of acktree in a worker, or the error."""
    if not disk_errors.is_full(error):  # a worker may name it, in a text of acktree's too
        error = worker_errors.explained(error)
    return disk_errors.explained(error, *checkpoint.folders)


def is_of_java(error: BaseException) -> bool:
    """Whether a call of a JVM that is gone raises such an error."""
    return isinstance(error, (ConnectionError, Py4JError))


def java_lost_by(error: BaseException, gateway: Any, checkpoint: Checkpoint) -> AcktreeError | None:  # noqa: ANN401  # py4j has no types
    """The error to raise in place of another one, if that came because Spark's JVM has ended; else None."""
    if isinstance(error, AcktreeError):
        return None
    return _lost_java(gateway, checkpoint, _JAVA_ENDS_SECS if is_of_java(error) else 0.0)


def _lost_java(gateway: Any, checkpoint: Checkpoint, secs: float = 0.0) -> AcktreeError | None:  # noqa: ANN401  # as above
    """The error to raise if Spark's JVM has ended; None while it runs."""
    what = java_that_ended(gateway, secs)
    if what is None:
        return None
    return AcktreeError(
        f"{what}, and the topology with it",
        f"checkpoint {checkpoint.place}",
        "see what Java printed: in this process's stderr, or in driver.log after `acktree submit`; "
        "signal 9 is often the kernel's, for want of memory. Start this program again and submit "
        "on the same checkpoint: it goes on where it was, nothing is lost",
    )
