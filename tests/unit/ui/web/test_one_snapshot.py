"""One snapshot is behind all doors: each number of each door is the snapshot's, to the digit."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette")

from prometheus_client.parser import text_string_to_metric_families

from acktree.cli.main import main
from acktree.core.stats.counters import Counters
from acktree.ui.snapshot import STORM_WINDOWS, WINDOWS, plain
from tests.unit.ui.web.frozen import NAME
from tests.unit.ui.web.wanted_metrics import EMITTED, READ, wanted

WHATS = (*EMITTED, *READ)


@pytest.fixture
def asked(capsys):
    def ask(*words):
        assert main([*words, "--json"]) == 0
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return printed[0] if len(printed) == 1 else printed

    return ask


def test_the_commands_print_the_snapshot_that_rest_answers(frozen, frozen_page, asked):
    snapshot = frozen.snapshot
    (told,) = frozen_page.json("/api/acktree/v1/snapshot")["snapshots"]
    assert told == frozen.told
    for name in WINDOWS:
        window, said = snapshot.windows[name], asked("stats", NAME, "--window", name)
        assert (said["id"], said["taken_ms"], said["secs"]) == (snapshot.id, snapshot.taken_ms, window.secs)
        assert said["components"] == told["windows"][name]["stats"]["components"]
        assert said["acker"] == told["windows"][name]["stats"]["acker"]
        assert said["account"] == snapshot.account() == said["accounts"][":run"]
        assert said["accounts"] == snapshot.accounts
        path = f"/api/acktree/v1/topologies/{frozen.topology}/components/double?window={name}"
        assert said["capacity"] == {"double": frozen_page.json(path)["capacity"]}
    (line,) = [line for line in asked("list")["topologies"] if line["topology"] == NAME]
    assert (line["id"], line["tasks"], line["uptime_secs"]) == (snapshot.id, 3, snapshot.uptime_secs)
    shown = asked("show", NAME)
    assert shown["graph"] == told["graph"]
    assert (shown["inbox"], shown["dead_letters"]) == (told["inbox"], told["dead_letters"])
    assert asked("stats", NAME)["keys"] == told["keys"] == plain(snapshot.keys)


def test_top_shows_the_last_ten_seconds_of_the_snapshot(frozen, frozen_page, asked):
    snapshot, said = frozen.snapshot, asked("top", NAME, "-n", "1")
    ours = frozen_page.json(f"/api/acktree/v1/topologies/{frozen.topology}")
    window = snapshot.windows["10"]
    assert (said["account"], said["taken_ms"]) == (ours["account"], ours["taken_ms"])
    for name, row in said["components"].items():
        now, recent = snapshot.stats[name], window.stats[name].total
        assert row["emit/s"] == round(recent.emitted / window.secs)
        assert row["exec/s"] == round(recent.executed / window.secs)
        assert row["ack/s"] == round(recent.acked / window.secs)
        assert row["fail/s"] == round(recent.failed / window.secs, 1)
        assert row["timeout/s"] == round(recent.timed_out / window.secs, 1)
        assert row["busy"] == f"{snapshot.capacity(window, name):.0%}"
        assert (row["execute ms"], row["complete ms"]) == (recent.execute_ms, recent.complete_ms)
        assert (row["open"], row["lag"]) == (now.open, now.lag)
        shown = ours["components"][name]
        assert (shown["open"], shown["lag"]) == (now.open, now.lag)


def test_errors_and_held_tuples_are_those_of_the_snapshot(frozen, frozen_page, asked):
    snapshot = frozen.snapshot
    errors = frozen_page.json(f"/api/acktree/v1/topologies/{frozen.topology}/errors")["errors"]
    assert asked("get-errors", NAME)["errors"] == plain(snapshot.errors) == errors
    assert errors
    said = asked("open", NAME)
    tasks = snapshot.stats["double"].tasks
    assert said["held"] == [
        {"bolt": "double", "task_id": 1, "held": 4, "oldest_held_secs": tasks[1].oldest_held_secs}
    ]
    assert len(said["open"]) == snapshot.stats["source"].open == 10
    keys = {"message_id", "root", "attempt", "spout", "task_id", "state"}
    open_messages = frozen_page.json(f"/api/acktree/v1/topologies/{frozen.topology}/open")["open"]
    assert [{key: str(each[key]) for key in keys} for each in said["open"]] == [
        {key: str(each[key]) for key in keys} for each in open_messages
    ]


def test_monitor_shows_what_a_snapshot_has_more_than_the_one_before(
    frozen, frozen_running, capsys, monkeypatch
):
    for what in WHATS:
        before = frozen.snapshot

        def later(_, what=what):
            grown = Counters()
            grown.add("double", 2, "default" if what in EMITTED else "source:default", what, 17)
            frozen_running.count(grown)
            frozen.go_on()

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=later)
        monkeypatch.setattr("acktree.cli.live.time", clock)
        assert main(["monitor", NAME, "-m", "double", "-w", what, "-n", "2", "--json"]) == 0
        first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert (first[what], first["time_diff_ms"]) == (0, 0)
        after = frozen.snapshot
        assert second["time_diff_ms"] == after.taken_ms - before.taken_ms
        assert second[what] == _total(after, what) - _total(before, what) == 17
        assert second["throughput_kt_s"] == 17 / second["time_diff_ms"]


def _total(snapshot, what):
    return sum(getattr(numbers, what) for numbers in snapshot.stats["double"].streams.values())


def test_storms_rest_has_the_numbers_of_the_snapshot(frozen, frozen_page):
    snapshot = frozen.snapshot
    for name in STORM_WINDOWS:
        stats = snapshot.windows[name].stats
        told = frozen_page.json(f"/api/v1/topology/{frozen.topology}?window={name}&sys=true")
        double, acker = told["bolts"]
        (source,) = told["spouts"]
        assert {what: double[what] for what in WHATS} == _counts(stats["double"].total, WHATS)
        assert double["executeLatency"] == f"{stats['double'].total.execute_ms:.3f}"
        assert double["processLatency"] == f"{stats['double'].total.process_ms:.3f}"
        assert double["capacity"] == f"{snapshot.capacity(snapshot.windows[name], 'double'):.3f}"
        total = stats["source"].total
        assert (source["acked"], source["failed"]) == (total.acked, total.failed + total.timed_out)
        assert (source["retried"], source["deadLetters"]) == (total.retried, total.dead_lettered)
        assert acker["executed"] == sum(stats.acker.received.values())


def test_metrics_have_the_numbers_of_the_snapshot_and_no_others(frozen, frozen_page):
    """Each sample of the run is looked up in the snapshot; a family that is not known here fails the test."""
    said = frozen_page.ask("/metrics")[2].decode()
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(said)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created", "_info", "_free_bytes"))
    }
    samples = wanted(frozen.snapshot)
    assert found.keys() == samples.keys()
    assert found == {key: pytest.approx(value, rel=1e-12) for key, value in samples.items()}


def _counts(numbers, whats):
    return {what: getattr(numbers, what) for what in whats}
