"""The resident query on Spark: the verdicts of ``LocalCluster``, whatever deaths and batches do.

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

from tests.spark.realtime_java import EPOCHS

ROOT = Path(__file__).parents[2]
SET_UP = 'ip link set lo up && exec "$@"'
ISOLATED = ["unshare", "--net", "sh", "-c", SET_UP, "sh"]


def missing() -> str:
    """Why there can be no network of its own here; empty if there can be one."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return "unshare or ip is missing"
    run = subprocess.run([*ISOLATED, "true"], check=False, capture_output=True, text=True)
    return f"no network namespace: {run.stderr.strip()}" if run.returncode else ""


PUSH = "0 2 0"
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


def test_behind_each_whole_epoch_the_batch_is_filled_and_the_next_one_begins(java):
    """Spark makes a batch of three rows here, and hands it on when a fourth one comes."""
    given = java["epochs"]["given"]
    assert given == [
        "1 1 7", "0 1 7", PUSH, PUSH,
        "1 0 8", "1 1 8", "1 1 9", "0 0 8", "0 1 8", PUSH,
        "0 0 9", "0 0 9", "0 1 9", PUSH, PUSH, PUSH,
        "0 1 10", "over",
    ]  # fmt: skip
    assert [row for row in given if row not in (PUSH, "over")] == EPOCHS, "each in its place"


def test_the_shuffle_opens_no_port(java):
    assert java["epochs"]["ports"] == []


def test_a_writer_waits_for_a_slow_reader_and_not_for_one_that_has_ended(java):
    flood = java["flood"]
    for how in ("read", "close"):
        assert flood[f"sent before {how}"] < flood["bytes"] // 2
        assert flood[f"sent after {how}"] == flood["bytes"]
    assert flood["rows"] == [f"0 0 {n}" for n in range(len(flood["rows"]))], "nothing is lost or out of order"


def test_a_reader_that_waits_holds_the_driver_back(java):
    pressure = java["pressure"]
    assert pressure["sent while it waits"] < len(pressure["all"]) // 2
    first, *others = pressure["all"]
    rows = [first, "push", "push", *(row for each in others for row in (each, "push"))]
    assert pressure["rows"] == [*rows, "end 1"], "nothing is lost or out of order; batches of two rows"


def test_scenarios_drawn_topologies_and_hostile_values_have_their_verdicts_by_epochs(tmp_path):
    """In a session of their own: by_epochs.py has them."""
    words = [
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'in'}",
        "tests/spark/by_epochs.py",
    ]
    command = [*ISOLATED, sys.executable, "-m", *words]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "skipped" not in run.stdout.splitlines()[-1]


def in_order(verdicts: dict[str, Any]) -> dict[str, Any]:
    return {kind: sorted(each) for kind, each in verdicts.items()}


WHEN = ["one by one", "together", "in the next batch", "after a death", "after the death of one"]


@pytest.mark.parametrize("when", WHEN)
def test_verdicts_are_those_of_the_local_cluster(outcome, when):
    """Also in Spark's next batch, and after a worker was killed: a count that were lost would be seen."""
    both = outcome[when]
    assert in_order(both["real"]) == in_order(both["model"])
    assert both["real"]["acked"]
    assert ["moon number 3" in reason for _, reason in both["real"]["failed"][:1]] == [True]


def test_after_the_death_of_a_worker_others_go_on_with_what_they_have_imported(outcome):
    """A process that is late is still there, and another one has its task."""
    before, after = (set(outcome["workers"][when]) for when in ("before", "after"))
    assert len(before) == 6
    assert len(before & after) == 5
    assert len(after - before) < 6, "some have another task"


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


def test_nobody_listens_for_strangers_but_the_driver(outcome):
    """Also while a query starts, in Spark's next batch, and after a death: rows stay inside the JVM."""
    assert outcome["ports"]["new"] == []
    assert outcome["ports"]["known"] > 0, "ports are seen"


def test_too_few_slots_are_refused_with_their_number(outcome):
    assert "needs 8 slots, for 4 levels x 2 partitions, and this session has 6" in outcome["too few slots"]


def test_after_kills_of_workers_and_of_the_driver_each_message_is_counted_and_written_once(outcome):
    """With gates, an exactly-once bolt, and a sink; the second driver goes on where the first one died."""
    code, starts_again, rows = outcome["the driver died at"]
    assert (code, starts_again > 0) == (-signal.SIGKILL, True)
    assert rows < 81, "in the middle"
    assert outcome["killed"]
