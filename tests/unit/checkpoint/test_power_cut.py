"""What outlives a power cut, on a real folder; tests/simulator cuts the power."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree import Config
from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.power_cut import RollBack, Synced, note_synced
from acktree.errors import CheckpointError
from acktree.system import private_files
from acktree.system.private_files import DISK, Disk
from tests.in_module import replace
from tests.unit.checkpoint.damages import DAMAGES
from tests.unit.checkpoint.test_folder import begun, topology

SURVIVES = Files(survives_power_cut=True)


def logged(folder: Path, offsets: int, commits: int) -> Path:
    """Spark's part of a checkpoint, with this number of entries in each log."""
    for log, count in (("offsets", offsets), ("commits", commits)):
        (folder / log).mkdir(parents=True)
        for number in range(count):
            (folder / log / str(number)).write_text("v1")
            (folder / log / f".{number}.crc").write_text("c")
    (folder / "metadata").write_text("{}")
    operator = folder / "state" / "0" / "_metadata" / "v2"
    operator.mkdir(parents=True)
    for number in range(offsets):
        (operator / str(number)).write_text("v2")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def rolled_back(folder: Path, first_batch: int = 0, *, survives: bool = True) -> Synced | None:
    """Read the note of a folder, and carry out what it says."""
    roll_back = RollBack(folder, folder / "spark", first_batch, FOLDER)
    roll_back.carry_out(survives=survives)
    return roll_back.synced


def note(folder: Path, batch_id: int, *, has_begun: bool = False) -> None:
    note_synced(folder, Synced(batch_id, has_begun), None, DISK)


def test_what_spark_logged_after_the_last_sync_is_deleted_with_checksums_and_marks(
    tmp_path: Path,
) -> None:
    spark = logged(tmp_path / "spark", 4, 3)
    (tmp_path / "marks").mkdir()
    note(tmp_path, 11)
    assert rolled_back(tmp_path, 10) == (11, False)
    assert names(spark / "offsets") == names(spark / "commits") == [".0.crc", ".1.crc", "0", "1"]
    assert names(spark / "state" / "0" / "_metadata" / "v2") == ["0", "1"]
    assert (spark / "metadata").exists()
    assert not (tmp_path / "marks").exists()
    (tmp_path / "marks").mkdir()
    assert rolled_back(tmp_path, 10) == (11, False)
    assert (tmp_path / "marks").exists()  # with nothing to delete nothing is touched


def test_nothing_is_deleted_before_it_is_carried_out_and_what_is_deleted_then_does_not_count_before(
    tmp_path: Path,
) -> None:
    logged(tmp_path / "spark", 4, 3)
    note(tmp_path, 1)
    before = sorted(tmp_path.rglob("*"))
    roll_back = RollBack(tmp_path, tmp_path / "spark", 0, FOLDER)
    assert sorted(tmp_path.rglob("*")) == before
    assert [roll_back.counts("commits", number) for number in range(3)] == [True, True, False]
    roll_back.carry_out(survives=True)
    assert roll_back.counts("commits", 2)  # that of this run


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - {"missing", "its neighbour"}))
def test_a_note_that_is_damaged_is_told(tmp_path: Path, damage: str) -> None:
    note(tmp_path, 11)
    DAMAGES[damage](tmp_path / "synced-000000000012")
    with pytest.raises(CheckpointError, match=r"synced-000000000012\n.*nothing was deleted"):
        RollBack(tmp_path, tmp_path / "spark", 0, FOLDER)


def test_an_older_copy_of_a_note_does_not_count_beside_the_newer_one(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 4, 3)
    note(tmp_path, 1)
    older = tmp_path / "synced-000000000002"
    copy = older.read_bytes()
    note_synced(tmp_path, Synced(2), Synced(1), DISK)
    assert names(tmp_path) == ["spark", "synced-000000000003"]
    older.write_bytes(copy)
    assert rolled_back(tmp_path) == (2, False)
    assert names(tmp_path) == ["spark", "synced-000000000003"]
    assert len(names(spark / "commits")) == 6


@pytest.mark.parametrize(("commits", "offsets", "name"), [(2, 4, "commits/2"), (3, 3, "offsets/3")])
def test_what_was_synced_and_is_not_there_is_told(
    tmp_path: Path, commits: int, offsets: int, name: str
) -> None:
    logged(tmp_path / "spark", offsets, commits)
    note(tmp_path, 2, has_begun=True)
    with pytest.raises(CheckpointError, match=f"missing\n.*{name}"):
        RollBack(tmp_path, tmp_path / "spark", 0, FOLDER)


