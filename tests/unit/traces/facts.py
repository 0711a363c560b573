"""Recorded facts of one failed message, as levels tell them."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from acktree.core.data.frames import Kind, WireRow
from acktree.core.ids import sequences_of
from acktree.core.micro_batch import MicroBatch
from acktree.core.tracking.trace_facts import EXECUTION, FATES, LINK, Bolt, Place, TraceFacts
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.traces.recorder import TraceRecorder

NASTY = "<img src=x onerror=alert(1)>\x1b[31m"


def body_of(links=(), executions=(), more=()) -> bytes:
    """Facts as a level sends them.

    Args:
        links: (root, edge, parents, source, its task, stream, component, task, values) of each.
        executions: (root, edge, component, task, began, took or None, together, fate, reason) of each.
        more: (root, component, count) of each.
    """
    places = _numbered(Place(*each[3:8]) for each in links)
    bolts = _numbered(Bolt(each[2], each[3], each[6]) for each in executions)
    return TraceFacts(
        [*places],
        np.array([(each[0], each[1], places[Place(*each[3:8])], len(each[2])) for each in links], LINK),
        np.array([parent for each in links for parent in each[2]], np.int64),
        [*bolts],
        np.array(
            [
                (root, edge, began, np.nan if took is None else took, bolts[Bolt(name, task, together)],
                 FATES.index(fate))
                for root, edge, name, task, began, took, together, fate, _ in executions
            ],
            EXECUTION,
        ),
        {at: each[8] for at, each in enumerate(executions) if each[8]},
        [*map(tuple, more)],
        json.dumps([[1, *([value] for value in each[8])] for each in links]).encode(),
    ).to_bytes()  # fmt: skip


def _numbered(places):
    """Each different one, and its number in the order in which they came."""
    return {place: at for at, place in enumerate(dict.fromkeys(places))}


def first_message(recorder: TraceRecorder) -> dict[str, Any]:
    """The first open message, when it is recorded."""
    end = time.monotonic() + 120
    while not recorder.store.count():  # the spout's thread hands its messages over
        assert time.monotonic() < end
        time.sleep(0.005)
    assert recorder.settle(60)
    (message,) = recorder.store.select("SELECT * FROM messages ORDER BY emitted_ms, root LIMIT 1")
    return dict(message)


def tell(recorder: TraceRecorder, message: dict[str, Any], links: list, executions: list) -> MicroBatch:
    """Record tuples of a message, in a micro-batch."""
    body = body_of(links, executions)
    batch = MicroBatch(1, message["emitted_ms"] + 4)
    recorder.add(batch, [WireRow(0, 0, Kind.TRACE, 0, 0, 0, b"", body)])
    return batch


def record(recorder: TraceRecorder) -> int:
    """Let the first open message fail in ``double``; returns its root."""
    message = first_message(recorder)
    root, task = message["root"], message["task_id"]
    edges = {root + 1: "failed", root + 2: "acked", root + 3: "acked", root + 4: "acked"}
    links = [[root, root, [], "source", task, "default", "source", task, [NASTY]]]
    links += [[root, edge, [root], "source", task, "default", "double", 1, [NASTY]] for edge in edges]
    executions = [
        [
            root,
            edge,
            "double",
            1,
            message["emitted_ms"] + 5,
            1.5,
            1,
            fate,
            "no word" if fate == "failed" else "",
        ]
        for edge, fate in edges.items()
    ]
    fail(recorder, message, tell(recorder, message, links, executions))
    return int(root)


def fail(recorder: TraceRecorder, message: dict[str, Any], batch: MicroBatch) -> None:
    """Let a message fail in ``double``."""
    failure = Failure(
        reason=f"no word {NASTY}", kind=FailureKind.FAILED, cause=FailureCause.EXCEPTION, component="double",
        exception=None, exception_types=(), traceback=f"Traceback\n  {NASTY}\n", attempt=1, final=True,
    )  # fmt: skip
    sequences = sequences_of(recorder._salt, np.array([message["root"]]))[1]
    recorder.judged(batch, {message["task_id"]: VerdictBatch(failed=[(sequences, failure)])})
    assert recorder.settle(60)
