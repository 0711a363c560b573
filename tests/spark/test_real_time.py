"""The resident query on Spark: the verdicts of ``LocalCluster``, whatever strangers, deaths and batches do.

One JVM runs all that needs Spark (realtime_driver.py), in a network of its own that has loopback alone.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.realtime_driver import KNOCKS, OTHER_ADDRESS

ROOT = Path(__file__).parents[2]
SET_UP = f'ip link set lo up && ip addr add {OTHER_ADDRESS}/32 dev lo && exec "$@"'
ISOLATED = ["unshare", "--net", "sh", "-c", SET_UP, "sh"]


def missing() -> str:
    """Why there can be no network of its own here; empty if there can be one."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return "unshare or ip is missing"
    run = subprocess.run([*ISOLATED, "true"], check=False, capture_output=True, text=True)
    return f"no network namespace: {run.stderr.strip()}" if run.returncode else ""


MISSING = missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def outcome_of(program: str, folder: Path) -> dict[str, Any]:
    """What a program of this folder has found, in a network of its own."""
    command = [*ISOLATED, sys.executable, "-m", f"tests.spark.{program}", str(folder)]
    with (folder / "driver.log").open("w") as log:
        run = subprocess.run(command, cwd=ROOT, check=False, stdout=log, stderr=log, timeout=500)
    assert run.returncode == 0, (folder / "driver.log").read_text()[-3000:]
    return json.loads((folder / "outcome.json").read_text())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of everything that needs Spark."""
    return outcome_of("realtime_driver", tmp_path_factory.mktemp("realtime"))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of our Java classes alone."""
    return outcome_of("realtime_java", tmp_path_factory.mktemp("java"))


def test_a_stranger_is_closed_without_a_byte_and_a_reader_is_let_in(java):
    """Before and after; the error that would end the query is not set. Not from loopback: closed at once."""
    found = java["strangers"]
    assert found["knocks"] == [
        [kind, address, "closed", 0] for kind in KNOCKS for address in ("127.0.0.1", OTHER_ADDRESS)
    ]
    assert (found["readers"], found["failed"]) == (["true", "true"], "false")
    assert found["last"] == ["silence", "127.0.0.1"], "who may still prove the secret has ten seconds for it"


def test_a_reader_that_waits_holds_the_driver_back(java):
    pressure = java["pressure"]
    assert pressure["sent while it waits"] < len(pressure["all"]) // 2
    assert pressure["rows"] == [*pressure["all"], "end 1"], "nothing is lost or out of order"


def in_order(verdicts: dict[str, Any]) -> dict[str, Any]:
    return {kind: sorted(each) for kind, each in verdicts.items()}


@pytest.mark.parametrize("when", ["one by one", "together", "in the next batch", "after a death"])
def test_verdicts_are_those_of_the_local_cluster(outcome, when):
    """Also in Spark's next batch, and after a worker was killed: a count that were lost would be seen."""
    both = outcome[when]
    assert in_order(both["real"]) == in_order(both["model"])
    assert both["real"]["acked"]
    assert ["moon number 3" in reason for _, reason in both["real"]["failed"][:1]] == [True]


def test_a_checkpoint_is_used_by_epochs_and_by_micro_batches_in_turn(outcome):
    runs = [outcome[f"run {number}"] for number in range(3)]
    counts = [reason for run in runs for _, reason in run["failed"] if "moon" in reason]
    expected = [reason for _, reason in outcome["all runs"]["failed"]]
    assert sorted(counts) == sorted(expected), "what was remembered in one run is known in the next"
    for number, run in enumerate(runs):
        told = [*run["acked"], *(message_id for message_id, _ in run["failed"])]
        first = 1000 + 20 * number
        assert sorted(told) == [*([1, 2, 3] if number == 2 else []), *range(first, first + 20)]


def test_a_message_that_kills_its_worker_fails_alone(outcome):
    run = outcome["run 2"]
    assert sorted(message_id for message_id in run["acked"] if message_id < 1000) == [1, 3]
    (reason,) = [reason for message_id, reason in run["failed"] if message_id == 2]
    assert "over this tuple: it is not executed any more" in reason


def test_a_stranger_gets_no_byte_and_the_query_does_not_notice(outcome):
    assert len(outcome["listeners"]) == 4, "a port for each writer of the shuffle"
    assert outcome["racer"]["ports"] == 4, "it found each"
    assert outcome["racer"]["bytes"] == 0
    for kind in KNOCKS:
        assert outcome["knocks"][kind] == [["closed", 0]] * 8
        assert in_order(outcome[f"after {kind}"]["real"]) == in_order(outcome[f"after {kind}"]["model"])


def test_too_few_slots_are_refused_with_their_number(outcome):
    assert "needs 8 slots, for 4 levels x 2 partitions, and this session has 6" in outcome["too few slots"]


def test_after_kills_of_workers_and_of_the_driver_each_message_is_counted_and_written_once(outcome):
    """With gates, an exactly-once bolt, and a sink; the second driver goes on where the first one died."""
    code, starts_again, rows = outcome["the driver died at"]
    assert (code, starts_again > 0) == (-signal.SIGKILL, True)
    assert rows < 81, "in the middle"
    assert outcome["killed"]
