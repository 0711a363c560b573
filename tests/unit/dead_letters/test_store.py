"""The store of dead letters: durable, idempotent, private, and no reader of pickles."""

from __future__ import annotations

import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.core.values import batch_to_bytes, encode_rows
from acktree.core.verdicts import FailureCause, FailureKind
from acktree.dead_letters import DeadLetter, DeadLetters
from acktree.errors import AcktreeError, CheckpointError, ConnectorError, MisuseError


class Unreadable:
    """A value whose class cannot be unpickled."""

    def __reduce__(self):
        return explode, ()


def explode():
    raise AssertionError("a dead letter was unpickled that nobody asked for")


def payload_of(*values):
    return batch_to_bytes(encode_rows([f"f{i}" for i in range(len(values))], [values]))


LETTER = DeadLetter(
    id=None,
    topology="flights",
    spout="departures",
    task_id=3,
    stream="default",
    root=-(2**63),
    message_id_repr="17",
    fields=("f0", "f1"),
    payload=payload_of("UA", (1, None)),
    reason="no departure time",
    kind=FailureKind.FAILED,
    cause=FailureCause.EXCEPTION,
    component="parse",
    exception_type="builtins.ValueError",
    traceback="Traceback ...",
    attempts=3,
    first_emitted_ms=1_000,
    dead_ms=2_000,
)


def letter(root, **parts):
    return replace(LETTER, root=root, **parts)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint" / "dead_letters.sqlite"


@pytest.fixture
def store(path):
    with DeadLetters(path) as opened:
        yield opened


def test_a_letter_comes_back_as_it_was_and_gets_a_number(store):
    assert store.put([LETTER]) == 1
    assert list(store) == [replace(LETTER, id=1)]


def test_the_values_of_a_letter_are_those_that_the_spout_emitted(store):
    store.put([LETTER, letter(2, fields=(), payload=payload_of())])
    first, second = store
    assert first.values == ["UA", (1, None)]
    assert second.values == []


def test_the_same_letter_stored_twice_is_one_letter_and_the_first_story_stays(store):
    assert store.put([letter(1), letter(2), letter(1, reason="told again")]) == 2
    assert store.put([letter(2, reason="told again"), letter(3)]) == 1
    assert [(stored.root, stored.reason) for stored in store] == [(root, LETTER.reason) for root in (1, 2, 3)]


def test_equal_roots_of_two_topologies_are_two_letters(store):
    assert store.put([letter(1), letter(1, topology="orders")]) == 2


@settings(max_examples=25)  # each forces its commits to the disk
@given(st.lists(st.lists(st.integers(-5, 5), max_size=6), max_size=6))
def test_however_letters_are_repeated_each_root_is_stored_once_in_order_of_arrival(batches):
    with TemporaryDirectory() as folder, DeadLetters(Path(folder) / "letters") as store:
        roots = [root for batch in batches for root in batch]
        assert sum(store.put(map(letter, batch)) for batch in batches) == len(set(roots)) == len(store)
        assert [stored.root for stored in store] == list(dict.fromkeys(roots))


def test_letters_survive_the_end_of_the_process_that_stored_them(path):
    with DeadLetters(path) as first:
        first.put([letter(1), letter(2)])
    with DeadLetters(str(path)) as second:
        assert [stored.root for stored in second] == [1, 2]
        assert second.put([letter(2), letter(3)]) == 1
        assert [stored.root for stored in second] == [1, 2, 3]


def test_what_put_stored_is_seen_by_another_connection_before_anything_is_closed(store, path):
    store.put([letter(1)])
    with DeadLetters(path) as other:
        assert len(other) == 1


def test_each_commit_is_forced_to_the_disk(store):
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_listing_unpickles_nothing_and_only_values_does(store):
    store.put([letter(1, payload=payload_of("UA", Unreadable()))])
    (stored,) = store
    assert "UA" in repr(stored)
    assert store.get([1]) == [stored]
    with pytest.raises(MisuseError, match="nobody asked for"):
        _ = stored.values


def test_more_letters_than_a_page_are_listed_once_each(store):
    store.put(letter(root) for root in range(250))
    assert [stored.root for stored in store] == list(range(250))
    assert len(store) == 250


def test_letters_may_be_stored_while_they_are_listed(store):
    store.put(letter(root) for root in range(100))
    listed = iter(store)
    assert next(listed).root == 0
    store.put([letter(100)])
    assert [stored.root for stored in listed] == list(range(1, 101))


