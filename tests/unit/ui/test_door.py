"""The driver's door: who is answered, what is said, and what becomes of orders."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from acktree.core.stats.counters import Counters
from acktree.driver.run import Run
from acktree.errors import ConfigError
from acktree.system.private_files import UNPUBLISHED
from acktree.ui.client import DoorClient, DoorError, NobodyRunsError, find, found_topologies
from acktree.ui.observer import own_version
from acktree.ui.places import POINTER, SNAPSHOT, entries, forget_gone, read_entry, runtime_folder
from acktree.ui.snapshot import Snapshot, plain
from tests.unit.dead_letters.letters import LETTER
from tests.unit.forked import child, descriptors_of
from tests.unit.ui.driver_without_spark import Started, first_kept, started


def test_what_the_door_says_is_what_stats_says(running):
    counters = Counters()
    counters.add("double", 1, "source:default", "executed", 7)
    counters.add_latency("double", 1, "source:default", "execute_ms", 21.0, 7)
    running.count(counters)
    snapshot = find("numbers").door.snapshot(0)
    assert snapshot.stats["double"] == running.handle.stats()["double"]
    assert snapshot.status == "ACTIVE"
    assert snapshot.topology == "numbers"
    assert snapshot.version == "1.2.3"
    assert snapshot.windows["10"].stats["double"].total.executed == 7
    assert snapshot.spouts == ("source",)
    assert snapshot.graph["components"]["double"]["class"] == "Double"


def test_a_snapshot_survives_json_and_what_a_newer_driver_adds(running):
    snapshot = find("numbers").door.snapshot()
    given = json.loads(snapshot.to_json())
    given["news"] = given["acker"]["news"] = given["windows"][":all-time"]["stats"]["news"] = 1
    given["windows"][":all-time"]["stats"]["components"]["double"]["total"]["p99"] = 2.0
    assert Snapshot.from_json(json.dumps(given)) == Snapshot.from_json(snapshot.to_json())
    with pytest.raises(ValueError, match="no snapshot"):
        Snapshot.from_json(b"[]")


def test_orders_are_carried_out_and_seen_at_once(running):
    door = find("numbers").door
    door.order("deactivate")
    assert door.snapshot().status == "INACTIVE"
    door.order("activate")
    assert door.snapshot().status == "ACTIVE"
    door.order("kill", {"wait_secs": 0})
    assert running.run.ended.wait(120)
    with pytest.raises(NobodyRunsError):
        door.snapshot()


@pytest.mark.parametrize("secs", [-1, float("nan"), 1e300])
def test_a_kill_that_waits_no_number_of_seconds_is_refused(running, secs):
    with pytest.raises(DoorError, match="no number of seconds"):
        find("numbers").door.order("kill", {"wait_secs": secs})
    assert not running.run.ended.is_set()


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_a_share_of_messages_that_is_none_is_refused(running, percent):
    door = find("numbers").door
    with pytest.raises(DoorError, match="is no percentage"):
        door.order("debug", {"percent": percent})
    assert door.snapshot().debug == {}
    door.order("debug", {})
    assert door.snapshot().debug == {"": 10.0}


def test_the_oldest_open_messages_are_listed(running):
    running.fill()
    listed = find("numbers").door.get("open", {"limit": 3})["open"]
    assert [each["message_id"] for each in listed] == [repr(f"<b>{n}\x1b[31m") for n in range(3)]
    assert {each["attempt"] for each in listed} == {1}


def test_the_socket_and_its_folders_are_the_users_alone(running, runtime, tmp_path):
    (entry,) = entries()
    assert stat.S_IMODE(Path(entry.socket).stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "cp" / POINTER).stat().st_mode) == 0o600
    assert read_entry(tmp_path / "cp" / POINTER) == entry


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_hung_up_on_even_where_rights_let_them_in(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as base:  # pytest's own folder lets nobody in
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        with started(tmp_path / "cp"):
            (entry,) = entries()
            for place in (Path(base), Path(base, "acktree"), Path(entry.socket)):
                place.chmod(0o777)
            program = f"""
import os, socket
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect({entry.socket!r})
try:
    connection.sendall(b"GET /v1/snapshot HTTP/1.0\\r\\n\\r\\n")
    print(len(connection.recv(100)))
except OSError:
    print(0)
