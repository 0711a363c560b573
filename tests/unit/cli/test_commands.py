"""The commands against a driver that runs: what they print, as text and as JSON, and their exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from acktree.checkpoint.folder import Checkpoint
from acktree.cli.answers import UsageError
from acktree.cli.main import main
from acktree.cli.run import _ended
from acktree.cli.targets import config_of, in_module
from acktree.config import Config
from acktree.core.stats.counters import NO_STREAM, Counters
from acktree.core.stats.numbers import ReportedError
from acktree.errors import MisuseError
from acktree.system.private_files import Disk
from acktree.tasks.failures import failure_of
from acktree.ui.client import find
from acktree.ui.places import SNAPSHOT, entries
from acktree.ui.web.sources import Sources
from tests.unit.cli.answers import said
from tests.unit.traces.facts import record
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

def raises():
    raise ValueError("no \\x1b[31m file")

def needs_one(argument):
    return made()
"""


def test_a_running_topology_is_listed_shown_and_counted(running, capsys, tmp_path):
    running.fill()
    while find("numbers").door.snapshot(0).account()["open"] != 10:  # a first one that took long, then rests
        time.sleep(0.05)
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


def test_a_list_that_is_cut_says_how_to_see_the_rest(running, capsys, monkeypatch):
    running.fill()
    for count, cut in ((4, True), (10, False), (11, False)):
        assert main(["open", "numbers", "--limit", str(count)]) == 0
        assert ("the oldest 4 of 10; further ones: a larger --limit" in capsys.readouterr().out) == cut
    monkeypatch.setattr("acktree.ui.door_routes.MOST_OPEN", 4)
    monkeypatch.setattr("acktree.cli.watch.MOST_OPEN", 4)
    assert main(["open", "numbers", "--limit", "4"]) == 0
    assert capsys.readouterr().out.endswith("the oldest 4 of 10\n")
    record(running.run.traces)
    for count, cut in ((4, True), (11, False)):
        assert main(["trace", "numbers", "--limit", str(count)]) == 0
        assert ("the newest 4; further ones: a larger --limit" in capsys.readouterr().out) == cut


def test_only_the_last_errors_are_printed_and_that_is_said(running, capsys):
    for number in range(25):
        running.run.errors.add(ReportedError("double", 1, f"error {number}", 60_000 * number, ""))
    running.door._observer.forget()
    assert main(["get-errors", "numbers"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "the last 20 of the 25 that are kept; --json has all of these"
    assert [line.rpartition(" ")[2] for line in printed[2:]] == [*map(str, range(5, 25))]
    assert len(said(capsys, "get-errors", "numbers")["errors"]) == 25


@pytest.mark.parametrize("command", ["top", "monitor"])
def test_what_goes_on_for_ever_ends_when_its_time_is_over(command, running, capsys):
    assert main([command, "numbers", "-i", "0.1", "--timeout", "3"]) == 4
    printed = capsys.readouterr()
    assert printed.out.count("numbers") >= 2
    assert "3 s are over" in printed.err


def test_events_that_are_followed_end_when_their_time_is_over(running, capsys):
    assert main(["events", "numbers", "--follow", "--timeout", "0.5"]) == 4
    assert "0.5 s are over" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "doctor", "version", "ui", "rebalance x", "reset-state x"])
def test_what_waits_for_nothing_takes_no_time_to_wait(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--timeout", "1"])
    assert stopped.value.code == 2
    assert "--timeout" in capsys.readouterr().err


def test_why_a_spout_was_not_asked_is_among_the_numbers(running, capsys):
    counters = Counters()
    counters.add_not_asked("source", 1, "inactive", 12.34)
    counters.add_not_asked("source", 1, "pending_full", 1.0)
    running.run.results._count(counters)
    running.door._observer.forget()
    assert main(["stats", "numbers", "--window", ":run"]) == 0
    said = r"spout source was not asked for messages: inactive 12\.\d s, pending full \d\.\d s\n"
    assert re.search(said, capsys.readouterr().out)


def test_a_traceback_is_printed_once(running, capsys):
    for number, traceback in enumerate(["Traceback one", "Traceback one", None, "Traceback two"]):
        running.run.errors.add(ReportedError("double", 1, f"error {number}", 1000 + number, traceback))
    running.door._observer.forget()
    assert main(["get-errors", "numbers"]) == 0
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line.partition(": ")[2] or line for line in printed] == [
        "error 0",
        "Traceback one",
        "error 1",
        "its traceback is above",
        "error 2",
        "error 3",
        "Traceback two",
    ]


