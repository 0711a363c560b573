"""The process that forks workers starts whatever can be imported beforehand."""

from __future__ import annotations

import gc
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from acktree.spark.session.settings import _WORKER_ENVIRONMENT
from acktree.spark.worker import daemon
from acktree.spark.worker.stopped import StoppedChildren


@pytest.mark.parametrize("raised", ["ImportError", "ValueError"])
def test_a_module_that_cannot_be_imported_is_left_to_the_worker(raised, tmp_path, monkeypatch):
    (tmp_path / f"unfit_{raised}.py").write_text(f"raise {raised}('numpy.dtype size changed')")
    (tmp_path / f"fit_{raised}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(daemon, "PRELOADED", (f"unfit_{raised}", f"fit_{raised}"))
    try:
        daemon.preload()
    finally:
        gc.unfreeze()
    assert f"fit_{raised}" in sys.modules


IMPORTS = """
import os
from importlib import import_module
from acktree.spark.worker import daemon, stopped

for module in (*daemon.PRELOADED, *daemon.LATER):
    import_module(module)
print(len(os.listdir("/proc/self/task")))
"""


def test_what_it_imports_is_there_and_starts_no_thread():
    environment = os.environ | _WORKER_ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IMPORTS]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert run.stdout == "1\n"


def test_at_rest_it_imports_what_no_start_waits_for_one_module_at_a_time(tmp_path, monkeypatch):
    names = ["later_0", "later_1"]
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(daemon, "LATER", names)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poll = daemon.Poll()
        poll.register(ours, select.POLLIN)
        imported = []
        try:
            for second in range(40):
                is_asked = second % 15 == 9  # never ten seconds of rest before that
                theirs.send(b"x" * is_asked)
                assert poll.poll(0) == [(ours.fileno(), select.POLLIN)] * is_asked
                ours.recv(1) if is_asked else None
                imported.append(sum(name in sys.modules for name in names))
        finally:
            gc.unfreeze()
    assert imported == [0] * 19 + [1] + [2] * 20


def test_a_worker_whose_connection_is_closed_ends_without_a_traceback():
    def closed(connection, authenticated):
        raise BrokenPipeError

    def broken(connection, authenticated):
        raise OSError("no such device")

    assert daemon.without_trace(closed)(None, authenticated=True) == 1
    with pytest.raises(OSError, match="no such device"):
        daemon.without_trace(broken)(None, authenticated=True)
    assert daemon.without_trace(lambda connection, authenticated: 0)(None, authenticated=True) == 0


STOPPED = """
import os, select, signal, time
from acktree.spark.worker import daemon, stopped

stopped.STOPPED_SECS = 0.1
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as PySpark's daemon does
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.close(2)
poll = daemon.Poll()
while os.path.exists(f"/proc/{child}"):
    assert poll.poll(10) == []
print("ended")
"""


def test_it_kills_a_worker_that_is_stopped_though_nothing_is_asked_of_it_and_nobody_reads_what_it_says():
    run = subprocess.run(
        [sys.executable, "-c", STOPPED], check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    assert run.stdout == "ended\n"


def test_whatever_goes_wrong_with_stopped_workers_it_goes_on(monkeypatch):
    def raises(children):
        raise PermissionError

    monkeypatch.setattr(StoppedChildren, "kill_overdue", raises)
    assert daemon.Poll().poll(0) == []


TERMINAL = """
import os, signal, sys, time
from types import SimpleNamespace
from acktree.spark.worker import daemon

def manager():
    os.setpgid(0, 0)
    try:
        open("/dev/tty").read(1)
    except OSError as error:
        sys.stderr.write(error.strerror)

if child := os.fork():  # as Spark starts it: not the leader of its session
    os.waitpid(child, 0)
    time.sleep(30)  # so that the terminal stays
else:
    daemon.manage(SimpleNamespace(manager=manager, worker=None))
"""


def test_a_worker_that_reads_from_the_terminal_gets_an_error_and_stops_neither_itself_nor_the_daemon():
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", TERMINAL])
    said, until = b"", time.monotonic() + 300
    try:
        while b"error" not in said:
            assert select.select([terminal], [], [], until - time.monotonic())[0], "it says nothing"
            said += os.read(terminal, 1000)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert b"Input/output error" in said
