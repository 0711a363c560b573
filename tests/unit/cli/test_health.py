"""``acktree health``: what it finds wrong, and of which topologies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, Retry, TopologyBuilder
from acktree.cli import health
from acktree.cli.main import main
from acktree.core.spouts.retry import longest_pauses_secs
from acktree.errors import AcktreeError, ConnectorError
from acktree.ui.snapshot import Snapshot, plain
from tests.drawn import drawn
from tests.unit.cli.test_commands import said
from tests.unit.ui.driver_without_spark import Double, Numbers, started

SNAPSHOT_OF = health.DoorClient.snapshot
GONE = ConnectorError("the connection\x1b is gone", "queue 'q'", "start the server", can_retry=True)


def test_a_spout_whose_queue_is_away_is_not_healthy_until_it_works_again(
    tmp_path, capsys, monkeypatch, caplog
):
    errors = [GONE] * 1000

    def next_tuple(self):
        if errors:
            raise errors[0]

    monkeypatch.setattr(Numbers, "next_tuple", next_tuple)
    monkeypatch.setattr("acktree.tasks.spouts.upkeep.LONGEST_PAUSE_MS", 100)
    with started(tmp_path / "cp") as topology, caplog.at_level("INFO", "acktree"):
        until(lambda: getattr(topology.handle.stats()["source"].outage, "tries", 0) >= 2)
        topology.door._observer.forget()
        assert main(["health", "numbers"]) == 1
        printed = capsys.readouterr().out
        assert re.search(
            r"BAD  calls of spout source: tried \d+ times since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, "
            r"for \d+\.\d s: ConnectorError: the connection\\x1b is gone \(queue 'q'\)\n"
            r" +fix: start the server",
            printed,
        )
        assert main(["health", "--json"]) == 1
        checks = json.loads(capsys.readouterr().out)["topologies"].popitem()[1]
        assert [check["name"] for check in checks if not check["is_ok"]] == ["calls of spout source"]
        (listed,) = said(capsys, "list")["topologies"]
        assert listed["outages"]["source"]["tries"] >= 2
        assert listed["all_outages"]["source"] == [listed["outages"]["source"]]
        assert main(["list"]) == 0
        assert (
            "numbers: calls of spout source fail and are tried again: ConnectorError"
            in capsys.readouterr().out
        )
        errors.clear()
        until(lambda: topology.handle.stats()["source"].outage is None)
        topology.door._observer.forget()
        assert main(["health", "numbers"]) == 0
        again = [record.getMessage() for record in caplog.records if "works again" in record.getMessage()]
        assert len(again) == 1
        assert re.match(
            r"topology=numbers spout=source task=\d+ works again after \d+\.\d s; tried", again[0]
        )


def test_a_spout_whose_next_tuple_does_not_return_is_not_healthy(tmp_path, capsys, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(Numbers, "next_tuple", lambda _: go_on.wait(60))
    monkeypatch.setattr("acktree.driver.spouts.spout_threads.BLOCKED_SECS", 0.01)
    with started(tmp_path / "cp") as topology:
        until(lambda: topology.handle.stats()["source"].outage is not None)
        topology.door._observer.forget()
        assert main(["health", "numbers"]) == 1
        assert re.search(
            r"BAD  calls of spout source: since [-0-9]+ [:0-9]+ UTC, for \d+\.\d s: "
            r"next_tuple of task \d+ has not returned",
            capsys.readouterr().out,
        )
        assert main(["list"]) == 0
        assert "numbers: calls of spout source do not return: next_tuple" in capsys.readouterr().out
        go_on.set()


@pytest.mark.parametrize(
    ("secs", "retry", "longest"),
    [
        (None, None, 60),  # 2 * 30
        (300, None, 600),
        (0.5, None, 1),
        (None, Retry(3, backoff_secs=(1, 60)), 2 * 30 * 3 + 1 + 2),
        (300, Retry(2, backoff_secs=(10, 10)), 2 * 300 * 2 + 10),
        (None, Retry(10**9, max_age_secs=600), 600 + 2 * 30),
        (None, Retry(2, backoff_secs=(1, 1), max_age_secs=10**6), 2 * 30 * 2 + 1),
    ],
)
def test_a_message_is_stuck_after_two_timeouts_of_its_spout_for_each_attempt(
    tmp_path, capsys, monkeypatch, secs, retry, longest
):
    builder = TopologyBuilder("numbers")
    builder.set_spout("source", Numbers(), message_timeout_secs=secs, retry=retry)
    builder.set_bolt("double", Double()).shuffle_grouping("source")
    with started(tmp_path / "cp", given=builder.create_topology()):
        for age, is_ok in ((longest, True), (longest + 0.1, False)):
            monkeypatch.setattr(health.DoorClient, "snapshot", aged(SNAPSHOT_OF, age))
            assert main(["health", "numbers", "--json"]) == (0 if is_ok else 1)
            checks = json.loads(capsys.readouterr().out)["topologies"].popitem()[1]
            (check,) = [check for check in checks if check["name"] == "spout source"]
            assert check["is_ok"] == is_ok
            assert (f"for more than {longest:,.0f} s" in check["fix"]) == (not is_ok)
            assert [each["name"] for each in checks if each["fix"]] == ["spout source"] * (not is_ok)


def aged(snapshot_of, secs, **changed):
    """A snapshot of a run of many years whose oldest open message is this old."""

    def snapshot(self, *given):
        data = plain(snapshot_of(self, *given)) | {"began_ms": 0} | changed
        for window in data["windows"].values():
            window["stats"]["components"]["source"]["oldest_open_secs"] = secs
        return Snapshot.of(data)

    return snapshot


NUMBERS = {"emitted": 0, "acked": 0, "failed": 0, "timed_out": 0, "executed": 0, "dead_lettered": 0}


def counting(snapshot_of, window, changed):
    """A snapshot with these numbers of components in one window, and nothing else."""

    def snapshot(self, *given):
        data = plain(snapshot_of(self, *given))
        for each in data["windows"].values():
            for about in each["stats"]["components"].values():
                about["total"] |= NUMBERS
        for name, numbers in changed.get("components", {}).items():
            data["windows"][window]["stats"]["components"][name]["total"] |= numbers
        data["windows"][":run"]["stats"]["components"]["source"]["outages"] = changed.get("outages", [])
        data["dead_letters"] |= changed.get("dead_letters", {})
        data["windows"][":run"]["stats"]["components"]["source"]["open"] = changed.get("open", 0)
        return Snapshot.of(data)

    return snapshot


def source(**numbers):
    return {"components": {"source": numbers}}


AWAY = {"reason": "no", "fix": "start it", "since_ms": 1, "tries": 2, "dependency": "prices"}


@pytest.mark.parametrize(
    ("window", "changed", "bad"),
    [
        ("10", source(failed=100), ["verdicts of spout source"]),
        ("10", source(failed=99), []),
        ("10", source(failed=99, timed_out=1), ["verdicts of spout source"]),
        ("10", source(failed=10_000, acked=1), []),
        ("600", source(failed=10), ["verdicts of spout source"]),
        ("600", source(failed=9), []),
        ("600", source(failed=10) | {"outages": [AWAY]}, ["dependency prices of spout source"]),
        (
            "600",
            source(failed=10) | {"outages": [AWAY, AWAY | {"dependency": "the table"}]},
            ["dependency prices of spout source", "dependency 'the table' of spout source"],
        ),
        ("10", {"components": {"double": {"executed": 100, "failed": 100}}}, ["bolt double"]),
        ("10", {"components": {"double": {"executed": 101, "failed": 100}}}, []),
        ("600", source(dead_lettered=10, acked=989), ["dead letters"]),
        ("600", source(dead_lettered=10, acked=990), []),
        ("600", source(dead_lettered=9), []),
        ("10", {"dead_letters": {"redriven": 3}}, ["redriven letters"]),
        ("10", {"dead_letters": {"redriven": 3}, "open": 3}, []),
    ],
)
def test_it_says_whether_the_work_is_done(tmp_path, capsys, monkeypatch, window, changed, bad):
    with started(tmp_path / "cp"):
        monkeypatch.setattr(health.DoorClient, "snapshot", counting(SNAPSHOT_OF, window, changed))
        assert main(["health", "numbers", "--json"]) == (1 if bad else 0)
        checks = json.loads(capsys.readouterr().out)["topologies"].popitem()[1]
        assert [check["name"] for check in checks if not check["is_ok"]] == bad
        assert all(check["fix"] for check in checks if not check["is_ok"])


@pytest.mark.parametrize(
    ("window", "numbers", "says"),
    [
        ("600", {}, r"none in the last \d+ s"),
        ("600", {"acked": 3}, r"3 acked, 0 attempts failed in the last \d+ s"),
        ("600", {"acked": 3, "failed": 9}, r"3 acked, 9 attempts failed in the last \d+ s"),
        ("600", {"acked": 3, "failed": 9, "timed_out": 3}, r"3 acked, 12 attempts failed in the last \d+ s"),
        ("10", {"acked": 1, "failed": 100}, r"1 acked, 100 attempts failed in the last \d+ s"),
    ],
)
def test_it_says_how_many_got_a_verdict_also_where_too_few_failed_to_judge(
    tmp_path, capsys, monkeypatch, window, numbers, says
):
    with started(tmp_path / "cp"):
        monkeypatch.setattr(health.DoorClient, "snapshot", counting(SNAPSHOT_OF, window, source(**numbers)))
        assert main(["health", "numbers", "--json"]) == 0
        checks = json.loads(capsys.readouterr().out)["topologies"].popitem()[1]
        (check,) = [check for check in checks if check["name"] == "verdicts of spout source"]
        assert re.fullmatch(says, check["found"])


def test_no_message_is_stuck_because_nobody_ran_it_or_nothing_judges_it(tmp_path, capsys, monkeypatch):
    now_ms = time.time_ns() // 1_000_000
    for config, changed in (
        (Config(), {"began_ms": now_ms - 5000}),  # it was away for long
        (Config(acker_executors=0), {}),
        (Config(enable_message_timeouts=False), {}),
    ):
        with started(
            tmp_path / f"cp{len(changed)}{config.acker_executors}{config.enable_message_timeouts}",
            config=config,
        ):
            monkeypatch.setattr(health.DoorClient, "snapshot", aged(SNAPSHOT_OF, 1e6, **changed))
            assert main(["health", "numbers"]) == 0, capsys.readouterr().out


def test_of_an_older_driver_that_does_not_say_how_it_retries_nothing_is_stuck(tmp_path, monkeypatch):
    def snapshot(self, *given):
        data = plain(SNAPSHOT_OF(self, *given)) | {"began_ms": 0}
        del data["graph"]["components"]["source"]["retry_attempts"]
        data["windows"][":run"]["stats"]["components"]["source"]["oldest_open_secs"] = 1e6
        return Snapshot.of(data)

    with started(tmp_path / "cp"):  # its spout has a Retry
        monkeypatch.setattr(health.DoorClient, "snapshot", snapshot)
        assert main(["health", "numbers"]) == 0


@settings(max_examples=drawn(200))
@given(
    st.integers(1, 40), st.floats(0, 1e3), st.one_of(st.just(0.0), st.floats(0, 1e6)),
)  # fmt: skip
def test_the_longest_pauses_are_the_sum_of_each(attempts, first, more):
    retry = Retry(attempts, backoff_secs=(first, first + more), jitter=False)
    pauses = sum(retry.pause_ms(attempt, root=0) for attempt in range(1, attempts)) / 1000
    assert longest_pauses_secs(retry) == pytest.approx(pauses, abs=0.001 * attempts)


@pytest.mark.parametrize(
    "retry", [Retry(10**400, backoff_secs=(0, 0)), Retry(10**400, backoff_secs=(1e308, 1e308))]
)
def test_pauses_without_end_are_a_number_that_json_has(retry):
    builder = TopologyBuilder("numbers")
    builder.set_spout("source", Numbers(), retry=retry)
    builder.set_bolt("double", Double()).shuffle_grouping("source")
    data = builder.create_topology().describe(2).data
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.ui.driver_without_spark import Started
Started(Path(sys.argv[1])).begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def healths(capsys, code):
    """By topology what is wrong, with no name given."""
    capsys.readouterr()
    assert main(["health", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] == (code == 0)
    return {
        name.rsplit("-", 2)[0]: [(check["found"], check["fix"]) for check in checks if not check["is_ok"]]
        for name, checks in told["topologies"].items()
    }


@pytest.mark.usefixtures("runtime")
def test_without_a_name_what_an_error_or_a_killed_driver_has_ended_is_not_healthy(tmp_path, capsys):
    with started(tmp_path / "stopped", "stopped"):
        pass
    assert healths(capsys, 0) == {}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], check=False)
    failed = started(tmp_path / "failed", "failed")
    with failed as topology:
        topology.supervisor.stopped_by = AcktreeError("the disk is full", "here", "make room")
    with started(tmp_path / "raised", "raised") as topology:
        topology.supervisor.stopped_by = ValueError("a bug\n  fix:   no\nend")
    with started(tmp_path / "quoted", "quoted") as topology:
        topology.supervisor.stopped_by = ValueError("a bug\n  fix:   delete it")
    with started(tmp_path / "lines", "lines") as topology:
        topology.supervisor.stopped_by = AcktreeError("it is shut", "here", "run these:\n  unlock\n  open")
    with started(tmp_path / "runs", "runs") as topology:
        topology.fill()
        again = f"submit it again on {tmp_path}"
        wrong = healths(capsys, 1)
        assert wrong["runs"] == []
        assert wrong["numbers"] == [("DIED", f"{again}/killed")]
        assert wrong["failed"] == [("FAILED: the disk is full\n  where: here", "make room")]
        assert wrong["raised"] == [("FAILED: a bug\n  fix:   no\nend", f"{again}/raised")]
        assert wrong["quoted"] == [("FAILED: a bug\n  fix:   delete it", f"{again}/quoted")]
        assert wrong["lines"] == [("FAILED: it is shut\n  where: here", "run these:\n  unlock\n  open")]
        listed = {each["topology"]: each["status"] for each in said(capsys, "list")["topologies"]}
        ended = dict.fromkeys(("failed", "raised", "quoted", "lines"), "FAILED")
        assert listed == {"numbers": "DIED", "runs": "ACTIVE", **ended}
        assert main(["health", "runs"]) == 0
        capsys.readouterr()
        assert main(["health", "failed"]) == 3
        assert "an error has stopped it: the disk is full" in capsys.readouterr().err
        for gone in ("killed", "raised", "quoted", "lines"):
            shutil.rmtree(tmp_path / gone)
        with started(tmp_path / "failed", "failed"):
            assert healths(capsys, 0) == {"failed": [], "runs": []}