def test_numbers_of_a_busy_driver_come_with_their_age(running, capsys, monkeypatch):
    assert main(["stats", "numbers"]) == 0
    assert "no newer numbers" not in capsys.readouterr().out
    before = said(capsys, "show", "numbers")["taken_ms"]
    go_on, windows = threading.Event(), running.door._observer._windows_now
    monkeypatch.setattr("acktree.cli.watch._MOST_AGE_SECS", -1e9)
    monkeypatch.setattr(running.door._observer, "_windows_now", lambda: go_on.wait(120) and windows())
    with monkeypatch.context() as short:
        short.setattr("acktree.ui.observer._NEW_WAIT_SECS", 0.2)
        try:
            assert said(capsys, "show", "numbers")["taken_ms"] == before
            assert main(["stats", "numbers"]) == 0
        finally:
            go_on.set()
    assert "its driver has made no newer numbers: these are " in capsys.readouterr().out.splitlines()[0]
    assert said(capsys, "show", "numbers")["taken_ms"] > before, "and then it makes some again"


def test_an_error_is_printed_once_and_not_again_at_the_end_of_its_traceback(running, capsys):
    misuse = MisuseError("acked twice", "component 'double'", "ack once")
    for raised in (misuse, ValueError("no number")):
        try:
            raise raised
        except (MisuseError, ValueError) as error:
            running._report("double", 1, failure_of(error, "double"))
    running._report("double", 1, failure_of(MisuseError("kept", "bolt 'double'", "ack it"), "double"))
    running.door._observer.forget()
    assert main(["get-errors", "numbers"]) == 0
    printed = capsys.readouterr().out
    for text in ("acked twice", "component 'double'", "ack once", "ValueError: no number", "kept", "ack it"):
        assert printed.count(text) == 1, text
    assert (printed.count("raise raised\n"), printed.count("its traceback is above\n")) == (1, 1)
    assert printed.endswith("MisuseError: kept\n  where: bolt 'double'\n  fix:   ack it\n")


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


@pytest.mark.parametrize(
    ("target", "code", "expected"),
    [
        ("program.py", 0, "valid"),
        ("program:made", 0, "valid"),
        ("program:number", 1, "is int, and no topology"),
        ("program:topolgy", 1, "did you mean 'topology'"),
        ("absent:topology", 1, "there is no module 'absent'"),
        ("absent.py", 1, "there is no file absent.py"),
        (":topology", 1, "nothing cannot be imported"),
        (".program", 1, "is no name of a module"),
        ("./program:topology", 1, "name the file: program.py"),
        ("./absent:topology", 1, "name a module"),
        ("program:Double.outputs", 1, "has no 'Double.outputs'"),
        ("program:raises", 1, ", in raises"),
        ("program:needs_one", 1, "needs arguments, and is given none"),
    ],
)
def test_a_dry_run_validates_and_starts_nothing(target, code, expected, tmp_path, capsys, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "program", raising=False)
    assert main(["run", target, "--dry-run"]) == code
    printed = capsys.readouterr()
    assert expected in printed.out + printed.err
    assert sorted(each.name for each in tmp_path.glob("*") if each.name != "__pycache__") == ["program.py"]


