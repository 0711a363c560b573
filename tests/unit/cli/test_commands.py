"""The commands against a driver that runs: what they print, as text and as JSON, and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from acktree.cli.main import main
from acktree.dead_letters.store import DeadLetters
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import started

PROGRAM = """
from acktree import BasicBolt, IterableSpout, TopologyBuilder

class Double(BasicBolt):
    outputs = ["n"]
    def execute(self, tup, collector):
        collector.emit([2 * tup["n"]])

def made():
    builder = TopologyBuilder("made")
    builder.set_spout("numbers", IterableSpout(range(3), outputs=["n"]))
    builder.set_bolt("double", Double()).shuffle_grouping("numbers")
    return builder

topology = made().create_topology()
number = 7
"""


def said(capsys, *command):
    """What a command printed as JSON, after it was done."""
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def with_letters(running):
    mine = replace(LETTER, topology="numbers", spout="source", reason="\x1b[31m<script>")
    running.letters.put([replace(mine, root=root) for root in range(1, 5)])
    return running


def test_a_running_topology_is_listed_shown_and_counted(running, capsys, tmp_path):
    running.fill()
    (listed,) = said(capsys, "list")["topologies"]
    assert (listed["topology"], listed["status"], listed["tasks"]) == ("numbers", "ACTIVE", 3)
    for named in ("numbers", listed["id"], str(tmp_path / "cp")):
        assert said(capsys, "stats", named)["account"]["open"] == 10
    assert said(capsys, "show", "numbers")["graph"]["name"] == "numbers"
    assert said(capsys, "get-errors", "numbers")["errors"] == []
    assert len(said(capsys, "open", "numbers", "--limit", "4")["open"]) == 4
    assert said(capsys, "top", "numbers", "-n", "1")["components"]["source"]["open"] == 10
    assert said(capsys, "monitor", "numbers", "-n", "1", "-m", "double")["parallelism"] == 2
    assert said(capsys, "health", "numbers")["healthy"] is True
    assert said(capsys, "version")["acktree"]


def test_no_command_prints_control_characters_of_users_values(with_letters, capsys):
    with_letters.fill()
    letters = ["dead-letters", "list", "numbers"], ["dead-letters", "show", "numbers", "1"]
    for command in (["open", "numbers"], *letters):
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "\\x1b[31m" in printed


def test_orders_of_the_command_line(running, capsys):
    assert main(["deactivate", "numbers"]) == 0
    assert said(capsys, "list")["topologies"][0]["status"] == "INACTIVE"
    assert main(["activate", "numbers"]) == 0
    assert said(capsys, "kill", "numbers", "-w", "0")["done"] == "kill"
    assert main(["kill", "numbers"]) == 3
    assert "nobody runs topology 'numbers'" in capsys.readouterr().err
    assert said(capsys, "list")["topologies"] == []
    assert said(capsys, "list", "--all")["topologies"][0]["status"] == "STOPPED"
    assert said(capsys, "stats", "numbers")["status"] == "STOPPED"


@pytest.mark.parametrize("order", ["activate", "deactivate", "kill", "open", "top", "monitor"])
def test_what_needs_a_driver_says_so_with_3(order, tmp_path, capsys):
    with started(tmp_path / "cp"):
        pass
    assert main([order, "numbers"]) == 3
    assert main([order, "numbers", "--json"]) == 3
    refused = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert set(refused) == {"error", "where", "fix"}


def test_the_time_is_over_with_4(running, capsys):
    assert main(["kill", "numbers", "-w", "30", "--timeout", "0.1"]) == 4
    assert "still runs after 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rebalance", "reset-state"])
def test_memory_of_a_running_topology_is_refused_with_the_way(command, running, capsys, tmp_path):
    assert main([command, str(tmp_path / "cp")]) == 1
    assert f"acktree kill {tmp_path / 'cp'}" in capsys.readouterr().err


def test_dead_letters_while_it_runs_and_when_it_is_stopped(with_letters, capsys, tmp_path):
    assert said(capsys, "dead-letters", "list", "numbers", "--limit", "2")["after"] == 2
    assert main(["dead-letters", "redrive", "numbers", "--all"]) == 1
    assert "send 4 dead letters again" in capsys.readouterr().err
    assert said(capsys, "dead-letters", "redrive", "numbers", "1", "--yes")["redriven"] == 1
    assert said(capsys, "dead-letters", "purge", "numbers", "--redriven", "true", "--yes")["purged"] == 1
    assert main(["kill", "numbers", "-w", "0"]) == 0
    assert main(["dead-letters", "redrive", "numbers", "2", "--yes"]) == 3
    assert said(capsys, "dead-letters", "list", "numbers")["count"] == 3
    assert said(capsys, "dead-letters", "show", "numbers", "2")["traceback"]
    file = str(tmp_path / "letters.jsonl")
    assert said(capsys, "dead-letters", "export", "numbers", file)["exported"] == 3
    assert said(capsys, "dead-letters", "purge", "numbers", "--all", "--yes")["purged"] == 3
    with DeadLetters(tmp_path / "cp" / "dead_letters.sqlite", create=True) as store:
        assert len(store) == 0


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("program.py", 0, "valid"),
        ("program:made", 0, "valid"),
        ("program:number", 1, "is int, and no topology"),
        ("program:topolgy", 1, "did you mean 'topology'"),
        ("absent:topology", 1, "there is no module 'absent'"),
        ("absent.py", 1, "there is no file absent.py"),
    ],
)
def test_a_dry_run_validates_and_starts_nothing(target, code, told, tmp_path, capsys, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "program", raising=False)
    assert main(["run", target, "--dry-run"]) == code
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
    assert sorted(each.name for each in tmp_path.glob("*") if each.name != "__pycache__") == ["program.py"]


@pytest.mark.parametrize(
    "settings",
    [
        ["-c", "topology.message.timeout.sec=3"],
        ["-c", "mesage_timeout_secs=3"],
        ["-c", "message_timeout_secs"],
    ],
)
def test_a_setting_that_does_not_exist_is_refused(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "program", "--checkpoint", "cp", *settings]) == 1
    assert "fix:" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "x"], ["submit", "x"], ["stats"], ["monitor", "x", "-w", "y"]])
def test_usage_is_2(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_its_code(running, number, code):
    command = [sys.executable, "-m", "acktree", "monitor", "numbers", "-i", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ, cwd=Path.cwd()) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(number)
        assert child.wait(30) == code


def test_a_doctor_names_what_is_wrong_and_its_mend(running, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "cp").chmod(0o755)
    assert main(["doctor", str(tmp_path / "cp"), "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert not checks["java"]["is_ok"]
    assert "install Java" in checks["java"]["fix"]
    assert f"chmod 700 {tmp_path / 'cp'}" in checks["rights"]["fix"]
    assert checks["python"]["is_ok"]
    assert checks["lock"]["found"].startswith("runs: process")


def test_a_driver_that_was_killed_is_said_to_have_died_and_the_next_one_takes_over(tmp_path, capsys):
    program = f"""
import os, signal
from pathlib import Path
from tests.unit.ui.driver_without_spark import Started
topology = Started(Path({str(tmp_path / "cp")!r}))
topology.begin()
topology.fill()
topology.door._observer.latest(0)
topology.door._keep(topology.door._observer._latest[1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (listed,) = said(capsys, "list")["topologies"]
    assert listed["status"] == "DIED"
    assert main(["activate", "numbers"]) == 3
    assert "is gone" in capsys.readouterr().err
    assert said(capsys, "stats", "numbers")["status"] == "DIED"
    with started(tmp_path / "cp"):
        assert said(capsys, "list")["topologies"][0]["status"] == "ACTIVE"
        assert said(capsys, "stats", "numbers")["id"].startswith("numbers-2-")
