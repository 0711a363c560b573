"""The process that forks workers starts whatever can be imported beforehand."""

from __future__ import annotations

import gc
import os
import select
import socket
import subprocess
import sys

import pytest

from acktree.spark.session.settings import _WORKER_ENVIRONMENT
from acktree.spark.worker import daemon


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
from acktree.spark.worker import daemon

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
