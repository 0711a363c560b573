"""Numbers that came later: snapshots of earlier releases are read, and new ones survive JSON."""

from __future__ import annotations

import json
import time

from acktree.cli.main import main
from acktree.core.data.frames import Kind, WireRow
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import AckerNumbers
from acktree.ui.client import find
from acktree.ui.snapshot import Snapshot

NEW = {
    "numbers": ("retried", "dead_lettered"),
    "task": ("held", "oldest_held_secs", "not_asked_secs"),
    "component": ("execute_spread", "process_spread", "awaiting_retry"),
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
    running.run.results.totals.keep(running.run.results.progress.batch_id)


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


def test_why_a_spout_was_not_asked_is_measured(running):
    def wait_for(why):
        end = time.monotonic() + 30
        while not running.handle.stats()["source"].not_asked_secs.get(why):
            assert time.monotonic() < end
            time.sleep(0.01)

    running.fill()
    wait_for("pending_full")
    running.handle.deactivate()
    wait_for("inactive")
    assert running.handle.stats()["source"].tasks[3].not_asked_secs.keys() == {"inactive", "pending_full"}
    assert "inbox_full" not in running.handle.stats()["source"].not_asked_secs
