"""Numbers that came later: snapshots of earlier releases are read, and new ones survive JSON."""

from __future__ import annotations

import json
import shutil
import time

from acktree.checkpoint.logs.commit_log import FOLDER_NAME, CommitLog
from acktree.cli.main import main
from acktree.core.data.frames import Kind, WireRow
from acktree.core.stats.counters import NOT_ASKED, Counters
from acktree.core.stats.numbers import AckerNumbers
from acktree.driver.metrics.data_points import data_points
from acktree.driver.metrics.total_counts import TotalCounts
from acktree.ui.client import find
from acktree.ui.snapshot import WINDOWS, Snapshot
from tests.unit.ui.driver_without_spark import started

NEW = {
    "numbers": ("retried", "dead_lettered"),
    "task": ("held", "oldest_held_secs", "not_asked_secs"),
    "component": ("execute_spread", "process_spread", "awaiting_retry", "failed_by"),
}


def counted(running):
    counters = Counters()
    counters.add("double", 1, "source:default", "executed", 7)
    counters.add_latency("double", 1, "source:default", "execute_ms", 21.0, 7)
    counters.add("__acker", 0, "double:__ack_ack", "executed", 6)
    counters.merge(
        Counters.of([(("__acker", 0, "", "settle_us"), 900), (("__acker", 0, "", "settle_b10"), 1)])
    )
    held = json.dumps([["double", 1, 4, 0]]).encode()
    row = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, held, counters.to_bytes())
    running.run.results.note({Kind.STATISTICS: [row]}, 0)
    running.keep_counts()


def as_before(given):
    """A snapshot as a release wrote it that had none of these numbers."""
    del given["acker"]
    given["acker"] = {"open_roots": 3, "next_deadline_ms": 5}
    for window in given["windows"].values():
        del window["stats"]["acker"]
        for component in window["stats"]["components"].values():
            for name in (*NEW["task"], *NEW["component"]):
                del component[name]
            for task in component["tasks"].values():
                for name in NEW["task"]:
                    del task[name]
            for numbers in (component, *component["tasks"].values()):
                for each in (numbers["total"], *numbers["streams"].values()):
                    for name in NEW["numbers"]:
                        del each[name]
    return given


def test_a_snapshot_of_an_earlier_release_is_read(running):
    counted(running)
    now = find("numbers").door.snapshot(0)
    before = Snapshot.of(as_before(json.loads(now.to_json())))
    assert before.acker == AckerNumbers(3, 5)
    assert before.stats["double"].total == now.stats["double"].total
    assert (before.stats["double"].held, before.stats["double"].execute_spread) == (None, {})
    assert before.stats.acker == AckerNumbers()


def test_the_numbers_are_those_of_stats_and_survive_json(running, capsys):
    counted(running)
    snapshot, stats = find("numbers").door.snapshot(0), running.handle.stats()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert snapshot.stats.acker == snapshot.acker == stats.acker
    assert snapshot.windows["600"].stats.acker.acks == stats.acker.acks == 6
    assert snapshot.stats["double"].execute_spread == stats["double"].execute_spread == {12: 7}
    assert main(["stats", "numbers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["acker"]["acks"], told["components"]["double"]["held"]) == (6, 4)
    assert main(["stats", "numbers"]) == 0
    assert "__acker: inits 0, acks 6, fails 0" in capsys.readouterr().out
    assert main(["show", "numbers"]) == 0
    assert "held by double task 1: 4, the oldest for " in capsys.readouterr().out
    assert main(["open", "numbers", "--json"]) == 0
    (held,) = json.loads(capsys.readouterr().out)["held"]
    assert (held["bolt"], held["task_id"], held["held"]) == ("double", 1, 4)
    assert main(["open", "numbers"]) == 0
    assert "tuples held" in capsys.readouterr().out


def waits_for(running, why):
    """Wait until a spout was not asked for this reason, and that is counted."""
    end = time.monotonic() + 120
    while not running.handle.stats()["source"].not_asked_secs.get(why):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_why_a_spout_was_not_asked_is_in_every_window(running, capsys):
    running.fill()
    waits_for(running, "pending_full")
    running.handle.deactivate()
    waits_for(running, "inactive")
    reasons = {"inactive", "pending_full"}
    assert running.handle.stats()["source"].tasks[3].not_asked_secs.keys() == reasons
    windows = find("numbers").door.snapshot(0).windows
    assert windows.keys() == set(WINDOWS)
    for window in windows.values():
        source = window.stats["source"]
        assert source.not_asked_secs.keys() == source.tasks[3].not_asked_secs.keys() == reasons
        assert 0 < sum(source.not_asked_secs.values()) < window.secs + 1
    assert main(["stats", "numbers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["components"]["source"]["not_asked_secs"].keys() == reasons


def test_a_metrics_consumer_is_told_why_a_spout_was_not_asked(running):
    running.fill()
    waits_for(running, "pending_full")
    running.handle.deactivate()
    waits_for(running, "inactive")
    points = data_points(running.run.counters(), Counters(), {}, 1.0)["source", 3]
    told = {point.name: point.value for point in points if point.name.startswith("__skipped-")}
    assert told.keys() == {"__skipped-max-spout-ms", "__skipped-inactive-ms"}
    assert all(0 < ms < 60_000 for ms in told.values())


def waits(counters):
    """The microseconds for which spouts were not asked, by why."""
    return {key[3]: n for key, n in counters.items() if key[3].startswith(NOT_ASKED)}


def test_why_a_spout_was_not_asked_goes_on_over_runs_and_counts_once(tmp_path):
    with started(tmp_path) as first:
        first.fill()
        waits_for(first, "pending_full")
        first.commit(Counters.of([(("double", 1, "source:default", "executed"), 1)]))
        first.handle.deactivate()
        waits_for(first, "inactive")
    left = waits(first.run.results.totals.now().counters)
    assert left == waits(first.run.counters())
    assert all(left.values())
    with started(tmp_path) as second:
        assert waits(second.run.results.totals.begun.counters) == left
        waits_for(second, "pending_full")
        windows = find("numbers").door.snapshot(0).windows
        assert windows["86400"].stats["source"].not_asked_secs.keys() == {"inactive", "pending_full"}
    added, both = waits(second.run.counters()), waits(second.run.results.totals.now().counters)
    assert both == {why: n + added.get(why, 0) for why, n in left.items()}


def test_a_driver_that_is_killed_loses_waits_since_its_last_micro_batch_and_doubles_none(tmp_path):
    with started(tmp_path / "cp") as first:
        first.fill()
        waits_for(first, "pending_full")
        before = waits(first.run.results.totals.now().counters)
        first.commit(Counters.of([(("double", 1, "source:default", "executed"), 1)]))
        after = waits(first.run.results.totals.now().counters)
        first.handle.deactivate()
        waits_for(first, "inactive")
        shutil.copytree(tmp_path / "cp" / FOLDER_NAME, tmp_path / "copy" / FOLDER_NAME)
    totals = TotalCounts("numbers")
    CommitLog(tmp_path / "copy", [totals]).recover(0)
    again = waits(totals.now().counters)
    assert again.keys() == {f"{NOT_ASKED}pending_full"}
    (least,), (stored,), (most,) = before.values(), again.values(), after.values()
    assert least <= stored <= most