def test_count_counts_what_fits_all_that_is_given(store):
    store.put(
        [
            letter(1),
            letter(2, kind=FailureKind.TIMED_OUT, cause=FailureCause.TIMEOUT, component=None),
            letter(3, spout="arrivals", component="count"),
            letter(4, topology="orders"),
        ]
    )
    store.mark_redriven([2], now_ms=5_000)
    assert store.count() == 4
    assert store.count(topology="flights") == 3
    assert store.count(topology="flights", spout="departures") == 2
    assert store.count(component="parse") == 2
    assert store.count(kind=FailureKind.TIMED_OUT) == 1
    assert store.count(cause=FailureCause.EXCEPTION) == 3
    assert store.count(redriven=True) == 1
    assert store.count(redriven=False) == 3


def test_get_keeps_the_order_asked_for(store):
    store.put([letter(1), letter(2), letter(3)])
    assert [stored.root for stored in store.get([3, 1, 3])] == [3, 1, 3]
    assert store.get([]) == []


def test_a_letter_that_is_not_there_is_told_by_its_id(store):
    with pytest.raises(MisuseError, match="no dead letter 7"):
        store.get([7])


def test_redriven_letters_keep_the_time_of_the_last_redrive_and_stay(store):
    store.put([letter(1), letter(2)])
    store.mark_redriven([1], now_ms=5_000)
    store.mark_redriven([1], now_ms=6_000)
    assert [stored.redriven_ms for stored in store] == [6_000, None]


def test_when_one_letter_to_mark_is_not_there_none_is_marked(store):
    store.put([letter(1)])
    with pytest.raises(MisuseError, match="no dead letter 7"):
        store.mark_redriven([1, 7], now_ms=5_000)
    assert store.count(redriven=True) == 0


def test_text_that_is_no_unicode_does_not_lose_the_letter(store):
    store.put([letter(1, reason="no file 'caf\udce9'", fields=("caf\udce9", "\x00"))])
    (stored,) = store
    assert stored.reason == "no file 'caf\\udce9'"
    assert stored.fields == ("caf\udce9", "\x00")


def test_two_threads_store_at_once_and_every_root_is_there_once(store):
    new = []

    def put(roots):
        new.extend(store.put([letter(root)]) for root in roots)

    threads = [threading.Thread(target=put, args=(roots,)) for roots in (range(60), range(30, 90))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(new) == 90
    assert sorted(stored.root for stored in store) == list(range(90))


def test_two_threads_open_a_new_file_at_once(path):
    sizes = []

    def open_and_put(root):
        with DeadLetters(path) as opened:
            sizes.append(opened.put([letter(root)]))

    threads = [threading.Thread(target=open_and_put, args=(root,)) for root in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with DeadLetters(path) as opened:
        assert sizes == [1] * 4
        assert len(opened) == 4


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
    with DeadLetters(tmp_path / "letters"):
        assert stat.S_IMODE((tmp_path / "letters").stat().st_mode) == 0o640
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_a_full_disk_is_told_with_what_to_do_and_nothing_is_stored_by_half(store, path):
    store.put([letter(1)])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(ConnectorError, match="full") as refused:
        store.put([letter(2), letter(3, payload=bytes(100_000))])
    assert str(path) in str(refused.value)
    assert "free some space" in str(refused.value)
    assert [stored.root for stored in store] == [1]
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert store.put([letter(2), letter(3)]) == 2


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(path):
    path.parent.mkdir()
    path.write_bytes(b"these are my notes, do not touch them " * 40)
    before = path.read_bytes()
    with pytest.raises(ConnectorError, match="not a database") as refused:
        DeadLetters(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_a_damaged_file_is_told_as_damaged(path):
    with DeadLetters(path) as store:
        store.put(letter(root, payload=bytes(3_000)) for root in range(50))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(ConnectorError, match="damaged"), DeadLetters(path) as store:
        list(store)


def test_a_database_of_another_program_is_refused_and_left_as_it_was(path):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE shopping (item TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="not one of dead letters"):
        DeadLetters(path)
    assert path.read_bytes() == before


def test_letters_of_a_newer_acktree_are_refused_with_both_versions(path):
    DeadLetters(path).close()
    newer = sqlite3.connect(path)
    newer.execute("UPDATE acktree_dead_letters_version SET version = 99")
    newer.commit()
    newer.close()
    with pytest.raises(CheckpointError, match=r"version \[99\].*version 1") as refused:
        DeadLetters(path)
    assert str(path) in str(refused.value)


def test_a_file_that_another_process_holds_may_be_tried_again(store, path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store._connection.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(ConnectorError, match="locked") as refused:
        store.put([LETTER])
    assert refused.value.can_retry
    holder.close()
    assert store.put([LETTER]) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConnectorError, match="cannot open"):
        DeadLetters(tmp_path / "file" / "letters")


def test_a_closed_store_says_so_and_closes_twice(store):
    store.close()
    store.close()
    for call in (lambda: store.put([LETTER]), store.count, lambda: list(store)):
        with pytest.raises(AcktreeError, match="closed"):
            call()
