"""All doors show the same numbers of one snapshot, over a restart; and the history as the page reads it."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")

from acktree.cli.main import main
from acktree.core.stats.counters import Counters
from acktree.ui import history
from acktree.ui.client import find
from acktree.ui.history_store import FILE
from acktree.ui.web import serve
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at


def counted(executed):
    counters = Counters()
    counters.add("source", 1, "default", "emitted", executed)
    counters.add("double", 2, "source:default", "executed", executed)
    counters.add("double", 2, "source:default", "acked", executed)
    counters.add("__acker", 0, "double:__ack_ack", "executed", executed)
    of_batch = {"micro_batches": 1, "batch_us": 900, "batch_b10": 1}
    counters.merge(Counters.of((("__acker", 0, "", what), count) for what, count in of_batch.items()))
    return counters


@pytest.fixture
def page():
    serving = serve.serve(serve.Options())
    yield page_at(next(serving))
    serving.close()


def of_the_cli(capsys, window):
    assert main(["stats", "numbers", "--window", window, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fresh_snapshot():
    """A snapshot of now. On a busy machine the question ends before one is made, and the old one is given."""
    asked_ms = time.time_ns() // 1_000_000
    while (snapshot := find("numbers").door.snapshot(0)).taken_ms < asked_ms:
        pass
    return snapshot


def test_all_doors_agree_to_the_digit_after_a_restart(tmp_path, page, capsys, monkeypatch):
    monkeypatch.setattr(history, "LOOK_SECS", 0.0)
    with started(tmp_path / "cp") as first:
        first.fill()
        first.commit(counted(40), acked=7)
    with started(tmp_path / "cp") as second:
        second.fill()
        second.commit(counted(2), acked=2)
        while second.handle.stats()["source"].total.acked < 2:
            assert not second.run.ended.wait(0.01)
        second.fill()
        snapshot = fresh_snapshot()
        # stats(), the window of the run and /metrics are of the run.
        for name, numbers in second.handle.stats().components.items():
            assert snapshot.stats[name].total == numbers.total
        assert of_the_cli(capsys, ":run")["components"]["double"]["total"]["executed"] == 2
        said = page.ask("/metrics")[2].decode()
        assert re.search(r'acktree_tuples_executed_total\{component="double".*\} 2\.0', said)
        assert re.search(r'acktree_messages_acked_total\{.*spout="source".*\} 2\.0', said)
        # ":all-time" is of both runs, at each door.
        whole = of_the_cli(capsys, ":all-time")["components"]
        mine = quote(snapshot.id)
        storm = page.json(f"/api/v1/topology/{mine}")
        ours = page.json(f"/api/acktree/v1/topologies/{mine}")
        bolt = page.json(f"/api/v1/topology/{mine}/component/double")
        shown = page.json(f"/api/acktree/v1/topologies/{mine}/components/double?window=%3Aall-time")
        stats = {row["window"]: row for row in storm["topologyStats"]}
        executed = (
            whole["double"]["total"]["executed"], storm["bolts"][0]["executed"],
            bolt["boltStats"][-1]["executed"], bolt["inputStats"][0]["executed"], shown["total"]["executed"],
            shown["streams"]["source:default"]["executed"],
            snapshot.windows[":all-time"].stats["double"].total.executed,
        )  # fmt: skip
        assert executed == (42,) * 7
        acked = (
            whole["source"]["total"]["acked"], storm["spouts"][0]["acked"], stats[":all-time"]["acked"],
            ours["all_time"]["acked"], snapshot.total("acked", ":all-time"),
        )  # fmt: skip
        assert acked == (9,) * 5
        assert (ours["account"]["acked"], snapshot.account()["acked"]) == (2, 2)
        for window in (":run", "600", ":all-time"):  # whatever the window, each account says of what it is
            said = of_the_cli(capsys, window)
            assert (said["run"], said["account"]["acked"]) == (2, 2)
            assert {of: account["acked"] for of, account in said["accounts"].items()} == {
                ":run": 2,
                ":all-time": 9,
            }
        assert main(["stats", "numbers"]) == 0
        both = r"this run: emitted \d+  acked 2 .*\nall runs: emitted \d+  acked 9 "
        assert re.search(both, capsys.readouterr().out)
        # Windows go on.
        assert {window: row["acked"] for window, row in stats.items()} == dict.fromkeys(stats, 9)
        points = page.json(f"/api/acktree/v1/topologies/{mine}/history?limit=100")["points"]
        assert {point["run"] for point in points} == {1, 2}
        assert points == find("numbers").door.get("history", {"limit": 100})["points"]
    while page.json("/api/v1/topology/summary")["topologies"]:  # the page asks drivers once a second
        time.sleep(0.05)
    # Stopped: the same of the file.
    last = page.json(f"/api/acktree/v1/topologies/{mine}/history")["points"][-1]
    assert (last["run"], last["emitted"], last["acked"]) == (2, 42, 9)
    assert of_the_cli(capsys, ":all-time")["components"]["source"]["total"]["acked"] == 9
    (tmp_path / "cp" / FILE).write_bytes(b"garbage" * 5000)
    status, _, said = page.ask(f"/api/acktree/v1/topologies/{mine}/history")
    assert (status >= 400, "delete the file" in json.loads(said)["fix"]) == (True, True)
    (tmp_path / "cp" / FILE).unlink()
    assert page.json(f"/api/acktree/v1/topologies/{mine}/history") == {"points": []}
    with started(tmp_path / "cp"):  # the counts are not in that file
        assert find("numbers").door.snapshot(0).total("acked", ":all-time") == 9


def test_the_ackers_numbers_of_the_run_and_of_all_runs_are_told_apart_after_a_restart(tmp_path, page, capsys):
    with started(tmp_path / "cp") as first:
        first.commit(counted(40))
    with started(tmp_path / "cp") as second:
        second.commit(counted(2))
        snapshot = fresh_snapshot()
        assert snapshot.acker == second.handle.stats().acker
        assert [of_the_cli(capsys, each)["acker"]["acks"] for each in (":run", ":all-time")] == [2, 42]
        said = page.ask("/metrics")[2].decode()
        of_run = {"acker_acks_total": 2, "micro_batches_total": 1, "micro_batch_duration_seconds_count": 1}
        for name, count in of_run.items():
            assert re.search(rf"acktree_{name}\{{.*\}} {count}\.0", said), name


def test_a_name_that_the_history_does_not_take_is_refused(tmp_path, page):
    with started(tmp_path / "cp"):
        mine = quote(find("numbers").door.snapshot().id)
        status, _, said = page.ask(f"/api/acktree/v1/topologies/{mine}/history?sinse=1")
        assert (status, "since" in json.loads(said)["fix"]) == (400, True)
        status, _, said = page.ask(f"/api/acktree/v1/topologies/{mine}/history?since=now")
        assert (status, "whole numbers" in json.loads(said)["fix"]) == (400, True)
        status, _, said = page.ask(f"/api/v1/topology/{mine}?window=7")
        assert (status, ":run" in said.decode()) == (400, True)
