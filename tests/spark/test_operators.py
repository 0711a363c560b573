"""The command line and the driver's door on Spark: a run to its end, and one that is watched and killed."""

from __future__ import annotations

import json
import sys

import pytest

from acktree import BasicBolt, Bolt, Config, IterableSpout, Retry, Spout, TopologyBuilder, submit
from acktree.cli.main import main
from acktree.ui.client import NobodyRunsError, find
from tests.spark.test_running import wait_until

PROGRAM = """
from pathlib import Path

from acktree import BasicBolt, EndOfStream, Retry, Spout, TopologyBuilder

class Nine(Spout):  # remembers no position: asked anew, it would emit all again
    outputs = ["n"]
    def open(self, config, context, collector):
        self.left, self.collector = list(range(9)), collector
    def next_tuple(self):
        if not self.left:
            raise EndOfStream
        n = self.left.pop(0)
        self.collector.emit([n], message_id=n, label=f"order-{n}")

class Third(BasicBolt):
    outputs = ["n"]
    def execute(self, tup, collector):
        if tup["n"] % 3 == 0 and not Path(__file__).with_name("mended").exists():
            raise ValueError("a third")
        collector.emit([tup["n"]])

def made():
    builder = TopologyBuilder("thirds")
    builder.set_spout("numbers", Nine(), retry=Retry(max_attempts=1))
    builder.set_bolt("third", Third()).shuffle_grouping("numbers")
    return builder
"""


class Ever(Spout):
    outputs = ["n"]
    redelivers = True

    def open(self, config, context, collector):
        self.collector, self.n = collector, 0

    def next_tuple(self):
        if self.n < 50:
            self.collector.emit([self.n], message_id=self.n)
            self.n += 1


