"""A history that is damaged, or cannot be stored: one line of the log, and never the end of a topology."""

from __future__ import annotations

import json
import logging
import pickle
import sqlite3
import zlib
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree.errors import CheckpointError
from acktree.ui.history import History, open_store
from acktree.ui.history_store import FILE, IN_MEMORY, LARGEST, HistoryStore, Sample, counters_in
from tests.drawn import drawn
from tests.unit.ui.histories import Clock, Counting, counters, keeper, point


def stored(folder):
    """A history with some points and samples, closed."""
    store = HistoryStore(folder / FILE)
    for at in range(300):
        store.add([point(at, at * 1000, at)], Sample(at * 1000, 1, at, at, counters(acked=at)))
    store.close()
    return folder / FILE


def sql(statement):
    def damage(file):
        with sqlite3.connect(file, isolation_level=None) as connection:
            connection.execute(statement)
        connection.close()

    return damage


def other_tables(file):
    file.unlink()
    sql("CREATE TABLE points (x)")(file)
    sql("CREATE TABLE samples (x)")(file)


def overwritten(begin):
    def damage(file):
        content = bytearray(file.read_bytes())
        content[begin : begin + 20_000] = b"garbage" * 2857 + b"."
        file.write_bytes(content)

    return damage


PACKED = zlib.compress(counters(acked=1).to_bytes())
DAMAGES = {
    "garbage": lambda file: file.write_bytes(b"no database" * 1000),
    "a pickle": lambda file: file.write_bytes(pickle.dumps(["history"] * 1000)),
    "cut in its head": lambda file: file.write_bytes(file.read_bytes()[:50]),
    "cut in the middle": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage in the middle": overwritten(9000),
    "other tables": other_tables,
    "a text for a time": sql("UPDATE points SET until_ms = 'noon'"),
    "a blob for a run": sql("UPDATE points SET run = x'00ff'"),
    "a float for a count": sql("UPDATE points SET acked = 1e300 WHERE batch_id = 7"),
    "a huge count": sql("UPDATE points SET acked = 9223372036854775807 WHERE batch_id = 7"),
    "a text for counts": sql("UPDATE samples SET counts = 'many' WHERE batch_id = 7"),
    "a blob for a text": sql("UPDATE samples SET ran_ms = x'ff'"),
    "counts that are no counts": sql(f"UPDATE samples SET counts = x'{zlib.compress(b'{}[').hex()}'"),
    "cut counts": sql(f"UPDATE samples SET counts = x'{PACKED[:-5].hex()}'"),
    "huge counts": sql(
        f"UPDATE samples SET counts = x'{zlib.compress(b'[[1e5, 1, 2, 3, 4]]').hex()}' WHERE batch_id = 299"
    ),
    "deep counts": sql(f"UPDATE samples SET counts = x'{zlib.compress(b'[' * 100_000).hex()}'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_of_the_log_and_the_history_begins_anew(
    tmp_path, caplog, monkeypatch, damage
):
    file, clock, totals = stored(tmp_path), Clock(monkeypatch), Counting()
    DAMAGES[damage](file)
    with caplog.at_level(logging.WARNING, "acktree"):
        store = open_store(tmp_path, "t")
        made = History(store, totals, 2, "t", ["spout"], lambda _: True)
        made.begin((600, 10**9), 0, -1)
        clock.secs += 60
        totals.count(1, acked=5)
        made.look()
        made.look(is_over=True)
    (said,) = caplog.messages
    assert "its history begins anew" in said
    assert "fix: delete that one" in said
    assert "\n" not in said
    assert file.with_name("history.sqlite.damaged").exists()
    made.store.close()
    reader = HistoryStore(file, read_only=True)  # on disk, and not in memory
    assert [(each.run, each.acked) for each in reader.points()] == [(2, 0), (2, 5)]
    reader.close()


def test_damage_that_shows_later_is_one_line_and_what_is_stored_then_begins_anew(
    tmp_path, caplog, monkeypatch
):
    """As a disk does it that loses pages: the file is damaged under an open history."""
    clock, totals = Clock(monkeypatch), Counting()
    made = keeper(totals, open_store(tmp_path, "t"))
    with caplog.at_level(logging.WARNING, "acktree"):
        for again in range(3):
            sql("DROP TABLE IF EXISTS points")(tmp_path / FILE)
            for batch_id in range(3):
                totals.count(3 * again + batch_id, acked=3 * again + batch_id + 1)
                clock.secs += 5
                made.look()
    first, second = caplog.messages
    assert "its history begins anew" in first
    assert "its history is not stored" in second  # the disk is bad: in memory from then on
    assert made.store.place == IN_MEMORY
    assert made.store.last().acked == 9


@pytest.mark.parametrize("what", ["newer", "folder", "folder of changes", "loop", "no folder", "no right"])
def test_a_file_that_cannot_be_used_is_said_once_with_its_fix(tmp_path, caplog, what):
    file = tmp_path / FILE
    if what == "newer":
        sql("PRAGMA user_version = 99")(file)
    elif what == "folder":
        file.mkdir()
    elif what == "folder of changes":
        stored(tmp_path).with_name(f"{FILE}-wal").mkdir()
    elif what == "loop":
        file.symlink_to(file)
    elif what == "no folder":
        file = tmp_path / "gone" / FILE
    else:
        file.symlink_to("/proc/1/mem")  # root too may not write there
    with caplog.at_level(logging.WARNING, "acktree"):
        store = open_store(file.parent, "t")
        made = keeper(Counting(), store)
        made.look(is_over=True)
    (said,) = caplog.messages
    assert "its history is not stored" in said
    assert "fix:" in said
    assert "\n" not in said
    assert made.store.place == IN_MEMORY
    assert made.store.last() is not None
    if what == "newer":
        assert "delete the file" in said
        with pytest.raises(CheckpointError, match="version 99"):
            HistoryStore(file, read_only=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda part: st.lists(part, max_size=5) | st.dictionaries(st.text(max_size=2), part, max_size=2),
)
ROW = st.tuples(*[st.integers() | st.text(max_size=3) | st.none() | st.booleans()] * 5)


@given(
    st.one_of(
        st.binary(),
        st.binary().map(zlib.compress),
        JSON.map(lambda value: zlib.compress(json.dumps(value).encode())),
        st.lists(ROW).map(lambda rows: zlib.compress(json.dumps(rows).encode())),
        st.integers(0, len(PACKED)).map(lambda end: PACKED[:end]),
        JSON,
    )
)
@example(zlib.compress(b"[" * 100_000))
@example(zlib.compress(b"[" + b" " * (65 << 20) + b"]"))
@example(zlib.compress(b'[["a", 1, "s", "acked", 1e400]]'))
def test_whatever_is_stored_as_counts_is_counts_or_a_value_error(packed):
    try:
        found = counters_in(packed)
    except ValueError:
        return
    for (component, task, stream, what), n in found.items():
        assert {type(each) for each in (component, stream, what)} == {str}
        assert type(task) is type(n) is int
        assert 0 < n <= LARGEST
    assert counters_in(zlib.compress(found.to_bytes())) == found


def version_in(file):
    """The version that a file names; 0 if it is no database."""
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            return connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error:
        return 0


@settings(max_examples=drawn(30))  # each writes a history of 300 points
@given(st.binary(max_size=5000), st.integers(0, 20_000))
@example(b"\0\0\0\0\1", 56)  # the version is 16777217 then
@example(b"\x03", 18)  # SQLite would say "readonly database" of such a format
def test_whatever_is_in_the_file_it_is_a_history_or_begins_anew(tmp_path_factory, garbage, begin):
    folder = tmp_path_factory.mktemp("h")
    file = stored(folder)
    content = bytearray(file.read_bytes())
    content[begin : begin + len(garbage)] = garbage
    file.write_bytes(content)
    is_newer = version_in(file) > 1
    made = keeper(Counting(), open_store(folder, "t"), run=2)
    made.look(is_over=True)
    assert made.store.last().run == 2
    assert made.store.place == (IN_MEMORY if is_newer else str(file))
    assert not is_newer or file.read_bytes() == content, "a file of a newer acktree is left as it is"
    made.store.close()
