"""A task hook that writes down all of its calls, and what the statistics count of the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from acktree import (
    BoltAckInfo,
    BoltExecuteInfo,
    BoltFailInfo,
    EmitInfo,
    SpoutAckInfo,
    SpoutFailInfo,
    Stats,
    TaskHook,
)

Seen = Counter[tuple[str, ...]]


class Tally(TaskHook):
    """Appends a line for each call to a file, at ``cleanup``."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def prepare(self, config, context):
        self.component, self.lines = context.component_id, []
        self.note("prepare")

    def note(self, what: str, *about: object, count: int = 1) -> None:
        self.lines.append(json.dumps((self.component, what, *map(str, about), count)) + "\n")

    def emit(self, info: EmitInfo) -> None:
        rows = [tuple(row.values()) for row in info.batch.to_pylist()] if info.batch else [info.values]
        assert len(rows) == info.count
        assert info.out_tasks is None or list(info.out_tasks) == sorted(info.out_tasks)
        for values in rows:
            self.note("emitted", info.stream, repr(values))
        if info.batch is None and info.out_tasks is not None:
            self.note("transferred", info.stream, count=len(info.out_tasks))

    def spout_ack(self, info: SpoutAckInfo) -> None:
        assert info.complete_latency_ms is not None
        self.note("acked", info.message_id)

    def spout_fail(self, info: SpoutFailInfo) -> None:
        self.note("failed" if info.failure.kind == "FAILED" else "timed_out", info.message_id)

    def bolt_execute(self, info: BoltExecuteInfo) -> None:
        assert info.latency_ms is not None
        self.of_bolt("executed", info)

    def bolt_ack(self, info: BoltAckInfo) -> None:
        self.of_bolt("acked", info)

    def bolt_fail(self, info: BoltFailInfo) -> None:
        self.of_bolt("failed", info)

    def of_bolt(self, what: str, info: BoltExecuteInfo | BoltAckInfo | BoltFailInfo) -> None:
        if info.batch is not None:
            assert (info.tup, info.count) == (None, info.batch.num_rows)
            for row in info.batch.to_pylist():
                self.note(what, repr(tuple(row.values())))
            return
        assert (info.batch, info.count) == (None, 1)
        self.note(what, repr(tuple(info.tup.values)))

    def cleanup(self) -> None:
        with Path(self.file).open("a") as file:  # one write: workers append to it at once
            file.write("".join(self.lines))


def read(file: Path) -> Seen:
    """All that was written down, without how often tasks were prepared: that depends on micro-batches."""
    seen: Seen = Counter()
    for line in file.read_text().splitlines():
        *what, count = json.loads(line)
        if what[1] != "prepare":
            seen[tuple(what)] += count
    return +seen


def counted(seen: Seen, stats: Stats, *, whats: tuple[str, ...]) -> dict[tuple[str, str], tuple[int, int]]:
    """(component, what) -> the calls of hooks and what was counted, wherever the two differ."""
    reported: Counter[tuple[str, str]] = Counter()
    for (component, what, *_), n in seen.items():
        reported[component, what] += n
    return {
        (name, what): (reported[name, what], getattr(component.total, what))
        for name, component in stats.components.items()
        for what in whats
        if reported[name, what] != getattr(component.total, what)
    }
