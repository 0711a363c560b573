"""A process that was killed does not run, whether its parent has waited for it or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acktree.system.processes import is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.parametrize("of_others", [True, False])
def test_a_process_runs_until_it_is_killed_whenever_its_parent_waits_for_it(of_others):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(); time.sleep(600)"], stdout=subprocess.PIPE
    )
    child.stdout.readline()
    assert is_alive(child.pid, of_others=of_others)
    os.kill(child.pid, signal.SIGKILL)
    until = time.monotonic() + 120
    while is_alive(child.pid, of_others=of_others):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(child.pid, 0)  # its number is still there
    child.communicate()
    assert not is_alive(child.pid, of_others=of_others)


LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=lambda: (print(flush=True), time.sleep(600))).start()
time.sleep(0.2)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_runs_as_long_as_another_one():
    child = subprocess.Popen([sys.executable, "-c", LEADERLESS], stdout=subprocess.PIPE)
    child.stdout.readline()
    until = time.monotonic() + 120
    while b") Z " not in Path(f"/proc/{child.pid}/stat").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert is_alive(child.pid, of_others=False)
    child.kill()
    child.communicate()
    assert not is_alive(child.pid, of_others=False)
