"""One spout task against a real queue, without Spark: its verdicts are given by hand."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from acktree.bolt import BasicBolt, BasicOutputCollector
from acktree.config import Config
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import decode_rows
from acktree.core.spouts.retry import Retry
from acktree.core.tracking.attempts import number_of
from acktree.core.tracking.verdicts import Failure
from acktree.spout import Spout
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.host import Inbox, SpoutHost
from acktree.tasks.spouts.keys.labels import id_of, label_of
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.topology.builder import TopologyBuilder

_PAUSE_SECS: Final = 0.005


@dataclass(frozen=True)
class Arrived:
    """An attempt of a message.

    Attributes:
        sequence: Which verdict is its own.
        values: What the spout emitted.
        attempt: From 1.
        message_id: As the spout emitted it.
        label: What people call the message; None if the spout gave none.
    """

    sequence: int
    values: Sequence[Any]
    attempt: int
    message_id: object
    label: str | None = None


class SpoutHarness:
    """Runs one task of a spout in this thread, by the machine's clock.

    Attributes:
        arrived: Every attempt that the spout emitted, in order.
        reports: The errors that were reported.
        letters: What was given up, and stored as a dead letter.
        most_open: The most messages that were open after a step.
    """

    def __init__(
        self, spout: Spout, *, retry: Retry | None = None, max_spout_pending: int | None = None
    ) -> None:
        """Open the spout. Raises what its ``open`` raises, unless that may pass."""
        self.arrived: list[Arrived] = []
        self.reports: list[Failure] = []
        self.letters: list[GivenUpRecord] = []
        self.most_open = 0
        self._chunks: dict[int, Chunk] = {}
        self._parked: set[int] = set()
        self._read = 0
        builder = TopologyBuilder("check")
        builder.set_spout("spout", copy.deepcopy(spout), retry=retry, max_spout_pending=max_spout_pending)
        builder.set_bolt("swallow", _Swallow()).shuffle_grouping("spout")
        topology = builder.create_topology()
        plan = Plan.of(topology, Config(), 1, 1)
        component = plan.topology.components["spout"]
        host = _Host(self, self.letters, self.reports)
        user_object = topology.components["spout"].user_object
        self.task = SpoutTask(
            user_object, component, task=component.task_ids[0], plan=plan, spout_host=host, first_sequence=0
        )
        self.task.open(_now_ms())
        self.task.activate()

    @property
    def spout(self) -> Spout:
        """The task's own copy of the spout."""
        return self.task.spout

    def step(self) -> None:
        """Let the task work once. Raises what stops a topology."""
        now_ms = _now_ms()
        self.task.step(now_ms, enough=1000, until=time.monotonic() + 0.02)
        self.task.flush(now_ms)
        self.most_open = max(self.most_open, self.task.open_count)
        for number in range(self._read, len(self._chunks)):
            if number not in self._parked:
                self._take(self._chunks[number])
        self._read = len(self._chunks)

    def until(self, is_done: Callable[[], bool], secs: float, what: str) -> None:
        """Step until a condition holds. AssertionError that names the condition when the seconds are over."""
        deadline = time.monotonic() + secs
        while not is_done():
            self.step()
            if is_done():
                return
            if time.monotonic() > deadline:
                reported = "; ".join(report.reason for report in self.reports[-3:]) or "nothing"
                raise AssertionError(f"not within {secs:g} s: {what} (reported: {reported})")
            time.sleep(_PAUSE_SECS)

    def rest(self, secs: float) -> None:
        """Step for ``secs`` seconds."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            self.step()
            time.sleep(_PAUSE_SECS)

    def ack(self, attempts: Iterable[Arrived]) -> None:
        """Give these attempts the verdict ACKED, and call the spout's ``ack``."""
        self.task.dispatch(VerdictBatch(_sequences(attempts)))
        self.step()

    def fail(self, attempts: Iterable[Arrived]) -> None:
        """Give these attempts the verdict FAILED; the spout's ``fail`` or its retry policy follows."""
        failure = failure_of(ValueError("failed by the check"), "swallow")
        self.task.dispatch(VerdictBatch(failed=[(_sequences(attempts), failure)]))
        self.step()

    def close(self) -> None:
        """Deactivate and close the spout."""
        try:
            self.task.deactivate()
        finally:
            self.task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The inbox of the task: chunks in a dict.

    chunk_rows = 10_000

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Take chunks; see ``Inbox``."""
        first = len(self._chunks)
        self._chunks |= dict(enumerate([*chunks, *parked], first))
        self._parked.update(range(first + len(chunks), len(self._chunks)))
        return first

    def read(self, number: int) -> Chunk:
        """A chunk; see ``Inbox``."""
        return self._chunks[number]

    def room(self, wanted: int = 1) -> int:
        """Always enough; see ``Inbox``."""
        return wanted

    def release(self, number: int) -> None:
        """Nothing; see ``Inbox``."""

    def _take(self, chunk: Chunk) -> None:
        attempts = [1] * len(chunk) if chunk.attempts is None else number_of(chunk.attempts).tolist()
        ids = dict(self.task.open_ids_by_sequence())
        rows = decode_rows(chunk.values)
        for sequence, values, attempt in zip(chunk.sequences.tolist(), rows, attempts, strict=True):
            message_id = ids.get(sequence)
            self.arrived.append(Arrived(sequence, values, attempt, id_of(message_id), label_of(message_id)))


class _Host(SpoutHost):
    """Keeps dead letters and errors in lists."""

    def __init__(self, inbox: Inbox, letters: list[GivenUpRecord], reports: list[Failure]) -> None:
        super().__init__(inbox)
        self._letters, self._reports = letters, reports

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        self._letters.extend(records)

    def report(self, component: str, task: int, failure: Failure) -> None:
        del component, task
        self._reports.append(failure)

    def reserve(self, first: int) -> int:
        return first + (1 << 28)


class _Swallow(BasicBolt):
    """Never run."""

    outputs = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None: ...


def _sequences(attempts: Iterable[Arrived]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([each.sequence for each in attempts], dtype=np.int64)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
