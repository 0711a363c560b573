"""How long a child lives: workers, keepers and runs end, and children with them or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from acktree.multilang import SubprocessError, keeper
from acktree.multilang.child import Child
from acktree.system.processes import is_alive
from tests.unit.multilang.bench import ROOT, await_end, bench, started


def lent(**more: Any) -> Child:
    """A child that sends what it is sent."""
    return Child(["cat"], "component 'shell', task 1", 60, **more)


HALF = """printf '["a"]\\nend\\n["b"'; read line; printf ']\\nend\\n'; sleep 1000"""


def test_a_child_that_is_given_back_goes_on_in_the_middle_of_a_message():
    def half(version: str) -> Child:
        return Child(["sh", "-c", HALF], "component 'shell', task 1", 60, name="one", version=version)

    first = half("")
    assert (first.is_new, first.receive()) == (True, ["a"])
    while not first._frames.rest:
        list(first.arrived())
    first.give_back("v1")
    again = half("v1")
    assert (again.pid, again.is_new) == (first.pid, False)
    again.write([])
    assert again.receive() == ["b"]
    again.abandon()


@pytest.mark.parametrize("change", [{"version": "v2"}, {"mark": "other"}, {"env": {"A": "b"}}])
def test_a_child_that_is_not_what_was_expected_is_replaced(change):
    first = lent(name="two")
    first.give_back("v1")
    second = lent(**{"name": "two", "version": "v1", **change})
    assert second.is_new
    await_end(first.pid)
    second.close()
    await_end(second.pid)


def test_who_asks_for_a_lent_child_gets_a_new_one_and_the_first_is_told():
    first, second = lent(name="three"), lent(name="three")
    assert second.is_new
    with pytest.raises(SubprocessError, match="another attempt of this task"):
        first.receive()
    await_end(first.pid)
    second.write([1])
    assert second.receive() == [1]
    second.abandon()
    await_end(second.pid)


BORROWER = """
import sys
from acktree.multilang import keeper
from acktree.multilang.child import Child
script = "trap '' HUP TERM; sleep 1000 & echo [$$, $!]; echo end; cat; sleep 1000"
child = Child(["sh", "-c", script], "here", 60, name="x")
pids = child.receive()
{then}
print(*pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("then", ["", "child.give_back('v1')"], ids=["lent", "given back"])
def test_a_child_does_not_outlive_the_process_that_its_keeper_belongs_to(then):
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER.replace("{then}", then)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.kill()
        for pid in pids:
            await_end(pid)


def test_the_children_of_a_topology_end_with_it_and_those_of_another_live_on(tmp_path):
    other = lent()
    with bench(tmp_path) as shell:
        shell.feed("hold")
        (pid,) = started(tmp_path)
        assert is_alive(pid, of_others=False)
        shell.running.kill()
        assert not is_alive(pid, of_others=False)
    other.write([1])
    assert other.receive() == [1]
    other.close()


def test_a_child_that_does_not_end_by_itself_is_killed_at_the_end_of_its_run():
    script = "trap '' TERM; echo '[]'; echo end; sleep 1000 & wait; sleep 1000"
    stubborn = Child(["sh", "-c", script], "here", 60, name="stubborn", run_id="r1")
    assert stubborn.receive() == []
    stubborn.give_back("v1")
    keeper.end_run("r1")
    assert not is_alive(stubborn.pid, of_others=False)


def test_who_still_uses_a_child_of_a_run_that_is_over_is_told_and_none_starts_for_it_again():
    late = lent(name="late", run_id="r2")
    keeper.end_run("r2")
    assert not is_alive(late.pid, of_others=False)
    with pytest.raises(SubprocessError, match="its run has ended"):
        late.receive()
    with pytest.raises(SubprocessError, match="the run has ended"):
        lent(name="late", run_id="r2")
    lent(name="late", run_id="r3").close()


def test_the_end_of_a_run_passes_a_keeper_that_is_stopped(stopped_keeper):
    child = lent(name="held", run_id="r4")
    child.give_back("v1")
    stopped_keeper(child)
    keeper.end_run("r4")
    await_end(child.pid)


FORKED = """
import os
from acktree.multilang.child import Child

def lent(version):
    return Child(["cat"], "here", 60, name="x", version=version)

first = lent("")
first.give_back("v1")
forked = os.fork()
if not forked:
    child = lent("v1")
    child.write([1])
    assert child.receive() == [1]
    child.give_back("v2")
    os._exit(child.pid != first.pid)
print(os.waitpid(forked, 0)[1], lent("v2").pid == first.pid)
"""


def test_a_forked_process_of_a_worker_borrows_the_same_child():
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True,
        env=os.environ | {"SPARK_REUSE_WORKER": "1"},
    )  # fmt: skip
    assert done.stdout == "0 True\n", done.stderr


