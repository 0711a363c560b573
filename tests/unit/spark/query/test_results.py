"""What the sink collects: values of rows are opened when they are asked for, and no sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.folder import scratch_folder
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.packing import pack
from acktree.spark.query import results
from acktree.spark.query.wire import batch_of
from acktree.spark.worker import scratch
from acktree.tasks.payloads import is_among
from tests.unit.spark.worker.test_scratch import Attempt

PIECE = 1000


def piece(first: int) -> WireRow:
    """Values of rows ``first`` to ``first + PIECE - 1``, whose roots are their numbers."""
    numbers = np.arange(first, first + PIECE)
    values = pa.record_batch({"n": numbers, "text": [f"row {n} " + "x" * 50 for n in numbers]})
    return WireRow(0, SINK_LEVEL, Kind.PAYLOADS, 0, first, 5, pack(numbers), batch_to_bytes(values))


ROWS = [
    piece(0),
    WireRow(0, SINK_LEVEL, Kind.DELTAS, 0, 0, 5, b"", b"sums" * 9000),
    piece(PIECE),
    piece(2 * PIECE),
]


class Frame:
    """As much of a DataFrame as is looked at."""

    def __init__(self, rows: list[WireRow]):
        self.rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        return pa.Table.from_batches([batch_of(self.rows)])


@pytest.mark.parametrize("has_room", [True, False])
def test_values_are_opened_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room
) -> None:
    folder = scratch_folder(str(tmp_path))
    monkeypatch.setattr(scratch.TaskContext, "get", classmethod(lambda _: Attempt()))
    sent = list(scratch.put(str(folder) if has_room else None, 0, ROWS))
    opened: list[int] = []
    mapped = scratch.mapped

    def noting(path: Path, at: int = 0, *further: Any) -> memoryview:
        opened.append(at)
        return mapped(path, at, *further)

    monkeypatch.setattr(scratch, "mapped", noting)
    frame: Any = Frame(sent)
    with results.results_of(frame, str(folder), has_payloads=True) as found:
        (row,) = found.rows
        assert (row.kind, bytes(row.body)) == (Kind.DELTAS, ROWS[1].body)
        assert len(opened) == has_room  # the sums alone
        assert list(found.payloads(np.array([], dtype=np.int64))) == []
        assert len(opened) == has_room
        rows = {
            root: row["n"]
            for roots, values in found.payloads(np.array([2500, -1, 7, 1 << 40]))
            for root, row in zip(roots.tolist(), values.to_pylist(), strict=True)
        }
    assert rows == {7: 7, 2500: 2500}


def test_a_mapped_part_begins_where_it_is_said_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = np.arange(20_000, dtype=np.int16).tobytes()
    file.write_bytes(content)
    for at in (0, 1, 4095, 4096, 4097, 39_999):
        assert bytes(scratch.mapped(file, at)) == content[at:]
        assert bytes(scratch.mapped(file, at, 1)) == content[at : at + 1]
    assert bytes(scratch.mapped(file, 40_000)) == b""


def test_roots_are_found_among_ascending_ones() -> None:
    chance = np.random.default_rng(7)
    for count in (0, 1, 50):
        wanted = np.unique(chance.integers(-100, 100, size=count))
        roots = chance.integers(-120, 120, size=80)
        assert is_among(roots, wanted).tolist() == np.isin(roots, wanted).tolist()