class Pass(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        collector.emit([tup["n"]])


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_run_prints_the_account_and_its_dead_letters_are_read_when_nobody_runs_it(
    spark, tmp_path, capsys, monkeypatch
):
    (tmp_path / "thirds.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    run = ["run", "thirds:made", "--checkpoint", "cp", "--fail-on", "dead-letters", "--json"]
    assert main([*run, "-c", "partitions=1"]) == 5
    printed = capsys.readouterr()
    assert "the run made 3 new dead letters" in json.loads(printed.err.splitlines()[-1])["error"]
    account = json.loads(printed.out.splitlines()[-1])
    assert {name: account[name] for name in ("emitted", "acked", "failed", "timed_out", "open")} == {
        "emitted": 9, "acked": 6, "failed": 3, "timed_out": 0, "open": 0,
    }  # fmt: skip
    assert account["dead_letters"] == account["new_dead_letters"] == 3
    assert account["status"] == "ENDED"
    assert main(["dead-letters", "list", "cp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 3
    assert main(["dead-letters", "list", "cp", "--label", "order-6", "--json"]) == 0
    (letter,) = json.loads(capsys.readouterr().out)["letters"]
    assert (letter["message_id_repr"], letter["label"]) == ("6", "order-6")
    assert main(["stats", "thirds", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert last["account"]["acked"] == 6
    assert last["components"]["numbers"]["total"]["dead_lettered"] == 3
    assert {what: last["acker"][what] for what in ("inits", "acks", "fails", "acked", "failed", "late")} == {
        "inits": 9, "acks": 6, "fails": 3, "acked": 6, "failed": 3, "late": 0,
    }  # fmt: skip
    assert last["status"] == "ENDED"
    (tmp_path / "mended").touch()
    assert main(["dead-letters", "redrive", "cp", "1", "3", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ordered"] == 2
    assert main(["run", "thirds:made", "--checkpoint", "cp", "--json"]) == 0
    account = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (account["status"], account["emitted"], account["acked"]) == ("ENDED", 2, 2)
    assert main(["dead-letters", "list", "cp", "--settled", "true", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["letters"]] == [1, 3]
    assert main(run) == 0  # the letters are an earlier run's
    account = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (account["emitted"], account["new_dead_letters"], account["dead_letters"]) == (0, 0, 3)


class Keeps(Bolt):
    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.kept = []

    def execute(self, tup):
        self.kept.append(tup)


def test_the_tuples_that_tasks_hold_are_counted_and_their_messages_named_on_spark(spark, tmp_path):
    builder = TopologyBuilder("held")
    builder.set_spout("numbers", Ever())
    builder.set_bolt("keeps", Keeps(), parallelism=2).shuffle_grouping("numbers")
    config = Config(partitions=2)
    with submit(builder.create_topology(), checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
        while (running.stats()["keeps"].held or 0) < 50:
            assert not running.await_termination(0.1)
        held = running.stats()["keeps"]
        assert held.held == sum(task.held for task in held.tasks.values()) == 50
        assert 0 <= held.oldest_held_secs < 600
        oldest = find("held").door.get("open", {"limit": 10})["open"]
        assert {
            (holder["component"], len(each["held_by"])) for each in oldest for holder in each["held_by"]
        } == {("keeps", 1)}
        assert all(each["held_by"][0]["task_id"] in held.tasks for each in oldest)
        running.kill(0)


def test_a_topology_on_spark_is_watched_and_killed_through_its_door(spark, tmp_path, capsys):
    builder = TopologyBuilder("ever")
    builder.set_spout("numbers", Ever(), retry=Retry(max_attempts=2))
    builder.set_bolt("pass", Pass()).shuffle_grouping("numbers")
    config = Config(partitions=1)
    with submit(builder.create_topology(), checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
        while running.stats()["numbers"].total.acked < 50:
            assert not running.await_termination(0.1)
        door = find("ever").door  # on a busy machine it may answer with the snapshot before
        wait_until(lambda: door.snapshot(0).stats.components == running.stats().components, secs=60)
        snapshot = door.snapshot(0)
        assert snapshot.account() == {
            "emitted": 50, "acked": 50, "failed": 0, "timed_out": 0, "dead_letters": 0, "open": 0,
        }  # fmt: skip
        assert snapshot.graph["components"]["pass"]["class"] == "Pass"
        assert snapshot.batch_ms["addBatch"] > 0
        assert {"acker", "log"} <= snapshot.batch_ms.keys()
        assert sum(snapshot.batch_ms[part] for part in ("acker", "log")) < snapshot.batch_ms["addBatch"]
        acker = snapshot.acker
        assert dict(acker.received) == {"numbers:__ack_init": 50, "pass:__ack_ack": 50}
        assert (acker.acked, acker.open_roots, acker.late) == (50, 0, 0)
        assert acker.micro_batches == sum(acker.settle_spread.values()) == sum(acker.batch_spread.values())
        assert sum(snapshot.stats["pass"].execute_spread.values()) == 50
        phases = acker.phase_secs
        parts = {"level_0", "acker", "log"}
        # The admission of the first micro-batch may take less than the millisecond that Spark counts in.
        assert set(phases) >= {"walCommit", "queryPlanning", "addBatch", "commit", *parts}
        assert 0 < phases["acker"] + phases["log"] < phases["addBatch"]
        assert main(["kill", "ever", "-w", "5"]) == 0
        assert "open: 0" in capsys.readouterr().out
        assert running.await_termination(10)
        with pytest.raises(NobodyRunsError):
            _ = find("ever").door


def test_control_false_opens_no_door(spark, tmp_path, capsys):
    builder = TopologyBuilder("shut")
    builder.set_spout("numbers", IterableSpout(range(3), outputs=["n"]))
    builder.set_bolt("pass", Pass()).shuffle_grouping("numbers")
    config = Config(partitions=1, control=False)
    with submit(builder.create_topology(), checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
        assert not list((tmp_path / "runtime").rglob("*.sock"))
        assert main(["stats", str(tmp_path / "cp")]) == 1
        assert running.await_termination(60)
    assert not (tmp_path / "cp" / "control.json").exists()
