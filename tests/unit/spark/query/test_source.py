"""The inbox as a Spark source, without Spark: pure functions of offsets and files."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import WAKE, ChunkKind, Work, read_chunk
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.slices import Slice
from acktree.errors import CheckpointError
from acktree.spark.query import source
from acktree.spark.query.operators import carried_by
from acktree.spark.query.source import InboxReader
from acktree.tasks.broadcast import Broadcast
from tests.in_module import replace
from tests.unit.checkpoint.inbox_chunks import chunk_of


@pytest.fixture
def inbox(tmp_path: Path):
    opened = FileInbox(tmp_path, -1, 10**6, 10**9)
    yield opened
    opened.close()


@pytest.fixture
def reader(tmp_path: Path) -> InboxReader:
    return reader_of(tmp_path)


def reader_of(folder: Path, patience_secs: float = 0.01) -> InboxReader:
    options = {"inbox": str(folder), "partitions": "2", "interval_secs": "2"}
    return InboxReader({**options, "patience_secs": str(patience_secs)})


def rows(reader: InboxReader, start: int, end: int) -> list[WireRow]:
    parts = reader.partitions({"chunk": start}, {"chunk": end})
    assert len(parts) == 2
    for partition, part in enumerate(parts):
        assert {row.partition for row in part.rows} <= {partition}
    return [row for part in parts for row in part.rows]


def slices(found: list[WireRow]) -> list[tuple[int, int, int]]:
    """(number, first row, end row) of each."""
    named = [Slice.of_head(row.head) for row in found if row.kind == Kind.CHUNK]
    return sorted((int(name.split(".")[0]), first, end) for name, first, end in named)


def latest(reader: InboxReader, start: int) -> int:
    return reader.latestOffset({"chunk": start}, None)["chunk"]


def test_offsets_go_up_to_the_last_number_without_a_gap(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    assert reader.initialOffset() == {"chunk": -1}
    assert latest(reader, -1) == -1
    inbox.append([chunk_of(1), chunk_of(2), chunk_of(3)])
    next(tmp_path.glob("*1.data*")).rename(tmp_path / "aside")  # as seen in the middle of the renames
    assert latest(reader, -1) == 0


@pytest.mark.parametrize("beside", [0, 1])
def test_two_entries_are_tried_where_each_takes_long_alone_also_beside_ticks(
    inbox: FileInbox, reader: InboxReader, monkeypatch: pytest.MonkeyPatch, beside: int
) -> None:
    clock = [0.0]
    replace(monkeypatch, source, "time", monotonic=lambda: clock[0])
    reader._pace.allowance = 1
    sizes, end = [], -1
    for _ in range(3):
        for _ in range(beside):
            inbox.append_control(ChunkKind.TICK, {})
        inbox.append([chunk_of(*range(10), first_sequence=10 * len(sizes))])
    inbox.append([chunk_of(*range(10), first_sequence=40)])
    for _ in range(3):
        before, end = end, latest(reader, end)
        sizes.append(sum(entry.rows for entry in reader._between(before, end)))
        clock[0] += 30
    assert sizes == [10, 10, 20]


def test_while_it_is_held_the_source_does_not_advance(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    inbox.append([chunk_of(1)])
    inbox.hold()
    assert latest(reader, -1) == -1
    FileInbox(tmp_path, -1, 10**6, 10**9).close()  # a new run lets it go on
    assert latest(reader, -1) == 0


def test_a_waiting_source_is_woken_by_what_is_appended(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_LOOK_SECS", 60)
    later = threading.Timer(0.05, lambda: inbox.append([chunk_of(1)]))
    later.start()
    assert latest(reader_of(tmp_path, patience_secs=60), -1) == 0
    later.join()


def test_a_waiting_source_sees_an_entry_whose_wake_another_reader_took(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_LOOK_SECS", 0.02)
    monkeypatch.setattr(inbox, "wake", lambda: None)
    later = threading.Timer(0.05, lambda: inbox.append([chunk_of(1)]))
    later.start()
    assert latest(reader_of(tmp_path, patience_secs=60), -1) == 0
    later.join()


def test_a_waiting_source_returns_when_the_query_stops(inbox: FileInbox, tmp_path: Path) -> None:
    later = threading.Timer(0.05, inbox.hold)
    later.start()
    assert latest(reader_of(tmp_path, patience_secs=60), -1) == -1
    later.join()


def test_a_waiting_source_returns_when_its_jvm_has_ended(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = reader_of(tmp_path, patience_secs=60)
    replace(monkeypatch, source, "os", getppid=lambda: 1)
    later = threading.Timer(0.05, inbox.wake)
    later.start()
    assert latest(waiting, -1) == -1
    later.join()


def test_a_source_waits_longer_after_a_minute_without_a_micro_batch(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    reader = reader_of(tmp_path, patience_secs=1)
    monkeypatch.setattr(source, "_LOOK_SECS", 60)
    monkeypatch.setattr(reader, "_wait", lambda secs: (waits.append(secs), inbox.hold()))

    def calls(count: int) -> list[int]:
        waits.clear()
        for _ in range(count):
            FileInbox(tmp_path, -1, 10**6, 10**9).close()  # no longer held
            latest(reader, -1)
        return [round(secs) for secs in waits]

    assert calls(62) == [1] * 60 + [2, 2]
    reader.commit({"chunk": -1})
    assert calls(61) == [1] * 60 + [2]


def test_a_pipe_without_a_writer_does_not_make_the_source_spin(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    writer = os.open(tmp_path / WAKE, os.O_RDWR | os.O_NONBLOCK)
    inbox.close()
    os.close(writer)  # the driver's end is gone: at its end, a pipe is readable for ever
    began = time.monotonic()
    assert latest(reader, -1) == -1
    assert time.monotonic() - began >= 0.01


def test_partitions_are_the_same_every_time_and_cover_every_row_once(
    inbox: FileInbox, reader: InboxReader
) -> None:
    inbox.append([chunk_of(*range(1000)), chunk_of(*range(10))])
    inbox.append_control(ChunkKind.TICK, {"1": {"split": 5.0}})
    once, again = rows(reader, -1, 2), rows(reader, -1, 2)
    assert once == again
    assert slices(once) == [(0, 0, 505), (0, 505, 1000), (1, 0, 10)]
    assert [row.partition for row in once if row.level == 1] == [0, 1]
    assert Broadcast.of(row for row in once if row.level == 1).ticks == {"split": 5.0}
    assert slices(rows(reader, 0, 1)) == [(1, 0, 5), (1, 5, 10)]


@pytest.mark.parametrize(
    ("message_ms", "divided"), [(None, True), (0.0, False), (4.9, False), (5.0, True), (100.0, True)]
)
def test_few_messages_are_divided_if_they_are_much_work_or_nothing_is_known(
    inbox: FileInbox, reader: InboxReader, message_ms: float | None, divided: object
) -> None:
    inbox.append([chunk_of(*range(10))])
    if message_ms is not None:
        inbox.note_work(message_ms)
    assert slices(rows(reader, -1, 0)) == ([(0, 0, 5), (0, 5, 10)] if divided else [(0, 0, 10)])


def test_a_measured_time_is_written_again_only_if_it_has_changed_much(
    inbox: FileInbox, tmp_path: Path
) -> None:
    written = []
    for message_ms in (10.0, 15.0, 6.0, 25.0, 0.0, 0.05):
        inbox.note_work(message_ms)
        written.append(Work.read(tmp_path).message_ms)
    assert written == [10.0, 10.0, 10.0, 25.0, 0.0, 0.0]


def test_a_run_begins_without_a_measured_time(inbox: FileInbox, tmp_path: Path) -> None:
    inbox.note_work(10.0)
    inbox.close()
    FileInbox(tmp_path, -1, 10**6, 10**9).close()
    assert Work.read(tmp_path) is None


def clock(found: list[WireRow]) -> dict[str, object]:
    """The broadcast to the driver in a micro-batch: there is one, whatever else there is."""
    (row,) = [row for row in found if row.level == SINK_LEVEL]
    assert row.kind == Kind.BROADCAST
    return json.loads(row.head)


def test_every_micro_batch_reports_to_the_driver_where_it_ends_and_whether_a_run_begins_with_it(
    inbox: FileInbox, reader: InboxReader
) -> None:
    inbox.append([chunk_of(1)])
    inbox.append_control(ChunkKind.BEAT, {})
    inbox.append_control(ChunkKind.RUN, {"run": 2, "first_sequences": {}})
    inbox.append_control(ChunkKind.RUN, {"run": 3, "first_sequences": {}})
    inbox.append([chunk_of(2)])
    assert clock(rows(reader, -1, 1)) == {"end": 1, "is_first": False}
    assert clock(rows(reader, 0, 1)) == {"end": 1, "is_first": False}  # nothing but a beat
    assert clock(rows(reader, 1, 2)) == {"end": 2, "is_first": True}  # a driver that died at once
    assert clock(rows(reader, 1, 4)) == {"end": 4, "is_first": True}
    assert clock(rows(reader, 3, 4)) == {"end": 4, "is_first": False}


def test_levels_with_sinks_are_told_that_a_run_begins(inbox: FileInbox, reader: InboxReader) -> None:
    inbox.append_control(ChunkKind.RUN, {"run": 2, "first_sequences": {}, "sink_levels": [2, 3]})
    inbox.append([chunk_of(1)])
    begun = [row for row in rows(reader, -1, 1) if row.kind == Kind.BROADCAST and row.level != SINK_LEVEL]
    assert sorted((row.level, row.partition) for row in begun) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert all(Broadcast.of([row]).is_first for row in begun)
    later = rows(reader, 0, 1)
    assert not any(row.kind == Kind.BROADCAST and row.level != SINK_LEVEL for row in later)


def test_a_new_run_voids_only_messages_that_queues_redeliver(inbox: FileInbox, reader: InboxReader) -> None:
    inbox.append([chunk_of(1, task=1), chunk_of(2, task=2)])
    inbox.append_control(ChunkKind.RUN, {"run": 2, "first_sequences": {"1": 77}})
    inbox.append([chunk_of(3, task=1)])
    found = rows(reader, -1, 3)
    assert [number for number, _, _ in slices(found)] == [1, 3]  # 0 was emitted before, by task 1
    assert clock(found)["is_first"]


def test_files_that_are_missing_are_said_and_not_passed_over(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    inbox.append([chunk_of(1), chunk_of(2), chunk_of(3)])
    next(tmp_path.glob("*1.data*")).unlink()
    with pytest.raises(CheckpointError, match="1 of the inbox's files after -1 up to 2 are missing"):
        rows(reader, -1, 2)


def test_an_uncommitted_micro_batch_finds_its_files_after_a_restart(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    inbox.append([chunk_of(1), chunk_of(2)])
    before = rows(reader, -1, 1)
    inbox.release(0)
    inbox.release(1)
    inbox.consumed(1)  # its sink has run; died before the commit
    again = FileInbox(tmp_path, 1, 10**6, 10**9)
    for number, _ in again.recovered():
        again.release(number)
    assert rows(reader, -1, 1) == before
    again.close()


def test_each_partition_gets_whole_chunks_but_where_it_is_cut(inbox: FileInbox, reader: InboxReader) -> None:
    inbox.append([chunk_of(*range(100)) for _ in range(5)])
    cut = [
        [(n, a, b) for n, a, b in slices(part.rows)]
        for part in reader.partitions({"chunk": -1}, {"chunk": 4})
    ]
    assert cut == [[(0, 0, 100), (1, 0, 100), (2, 0, 50)], [(2, 50, 100), (3, 0, 100), (4, 0, 100)]]


def test_a_micro_batch_takes_what_it_may_and_a_chunk_at_least(inbox: FileInbox, reader: InboxReader) -> None:
    inbox.append([chunk_of(*range(20)) for _ in range(5)])
    reader._pace.allowance = 50
    assert latest(reader, -1) == 2  # the third begins within what it may
    reader._running = None  # how fast that was counts in tests of the pace
    reader._pace.allowance = 1
    assert latest(reader, 2) == 3


def test_what_was_taken_waits_no_more_and_spouts_may_be_ahead_by_two(
    tmp_path: Path, reader: InboxReader
) -> None:
    inbox = FileInbox(tmp_path, -1, 10**6, 10**9)
    reader._pace.allowance = 10
    inbox.append([chunk_of(*range(10)) for _ in range(2)])
    assert latest(reader, -1) == 0
    inbox.consumed(-1)  # every micro-batch looks at what the source says
    assert inbox.room()  # ten wait, and ten run
    inbox.append([chunk_of(*range(10))])
    assert not inbox.room()
    reader._running = None
    assert inbox.chunk_rows == 10 // 8
    assert latest(reader, 0) == 1
    assert inbox.room()
    inbox.close()


def carrying(folder: Path) -> InboxReader:
    options = {"inbox": str(folder), "partitions": "2", "interval_secs": "2", "carries": "true"}
    return InboxReader(options)


def test_rows_that_carry_their_messages_hold_the_same_as_the_inbox(
    inbox: FileInbox, reader: InboxReader, tmp_path: Path
) -> None:
    inbox.append([chunk_of(*range(300), first_sequence=0), chunk_of(*range(300, 500), first_sequence=300)])
    named = [row for row in rows(reader, -1, 1) if row.kind == Kind.CHUNK]
    carried = [row for row in rows(carrying(tmp_path), -1, 1) if row.kind == Kind.CHUNK]
    assert len(named) == len(carried) == 3
    for seen, brought in zip(named, carried, strict=True):
        name, first, end = json.loads(seen.head)
        wanted = read_chunk(tmp_path, name).slice(first, end)
        its, zero, count = json.loads(brought.head)
        found = carried_by([brought])(its)
        assert (its, zero, count) == (name, 0, len(wanted))
        assert (found.first_sequence, found.values.to_pydict()) == (
            wanted.first_sequence,
            wanted.values.to_pydict(),
        )
        assert (seen.body, brought.partition, brought.sequence) == (b"", seen.partition, seen.sequence)


def test_the_bytes_that_rows_carry_bound_a_micro_batch_and_one_chunk_always_fits(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.append([chunk_of(number, first_sequence=number) for number in range(4)])
    size = next(tmp_path.glob("*.data.*")).stat().st_size
    for bytes_, end in ((3 * size, 2), (2 * size - 1, 0), (1, 0)):
        monkeypatch.setattr(source, "CARRIED_BYTES", bytes_)
        assert latest(carrying(tmp_path), -1) == end
