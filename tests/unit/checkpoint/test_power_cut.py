"""What outlives a power cut, on a real folder; tests/simulator cuts the power."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.envelope import opened, sealed
from acktree.checkpoint.files import Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.power_cut import note_synced, roll_back
from acktree.errors import CheckpointError
from acktree.system import private_files
from acktree.system.private_files import DISK, Disk
from tests.in_module import replace

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


def test_what_spark_logged_after_the_last_sync_is_deleted_with_checksums_and_marks(
    tmp_path: Path,
) -> None:
    spark = logged(tmp_path / "spark", 4, 3)
    (tmp_path / "marks").mkdir()
    note_synced(tmp_path, 11, DISK)
    assert roll_back(tmp_path, spark, 10, DISK) == (11, False)
    assert names(spark / "offsets") == names(spark / "commits") == [".0.crc", ".1.crc", "0", "1"]
    assert names(spark / "state" / "0" / "_metadata" / "v2") == ["0", "1"]
    assert (spark / "metadata").exists()
    assert not (tmp_path / "marks").exists()
    (tmp_path / "marks").mkdir()
    assert roll_back(tmp_path, spark, 10, DISK) == (11, False)
    assert (tmp_path / "marks").exists()  # with nothing to delete nothing is touched


def test_a_note_with_the_content_of_another_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "synced").write_bytes(sealed(0, b'{"run": 2}'))
    with pytest.raises(CheckpointError, match=r"content of another file\n.*synced"):
        roll_back(tmp_path, tmp_path / "spark", 0, DISK)


def test_where_nothing_of_spark_was_synced_it_begins_anew(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 1, 0)
    note_synced(tmp_path, 9, DISK)
    assert roll_back(tmp_path, spark, 10, DISK) == (9, False)
    assert names(spark) == ["commits", "offsets"]
    assert names(spark / "offsets") == []


def test_a_micro_batch_that_has_begun_keeps_its_offsets(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 4, 3)
    note_synced(tmp_path, 11, DISK, has_begun=True)
    assert roll_back(tmp_path, spark, 10, DISK) == (11, True)
    assert [name for name in names(spark / "commits") if name.isdigit()] == ["0", "1"]
    assert [name for name in names(spark / "offsets") if name.isdigit()] == ["0", "1", "2"]


def test_the_first_micro_batch_that_has_begun_keeps_the_rest_of_what_spark_wrote(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 2, 1)
    note_synced(tmp_path, -1, DISK, has_begun=True)
    assert roll_back(tmp_path, spark, 0, DISK) == (-1, True)
    assert [name for name in names(spark / "offsets") if name.isdigit()] == ["0"]
    assert (spark / "metadata").exists()


def test_a_checkpoint_that_survives_no_power_cut_takes_every_commit(tmp_path: Path) -> None:
    spark = logged(tmp_path / "spark", 3, 3)
    assert roll_back(tmp_path, spark, 0, DISK) is None
    assert len(names(spark / "commits")) == 6


def synced_in(folder: Path) -> int:
    file = folder / "synced"
    return int(bytes(opened(file.read_bytes(), 0, file)))


def test_the_number_is_written_when_a_run_begins_once_a_micro_batch_and_deleted_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("sync_all", "sync_folder"):
        done = getattr(Disk, name)
        monkeypatch.setattr(
            Disk, name, lambda self, folder, done=done, name=name: (calls.append(name), done(self, folder))
        )
    held = Checkpoint(tmp_path, SURVIVES)
    assert synced_in(tmp_path) == -1
    calls.clear()
    held.sync(3)
    held.sync(3)
    held.sync(2)
    assert calls == ["sync_all", "sync_folder"]  # all first, then the number's name
    assert synced_in(tmp_path) == 3
    held.sync(3, has_begun=True)
    held.sync(3, has_begun=True)
    held.sync(3)
    assert calls == ["sync_all", "sync_folder"] * 2
    held.close()
    calls.clear()
    held = Checkpoint(tmp_path)
    assert not (tmp_path / "synced").exists()
    held.sync(4)
    assert calls == ["sync_folder"]  # that it is gone
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


def test_a_folder_in_which_no_run_began_is_deleted_with_its_note(tmp_path: Path) -> None:
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
