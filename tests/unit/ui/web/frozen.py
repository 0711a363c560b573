"""A topology with numbers of every kind, and one snapshot of it that every question is answered with."""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.parse import quote

from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.instruments import Increment
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import ReportedError
from acktree.ui.snapshot import Snapshot
from tests.unit.ui.driver_without_spark import started

NAME = "zählt \u05d0 {a=b}"


def rich() -> Counters:
    """Counts of every kind, each another number."""
    counters = Counters()
    for task in (1, 2):
        for at, what in enumerate(("executed", "acked", "failed")):
            counters.add("double", task, "source:default", what, 101 * task + at)
        counters.add("double", task, "default", "emitted", 37 * task)
        counters.add("double", task, "default", "transferred", 38 * task)
        counters.add_latency("double", task, "source:default", "execute_ms", 1234.567 * task, 71)
        counters.add_latency("double", task, "source:default", "process_ms", 3333.333 * task, 7)
        counters.add("double", task, "", "errors", 3)
    for at, what in enumerate(("emitted", "acked", "failed", "timed_out", "retried", "dead_lettered")):
        counters.add("source", 3, "default", what, 1009 + at)
    counters.add_latency("source", 3, "default", "complete_ms", 777.7, 13)
    for at, why in enumerate(("inactive", "pending_full", "inbox_full", "outage", "pause")):
        counters.add_not_asked("source", 3, why, 12.3456 + at)
    for at, stream in enumerate(("__ack_init", "__ack_ack", "__ack_fail", "__ack_reset_timeout")):
        counters.add("__acker", 0, f"double:{stream}", "executed", 501 + at)
    times = (
        ("settle_us", 900_123),
        ("settle_b10", 3),
        ("micro_batches", 3),
        ("late", 5),
        ("batch_us", 7_654_321),
    )
    names = ("admission", "walCommit", "queryPlanning", "addBatch", "commit", "level_0", "log")
    phases = ((f"phase_us_{name}", 1_234_567 + at) for at, name in enumerate(names))
    times = (*times, ("batch_b22", 3))
    counters.merge(Counters.of((("__acker", 0, "", what), n) for what, n in (*times, *phases)))
    return counters


@contextmanager
def counted(folder):
    """The topology, with these numbers."""
    with started(folder, name=NAME) as running:
        running.fill()
        running.measure("double", 1, {"lines": Increment("counter", count=41)})
        running.run.errors.add(ReportedError("double", 1, "a third", 1_795_331_842_000, "Traceback"))
        held = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, json.dumps([["double", 1, 4, 0]]).encode(), b"[]")
        running.run.results.note({Kind.STATISTICS: [held]}, 0)
        running.count(rich())
        running.run.results.progress.next_deadline_ms = 1 << 42  # not in this test's time
        (thread,) = running.run.threads.by_task.values()
        thread.task.complete_ms.add(59, 13)
        yield running


class Frozen:
    """One snapshot is the answer to each question, until :meth:`go_on` lets the driver make another."""

    def __init__(self, observer) -> None:
        self.observer = observer
        self.go_on()

    def go_on(self) -> None:
        self.observer.__dict__.pop("latest", None)
        self.observer.forget()
        packed = self.observer.latest(0)
        self.observer.latest = lambda *_, **__: packed
        self.snapshot, self.told = Snapshot.from_json(packed), json.loads(packed)

    @property
    def topology(self) -> str:
        return quote(self.snapshot.id, safe="")