def keeper_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux alone kills the children of a killed keeper")
@pytest.mark.parametrize("is_lent", [True, False])
def test_a_killed_keeper_leaves_no_child_and_a_new_one_is_started(is_lent):
    child = Child(["sleep", "1000"], "component 'shell', task 1", 60, name="four")
    if not is_lent:
        child.give_back("v1")
    os.kill(keeper_of(child.pid), signal.SIGKILL)
    if is_lent:
        with pytest.raises(SubprocessError, match="its keeper ended"):
            child.receive()
    await_end(child.pid)
    another = lent(name="four", version="v1")
    assert another.is_new
    another.close()


@pytest.fixture
def stopped_keeper(monkeypatch):
    """Stops the keeper of a child; it is noticed after 2 s."""
    monkeypatch.setattr(keeper, "ANSWER_SECS", 2)
    monkeypatch.setattr(keeper, "GRACE_SECS", 0.2)
    stopped: list[int] = []

    def stop(child: Child) -> int:
        stopped.append(keeper_of(child.pid))
        os.kill(stopped[-1], signal.SIGSTOP)
        return stopped[-1]

    yield stop
    for process in stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux alone kills the children of a killed keeper")
def test_a_stopped_keeper_is_killed_with_its_children_and_a_new_one_is_started(stopped_keeper):
    child = Child(["sleep", "1000"], "component 'shell', task 1", 60, name="six")
    child.give_back("v1")
    stopped = stopped_keeper(child)
    another = lent(name="six", version="v1")
    assert another.is_new
    assert keeper_of(another.pid) != stopped
    await_end(child.pid)
    another.close()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the keeper in /proc")
def test_a_child_cannot_be_given_back_to_a_stopped_keeper_and_is_killed(stopped_keeper):
    child = lent()
    stopped_keeper(child)
    with pytest.raises(SubprocessError, match="its keeper does not answer"):
        child.give_back("v1")
    await_end(child.pid)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the keeper in /proc")
def test_a_child_that_is_closed_ends_also_while_its_keeper_is_stopped(stopped_keeper):
    child = lent()
    stopped_keeper(child)
    child.close(0.1)
    await_end(child.pid)


def test_tuples_of_a_killed_keeper_fail_and_the_next_ones_are_served(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("hold")
        (first,) = started(tmp_path)
        os.kill(keeper_of(first), signal.SIGKILL)
        await_end(first)
        shell.feed("after")
        assert shell.feeder.acked == ["after"]
        assert "the child process that this task had is gone" in shell.failed["hold"].reason


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_may_enter_is_not_used_for_the_socket_of_a_keeper(mode):
    folder = Path(tempfile.gettempdir(), f"acktree-keeper-{os.getuid()}-0")  # of no process
    folder.mkdir()
    folder.chmod(mode)
    try:
        with pytest.raises(PermissionError, match="is not a folder that only this user can access"):
            keeper.connect(0)
        assert not [*folder.iterdir()]
    finally:
        folder.rmdir()


def test_a_request_that_is_no_json_ends_its_connection_alone():
    child = lent()
    with keeper.connect(os.getpid()) as stranger:
        stranger.sendall(b"no JSON\n")
        assert stranger.recv(100) == b""
    child.write([1])
    assert child.receive() == [1]
    child.abandon()


def test_a_keeper_starts_also_where_acktree_is_in_a_zip_as_on_an_executor(tmp_path):
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as code:
        code.write(keeper.__file__, "zipped_keeper.py")
    program = f"""
import json, os, socket, sys
sys.path.insert(0, {str(tmp_path / "code.zip")!r})
import zipped_keeper
connection = zipped_keeper.connect(os.getpid())
request = {{"command": ["cat"], "folder": "/", "name": "", "version": "", "environ": {{}}}}
request |= {{"mark": "", "run_id": ""}}
connection.sendall(json.dumps(request).encode() + b"\\n")
print(socket.recv_fds(connection, 65536, 2)[0].decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert '"is_new": true' in done.stdout
