"""What became of traces is counted, and shown at every door."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from acktree import Stats, TraceNumbers
from acktree.core.data.frames import Kind, WireRow
from acktree.core.micro_batch import MicroBatch
from acktree.core.stats.counters import Counters
from acktree.core.tracking.attempts import CHOSEN, NAMED
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.traces.events import EventLog
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.ui.snapshot import ALL_TIME, Snapshot, Window
from tests.unit.traces.facts import body_of
from tests.unit.traces.test_recorder import CHUNK

EVENTS = EventLog(None, "numbers", is_threaded=False)
NONE = {"queue_full": 0, "store_failed": 0, "bounds": 0, "not_exported": 0}


def fact_row(root, more):
    links = [[root, edge, [root], "s", 1, "default", "b", 2, []] for edge in (7, 8)]
    executions = [[root, edge, "b", 2, 1, 1.0, 1, "acked", ""] for edge in (7, 8)]
    return WireRow(0, 0, Kind.TRACE, 0, 0, 0, b"", body_of(links, executions, [[root, "b", more]]))


def test_messages_count_once_and_tuples_beyond_the_bounds_are_counted():
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9, is_threaded=False)
    for _ in range(2):
        recorder.emitted(CHUNK, ["a", "b", "c"])
    (root, *_) = (each["root"] for each in recorder.store.select("SELECT root FROM messages"))
    recorder.add(MicroBatch(1, 9), [fact_row(root, 40)])
    recorder.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(3))})
    assert recorder.numbers(EVENTS) == TraceNumbers(
        3, 0, NONE | {"bounds": 40}, {"queue_full": 0, "bounds": 0}
    )


@pytest.mark.parametrize(
    ("rate", "recorded", "dropped"),
    [(1e-9, 3, 2), (0.0, 3, 0)],  # at 0 none is missed
)
def test_attempts_after_the_first_that_the_bound_leaves_out_are_counted(rate, recorded, dropped):
    recorder = TraceRecorder(TraceStore(IN_MEMORY), rate, 5, lambda: 9, is_threaded=False)
    attempts = np.array([2, CHOSEN | 2, 7, 1, CHOSEN | NAMED | 2, CHOSEN | 1], np.int32)
    recorder.emitted(replace(CHUNK, values=pa.record_batch({"n": range(6)}), attempts=attempts), [*"abcdef"])
    numbers = recorder.numbers(EVENTS)
    assert (numbers.messages, numbers.dropped["bounds"]) == (recorded, dropped)


@pytest.mark.parametrize("most", ["_MOST_IDS", "_MOST_QUEUED"])
def test_messages_beyond_a_bound_or_a_full_queue_are_counted(monkeypatch, most):
    module = "recorder" if most == "_MOST_IDS" else "writer"
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9)
    assert recorder.settle()
    go = threading.Event()
    recorder._writer.put(lambda: go.wait(120))
    monkeypatch.setattr(f"acktree.traces.{module}.{most}", 1)
    while recorder._writer._queue:  # the thread takes it, and waits
        go.wait(0.001)
    for _ in range(3):
        recorder.emitted(CHUNK, ["a", "b", "c"])
    go.set()
    assert recorder.settle()
    recorder.close()
    wanted = {"bounds": 3 * 2} if most == "_MOST_IDS" else {"queue_full": 2}
    assert recorder.numbers(EVENTS).dropped == NONE | wanted


def test_a_store_that_fails_is_counted_apart():
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9, is_threaded=False)
    recorder.store.close()
    recorder.emitted(CHUNK, ["a", "b", "c"])
    assert recorder.numbers(EVENTS).dropped == NONE | {"store_failed": 1}


def test_the_numbers_travel_with_the_snapshot():
    numbers = TraceNumbers(3, 2, NONE | {"queue_full": 1}, {"queue_full": 5, "bounds": 6})
    snapshot = Snapshot(
        topology="t", id="t-1", checkpoint="", status="ACTIVE", run=1, batch_id=0, taken_ms=1, began_ms=0,
        host="h", pid=1, user="u", version="1", config={}, graph={"components": {}},
        windows={ALL_TIME: Window(1.0, Stats.of(Counters(), traces=numbers))},
    )  # fmt: skip
    assert Snapshot.from_json(snapshot.to_json()).stats.traces == numbers
