"""A full disk and a file of another user's are explained; other errors are left as they are."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from acktree.checkpoint import disk_errors
from acktree.errors import CheckpointError, SpoutError
from tests.in_module import replace


def query_failed(why: str) -> StreamingQueryException:
    return StreamingQueryException(f"Query [id = 1] terminated with exception: {why}")


SAID_BY = {
    "the system": OSError(errno.ENOSPC, "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
    "a quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "Spark's log": query_failed("No space left on device"),
    "a worker": query_failed("Traceback:\n  line 1\nOSError: [Errno 28] Kein Platz\n  more"),
}


@pytest.mark.parametrize("error", SAID_BY.values(), ids=SAID_BY)
def test_a_full_disk_is_explained_with_its_folder_and_the_fix_whatever_raised_the_error(
    tmp_path: Path, error: Exception
) -> None:
    explained = disk_errors.explained(error, tmp_path, tmp_path / "gone")
    assert isinstance(explained, CheckpointError)
    assert explained.what.startswith("no space left on a disk")
    assert f"{tmp_path} (" in explained.where
    assert "nan MB free now" in explained.where
    assert explained.__cause__ is error


def test_of_a_long_message_the_line_about_the_full_disk_is_quoted(tmp_path: Path) -> None:
    explained = disk_errors.explained(SAID_BY["a worker"], tmp_path)
    assert str(explained).splitlines()[0].endswith("OSError: [Errno 28] Kein Platz")


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "No"), ValueError("x"), KeyboardInterrupt(), query_failed("EOFError")]
)
def test_another_error_stays_as_it_is(tmp_path: Path, error: BaseException) -> None:
    assert disk_errors.explained(error, tmp_path) is error
    with pytest.raises(type(error)) as raised, disk_errors.explaining(tmp_path):
        raise error
    assert raised.value is error


def test_an_error_of_acktree_is_unchanged_although_it_names_a_system_error(tmp_path: Path) -> None:
    error = SpoutError("open() raised OSError: No space left on device", "open()", "correct it")
    assert disk_errors.explained(error, tmp_path) is error


def test_a_query_that_fails_on_a_nearly_full_disk_is_attributed_to_it_and_other_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(1 << 30, (1 << 30) - 4096, 4096)
    replace(monkeypatch, disk_errors, "shutil", disk_usage=lambda _: usage)
    why = "Traceback (most recent call last):\n  ...\nEOFError\n\n=== Streaming Query ===\nIdentifier: 1"
    explained = disk_errors.explained(query_failed(why), tmp_path)
    assert isinstance(explained, CheckpointError)
    assert explained.what.endswith(": EOFError")
    assert "is full or nearly so" in explained.what
    error = ValueError("x")
    assert disk_errors.explained(error, tmp_path) is error


def test_where_the_disk_does_not_say_its_room_the_error_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    replace(monkeypatch, disk_errors, "shutil", disk_usage=stale)
    error = query_failed("EOFError")
    assert disk_errors.explained(error, tmp_path) is error


def test_a_write_to_a_full_disk_raises_the_explained_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no space left") as raised, disk_errors.explaining(tmp_path):
        raise SAID_BY["the system"]
    assert raised.value.__cause__ is SAID_BY["the system"]


def test_a_file_of_another_users_in_the_checkpoint_is_explained_and_one_elsewhere_is_not(
    tmp_path: Path,
) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "lock"))
    explained = disk_errors.explained(error, tmp_path / "temp", tmp_path)
    assert isinstance(explained, CheckpointError)
    assert explained.where == str(tmp_path)
    assert f"Permission denied: '{tmp_path / 'lock'}'" in explained.what
    assert "chown" in explained.fix
    assert explained.__cause__ is error
    assert disk_errors.explained(error, tmp_path / "temp") is error
    assert disk_errors.explained(error, tmp_path / "temp", scratch=tmp_path) is error, (
        "that is not ours to change"
    )
    for unnamed in (PermissionError(errno.EPERM, "No"), PermissionError(errno.EACCES, "No", 7)):
        assert disk_errors.explained(unnamed, tmp_path, Path()) is unnamed
