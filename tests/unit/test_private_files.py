"""What acktree makes is its owner's alone, whatever the umask; what was there keeps its rights."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest

from acktree.spark.session.home import cache_folder
from acktree.system.private_files import (
    DISK,
    make_private_file,
    make_private_folder,
    write_private,
    xdg_folder,
)
from acktree.ui.places import runtime_folder


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277, 0o777], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_0700_and_those_above_them_that_had_to_be_made(tmp_path, umask):
    make_private_folder(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_folder_that_was_there_keeps_its_rights(tmp_path, umask):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o750)
    make_private_folder(tmp_path / "a")
    make_private_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o750, 0o700)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a").touch()
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(OSError, match="a"):
            make_private_folder(folder)


def test_a_folder_that_somebody_else_makes_meanwhile_is_taken(tmp_path, monkeypatch):
    asked = iter([False])
    look = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(asked, look(path)))
    make_private_folder(tmp_path)


def test_files_are_0600(tmp_path, umask):
    assert make_private_file(tmp_path / "empty")
    write_private(tmp_path / "full", b"words")
    assert (mode(tmp_path / "empty"), mode(tmp_path / "full")) == (0o600, 0o600)
    assert ((tmp_path / "empty").read_bytes(), (tmp_path / "full").read_bytes()) == (b"", b"words")


def test_a_file_that_is_there_is_neither_made_nor_touched(tmp_path):
    (tmp_path / "mine").write_bytes(b"words")
    (tmp_path / "mine").chmod(0o640)
    assert not make_private_file(tmp_path / "mine")
    assert ((tmp_path / "mine").read_bytes(), mode(tmp_path / "mine")) == (b"words", 0o640)


@pytest.mark.parametrize("sync", [False, True])
def test_writing_replaces_what_was_there_and_takes_it_from_others(tmp_path, sync):
    (tmp_path / "mine").write_bytes(b"many more words")
    (tmp_path / "mine").chmod(0o666)
    write_private(tmp_path / "mine", b"words", sync=sync)
    assert ((tmp_path / "mine").read_bytes(), mode(tmp_path / "mine")) == (b"words", 0o600)


def test_of_several_threads_that_replace_a_file_one_writes_at_a_time_and_a_reader_finds_a_whole_one(tmp_path):
    """They share a temporary name, so that a process that dies leaves one file and no more."""
    file, stop = tmp_path / "f", Event()
    contents = [bytes([at]) * 5_000 for at in range(8)]
    DISK.replace(file, contents[0])
    torn: list[bytes] = []

    def look():
        while not stop.is_set():
            if (found := file.read_bytes()) not in contents:
                torn.append(found)

    reader = Thread(target=look)
    reader.start()
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(DISK.replace, file, content) for _ in range(20) for content in contents]
    stop.set()
    reader.join()
    assert [each.exception() for each in written] == [None] * 160
    assert torn == []
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_a_file_that_cannot_be_replaced_keeps_its_content_and_leaves_no_other(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="f"):
        DISK.replace(tmp_path / "f", b"1")
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("named", ["", ".", "relative", "../up", "~/cache"])
def test_a_relative_folder_of_xdg_is_ignored_by_all_that_ask_for_one(named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, named)
        assert xdg_folder(name) is None
    assert runtime_folder() == tmp_path / "home" / ".local" / "state" / "acktree"
    assert cache_folder() == tmp_path / "home" / ".cache" / "acktree"
    assert [each.name for each in tmp_path.iterdir()] == ["home"]


def test_an_absolute_folder_of_xdg_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert runtime_folder() == tmp_path / "XDG_STATE_HOME" / "acktree"
    assert cache_folder() == tmp_path / "XDG_CACHE_HOME" / "acktree"