"""
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            assert done.stdout == "0\n"
            assert DoorClient(entry).snapshot().topology == "numbers"


def test_a_folder_that_others_may_enter_is_refused(tmp_path, monkeypatch):
    (tmp_path / "acktree").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="other users"):
        runtime_folder()


def test_a_topology_runs_where_there_is_no_place_for_a_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "acktree").mkdir(mode=0o755)
    with started(tmp_path / "cp") as topology:
        assert topology.handle.is_running
        with pytest.raises(NobodyRunsError, match="no driver with a socket"):
            _ = find(str(tmp_path / "cp")).door


def test_long_paths_of_checkpoint_and_runtime_folder_work(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with started(long / "cp") as topology:
        socket_file = Path(find(str(long / "cp")).door.entry.socket)
        assert len(os.fsencode(socket_file)) <= 107
        assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
        assert find("numbers").door.snapshot().checkpoint == str(long / "cp")
        topology.handle.kill(wait_secs=0)
    assert not socket_file.parent.exists()


def test_a_stopped_topology_is_found_with_its_last_numbers(tmp_path):
    with started(tmp_path / "cp") as topology:
        topology.fill()
    (found,) = found_topologies()
    assert not found.is_running
    last = found.snapshot()
    assert last is not None
    assert last.status == "STOPPED"
    assert last.account()["open"] == 10
    with pytest.raises(NobodyRunsError, match="nobody runs topology 'numbers'"):
        _ = found.door


def test_a_stale_socket_is_said_to_be_nobodys_and_taken_over(tmp_path):
    with started(tmp_path / "cp"):
        (entry,) = entries()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(entry.socket)
    dead.close()
    assert not DoorClient(entry).is_answering()
    with started(tmp_path / "cp"):
        assert find(str(tmp_path / "cp")).is_running


def test_two_topologies_of_one_name_are_told_apart_by_their_checkpoints(tmp_path):
    with started(tmp_path / "one"), started(tmp_path / "two"):
        with pytest.raises(ConfigError, match="2 topologies are called 'numbers'"):
            find("numbers")
        assert find(str(tmp_path / "two")).snapshot().checkpoint == str(tmp_path / "two")
    with pytest.raises(ConfigError, match="did you mean 'numbers'"):
        find("number")


@pytest.mark.parametrize(
    "path", ["/", "/v1/../v1/snapshot", "/etc/passwd", "/v1/dead-letters/..%2f1", "/v2/x"]
)
def test_a_path_that_is_no_route_is_404(running, path):
    with pytest.raises(DoorError) as refused:
        find("numbers").door._ask("GET", path, {})
    assert refused.value.status == 404


def test_an_order_that_is_no_json_object_is_refused_and_nothing_is_unpickled(running, tmp_path):
    class Mark:
        def __reduce__(self):
            return Path.touch, (tmp_path / "mark",)

    (entry,) = entries()
    for body in (pickle.dumps(Mark()), b"[1]", b"{"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(entry.socket)
            connection.sendall(b"POST /v1/kill HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert connection.recv(1000).startswith(b"HTTP/1.0 400")
    assert running.handle.is_running
    assert not (tmp_path / "mark").exists()


def test_letters_are_redriven_and_purged_by_the_count_that_was_seen(running):
    running.letters.put(
        [replace(LETTER, topology="numbers", spout="source", root=root) for root in (1, 2, 3)]
    )
    door = find("numbers").door
    assert door.get("dead-letters", {"limit": 2})["after"] == 2
    for order in ("dead-letters/redrive", "dead-letters/purge"):
        with pytest.raises(DoorError, match="3 dead letters match now, and not 2") as changed:
            door.order(order, {"all": True, "expected_count": 2})
        assert changed.value.status == 409
        with pytest.raises(DoorError, match="without a count"):
            door.order(order, {"spout": "source"})
    assert door.order("dead-letters/redrive", {"ids": [1, 3]})["redriven"] == 2
    assert [each.id for each in running.sent] == [1, 3]
    assert door.snapshot().dead_letters.redriven == 2
    assert door.order("dead-letters/purge", {"redriven": "false", "expected_count": 1})["purged"] == 1
    assert door.get("dead-letters/1")["traceback"] is not None
    with pytest.raises(DoorError, match="no dead letter 2"):
        door.get("dead-letters/2")


def test_the_last_snapshot_is_in_the_checkpoint(tmp_path):
    with started(tmp_path / "cp"):
        pass
    assert Snapshot.from_json((tmp_path / "cp" / SNAPSHOT).read_bytes()).status == "STOPPED"


def test_a_question_is_answered_with_the_last_snapshot_where_the_next_takes_long(running, monkeypatch):
    observer = running.door._observer
    observer.latest(0)
    slow = threading.Event()
    monkeypatch.setattr(observer, "_windows_now", lambda: slow.wait(3600))
    assert Snapshot.from_json(observer.latest(0, wait_secs=0.2)).topology == "numbers"
    slow.set()


def test_who_waits_has_the_next_snapshot_where_one_could_not_be_made(running, monkeypatch):
    observer = running.door._observer
    first, windows, failed = observer.latest(0), observer._windows_now, []

    def fails_once():
        if not failed:
            failed.append(True)
            raise RuntimeError("this one")
        return windows()

    monkeypatch.setattr(observer, "_windows_now", fails_once)
    assert observer.latest(0, wait_secs=3600) != first
    assert failed


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_named_acktree_json_makes_no_checkpoint(tmp_path, make):
    make(tmp_path / "acktree.json")
    with pytest.raises(ConfigError, match="there is no topology and no checkpoint"):
        find(str(tmp_path))


def test_a_question_does_not_wait_for_the_rest_after_a_large_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.ui.observer._RESTS", 1e7)
    with started(tmp_path) as topology:
        observer = topology.door._observer
        first = observer.latest(0)
        while observer._rests_until < 0:
            time.sleep(0.005)
        time.sleep(0.05)
        assert observer.latest(0.01, wait_secs=3600) == first
        new = observer.latest(0, wait_secs=3600)
        assert new != first, "who asks for a new one has it"
        assert observer.latest(0.01, wait_secs=3600) == new, "and then it rests again"
        observer.forget()
        assert observer.latest(1.0, wait_secs=20) != new


def test_a_driver_that_has_no_place_in_the_runtime_folder_is_found_from_a_shell_that_has_one(
    tmp_path, monkeypatch, runtime
):
    with monkeypatch.context() as as_cron:
        as_cron.delenv("XDG_RUNTIME_DIR")
        topology = Started(tmp_path / "cp")
        topology.begin()
    try:
        assert find("numbers").is_running
    finally:
        topology.handle.kill(wait_secs=0)


def test_a_socket_that_was_deleted_at_logout_is_made_anew(running, runtime, tmp_path):
    shutil.rmtree(runtime)
    running.door._keep(Snapshot.from_json(running.door._observer.latest()))
    assert find("numbers").door.snapshot().topology == "numbers"
    assert find(str(tmp_path / "cp")).door.order("deactivate") == {"done": True}


def test_an_entry_that_is_being_written_is_neither_read_nor_deleted(running, runtime):
    (file,) = runtime.glob("*.json")
    half = runtime / f"new-{file.name}"
    half.write_bytes(file.read_bytes()[:20])
    other = runtime / "not-ours.json"
    other.write_text("{}")
    forget_gone(lambda _: True)
    assert half.exists()
    assert other.exists()
    half.write_bytes(file.read_bytes())
    assert len(list(entries())) == 1


def test_a_topology_whose_checkpoint_cannot_be_seen_stays_known_while_its_driver_answers(running, tmp_path):
    (tmp_path / "cp").rename(tmp_path / "hidden")
    forget_gone(lambda entry: DoorClient(entry).is_answering())
    assert [entry.topology for entry in entries()] == ["numbers"]
    (entry,) = entries()
    forget_gone(lambda _: False)
    assert list(entries()) == []
    assert not Path(entry.socket).exists()  # nothing names it any more
    (tmp_path / "hidden").rename(tmp_path / "cp")


def test_a_copy_of_a_checkpoint_does_not_name_the_topology_that_runs_on_the_original(running, tmp_path):
    # Not its pipe, and no file that the driver is writing: such a one has another name a moment later.
    left_out = shutil.ignore_patterns("wake", f"{UNPUBLISHED}*")
    copy = shutil.copytree(tmp_path / "cp", tmp_path / "backup", ignore=left_out)
    found = find(str(copy))
    assert not found.is_running
    assert found.checkpoint == str(copy)


def test_what_the_driver_cannot_answer_is_said_and_not_called_a_driver_that_is_gone(running, monkeypatch):
    (entry,) = entries()
    with pytest.raises(DoorError, match="is no number"):
        find("numbers").door.get("dead-letters", {"after": "many"})
    assert find("numbers").door.get("dead-letters", {"after": 10**30, "before": 10**30})["count"] == 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(entry.socket)
        connection.sendall(b"POST /v1/kill HTTP/1.0\r\nContent-Length: 99999\r\n\r\n" + b"[" * 99999)
        assert connection.recv(1000).startswith(b"HTTP/1.0 400")
    monkeypatch.setattr(Run, "oldest_open", lambda *_: {}["bug"])
    with pytest.raises(DoorError, match="KeyError") as refused:
        find("numbers").door.get("open")
    assert refused.value.status == 500


def test_a_driver_that_takes_no_further_connection_now_is_said_to_run(running):
    (entry,) = entries()
    Path(entry.socket).unlink()
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(entry.socket)
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for connection in waiting:
            connection.settimeout(0)
            connection.connect_ex(entry.socket)
        assert find("numbers").is_running
        with pytest.raises(TimeoutError):
            DoorClient(entry, 0.05).snapshot()
        for connection in waiting:
            connection.close()


def test_half_an_answer_is_no_traceback(running, monkeypatch):
    monkeypatch.setattr(DoorClient, "_ask", lambda *_: b'{"done"')
    with pytest.raises(NobodyRunsError):
        find("numbers").door.order("activate")


def test_a_snapshot_that_was_begun_before_an_order_is_not_shown_after_it(running, monkeypatch):
    observer = running.door._observer
    begun, go_on = threading.Event(), threading.Event()
    letters = observer._letters_now

    def slow():
        begun.set()
        assert go_on.wait(120)
        return letters()

    monkeypatch.setattr(observer, "_letters_now", slow)  # the status is taken before
    asking = threading.Thread(target=observer.latest, args=(0,))
    asking.start()
    assert begun.wait(120)
    running.handle.deactivate()
    observer.forget()
    go_on.set()
    asking.join()
    assert Snapshot.from_json(observer.latest(1.0, wait_secs=10)).status == "INACTIVE"


def test_an_order_shows_its_effect_at_once_and_the_thread_rests_again_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.ui.observer._LEAST_SECS", 600.0)
    with started(tmp_path / "cp") as running:
        observer, door = running.door._observer, find("numbers").door
        assert door.snapshot().status != "INACTIVE"
        door.order("deactivate")
        shown = observer.latest(600.0)
        assert Snapshot.from_json(shown).status == "INACTIVE"
        assert observer.latest(0.01, wait_secs=0.2) == shown
    assert not observer._thread.is_alive(), "the end does not wait for the rest either"


def test_a_snapshot_that_comes_too_late_is_not_stored(running, monkeypatch, tmp_path):
    observer = running.door._observer
    made = Snapshot.from_json(observer.latest())
    first_kept(tmp_path / "cp").unlink()
    monkeypatch.setattr("acktree.ui.observer._CLOSE_SECS", 0.01)
    go_on = threading.Event()
    monkeypatch.setattr(observer, "_letters_now", lambda: go_on.wait(120) and made.dead_letters)
    observer.close(None)
    go_on.set()
    observer._thread.join(120)
    assert not (tmp_path / "cp" / SNAPSHOT).exists()


def test_a_snapshot_that_cannot_be_made_is_logged_once(running, monkeypatch, caplog):
    observer = running.door._observer
    monkeypatch.setattr(observer, "_windows_now", lambda: {}["bug"])
    for _ in range(3):
        observer._make()
    assert caplog.text.count("no snapshot could be made") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), None), (float("-inf"), None), (np.int64(5), 5), (True, True), (0.5, 0.5)],
)
def test_a_snapshot_holds_what_json_has(value, shown):
    assert plain({"lag": value}) == {"lag": shown}


def test_a_topology_runs_and_stops_where_its_door_cannot_have_a_thread(tmp_path, monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    topology = Started(tmp_path / "cp")
    with monkeypatch.context() as full:
        full.setattr("acktree.ui.door.Thread.start", refused)
        topology.door.open(topology.handle, topology.run)
    monkeypatch.setattr(topology.door, "open", lambda *_: None)
    topology.begin()
    assert topology.handle.is_running
    topology.handle.kill(wait_secs=0)


def test_code_that_was_not_installed_has_a_door_too(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr("acktree.ui.observer.version", missing)
    assert own_version() == "unknown"


def test_the_folder_of_a_socket_whose_driver_died_is_removed_by_the_next_driver(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with started(tmp_path / "cp"):
        (entry,) = entries()
    left = Path(entry.socket)
    left.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    with started(tmp_path / "cp"):
        assert not left.parent.exists()
        assert find("numbers").is_running


def test_a_process_that_user_code_forks_does_not_keep_the_socket(running):
    (entry,) = entries()
    listening = _listening(os.getpid(), entry.socket)
    assert listening
    with child() as pid:
        deadline = time.monotonic() + 120
        while _listening(pid, entry.socket) & listening and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _listening(pid, entry.socket) & listening


def test_closing_a_door_does_not_wait_for_the_next_look(tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.ui.door_server._LOOK_SECS", 600.0)

    def run():
        with started(tmp_path / "cp"):
            assert found_topologies()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def _listening(pid: int, path: str) -> set[str]:
    """The listening Unix sockets of a path that a process has. PySpark has another one for accumulators."""
    states = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    found = {f"socket:[{each[6]}]" for each in states if each[3] == "00010000" and each[7:] == [path]}
    return found & descriptors_of(pid)


def test_percentiles_are_of_the_whole_run_and_a_window_has_none(running):
    thread = next(iter(running.run.threads.by_task.values()))
    thread.task.complete_ms.add(5, 1)
    snapshot = find("numbers").door.snapshot(0)
    assert snapshot.stats["source"].complete_ms.count == 1
    spread = {name for name, window in snapshot.windows.items() if window.stats["source"].complete_ms}
    assert spread == {":all-time", ":run"}
