"""A running checkpoint at a URL, and one that nobody runs, through the commands and the page."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from acktree import Config
from acktree.checkpoint.mirror import Mirror
from acktree.cli.main import main
from acktree.system.private_files import Disk
from acktree.ui.places import write_entry
from acktree.ui.web.serve import Options, serve
from tests.unit.checkpoint.remote_folder import RemoteFolder
from tests.unit.traces.facts import record
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at
from tests.unit.ui.web.doors import asked_by_rest

pytestmark = pytest.mark.usefixtures("own_runtime")

URL = "there://host/checkpoints/numbers"


@pytest.fixture
def at_url(tmp_path):
    """A topology whose checkpoint is at a URL."""
    remote = RemoteFolder(tmp_path / "there")
    remote.url = URL
    mirror = Mirror.open(remote, str(tmp_path))
    with started(mirror.folder, config=Config(max_spout_pending=10), files=mirror) as topology:
        topology.fill()
        record(topology.run.traces)
        yield topology


@pytest.fixture
def page():
    serving = serve(Options(checkpoints=(URL,)))
    yield page_at(next(serving))
    serving.close()


def refused(capsys, code, command):
    """The one error of a command, as text and as JSON."""
    assert main([*command, "--json"]) == code
    error = json.loads(capsys.readouterr().err)
    assert error.keys() == {"error", "where", "fix"}
    assert main(command) == code
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["acktree", "where", "fix"]
    assert lines[0] == f"acktree: {error['error']}"
    return error


def test_each_command_answers_for_a_topology_that_runs_at_a_url(at_url, capsys):
    for named in (URL, "numbers"):
        for command in ("show", "stats", "get-errors", "open", "trace", "events", "set-log-level", "health"):
            assert main([command, named]) == 0, command
        assert main(["dead-letters", "list", named]) == 0
    capsys.readouterr()
    (message,) = at_url.handle.traces.find(verdict="FAILED")
    assert main(["trace", URL, str(message.root)]) == 0
    assert "double task" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["topologies"]
    assert (listed["checkpoint"], listed["status"]) == (URL, "ACTIVE")
    assert main(["doctor", URL]) == 0
    assert f"{URL} is at a URL, which is not looked at" in capsys.readouterr().out
    assert main(["deactivate", URL]) == 0
    assert main(["activate", URL]) == 0
    capsys.readouterr()
    for command in (["rebalance", URL, "--partitions", "3"], ["reset-state", URL]):
        assert f"acktree kill {URL}" in refused(capsys, 1, command)["fix"]
    assert f"acktree kill {URL}" in refused(capsys, 1, ["submit", "it.py", "--checkpoint", URL])["fix"]
    assert main(["kill", URL, "-w", "0"]) == 0
    assert at_url.handle.await_termination(10)


def test_a_kill_returns_when_the_next_driver_may_have_the_checkpoint_at_a_url(at_url, capsys, tmp_path):
    lease = at_url.held.files._lease
    release, statuses = lease.release, []

    def slow_release():
        time.sleep(0.5)
        assert main(["list", "--json", "--all"]) == 0
        statuses.append(json.loads(capsys.readouterr().out)["topologies"][0]["status"])
        release()

    lease.release = slow_release
    assert main(["kill", URL, "-w", "0"]) == 0
    assert statuses == ["KILLED"]
    remote = RemoteFolder(tmp_path / "there")
    with started(Mirror.open(remote, str(tmp_path)).folder):  # raises if the lease is held
        pass


def test_a_driver_that_stops_leaves_the_socket_of_the_next_one_where_it_is(at_url, tmp_path):
    first = at_url.door
    at_url.handle.kill(wait_secs=0)
    remote = RemoteFolder(tmp_path / "there")
    remote.url = URL
    mirror = Mirror.open(remote, str(tmp_path))
    with started(mirror.folder, files=mirror) as second:
        first.leave()
        assert Path(second.door._entry.socket).exists()


def test_the_page_shows_and_orders_a_topology_that_runs_at_a_url(at_url, page):
    (about,) = page.json("/api/acktree/v1/topologies")["topologies"]
    answers = asked_by_rest(page, about["id"], ["source", "double"])
    ours = f"/api/acktree/v1/topologies/{about['id']}"
    assert {path: status for path, (status, _) in answers.items() if status != 200} == {
        f"{ours}/dead-letters/1": 404  # there is none
    }
    (traced,) = page.json(f"{ours}/traces?verdict=FAILED")["messages"]
    assert page.json(f"{ours}/traces/{traced['root']}")["tree"]["lines"]
    assert page.ask(f"/api/v1/topology/{about['id']}/deactivate", "POST", b"")[0] == 200
    assert page.ask(f"/api/v1/topology/{about['id']}/kill/0", "POST", b"")[0] == 200


NEEDS_A_DRIVER = (
    "open T", "top T", "activate T", "deactivate T", "kill T", "set-log-level T", "health T",
    "trace T --rate 0.5", "debug T on", "dead-letters redrive T 1 --yes",
)  # fmt: skip
READS_ITS_FILES = {
    "stats T": "numbers were in the memory of its driver",
    "show T": "numbers were in the memory of its driver",
    "get-errors T": "numbers were in the memory of its driver",
    "trace T": "traces were in the memory of its driver",
    "events T": "events were deleted",
    "dead-letters list T": "in a database of yours",
    "dead-letters show T 1": "in a database of yours",
    "dead-letters purge T --all --yes": "in a database of yours",
    "rebalance T --partitions 3": "a folder that executors see, and this checkpoint is at a URL",
    "reset-state T": "a folder that executors see, and this checkpoint is at a URL",
}


def test_of_a_url_that_nobody_runs_any_more_each_command_says_one_line_with_its_code(at_url, capsys):
    at_url.handle.kill(wait_secs=0)
    for command in NEEDS_A_DRIVER:
        error = refused(capsys, 3, command.replace("T", URL).split())
        assert error["error"].startswith("nobody runs topology 'numbers'")
        assert (error["where"], error["fix"]) == (URL, "submit it again on this checkpoint")
    for command, said in READS_ITS_FILES.items():
        error = refused(capsys, 1, command.replace("T", URL).split())
        assert said in error["error"]
        assert error["where"] == URL
    assert main(["list", "--all", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["topologies"]
    assert listed["status"] == "STOPPED"


def test_a_url_that_nobody_has_run_here_is_said_with_what_there_is(at_url, capsys):
    other = URL.replace("numbers", "others")
    read = [command for command in READS_ITS_FILES if not command.startswith(("rebalance", "reset"))]
    for command in (*NEEDS_A_DRIVER, *read):
        error = refused(capsys, 1, command.replace("T", other).split())
        assert error["error"] == f"there is no topology and no checkpoint '{other}'"
        assert "'numbers'" in error["fix"]


def test_a_url_whose_driver_is_gone_without_a_word_is_said_to_have_died(at_url, capsys):
    door = at_url.door
    door._server.shutdown()
    door._server.server_close()  # its socket stays, as after kill -9
    ended = subprocess.Popen(["true"])
    ended.wait()
    write_entry(replace(door._entry, pid=ended.pid), door._entry_file, Disk())
    for command in NEEDS_A_DRIVER:
        assert main([*command.replace("T", URL).split(), "--json"]) == 3, command
        assert json.loads(capsys.readouterr().err).keys() == {"error", "where", "fix"}
    assert main(["list", "--all", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["topologies"]
    assert listed["status"] == "DIED"


def test_a_page_of_a_url_that_nobody_runs_shows_the_others_and_says_it_once(page, caplog, tmp_path):
    caplog.set_level(logging.WARNING)
    with started(tmp_path / "cp"):
        for _ in range(2):
            (about,) = page.json("/api/acktree/v1/topologies")["topologies"]
            assert about["name"] == "numbers"
        assert sum(URL in record.getMessage() for record in caplog.records) == 1
        assert page.ask("/api/acktree/v1/topologies/nobody")[0] == 404
