"""The store of traces: a second run adds nothing, and messages, tuples and bytes are bounded."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path

import pytest

from acktree.errors import CheckpointError
from acktree.system import sqlite_files
from acktree.system.sqlite_files import transaction
from acktree.tasks.observers.tracer import MOST_TUPLES
from acktree.traces import store as store_module
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.traces import FILE, Traces
from tests.unit.traces.facts import body_of


def facts(root, edges, fate="acked", more=(), last_fate=None):
    links = [[root, root, [], "spout", 1, "default", "spout", 1, ["x"]]]
    links += [[root, edge, [root], "spout", 1, "default", "bolt", 2, [edge]] for edge in edges]
    executions = [[root, edge, "bolt", 2, 5, 0.5, 1, fate, ""] for edge in edges]
    if last_fate is not None:
        executions[-1][7] = last_fate
    return body_of(links, executions, more)


def test_a_second_run_of_a_micro_batch_adds_nothing():
    store = TraceStore(IN_MEMORY)
    seen = []
    for _ in range(2):
        store.add_facts(3, 7, [facts(11, range(100, 120), more=[[11, "bolt", 5]])])
        store.add_verdicts([("ACKED", 9, None, None, None, 11)])
        trace = Traces(store).get(11)
        seen.append((store.count(), trace))
    assert seen[0] == seen[1]
    assert (seen[0][0], len(seen[0][1].tuples), seen[0][1].more) == (1, 21, {"bolt": 5})


def test_a_message_keeps_its_first_tuples_all_that_failed_and_the_number_of_the_others():
    store = TraceStore(IN_MEMORY)
    told = facts(1, range(10, 10 + MOST_TUPLES + 50), last_fate="failed")
    for _ in range(2):
        store.add_facts(1, 1, [told])
        trace = Traces(store).get(1)
        assert [each.edge for each in trace.failed] == [10 + MOST_TUPLES + 49]
        assert sum(trace.more.values()) + len(trace.tuples) == MOST_TUPLES + 50 + 1


@pytest.mark.parametrize("failing", [20, 80])
def test_the_oldest_acked_messages_go_first_and_failed_ones_have_at_most_half(failing):
    store = TraceStore(IN_MEMORY, most_messages=100)
    store.add_messages([(root, "s", 1, "default", None, 1, None, root, None, None) for root in range(200)])
    failed = [("FAILED", 1, "why", "b", None, root) for root in range(failing)]
    store.add_verdicts([*failed, *(("ACKED", 1, None, None, None, root) for root in range(failing, 200))])
    store.trim()
    left = Traces(store).find(limit=1000)
    verdicts = [message.verdict for message in left]
    assert len(left) == 90
    assert verdicts.count("FAILED") == min(failing, 45)
    assert max(message.root for message in left) == 199
    assert store.trim() == 0


def test_a_store_that_is_too_large_in_bytes_is_cut():
    store = TraceStore(IN_MEMORY, most_bytes=1 << 20)
    for root in range(400):
        store.add_facts(root, root, [facts(root, range(1000, 1040))])
    assert store.used_bytes > 1 << 20
    for _ in range(10):
        store.trim()
    assert store.used_bytes <= 1 << 20
    assert 0 < store.count() < 400


def test_a_held_tuple_is_executed_in_one_micro_batch_and_acked_in_a_later_one():
    store = TraceStore(IN_MEMORY)
    store.add_facts(1, 1, [facts(1, [50], fate="held")])
    store.add_facts(4, 9, [body_of(executions=[(1, 50, "bolt", 2, 99, None, 1, "acked", "")])])
    held = Traces(store).get(1).tuples[1]
    assert (held.fate, held.batch_id, held.fate_batch_id, held.began_ms, held.took_ms) == (
        "acked",
        1,
        4,
        5,
        0.5,
    )


def test_a_message_that_is_processed_in_two_micro_batches_keeps_what_both_recorded():
    store = TraceStore(IN_MEMORY)
    for _ in range(2):
        store.add_facts(3, 7, [facts(11, [20])])
        store.add_facts(4, 8, [facts(11, [30])])
    trace = Traces(store).get(11)
    assert {each.edge for each in trace.tuples} == {11, 20, 30}
    assert [each.root for each in Traces(store).find(component="bolt")] == [11]


def test_a_file_that_is_no_store_is_refused_and_not_changed(tmp_path):
    file = tmp_path / "traces.sqlite"
    file.write_bytes(b"something else" * 100)
    with pytest.raises(CheckpointError, match="cannot be read"):
        TraceStore(file)
    assert file.read_bytes() == b"something else" * 100


def test_the_file_is_the_users_alone(tmp_path):
    TraceStore(tmp_path / "traces.sqlite").add_messages(
        [(1, "s", 1, "default", None, 1, None, 1, None, None)]
    )
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_reading_a_stopped_checkpoint_leaves_nothing_beside_it_and_sees_a_driver_that_starts(tmp_path):
    store = TraceStore(tmp_path / "traces.sqlite")
    store.add_messages([(1, "s", 1, "default", None, 1, None, 1, None, None)])
    store.close()
    before = sorted(tmp_path.iterdir())
    reader = Traces.of_checkpoint(tmp_path)
    assert len(reader) == len(reader.find()) == 1
    assert sorted(tmp_path.iterdir()) == before
    driver = TraceStore(tmp_path / "traces.sqlite")
    driver.add_messages([(2, "s", 1, "default", None, 1, None, 2, None, None)])
    assert [each.root for each in reader.find()] == [2, 1]
    driver.close()
    reader.close()
    Traces.of_checkpoint(tmp_path).close()


def damaged(file):
    store = TraceStore(file)
    store.add_messages(
        [(root, "s", 1, "default", "m" * 50, 1, None, root, None, None) for root in range(3000)]
    )
    store.close()
    content = bytearray(file.read_bytes())
    content[8192:60_000] = b"\xa5" * (60_000 - 8192)
    file.write_bytes(content)


def foreign(file):
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE messages (a)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "fix"),
    [(damaged, "delete the file"), (foreign, "delete the file"), (Path.mkdir, "check the disk")],
    ids=["damaged", "foreign", "folder"],
)
def test_a_file_that_cannot_be_read_is_said_with_the_fix(tmp_path, make, fix):
    make(tmp_path / FILE)
    with pytest.raises(CheckpointError, match=rf"the traces cannot be read(?s:.*){fix}"):
        Traces.of_checkpoint(tmp_path).find()
    with pytest.raises(CheckpointError, match="the traces cannot be read"):
        TraceStore(tmp_path / FILE).select("SELECT * FROM messages")


def test_a_file_that_another_program_holds_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_files, "_BUSY_SECS", 0)
    TraceStore(tmp_path / FILE).close()
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Traces.of_checkpoint(tmp_path).find()
    holder.close()


def sqlite_error(code):
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "raised", "fix"),
    [
        (sqlite3.SQLITE_CORRUPT_INDEX, CheckpointError, "delete the file"),
        (sqlite3.SQLITE_NOTADB, CheckpointError, "delete the file"),
        (sqlite3.SQLITE_ERROR, CheckpointError, "delete the file"),  # no such table
        (None, CheckpointError, "delete the file"),  # Python: no UTF-8
        (sqlite3.SQLITE_IOERR_WRITE, CheckpointError, "check the disk"),
        (sqlite3.SQLITE_CANTOPEN, CheckpointError, "check the disk"),
        (sqlite3.SQLITE_FULL, sqlite3.OperationalError, "^no$"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.OperationalError, "^no$"),
        (sqlite3.SQLITE_LOCKED, sqlite3.OperationalError, "^no$"),
    ],
)
def test_only_a_file_that_is_damaged_or_no_store_is_to_be_deleted(code, raised, fix):
    error = sqlite3.OperationalError("no") if code is None else sqlite_error(code)
    with pytest.raises(raised, match=fix), TraceStore(IN_MEMORY)._explained():
        raise error


@pytest.mark.parametrize("version", [2, 3])
def test_what_an_older_version_wrote_is_refused_by_readers_and_given_up_by_a_driver(tmp_path, version):
    file = tmp_path / FILE
    store = TraceStore(file)
    store.add_messages([(1, "s", 1, "default", None, 1, None, 1, None, None)])
    store.add_facts(1, 1, [body_of([(1, 1, [], "s", 1, "default", "s", 1, ["a"])])])
    store.close()
    connection = sqlite3.connect(file)
    connection.executescript(f"CREATE TABLE tuples (root); PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(CheckpointError, match=f"version {version}, and this acktree reads version 5"):
        TraceStore(file, read_only=True)
    store = TraceStore(file)
    assert store.select("SELECT * FROM packs") == []
    store.close()
    assert Traces.of_checkpoint(tmp_path).find() == []
    connection = sqlite3.connect(file)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    assert tables == {"messages", "packs", "later"}


def test_what_was_stored_is_counted_once_and_after_it_is_committed(monkeypatch):
    @contextmanager
    def full(connection):
        with transaction(connection):
            yield connection
            raise sqlite3.OperationalError("the disk is full")

    store = TraceStore(IN_MEMORY)
    told = facts(11, range(100, 120), more=[[11, "bolt", 5]])
    with pytest.raises(ValueError, match="bytes instead of"):
        store.add_facts(3, 7, [told, told[:40]])
    assert (store.count(), store.recorded, store.left_out) == (0, 0, 0)
    for _ in range(2):  # a micro-batch may run twice
        store.add_facts(3, 7, [told])
        assert (store.count(), store.recorded, store.left_out) == (1, 1, 5)
    store.add_facts(4, 7, [told])
    assert (store.recorded, store.left_out) == (1, 10)
    monkeypatch.setattr(store_module, "transaction", full)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.add_messages([(12, "s", 1, "default", None, 1, None, 1, None, None)])
    assert (store.count(), store.recorded) == (1, 1)
