"""Large rows beside the query: what is put is what is taken, whatever failed meanwhile."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.folder import scratch_folder
from acktree.core.data.frames import Kind, WireRow
from acktree.spark.worker import scratch
from tests.in_module import replace

BIG = bytes(range(256)) * 256


class Attempt:
    """What a Spark task knows of itself, by Spark's names."""

    def __init__(self, batch_id: int = 7, attempt: int = 100) -> None:
        self.getLocalProperty = {"streaming.sql.batchId": str(batch_id)}.get
        self.partitionId = lambda: 0
        self.taskAttemptId = lambda: attempt


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scratch_folder(str(tmp_path))


def row(sequence: int, head: bytes = b"h", body: bytes = b"b") -> WireRow:
    return WireRow(1, 2, Kind.FRAME, 3, sequence, 5, head, body)


def put(folder: Path, rows: list[WireRow], monkeypatch: pytest.MonkeyPatch, **of: int) -> list[WireRow]:
    monkeypatch.setattr(scratch.TaskContext, "get", classmethod(lambda _: Attempt(**of)))
    return list(scratch.put(str(folder), 0, rows))


def said(rows: Any) -> list[WireRow]:
    return [each._replace(kind=int(each.kind), head=bytes(each.head), body=bytes(each.body)) for each in rows]


def test_what_is_put_is_taken_and_large_rows_travel_as_their_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(0), row(1, body=BIG), row(2, head=BIG, body=BIG[:100]), row(3, b"", b"")]
    sent = put(folder, rows, monkeypatch)
    assert [len(each.head) + len(each.body) < 200 for each in sent] == [True] * 4
    assert [each.kind >= scratch.ELSEWHERE for each in sent] == [False, True, True, False]
    assert said(scratch.take(str(folder), sent)) == said(rows)
    heads = [type(each.head) for each in scratch.take(str(folder), sent)]
    assert heads == [bytes] * 4, "a head may be a text or JSON, which nobody reads out of a view"


def test_only_the_owner_may_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, [row(0, body=BIG)], monkeypatch)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_a_second_attempt_does_not_change_what_the_first_wrote(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(folder, [row(0, body=BIG)], monkeypatch, attempt=1)
    second = put(folder, [row(0, body=BIG[::-1])], monkeypatch, attempt=2)
    assert said(scratch.take(str(folder), [*first, *second])) == said(
        [row(0, body=BIG), row(0, body=BIG[::-1])]
    )


def test_where_there_is_no_room_rows_carry_their_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = os.pwrite, 0

    def full(file: int, data: memoryview, at: int) -> int:
        nonlocal written
        written += 1
        if written == 2:
            raise OSError(28, "No space left on device")
        return real(file, data[:1000], at)  # a short write is none

    rows = [row(0, body=BIG), row(1, body=BIG)]
    replace(monkeypatch, scratch, "os", pwrite=full)
    sent = put(folder, rows, monkeypatch)
    assert sent[0] == rows[0]
    assert sent[1].kind >= scratch.ELSEWHERE
    assert said(scratch.take(str(folder), sent)) == said(rows)


def test_a_folder_that_is_gone_costs_speed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(0, body=BIG)]
    assert put(tmp_path / "gone", rows, monkeypatch) == rows


def test_on_a_cluster_rows_carry_their_bytes() -> None:
    rows = [row(0, body=BIG)]
    assert list(scratch.put(None, 0, rows)) == rows
    assert list(scratch.take(None, rows)) == rows


def test_the_next_micro_batch_deletes_files_and_mapped_parts_stay_readable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(folder, [row(0, body=BIG)], monkeypatch, batch_id=6)
    new = put(folder, [row(0, body=BIG)], monkeypatch, batch_id=7)
    held = list(scratch.take(str(folder), old))
    others = {"README.txt", "5", "5.notes.txt", "new-5"}
    for name in others:
        (folder / name).touch()
    scratch.forget_before(folder, 7)
    left = {file.name for file in folder.iterdir()}
    assert left > others
    assert {name.split(".")[0] for name in left - others} == {"7"}
    assert said(held) == said([row(0, body=BIG)])
    assert said(scratch.take(str(folder), new)) == said([row(0, body=BIG)])
