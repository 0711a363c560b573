"""The journal: verdicts are delivered once, after their commit, and are deleted in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acktree.checkpoint.journal import Journal
from acktree.core.tracking.ledger import Judged
from acktree.errors import CheckpointError
from acktree.tasks.acker import Verdicts


def verdicts(*done: int) -> Verdicts:
    none, nobody = np.zeros(0, np.int64), Judged(np.zeros(0, np.int64), np.zeros(0, np.int32))
    return Verdicts([(1, np.array(done))], nobody, nobody, none, none, nobody, (), open_count=0,
                    next_deadline_ms=None)  # fmt: skip


def read(folder: Path, last_committed: int) -> list[tuple[bool, list[int]]]:
    earlier = Journal(folder, lambda: -1).earlier(last_committed)
    return [(was_delivered, found.done[0][1].tolist()) for was_delivered, found, _ in earlier]


def test_the_next_start_knows_which_verdicts_were_delivered(tmp_path: Path) -> None:
    delivered = -1
    journal = Journal(tmp_path, lambda: delivered)
    journal.write(4, 10, verdicts(1))
    journal.write(5, 11, verdicts(2))
    delivered = 4
    journal.write(6, 12, verdicts(3))
    assert read(tmp_path, 6) == [(True, [1]), (False, [2]), (False, [3])]


def test_the_verdicts_of_a_micro_batch_that_was_never_committed_are_discarded(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lambda: -1)
    journal.write(4, 10, verdicts(1))
    journal.write(5, 11, verdicts(2))
    assert read(tmp_path, 4) == [(False, [1])]
    # It may decide nothing when it runs again: the earlier verdict must not come back.
    assert read(tmp_path, 5) == [(False, [1])]


def test_verdicts_noted_as_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lambda: 5)
    journal.write(5, 10, verdicts(1))
    journal.note_delivered()
    assert read(tmp_path, 5) == [(True, [1])]


@pytest.mark.parametrize("content", [b"", b"\0\0", b"what"])
def test_a_damaged_note_of_deliveries_is_refused_with_the_file_to_delete(
    tmp_path: Path, content: bytes
) -> None:
    Journal(tmp_path, lambda: -1).write(5, 10, verdicts(1))
    (tmp_path / "told").write_bytes(content)
    with pytest.raises(CheckpointError, match="delete this file"):
        read(tmp_path, 5)


def test_a_file_is_deleted_with_the_last_chunk_that_it_concerns_and_not_before_its_delivery(
    tmp_path: Path,
) -> None:
    delivered = -1
    journal = Journal(tmp_path, lambda: delivered)
    for batch_id, end in ((0, 3), (1, 5), (2, 9)):
        journal.write(batch_id, end, verdicts(batch_id))
    journal.forget_before(6)
    assert [acked for _, acked in read(tmp_path, 2)] == [[0], [1], [2]]
    delivered = 2
    journal.forget_before(5)
    assert [acked for _, acked in read(tmp_path, 2)] == [[1], [2]]
    journal.forget_before(10)
    assert read(tmp_path, 2) == []


def test_a_verdict_is_deleted_only_when_the_deletion_of_its_chunks_is_synced(tmp_path: Path) -> None:
    """A power cut may bring back a chunk: without its verdicts its messages would stay open for ever."""
    journal, there = Journal(tmp_path, lambda: 3), []
    journal.write(1, 4, verdicts(1))
    journal.forget_before(5, lambda: there.append((tmp_path / "000000000001").exists()))
    assert there == [True]
    assert not (tmp_path / "000000000001").exists()
    journal.forget_before(5, lambda: there.append(False))
    assert there == [True]  # with nothing to forget nothing is synced


def test_files_of_earlier_runs_are_forgotten_too_and_half_written_ones_at_once(tmp_path: Path) -> None:
    Journal(tmp_path, lambda: -1).write(7, 3, verdicts(1))
    for name in ("new-000000000008", "new-told"):
        (tmp_path / name).write_bytes(b"half of")
    journal = Journal(tmp_path, lambda: 7)
    assert len(list(journal.earlier(7))) == 1
    assert list(tmp_path.glob("new-*")) == []
    journal.forget_before(4)
    assert read(tmp_path, 7) == []


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "folder"])
def test_what_is_not_acktrees_is_neither_read_nor_deleted(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    Journal(tmp_path, lambda: -1).write(7, 3, verdicts(1))
    others = [tmp_path / name for name in ("new-README", "9", "\u00b2", "000000000007~")]
    for other in others:
        make(other)
    assert read(tmp_path, 7) == [(False, [1])]
    assert all(other.exists() for other in others)


def test_a_micro_batch_that_runs_again_overwrites_what_it_said(tmp_path: Path) -> None:
    Journal(tmp_path, lambda: -1).write(7, 3, verdicts(1))
    Journal(tmp_path, lambda: -1).write(7, 3, verdicts(2))
    assert read(tmp_path, 7) == [(False, [2])]


def test_what_failed_rows_held_comes_back_with_their_verdicts(tmp_path: Path) -> None:
    payloads = [
        (np.array([7, 8]), pa.record_batch({"n": [1, 2]})),
        (np.array([9]), pa.record_batch({"other": ["x"]})),
    ]
    Journal(tmp_path, lambda: -1).write(4, 10, verdicts(1), payloads)
    [(_, _, kept)] = Journal(tmp_path, lambda: -1).earlier(4)
    assert [roots.tolist() for roots, _ in kept] == [[7, 8], [9]]
    assert [values.to_pylist() for _, values in kept] == [[{"n": 1}, {"n": 2}], [{"other": "x"}]]
