"""A full disk is told as one, whoever noticed it; what is not one is left as it is."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from acktree.checkpoint import full_disk
from acktree.errors import CheckpointError, SpoutError


def query_failed(why: str) -> StreamingQueryException:
    return StreamingQueryException(f"Query [id = 1] terminated with exception: {why}")


SAID_BY = {
    "the system": OSError(errno.ENOSPC, "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"),
    "a quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "Spark's log": query_failed("No space left on device"),
    "a worker": query_failed("Traceback:\n  line 1\nOSError: [Errno 28] Kein Platz\n  more"),
}


@pytest.mark.parametrize("error", SAID_BY.values(), ids=SAID_BY)
def test_whoever_says_that_there_is_no_space_it_is_told_with_the_place_and_what_to_do(
    tmp_path: Path, error: Exception
) -> None:
    told = full_disk.explained(error, tmp_path, tmp_path / "gone")
    assert isinstance(told, CheckpointError)
    assert told.what.startswith("no space left on a disk")
    assert f"{tmp_path} (" in told.where
    assert "nan MB free now" in told.where
    assert told.__cause__ is error


def test_of_a_long_story_the_line_is_told_that_says_so(tmp_path: Path) -> None:
    told = full_disk.explained(SAID_BY["a worker"], tmp_path)
    assert str(told).splitlines()[0].endswith("OSError: [Errno 28] Kein Platz")


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "No"), ValueError("x"), KeyboardInterrupt(), query_failed("EOFError")]
)
def test_another_error_stays_as_it_is(tmp_path: Path, error: BaseException) -> None:
    assert full_disk.explained(error, tmp_path) is error
    with pytest.raises(type(error)) as raised, full_disk.telling(tmp_path):
        raise error
    assert raised.value is error


def test_an_error_of_ours_stays_as_it_is_although_it_names_one_of_the_systems(tmp_path: Path) -> None:
    error = SpoutError("open() raised OSError: No space left on device", "open()", "mend it")
    assert full_disk.explained(error, tmp_path) is error


def test_a_query_that_fails_where_hardly_any_room_is_left_is_put_down_to_it_and_other_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(1 << 30, (1 << 30) - 4096, 4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    why = "Traceback (most recent call last):\n  ...\nEOFError\n\n=== Streaming Query ===\nIdentifier: 1"
    told = full_disk.explained(query_failed(why), tmp_path)
    assert isinstance(told, CheckpointError)
    assert told.what.endswith(": EOFError")
    assert "is full or nearly so" in told.what
    error = ValueError("x")
    assert full_disk.explained(error, tmp_path) is error


def test_who_writes_meanwhile_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no space left") as raised, full_disk.telling(tmp_path):
        raise SAID_BY["the system"]
    assert raised.value.__cause__ is SAID_BY["the system"]
