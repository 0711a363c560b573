"""The journal: verdicts are delivered once, after their commit, and are deleted in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acktree.checkpoint.inbox import WHOLE_INBOX
from acktree.checkpoint.logs.journal import Journal
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.errors import CheckpointError
from acktree.tasks.payloads import Payload
from tests.unit.checkpoint.commits import Commits, committed_numbers
from tests.unit.checkpoint.damages import DAMAGES


def verdicts(*done: int) -> Verdicts:
    none, nobody = np.zeros(0, np.int64), Judged(np.zeros(0, np.int64), np.zeros(0, np.int32))
    return Verdicts([(1, np.array(done))], nobody, nobody, none, none, nobody, (), open_count=0,
                    next_deadline_ms=None)  # fmt: skip


class Driver:
    """A journal in a commit log of its own."""

    def __init__(self, folder: Path, last_committed: int = -1, delivered: int = -1) -> None:
        self.delivered, self.oldest = delivered, 0
        self.newest: dict[int, int] = {}
        self.journal = Journal(
            folder / "verdicts", lambda: self.delivered, lambda: self.oldest, newest=lambda: self.newest
        )
        self.log = Commits(folder, [self.journal], last_committed)

    def write(
        self,
        number: int,
        end: int,
        found: Verdicts | None,
        failed: Sequence[Payload] = (),
        ids: Sequence[Payload] = (),
    ) -> None:
        self.journal.write_rows(number, failed, ids)
        self.log.write(number, found, end)


def read(folder: Path, last_committed: int) -> list[tuple[bool, list[int]]]:
    earlier = Driver(folder, last_committed).journal.earlier()
    return [(was_delivered, found.done[0][1].tolist()) for was_delivered, found, _ in earlier]


def test_the_next_start_knows_which_entries_were_the_newest_at_the_last_commit(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.newest = {WHOLE_INBOX: 10, 1: 9}
    driver.write(4, 10, verdicts(1))
    driver.newest = {WHOLE_INBOX: 12, 1: 12}
    driver.write(5, 11, None)  # nothing has a verdict, and another micro-batch may never come
    assert Driver(tmp_path, 4).journal.newest == {WHOLE_INBOX: 10, 1: 9}


def test_the_next_start_knows_it_also_of_a_micro_batch_without_verdicts(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    for number in range(5):
        driver.newest = {WHOLE_INBOX: number + 1}
        driver.write(number, number, None)
    assert committed_numbers(tmp_path) == [2, 3, 4]  # each supersedes those before it, and 2 is about to go
    assert Driver(tmp_path, 4).journal.newest == {WHOLE_INBOX: 5}


def test_the_next_start_knows_which_verdicts_were_delivered(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.write(4, 10, verdicts(1))
    driver.write(5, 11, verdicts(2))
    driver.delivered = 4
    driver.write(6, 12, verdicts(3))
    assert read(tmp_path, 6) == [(True, [1]), (False, [2]), (False, [3])]


def test_the_verdicts_of_a_micro_batch_that_was_never_committed_are_discarded(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.write(4, 10, verdicts(1))
    driver.write(5, 11, verdicts(2))
    driver = Driver(tmp_path, 4)
    assert [found.done[0][1].tolist() for _, found, _ in driver.journal.earlier()] == [[1]]
    driver.write(5, 11, None)  # it decides nothing when it runs again: the verdict of its first run is gone
    assert read(tmp_path, 5) == [(False, [1])]


def test_verdicts_noted_as_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    driver = Driver(tmp_path, delivered=5)
    driver.write(5, 10, verdicts(1))
    driver.journal.note_delivered()
    assert read(tmp_path, 5) == [(True, [1])]


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - {"missing", "its neighbour", "a link to nothing"}))
def test_a_damaged_note_of_deliveries_is_refused_with_the_file_to_delete(tmp_path: Path, damage: str) -> None:
    driver = Driver(tmp_path, delivered=4)
    driver.write(5, 10, verdicts(1))
    driver.journal.note_delivered()
    DAMAGES[damage](tmp_path / "verdicts" / "told")
    with pytest.raises(CheckpointError, match="delete this file"):
        read(tmp_path, 5)


def test_verdicts_are_forgotten_with_the_last_chunk_that_they_concern_and_not_before_their_delivery(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path)
    for number, end in ((0, 3), (1, 5), (2, 9)):
        driver.write(number, end, verdicts(number))
    driver.oldest = 6
    driver.write(3, 10, None)
    assert [acked for _, acked in read(tmp_path, 3)] == [[0], [1], [2]]
    driver.delivered, driver.oldest = 2, 5
    driver.write(4, 10, None)
    assert [acked for _, acked in read(tmp_path, 4)] == [[1], [2]]
    driver.oldest = 10
    driver.write(5, 10, None)
    assert read(tmp_path, 5) == []
    driver.write(6, 10, None)
    assert committed_numbers(tmp_path) == [4, 5, 6]


def test_the_next_start_knows_of_which_chunks_verdicts_were_forgotten(tmp_path: Path) -> None:
    """At a URL a chunk is deleted later: without its verdicts its messages would stay open for ever."""
    driver = Driver(tmp_path, delivered=9)
    driver.write(1, 4, verdicts(1))
    driver.oldest = 5
    driver.write(2, 8, verdicts(2))
    for number in (3, 4, 5):  # they forget nothing, and write nothing
        driver.write(number, 9, None)
        assert Driver(tmp_path, number).journal.first_entry == 5
        assert [acked for _, acked in read(tmp_path, number)] == [[2]]
    driver.oldest = 9
    for number in (6, 7, 8):
        driver.write(number, 9, None)
        assert Driver(tmp_path, number).journal.first_entry == 9
        assert read(tmp_path, number) == []
    assert committed_numbers(tmp_path) == [6, 7, 8]


def test_no_chunk_after_the_commit_that_forgets_is_dropped(tmp_path: Path) -> None:
    """Where nothing is kept the oldest entry is the next number, and a power cut may let it be used again."""
    driver = Driver(tmp_path, delivered=9)
    driver.write(1, 4, verdicts(1))
    driver.oldest = 100
    driver.write(2, 7, None)
    assert Driver(tmp_path, 2).journal.first_entry == 8


def test_verdicts_of_earlier_runs_are_forgotten_too_and_half_written_files_at_once(tmp_path: Path) -> None:
    Driver(tmp_path).write(7, 3, verdicts(1), [(np.array([7]), pa.record_batch({"n": [1]}))])
    for name in ("new-000000000008.rows", "000000000008.ids", "new-told"):
        (tmp_path / "verdicts" / name).write_bytes(b"half of")
    driver = Driver(tmp_path, 7, delivered=7)
    assert len(list(driver.journal.earlier())) == 1
    assert [each.name for each in (tmp_path / "verdicts").iterdir()] == ["000000000007.rows"]
    driver.oldest = 4
    driver.write(8, 3, None)
    driver.write(9, 3, None)
    assert read(tmp_path, 9) == []
    assert list((tmp_path / "verdicts").iterdir()) == []


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "folder"])
def test_what_is_not_acktrees_is_neither_read_nor_deleted(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    Driver(tmp_path).write(7, 3, verdicts(1))
    others = [tmp_path / "verdicts" / name for name in ("new-README", "9", "\u00b2", "000000000007.rows~")]
    for other in others:
        make(other)
    assert read(tmp_path, 7) == [(False, [1])]
    assert all(other.exists() for other in others)


def test_a_micro_batch_that_runs_again_overwrites_what_it_said(tmp_path: Path) -> None:
    Driver(tmp_path).write(0, 3, verdicts(1))
    Driver(tmp_path).write(0, 3, verdicts(2))
    assert read(tmp_path, 0) == [(False, [2])]


ROWS = [
    (np.array([7, 8]), pa.record_batch({"n": [1, 2]})),
    (np.array([9]), pa.record_batch({"other": ["x"]})),
]


def test_what_failed_rows_held_comes_back_with_their_verdicts(tmp_path: Path) -> None:
    Driver(tmp_path).write(4, 10, verdicts(1), ROWS, ROWS[:1])
    driver = Driver(tmp_path, 4)
    [(_, _, stored)] = driver.journal.earlier()
    driver.log.log.sweep()  # a start sweeps when the spouts know their verdicts, and have delivered none
    for _ in range(2):  # read any number of times
        assert [roots.tolist() for roots, _ in stored.failed] == [[7, 8], [9]]
        assert [values.to_pylist() for _, values in stored.failed] == [[{"n": 1}, {"n": 2}], [{"other": "x"}]]
        assert [roots.tolist() for roots, _ in stored.ids] == [[7, 8]]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["rows", "ids"])
def test_each_damage_of_a_file_of_rows_is_an_error_that_names_it_and_deletes_nothing(
    tmp_path: Path, damage: str, kind: str
) -> None:
    driver = Driver(tmp_path)
    for number in (3, 4):
        driver.write(number, 10, verdicts(number), ROWS[: number - 2], ROWS[: number - 2])
    file = tmp_path / "verdicts" / f"000000000004.{kind}"
    DAMAGES[damage](file)
    names = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError) as raised:
        Driver(tmp_path, 4)
    assert raised.value.where == str(file)
    assert sorted(tmp_path.rglob("*")) == names
