"""The SQLite file: forced to the disk, private, ours or left alone; a full disk loses no verdict."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from acktree.dead_letters import DeadLetters
from acktree.dead_letters.store import IN_MEMORY
from acktree.errors import CheckpointError, ConnectorError
from tests.unit.dead_letters.letters import LETTER, letter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint" / "dead_letters.sqlite"


@pytest.fixture
def store(path):
    with DeadLetters(path, create=True) as opened:
        yield opened


def query(store, text):
    return store._table._connection.execute(text).fetchone()


def test_each_commit_is_forced_to_the_disk(store):
    assert query(store, "PRAGMA synchronous") == (2,)
    assert query(store, "PRAGMA journal_mode") == ("wal",)


def test_a_path_may_be_text_or_a_url_and_neither_needs_sqlalchemy(tmp_path, path):
    for place in (str(path), f"sqlite:///{path}"):
        with DeadLetters(place, create=True) as store:
            store.put([LETTER])
            assert store.place == str(path)
            assert len(store) == 1


def test_letters_in_memory_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with DeadLetters(IN_MEMORY) as store:
        assert store.put([LETTER]) == len(store) == 1
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_may_read_the_letters(store, path):
    store.put([LETTER])
    rights = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(rights) >= 2  # the file and its write-ahead log
    assert set(rights.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_and_a_file_that_were_there_keep_their_rights(tmp_path):
    tmp_path.chmod(0o750)
    (tmp_path / "letters").touch(0o640)
    (tmp_path / "letters").chmod(0o640)
    with DeadLetters(tmp_path / "letters", create=True):
        assert stat.S_IMODE((tmp_path / "letters").stat().st_mode) == 0o640
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_what_was_purged_is_not_in_any_file_any_more(store, path):
    words = b"the user asked to be forgotten"
    store.put([letter(1, payload=words * 100), letter(2)])
    assert any(words in file.read_bytes() for file in path.parent.iterdir())
    assert store.purge(ids=[1]) == 1
    assert not any(words in file.read_bytes() for file in path.parent.iterdir())


def test_purged_letters_leave_the_log_when_another_program_has_stopped_reading(store, path):
    words = b"the user asked to be forgotten"
    store.put([letter(1, payload=words * 100), letter(2)])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM dead_letters").fetchone() == (2,)
    assert store.purge(ids=[1]) == 1
    reader.close()
    store._table._emptying.join(timeout=60)
    assert not any(words in file.read_bytes() for file in path.parent.iterdir())
    assert store._table._connection.execute("PRAGMA busy_timeout").fetchone() == (10_000,)


def test_the_error_for_a_full_disk_has_a_fix_and_nothing_is_stored_partly(store, path):
    store.put([letter(1)])
    (pages,) = query(store, "PRAGMA page_count")
    query(store, f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(ConnectorError, match="full") as refused:
        store.put([letter(2), letter(3, payload=bytes(100_000))])
    assert str(path) in str(refused.value)
    assert "free some space" in str(refused.value)
    assert [stored.root for stored in store] == [1]
    query(store, "PRAGMA max_page_count = 1000000")
    assert store.put([letter(2), letter(3)]) == 2


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(path):
    path.parent.mkdir()
    path.write_bytes(b"these are my notes, do not touch them " * 40)
    before = path.read_bytes()
    with pytest.raises(ConnectorError, match="not a database") as refused:
        DeadLetters(path, create=True)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_the_error_for_a_damaged_file_says_so(path):
    with DeadLetters(path, create=True) as store:
        store.put(letter(root, payload=bytes(3_000)) for root in range(50))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(ConnectorError, match="damaged"), DeadLetters(path, create=True) as store:
        list(store)


def test_a_database_of_another_program_is_refused_and_left_as_it_was(path):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE shopping (item TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="not a store of dead letters"):
        DeadLetters(path, create=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [3, 99])
def test_letters_of_another_acktree_are_refused_with_both_versions(path, version):
    DeadLetters(path, create=True).close()
    other = sqlite3.connect(path)
    other.execute("UPDATE acktree_dead_letters_version SET version = ?", (version,))
    other.commit()
    other.close()
    with pytest.raises(CheckpointError, match=rf"version \[{version}\].*version 4") as refused:
        DeadLetters(path, create=True)
    assert str(path) in str(refused.value)


def test_a_file_that_another_process_holds_may_be_tried_again(store, path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    query(store, "PRAGMA busy_timeout = 1")
    with pytest.raises(ConnectorError, match="locked") as refused:
        store.put([LETTER])
    assert refused.value.can_retry
    holder.close()
    assert store.put([LETTER]) == 1


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConnectorError, match="cannot open"):
        DeadLetters(tmp_path / "file" / "letters", create=True)


# ---- a full disk -------------------------------------------------------------------------------------------

# In a process of its own: no file of it may grow beyond a size, until the limit is lifted.
FULL = """
import resource, sys
from pathlib import Path

from acktree import Config, Retry
from acktree.dead_letters import DeadLetters
from tests.unit.dead_letters.harness import Harness

def limit(most):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

letters = DeadLetters(Path(sys.argv[1]), create=True)
harness = Harness(Retry(max_attempts=1), letters, Config())
harness.feed(*("x" * 2_000 for _ in range(60)))
limit(100_000)
harness.fail_all()
print("given up", harness.given_up_count, "open", harness.task.open_count, "stored", len(letters))
print(str(harness.errors[0]).replace("\\n", " "))
limit(resource.RLIM_INFINITY)
harness.now_ms = harness.task.due_ms()
harness.step()
print("given up", harness.given_up_count, "open", harness.task.open_count, "stored", len(letters))
"""


def test_on_a_full_disk_no_verdict_is_delivered_and_when_there_is_room_each_is_delivered_once(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    full, error, room = done.stdout.strip().splitlines()
    assert full == "given up 0 open 60 stored 0"
    assert f"cannot store dead letters in {path}" in error
    assert "gave no message up" in error
    assert room == "given up 60 open 0 stored 60"
    with DeadLetters(path, create=True) as store:
        assert [replace(each, id=None).reason for each in store] == ["ValueError: broken"] * 60


@pytest.mark.parametrize("happens", ["deleted", "moved", "replaced"])
def test_nothing_is_stored_into_a_file_that_has_lost_its_name(happens, tmp_path):
    place = tmp_path / "letters.sqlite"
    with DeadLetters(place, create=True) as store:
        store.put([letter(1)])
        if happens == "deleted":
            place.unlink()
        else:
            place.rename(tmp_path / "old.sqlite")
        if happens == "replaced":
            with DeadLetters(place, create=True) as other:
                other.put([letter(7)])
        for call in (lambda: store.put([letter(2)]), store.count):
            with pytest.raises(ConnectorError, match="deleted, moved or replaced") as refused:
                call()
            assert "submit it again" in refused.value.fix
        if happens == "moved":
            (tmp_path / "old.sqlite").rename(place)
            assert store.put([letter(2)]) == 1


def test_a_relative_place_is_that_of_the_opening_whatever_folder_the_program_goes_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with DeadLetters("letters.sqlite", create=True) as store:
        store.put([letter(1)])
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert store.put([letter(2)]) == 1
        assert len(store) == 2
