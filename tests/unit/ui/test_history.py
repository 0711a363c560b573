"""The history: exact, bounded, and never a reason to stop."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.stats.counters import NOT_ASKED, Counters
from acktree.driver.metrics.total_counts import Totals
from acktree.errors import ConfigError
from acktree.ui.history import History, page
from acktree.ui.history_store import FILE, IN_MEMORY, HistoryStore, Sample
from acktree.ui.windows import Earlier, Windows
from tests.unit.ui.histories import Clock, Counting, counters, keeper, point

HOUR, DAY = 3_600_000, 86_400_000


# ---- the store --------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 40 * 3600), st.integers(0, 5), st.booleans()), min_size=1, max_size=80),
    st.integers(1, 30),
)
def test_thinning_keeps_the_newest_the_sum_and_the_bound(steps, most):
    store, at_ms, acked, run, given = HistoryStore(IN_MEMORY, most_points=most), 0, 0, 1, []
    for batch_id, (pause_secs, n, is_new_run) in enumerate(steps):
        at_ms, acked, run = at_ms + pause_secs * 1000, acked + n, run + is_new_run
        given.append(point(batch_id, at_ms, acked, run))
        store.add(given[-1:])
    store.thin(at_ms)
    kept = store.points(limit=1000)
    assert kept == [each for each in given if each in kept]
    assert kept[-1] == store.last() == given[-1]
    assert len(kept) <= most
    recent = [each for each in given if each.at_ms >= at_ms - 6 * HOUR]
    assert kept[-len(recent) :] == recent[-most:]
    # A thinned stretch has one point a run.
    old = [(each.run, each.at_ms // 60_000) for each in kept if each.at_ms < at_ms - 6 * HOUR]
    assert len(old) == len(set(old))


def test_a_month_of_points_is_as_many_as_the_documentation_says():
    store = HistoryStore(IN_MEMORY)
    for at in range(0, 40 * DAY, 600_000):  # a point a minute
        store._connection.execute("INSERT INTO points VALUES (1, ?, ?, ?, 1, 1, 0, 0)", (at, at, at))
    for at in range(40 * DAY - 6 * HOUR, 40 * DAY, 5000):
        store._connection.execute(
            "INSERT OR REPLACE INTO points VALUES (1, ?, ?, ?, 1, 1, 0, 0)", (at, at, at)
        )
    store.thin(40 * DAY)
    assert 4320 <= len(store.points(limit=100_000)) < 12_000
    assert store.used_bytes < 2 << 20


@given(st.lists(st.integers(0, 90_000), min_size=1, max_size=60), st.integers(1, 30))
def test_what_is_asked_for_is_spread_over_the_time_and_its_sum_is_right(pauses, limit):
    store, at_ms = HistoryStore(IN_MEMORY), 0
    for batch_id, pause in enumerate(pauses):
        at_ms += pause
        store.add([point(batch_id, at_ms, batch_id)])
    found = store.points(limit=limit)
    assert len(found) <= limit
    assert found[-1].acked == len(pauses) - 1
    if limit > 1:
        assert found[0].acked == 0
    half = store.points(since_ms=at_ms // 2)
    assert all(each.at_ms >= at_ms // 2 for each in half[1:])  # and the point before
    assert {each.batch_id for each in store.points(before_ms=at_ms // 2)} == {
        each.batch_id for each in store.points() if each.at_ms < at_ms // 2
    }


def test_the_file_is_its_owners_alone_and_a_reader_leaves_nothing_beside_it(tmp_path):
    old = os.umask(0)
    try:
        store = HistoryStore(tmp_path / FILE)
        store.add([point(1, 1, 1)])
    finally:
        os.umask(old)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    reader = HistoryStore(tmp_path / FILE, read_only=True)
    store.add([point(2, 2, 2)])  # nobody waits for the reader
    assert len(reader.points()) == 2
    reader.close()
    store.close()
    reader = HistoryStore(tmp_path / FILE, read_only=True)
    assert reader.last() == point(2, 2, 2)
    reader.close()
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_samples_are_bounded_in_bytes_and_in_age():
    many = Counters.of(((f"c{n}", n, f"{n * 7919}", "acked"), n * 104_729) for n in range(1, 2000))
    store = HistoryStore(IN_MEMORY, most_sample_bytes=100_000)
    size = store.add([point(0, 0, 0)], Sample(0, 1, 0, 0, many))
    for at in range(1, 200):
        store.add([point(at, at * 30_000, 0)], Sample(at * 30_000, 1, at, at * 30_000, many))
    store.thin(200 * 30_000)
    found = store.samples(0)
    assert 0 < len(found) * size <= 100_000
    assert found[-1].at_ms == 199 * 30_000
    assert found[-1].counters == many
    store.thin(199 * 30_000 + 2 * DAY)
    assert store.samples(0) == []


# ---- the keeper -------------------------------------------------------------------------------------------


def test_a_point_is_of_a_committed_micro_batch_alone(monkeypatch):
    clock, committed = Clock(monkeypatch), set()
    totals = Counting()
    made = keeper(totals, is_committed=lambda batch_id: batch_id in committed)
    totals.count(0, acked=5)
    clock.secs += 6
    made.look()
    assert [each.acked for each in made.store.points()] == [0]  # of what earlier runs left
    committed.add(0)
    clock.secs += 6
    made.look()
    assert [each.acked for each in made.store.points()] == [0, 5]
    totals.count(1, acked=9)
    made.look(is_over=True)  # the query was stopped before its commit
    assert made.store.last().acked == 5


def test_points_come_every_few_seconds_and_only_while_something_changes(monkeypatch):
    clock, totals = Clock(monkeypatch), Counting()
    made = keeper(totals)
    for second in range(60):
        totals.count(second, acked=min(second, 20))
        clock.secs += 1
        made.look()
    found = made.store.points()
    assert [each.acked for each in found] == [0, 4, 9, 14, 19, 20]
    totals.count(100, acked=21)
    clock.secs += 5
    made.look()
    *_, before, last = made.store.points()
    assert last.at_ms - before.until_ms <= 6000  # at rest the last point was seen again and again
    assert before.until_ms - before.at_ms >= 30_000


def test_a_spout_that_only_waits_writes_nothing_and_the_end_of_the_run_is_known(monkeypatch):
    clock, totals = Clock(monkeypatch), Counting()
    made = keeper(totals)
    totals.count(0, acked=5)
    clock.secs += 6
    made.look()
    adds, add = [], made.store.add
    made.store.add = lambda *given: adds.append(given) or add(*given)
    for secs in range(1, 60):
        found = counters(acked=5)
        found.add_not_asked("spout", 1, "inactive", 6 * secs)
        totals.is_now = Totals(0, found)
        clock.secs += 6
        made.look()
    assert adds == []
    made.look(is_over=True)
    last = made.store.last()
    assert last.until_ms - last.at_ms >= 59 * 6000


def test_a_window_of_the_next_run_has_no_waits_of_hours_before(monkeypatch):
    clock, totals, store = Clock(monkeypatch), Counting(), HistoryStore(IN_MEMORY)
    made = keeper(totals, store)
    totals.count(0, acked=5)
    for _ in range(3600):  # ten hours of which nothing happens
        clock.secs += 10
        made.look()
        found = counters(acked=5)
        found.add_not_asked("spout", 1, "inactive", clock.secs)
        totals.is_now = Totals(0, found, round(clock.secs * 1000))
    assert len([*store.samples(0)]) < 70  # seldom: a topology at rest writes little
    begun = totals.is_now
    windows = History(store, Counting(begun), 2, "t", ["spout"], lambda _: True).begin((600,), 5000, 7)
    grown, secs = windows.since(begun.counters, 600, 6000, begun.ran_ms)
    assert 600 <= secs <= 1300
    assert sum(n for key, n in grown.items() if key[3].startswith(NOT_ASKED)) <= 1300 * 1_000_000


def test_the_next_run_goes_on_where_the_last_one_ended(monkeypatch):
    clock, totals, store = Clock(monkeypatch), Counting(), HistoryStore(IN_MEMORY)
    first = keeper(totals, store)
    totals.count(7, acked=30)
    clock.secs += 60
    first.look()
    clock.secs += 200
    begun = Totals(7, counters(acked=35), 60_000)  # five were committed after the last point, before the kill
    second = History(store, Counting(begun), 2, "t", ["spout"], lambda _: True)
    windows = second.begin((600, 86_400), 5000, 7)
    assert [(each.run, each.batch_id, each.acked) for each in store.points()] == [
        (1, -1, 0), (1, 7, 30), (2, 7, 35),
    ]  # fmt: skip
    grown, secs = windows.since(counters(acked=36), 600, 6000, 61_000)
    assert (grown.total("acked"), secs) == (36, 61.0)  # of the first run too; nobody ran it in between


def test_the_begin_of_a_run_that_was_killed_before_its_first_look_stays(monkeypatch):
    clock, store = Clock(monkeypatch), HistoryStore(IN_MEMORY)
    keeper(Counting(), store)
    for run in (2, 3):  # the second one stores where the first one ended
        clock.secs += 10
        begun = Totals(0, counters(acked=5), 9000)
        windows = History(store, Counting(begun), run, "t", ["spout"], lambda _: True).begin(
            (86_400,), 10**5, 0
        )
        grown, _ = windows.since(counters(acked=7), 86_400, 10**5, 10_000)
        assert grown.total("acked") == 7


@pytest.mark.parametrize(("components", "minutes"), [(3, 60), (200, 20), (1500, 5)])
def test_samples_are_not_megabytes_a_minute(monkeypatch, components, minutes):
    clock, totals = Clock(monkeypatch), Counting()
    made = keeper(totals)
    written, add = [], made.store.add
    made.store.add = lambda points, sample: written.append(add(points, sample)) or written[-1]
    for look in range(12 * minutes):
        found = Counters.of(
            ((f"component-{n}", task, "default", what), 10**6 * look + 31 * n * task + look)
            for n in range(components)
            for task in range(2)
            for what in ("emitted", "transferred", "executed", "acked", "execute_us", "execute_samples")
        )
        totals.is_now = Totals(look, found)
        clock.secs += 5
        made.look()
    assert sum(written[1:]) / minutes < 125_000
    assert made.store.used_bytes < 4 << 20
    assert len(made.store.points(limit=2000)) == 12 * minutes + 1


# ---- when things break ------------------------------------------------------------------------------------


def test_a_full_disk_is_said_once_and_later_points_have_what_was_missed(monkeypatch, caplog, tmp_path):
    clock, totals = Clock(monkeypatch), Counting()
    made = keeper(totals, HistoryStore(tmp_path / FILE))
    add, is_full = made.store.add, [True]

    def refused(points, sample):
        if is_full[0]:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return add(points, sample)

    made.store.add = refused
    with caplog.at_level(logging.WARNING, "acktree"):
        for batch_id in range(3):
            totals.count(batch_id, acked=batch_id + 1)
            clock.secs += 5
            made.look()
    (said,) = caplog.messages
    assert "make room" in said
    is_full[0] = False
    clock.secs += 5
    made.look()
    assert made.store.last().acked == 3


def test_a_question_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="'yesterday' is no number of milliseconds"):
        page(HistoryStore(IN_MEMORY), {"since": "yesterday"})
    with pytest.raises(ConfigError, match="'-5' is no limit"):
        page(HistoryStore(IN_MEMORY), {"limit": "-5"})


# ---- windows over restarts --------------------------------------------------------------------------------

RUNS = st.lists(
    st.tuples(
        st.integers(0, 1_000_000),
        st.lists(st.tuples(st.integers(1, 29_000), st.integers(0, 9)), max_size=40),
    ),
    min_size=1,
    max_size=4,
)


@given(RUNS)
def test_a_window_goes_on_over_restarts_and_holds_what_grew_in_it(runs):
    """A naive model beside: when each count came."""
    now_ms, ran_ms, total, came, samples = 0, 0, 0, [], []
    for down_ms, steps in runs:
        ended_ms, now_ms = now_ms, now_ms + down_ms
        begun = Earlier(ended_ms, ran_ms, counters(acked=total))
        windows = Windows([600], now_ms, begun, samples)
        samples += [begun, begun._replace(at_ms=now_ms)]  # as a run begins
        for pause_ms, n in steps:
            now_ms, ran_ms, total = now_ms + pause_ms, ran_ms + pause_ms, total + n
            came.append((now_ms, n))
            windows.note(counters(acked=total), now_ms, ran_ms)
            samples.append(Earlier(now_ms, ran_ms, counters(acked=total)))
        grown, secs = windows.since(counters(acked=total), 600, now_ms, ran_ms)
        at_least = sum(n for at_ms, n in came if at_ms > now_ms - 600_000)
        at_most = sum(n for at_ms, n in came if at_ms > now_ms - 600_000 - 60_000)
        assert at_least <= grown.total("acked") <= at_most
        assert 0 <= secs <= 660


def test_samples_of_another_history_are_left_out():
    """Where the counts were deleted, and begin at 0."""
    begun = Earlier(0, 0, counters(acked=3))
    windows = Windows([600], 1000, begun, [Earlier(-5000, 0, counters(acked=100))])
    grown, _ = windows.since(counters(acked=5), 600, 2000, 1000)
    assert grown.total("acked") == 2
