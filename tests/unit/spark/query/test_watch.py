"""What operators want to see is data of each micro-batch: a second run sees what the first saw."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.spark.query.source import InboxReader
from acktree.tasks.broadcast import Broadcast, OperatorOrder


def seen(folder, start, end):
    """The trace rate of each (level, partition) in a micro-batch."""
    reader = InboxReader({"inbox": str(folder), "partitions": "2", "interval_secs": "1"})
    rows = [row for part in reader.partitions({"chunk": start}, {"chunk": end}) for row in part.rows]
    return {
        (row.level, row.partition): order.trace_rate
        for row in rows
        if (order := Broadcast.of([row]).order) is not None
    }


def beats(inbox, count):
    for _ in range(count):
        last = inbox.append_control(ChunkKind.BEAT, {})
    return last


def test_an_order_holds_from_its_entry_to_the_next_one_in_second_runs_too(tmp_path):
    inbox = FileInbox(tmp_path, -1, 1000, 1 << 20)
    before = beats(inbox, 2)
    first = inbox.append_watch(OperatorOrder(0.5).to_bytes(), levels=2)
    between = beats(inbox, 2)
    second = inbox.append_watch(OperatorOrder(0.25).to_bytes(), levels=2)
    after = beats(inbox, 1)

    def everywhere(rate):
        return {(level, partition): rate for level in range(2) for partition in range(2)}

    def check():
        assert seen(tmp_path, first, between) == everywhere(0.5)
        assert seen(tmp_path, between, after) == everywhere(0.25)

    assert seen(tmp_path, -1, before) == {}
    assert seen(tmp_path, before, first) == everywhere(0.5)
    check()
    inbox.consumed(between)
    inbox.committed(first)  # the micro-batch after it has run, and may run again
    check()
    inbox.close()
    again = FileInbox(tmp_path, first, 1000, 1 << 20)
    assert again.has_watch
    check()
    again.consumed(after)
    again.committed(after)
    assert [name for name in tmp_path.iterdir() if ".watch." in name.name] == [
        tmp_path / f"{second:012d}.watch.0.0"
    ]
    last = beats(again, 3)
    assert seen(tmp_path, after, last) == everywhere(0.25)
    again.close()