def test_a_module_that_submits_when_it_is_imported_is_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pyspark")
    program = f"{PROGRAM}\nfrom acktree import submit\nsubmit(topology, checkpoint='cp')\n"
    (tmp_path / "submits.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["run", "submits.py", "--checkpoint", "other"]) == 1
    refused = capsys.readouterr().err
    assert "submits.py submits a topology when it is imported" in refused
    assert "if __name__ == '__main__':" in refused
    assert not (tmp_path / "cp").exists()


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
    assert main(["run", "program", "--checkpoint", "cp", *settings]) == 2
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
        assert child.wait(120) == code


def test_a_doctor_names_what_is_wrong_and_its_fix(running, capsys, tmp_path, monkeypatch):
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


def test_of_a_run_that_left_no_numbers_the_earlier_ones_are_said_to_be_anothers(tmp_path, capsys):
    with started(tmp_path / "cp"):
        pass  # run 1 stops in order
    program = f"""
import os, signal
from pathlib import Path
from acktree.ui.observer import TopologyObserver
from tests.unit.ui.driver_without_spark import Started
TopologyObserver._keep_one = lambda observer, made: None  # it dies before it has kept one
Started(Path({str(tmp_path / "cp")!r})).begin()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert main(["stats", "numbers"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith("numbers-2-")
    assert "DIED  it left no numbers; those of numbers-1-" in head
    assert said(capsys, "list")["topologies"][0]["status"] == "DIED"
    assert said(capsys, "stats", "numbers")["status"] == "DIED"
    assert Sources().one("numbers").status == "DIED"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_module_that_raises_is_an_error_with_its_traceback_and_an_object_for_json(
    program, expected, tmp_path, capsys, monkeypatch
):
    (tmp_path / "broken.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["run", "broken.py", "--dry-run", "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    refused = json.loads(printed.err)
    assert "broken cannot be imported" in refused["error"]
    assert expected in refused["error"]
    assert "broken.py" in refused["error"]
    assert "importlib" not in refused["error"]


@pytest.mark.parametrize("name", ["a" * 300, "a/b" * 2000])
def test_a_name_that_no_file_can_have_is_not_found(name, capsys):
    assert main(["stats", name]) == 1
    assert "there is no topology and no checkpoint" in capsys.readouterr().err


def test_the_longest_wait_is_kept_by_each_command_that_asks_a_driver(running, capsys):
    (listed,) = said(capsys, "list")["topologies"]
    (entry,) = entries()
    live = Path(entry.socket).rename(f"{entry.socket}.live")
    with socket.socket(socket.AF_UNIX) as silent:  # accepts, and never answers
        silent.bind(entry.socket)
        silent.listen(100)
        for command in (
            ["stats", "numbers"],
            ["show", listed["id"]],
            ["open", "numbers"],
            ["top", "numbers"],
            ["monitor", "numbers"],
            ["activate", "numbers"],
            ["health", "numbers"],
            ["dead-letters", "list", "numbers"],
            ["dead-letters", "redrive", "numbers", "--all", "--yes"],
            ["dead-letters", "purge", "numbers", "--all", "--yes"],
        ):
            assert main([*command, "--timeout", "0.05"]) == 4, command
        capsys.readouterr()
        assert main(["health", "--timeout", "0.05", "--json"]) == 1
        (checks,) = json.loads(capsys.readouterr().out)["topologies"].values()
        assert "no answer" in checks[0]["found"]
    live.rename(entry.socket)


def test_monitor_counts_what_a_bolt_reads_and_refuses_a_stream_that_there_is_not(
    running, capsys, monkeypatch
):
    def counted(executed):
        counters = Counters()
        counters.add("double", 1, "source:default", "executed", executed)
        counters.add("double", 1, NO_STREAM, "errors", executed)
        running.count(counters)
        running.door._observer.forget()  # on a slow machine it rests longer than the two looks are apart

    monkeypatch.setattr(
        "acktree.cli.live.time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: counted(7))
    )
    for what in ("executed", "errors"):
        command = ["monitor", "numbers", "-m", "double", "-w", what, "-n", "2", "-i", "0"]
        assert said(capsys, *command)[what] == 7
    assert main(["monitor", "numbers", "-n", "1", "-s", "defualt"]) == 1
    assert "did you mean 'default'" in capsys.readouterr().err


def test_a_doctor_of_a_checkpoint_that_is_gone_says_so(tmp_path, capsys):
    with started(tmp_path / "cp"):
        pass
    shutil.rmtree(tmp_path / "cp")
    assert main(["doctor", "numbers", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "No such file" in checks["checkpoint"]["found"]


def test_a_kill_returns_when_the_next_driver_may_have_the_checkpoint(running, monkeypatch, tmp_path):
    drop = running.held.drop_scratch_folder
    monkeypatch.setattr(running.held, "drop_scratch_folder", lambda: (time.sleep(0.6), drop()))
    assert main(["kill", "numbers", "-w", "0"]) == 0
    disk = Disk()
    disk.unlock(disk.lock(tmp_path / "cp" / "lock"))


def test_a_submit_that_could_not_see_its_driver_starts_none(tmp_path, capsys):
    command = ["submit", "program", "--checkpoint", str(tmp_path / "cp"), "-c", "control=false"]
    assert main([*command, "--timeout", "0.1"]) == 1
    assert "gives it no socket" in capsys.readouterr().err
    assert not (tmp_path / "cp").exists()


def test_a_submit_of_what_has_ended_says_so_and_is_no_error(tmp_path, capsys):
    pytest.importorskip("pyspark")
    program, place = tmp_path / "has_ended.py", tmp_path / "cp"
    program.write_text(PROGRAM)
    held = Checkpoint(place)
    held.begin_run(in_module(str(program))[1], Config(), 2)
    held.mark_ended()
    held.close()
    assert main(["submit", str(program), "--checkpoint", str(place)]) == 0
    assert capsys.readouterr().out == f"the topology on {place} has ended, and there is nothing to run\n"


def test_a_run_of_what_has_ended_shows_the_table_of_the_run_that_ended_it(tmp_path, capsys):
    pytest.importorskip("pyspark")
    program, place = tmp_path / "has_ended_before.py", tmp_path / "cp"
    program.write_text(PROGRAM)
    command = ["run", str(program), "--checkpoint", str(place)]
    with started(place, given=in_module(str(program))[1]) as topology:
        end = time.monotonic() + 120
        while topology.handle.stats()["numbers"].total.acked < 3:
            assert time.monotonic() < end
            topology.run_inbox()
            time.sleep(0.01)
        topology.door._observer.forget()
        kept = find(str(place)).snapshot()
    held = Checkpoint(place)
    held.mark_ended()
    held.close()
    assert main(command) == 0
    assert "nothing left to do" not in capsys.readouterr().out  # it was stopped
    (place / SNAPSHOT).write_bytes(replace(kept, status="ENDED").to_json())
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("made has ended: there was nothing left to do. The numbers of run 1:\nspout ")
    assert "\nacked: 3\n" in printed
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ended_in_run"], told["acked"], told["status"]) == (1, 0, "ENDED")


def test_no_process_that_submit_starts_has_a_secret_in_its_arguments(tmp_path, capsys):
    """Every user of the machine reads them, for as long as the process runs."""
    program, seen = tmp_path / "notes_arguments.py", tmp_path / "seen"
    program.write_text(
        "import sys; from pathlib import Path\n"
        "said = Path('/proc/self/cmdline').read_bytes() + sys.stdin.buffer.read()\n"
        f"Path({str(seen)!r}).write_bytes(said)\n"
        "sys.exit('it was seen')\n"
    )
    url = "sqlite:////tmp/none.sqlite?password=S3cr3t"
    settings = tmp_path / "settings"
    settings.write_text(f"acktree.dead.letters.url={url}\n")
    quoted = f"dead_letters_url={json.dumps(url)}"
    for setting in (f"acktree.dead.letters.url={url}", quoted, f"@{settings}"):
        seen.unlink(missing_ok=True)
        assert main(["submit", str(program), "--checkpoint", str(tmp_path / "cp"), "-c", setting]) == 1
        assert "it was seen" in capsys.readouterr().err
        assert b"notes_arguments" in seen.read_bytes()
        assert b"S3cr3t" not in seen.read_bytes()


def test_settings_of_a_file_are_as_if_they_were_given_there(tmp_path, monkeypatch):
    file = tmp_path / "settings"
    file.write_text("partitions=3\n\n# none\n  run_salt=7 \n")
    assert config_of(["partitions=2", f"@{file}", "run_salt=9"]) == Config(partitions=3, run_salt=9)
    monkeypatch.setattr(sys, "stdin", io.StringIO("run_salt=5\nmax_spout_pending=8"))
    assert config_of(["@-"]) == Config(run_salt=5, max_spout_pending=8)
    for wrong in (f"@{tmp_path}", "@", f"@{file}.none"):
        with pytest.raises(UsageError, match="cannot be read"):
            config_of([wrong])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="cannot be read"):
        config_of(["@-"])


URL = "postgresql://me:S3cr3t@host/letters"


@pytest.mark.parametrize("line", [URL, f"dead_letters_url {URL}", "S3cr3t"])
def test_a_line_without_a_key_is_named_by_its_number_and_not_shown(tmp_path, line):
    file = tmp_path / "settings"
    file.write_text(f"partitions=3\n\n{line}\n")
    with pytest.raises(UsageError, match="line 3 is no setting") as refused:
        config_of([f"@{file}"])
    assert "S3cr3t" not in str(refused.value)
    if line != "S3cr3t":
        with pytest.raises(UsageError, match="is no setting") as refused:
            config_of([line])
        assert "S3cr3t" not in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "²", "127.0.0.1:http"])
def test_a_page_at_no_address_is_refused(address, capsys):
    pytest.importorskip("starlette")
    assert main(["ui", "--listen", address]) == 2
    assert "is no address" in capsys.readouterr().err


def test_a_component_that_there_is_not_is_hinted_at_and_is_no_error(with_letters, capsys):
    assert main(["dead-letters", "list", "numbers", "--component", "duble"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "0 match\n"
    assert "did you mean 'double'?" in printed.err
    assert main(["dead-letters", "list", "numbers", "--component", "double"]) == 0
    assert capsys.readouterr().err == ""


def test_a_setting_of_classes_is_given_by_its_name_too():
    (consumer,) = config_of(['metrics_consumers=["acktree.LoggingMetricsConsumer"]']).metrics_consumers
    assert type(consumer).__name__ == "LoggingMetricsConsumer"
    waits = "spout_wait_strategy=org.apache.storm.policy.WaitStrategyPark"
    assert config_of([waits]).spout_wait_strategy == "park"


def test_what_an_earlier_driver_has_logged_is_no_reason_of_this_ones_end(tmp_path):
    log = tmp_path / "driver.log"
    log.write_text("an old reason\n")
    begins = log.stat().st_size
    said_nothing = _ended(1, log, begins)
    assert "does not say why" in said_nothing.what
    assert "MB free now" in said_nothing.where
    with log.open("a") as more:
        more.write("a new reason\n")
    said = _ended(1, log, begins)
    assert "a new reason" in said.what
    assert "old" not in said.what
