"""Which topology a command is about: one line and an exit code where that is not clear, or nobody runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from acktree.checkpoint.folder import Checkpoint
from acktree.cli.main import main
from acktree.system.private_files import Disk
from acktree.ui.client import find
from acktree.ui.places import SNAPSHOT, entries, write_entry
from acktree.ui.snapshot import Snapshot
from tests.unit.ui.driver_without_spark import started

pytestmark = pytest.mark.usefixtures("runtime")

NEEDS_A_DRIVER = (
    "open T",
    "top T -n 1",
    "activate T",
    "deactivate T",
    "debug T on",
    "kill T -w 0",
    "health T",
)


def run(command, named):
    """The exit code of a command, and the lines of stdout and stderr."""
    words = [named if word == "T" else word for word in command.split()]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
        code = main(words)
    return code, out.getvalue().splitlines(), errors.getvalue().splitlines()


def refused(command, named):
    """The exit code, and what, where and fix of the one error, the same as text and as JSON."""
    code, out, lines = run(command, named)
    assert out == []
    assert [line.split(":")[0].strip() for line in lines] == ["acktree", "where", "fix"]
    error = tuple(line.partition(":")[2].strip() for line in lines)
    code_of_json, _, (line,) = run(f"{command} --json", named)
    assert (code_of_json, tuple(json.loads(line).values())) == (code, error)
    return code, *error


def test_two_topologies_of_one_name_are_refused_with_1_and_each_is_named_by_its_checkpoint(tmp_path):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    with started(tmp_path / "one") as first, started(tmp_path / "two") as second:
        has_ids = first.door._entry.id != second.door._entry.id  # not if both began in the same second
        fix = "name one by its checkpoint or its id" if has_ids else "name one by its checkpoint"
        for command in ("stats T", "kill T -w 0", "dead-letters purge T --all --yes"):
            error = 1, "2 topologies are called 'numbers'", f"{one}, {two}", fix
            assert refused(command, "numbers") == error
        assert run("deactivate T", two)[0] == 0
        assert (first.run.is_active, second.run.is_active) == (True, False)
        assert run("kill T -w 0", one)[0] == 0
        assert second.handle.is_running
        assert run("activate T", "numbers")[0] == 0  # one of them runs
        assert second.run.is_active
    code, what, where, _ = refused("stats T", "numbers")
    assert (code, what, where) == (1, "2 topologies are called 'numbers'", f"{one}, {two}")


@pytest.mark.parametrize("where", ["checkpoint", "runtime folder"])
def test_a_path_that_is_too_long_for_a_socket_is_as_good_as_any_other(where, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o700)
    place = (long if where == "checkpoint" else tmp_path) / "cp"
    if where == "runtime folder":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with started(place) as topology:
        topology.fill()
        code, out, _ = run("list --json", "")
        assert (code, json.loads(out[0])["topologies"][0]["checkpoint"]) == (0, str(place))
        for named in ("numbers", str(place)):
            assert run("stats T", named)[0] == 0
            assert run("deactivate T", named)[0] == 0
        code, (line,), errors = run("kill T -w 0", str(place))
        assert (code, errors) == (0, [])
        assert line.endswith(f"is stopped; open: 10. To continue, submit it again on {place}")
    code, what, _, fix = refused("activate T", str(place))
    assert (code, fix) == (3, "submit it again on this checkpoint; its last numbers: acktree stats")
    assert what.startswith("nobody runs topology 'numbers'")


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.ui.driver_without_spark import Started
Started(Path(sys.argv[1])).begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_driver_that_was_killed_each_order_says_one_line_with_3(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "cp")], check=False)
    assert killed.returncode == -signal.SIGKILL
    (entry,) = entries()
    assert Path(entry.socket).exists()
    assert said_of_nobody(entry) == {(3, *nobody(entry))}
    code, out, _ = run("list", "")
    assert code == 0
    assert "DIED" in "".join(out)


RUNNING = """
import sys, time
from pathlib import Path
from tests.unit.ui.driver_without_spark import Started
topology = Started(Path(sys.argv[1]))
topology.begin()
topology.fill()
print(flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_kill_ends_when_the_driver_dies_although_its_parent_does_not_wait_for_it(tmp_path):
    place = tmp_path / "cp"
    driver = subprocess.Popen([sys.executable, "-c", RUNNING, str(place)], stdout=subprocess.PIPE)
    driver.stdout.readline()
    killing = subprocess.Popen(
        [sys.executable, "-m", "acktree", "kill", "numbers", "-w", "600"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while find("numbers").door.snapshot(0).status != "KILLED":
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    out, errors = killing.communicate(timeout=60)
    os.kill(driver.pid, 0)  # its number is still there
    driver.communicate()
    assert (killing.returncode, out) == (1, "")
    assert "died before it had stopped" in errors
    assert f"where: {place}" in errors


def test_of_a_stale_socket_each_order_says_one_line_with_3(tmp_path):
    with started(tmp_path / "cp"):
        (left,) = entries()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(left.socket)
    entry = replace(left, pid=gone())
    for file in (next(Path(left.socket).parent.glob("*.json")), tmp_path / "cp" / "control.json"):
        write_entry(entry, file, Disk())
    assert said_of_nobody(entry) == {(3, *nobody(entry))}
    assert run("stats T", "numbers")[0] == 0  # its last numbers


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_while_a_driver_starts_each_order_says_so_and_nothing_of_the_run_before(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "cp")], check=False)
    assert killed.returncode == -signal.SIGKILL
    (entry,) = entries()
    held = Checkpoint(tmp_path / "cp")  # the next driver has it, and its door is not open yet
    try:
        [(code, what, where, fix)] = said_of_nobody(entry)
    finally:
        held.close()
    starts = f"topology 'numbers' is starting or stopping: process {os.getpid()} on {socket.gethostname()}"
    assert (code, what.split(", since")[0], where) == (3, starts, entry.checkpoint)
    assert fix == "try again in some seconds; its log says what it does"


def test_of_a_topology_that_has_ended_each_order_says_that_with_3_and_not_to_submit_it_again(tmp_path):
    with started(tmp_path / "cp"):
        (entry,) = entries()
    file = tmp_path / "cp" / SNAPSHOT
    file.write_bytes(replace(Snapshot.from_json(file.read_bytes()), status="ENDED").to_json())
    ended = (
        "topology 'numbers' has ended: every message has its verdict", entry.checkpoint,
        "none is needed; a submit with another checkpoint runs it anew; its last numbers: acktree stats",
    )  # fmt: skip
    for named in ("numbers", entry.checkpoint):
        assert {refused(command, named) for command in NEEDS_A_DRIVER} == {(3, *ended)}


def test_a_name_and_a_url_that_there_are_not_are_refused_with_1_and_the_nearest():
    for named, shown in (("number", "'number'"), ("hdfs://me:S3cr3t@host/cp", "'hdfs://***@host/cp'")):
        code, what, where, _ = refused("stats T", named)
        assert (code, what) == (1, f"there is no topology and no checkpoint {shown}")
        assert where == "topologies of this user on this machine"


def gone() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def nobody(entry):
    return (
        f"nobody runs topology 'numbers': process {entry.pid} is gone or has stopped it", entry.checkpoint,
        "submit it again on this checkpoint; its last numbers: acktree stats",
    )  # fmt: skip


def said_of_nobody(entry):
    """What the commands that need a driver say, by name and by checkpoint."""
    assert entry.pid != os.getpid()
    by_name = {refused(command, "numbers") for command in NEEDS_A_DRIVER}
    return by_name | {refused(command, entry.checkpoint) for command in ("activate T", "kill T -w 0")}