def test_where_nothing_of_spark_was_synced_it_begins_anew(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 1, 0)
    note(tmp_path, 9)
    assert rolled_back(tmp_path, 10) == (9, False)
    assert names(spark) == ["commits", "offsets"]
    assert names(spark / "offsets") == []


def test_a_micro_batch_that_has_begun_keeps_its_offsets(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 4, 3)
    note(tmp_path, 11, has_begun=True)
    assert rolled_back(tmp_path, 10) == (11, True)
    assert [name for name in names(spark / "commits") if name.isdigit()] == ["0", "1"]
    assert [name for name in names(spark / "offsets") if name.isdigit()] == ["0", "1", "2"]


def test_the_first_micro_batch_that_has_begun_keeps_the_rest_of_what_spark_wrote(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 2, 1)
    note(tmp_path, -1, has_begun=True)
    assert rolled_back(tmp_path) == (-1, True)
    assert [name for name in names(spark / "offsets") if name.isdigit()] == ["0"]
    assert (spark / "metadata").exists()


def test_a_checkpoint_that_survives_no_power_cut_takes_every_commit(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 3, 3)
    assert rolled_back(tmp_path) is None
    assert len(names(spark / "commits")) == 6


def notes_in(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.startswith("synced")]


def test_the_note_is_made_when_a_run_begins_renamed_once_a_micro_batch_and_deleted_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("sync_all", "sync_folder"):
        done = getattr(Disk, name)
        monkeypatch.setattr(
            Disk, name, lambda self, folder, done=done, name=name: (calls.append(name), done(self, folder))
        )
    held = begun(tmp_path, files=SURVIVES)
    assert notes_in(tmp_path) == ["synced-000000000000"]
    calls.clear()
    held.sync(3)
    held.sync(3)
    held.sync(2)
    assert calls == ["sync_all", "sync_folder"]  # all first, then the note's name
    assert notes_in(tmp_path) == ["synced-000000000004"]
    held.sync(3, has_begun=True)
    held.sync(3, has_begun=True)
    held.sync(3)
    assert calls == ["sync_all", "sync_folder"] * 2
    assert notes_in(tmp_path) == ["synced-000000000004-begun"]
    (tmp_path / "synced-000000000004-begun").unlink()  # somebody deletes it meanwhile
    held.sync(4)
    assert notes_in(tmp_path) == ["synced-000000000005"]
    held.close()
    for log in ("offsets", "commits"):
        (tmp_path / "spark" / log).mkdir()
        (tmp_path / "spark" / log / "4").touch()
    held = Checkpoint(tmp_path)
    held.begin_run(topology(), Config(), 2)
    assert notes_in(tmp_path) == ["synced-000000000005"]  # nothing is deleted before all else is read
    calls.clear()
    held.note_run()
    assert notes_in(tmp_path) == []
    assert calls[0] == "sync_folder"  # that it is gone
    calls.clear()
    held.sync(5)
    assert calls == []
    held.close()


def test_linux_syncs_a_file_system_in_one_call(tmp_path: Path) -> None:
    assert (private_files._syncfs is not None) == sys.platform.startswith("linux")
    DISK.sync_all(tmp_path)


def test_where_there_is_no_syncfs_each_file_and_each_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "0").write_text("v1")
    os.mkfifo(tmp_path / "wake")
    synced: set[int] = set()
    monkeypatch.setattr(private_files, "_syncfs", None)
    replace(monkeypatch, private_files, "os", fsync=lambda opened: synced.add(os.fstat(opened).st_ino))
    DISK.sync_all(tmp_path)
    there = (tmp_path, tmp_path / "spark", tmp_path / "spark" / "0")
    assert synced == {path.stat().st_ino for path in there}


def test_a_folder_in_which_no_run_began_is_deleted(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", SURVIVES).close()
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("survives", [False, True])
def test_a_file_of_parts_is_synced_as_one_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, survives: bool
) -> None:
    calls: list[str] = []
    rename = Disk.rename
    replace(monkeypatch, private_files, "os", fsync=lambda _: calls.append("fsync"))
    monkeypatch.setattr(Disk, "rename", lambda *names: (calls.append("rename"), rename(*names)))
    files = Files(survives_power_cut=survives)
    pieces = (b"rows", b"odd", b"")
    file = tmp_path / "pieces"
    files.write_pieces(file, iter(pieces))
    assert calls == [*(["fsync"] if survives else []), "rename"]
    assert files.read(file) == bytes(files.mapped(file)) == b"".join(pieces)
    assert names(tmp_path) == ["pieces"]
    assert file.stat().st_mode & 0o777 == 0o600
