"""A real daemon of PySpark's, asked for workers as Spark asks it; its workers echo bytes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("pyspark")

from acktree.system.processes import is_alive

ROOT = Path(__file__).parents[4]
DAEMON = """
import sys
from pyspark import daemon as sparks
from acktree.spark.worker import daemon
from acktree.spark.worker.kept_workers import lose_connection_only

def echoed(byte, connection):
    while byte:
        if byte == b"!":
            raise ValueError
        yield byte
        byte = connection.recv(1)
    raise EOFError

def echo(connection, authenticated):
    first = connection.recv(1)
    if not first:  # Spark needs it no more
        return -1
    try:
        for byte in lose_connection_only(echoed(first, connection)):
            connection.sendall(byte)
            if byte == b".":
                return 0
    except (EOFError, ValueError):
        return -1

sparks.worker = echo
daemon.manage(sparks)
"""


class Daemon:
    """What Spark does with one."""

    def __init__(self, folder: Path) -> None:
        given = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder)}
        environment = os.environ | given | {"SPARK_REUSE_WORKER": "1", "PYTHONPATH": str(ROOT)}
        self.connections: list[socket.socket] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        (length,) = struct.unpack("!i", self.process.stdout.read(4))
        self.place = self.process.stdout.read(length).decode()

    def ask(self) -> tuple[socket.socket, int]:
        """A connection to a worker, and the worker's process."""
        connection = socket.socket(socket.AF_UNIX)
        self.connections.append(connection)
        connection.connect(self.place)
        (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        return connection, pid

    def ask_for(self, *wanted: int) -> dict[int, socket.socket]:
        """Connections to these processes, as soon as they wait."""
        found: dict[int, socket.socket] = {}
        others = 0
        while found.keys() != {*wanted}:
            connection, pid = self.ask()
            if pid in wanted:
                assert pid not in found, "one process has one connection"
                found[pid] = connection
            else:
                others += 1
                assert others < 500
        return found

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with TemporaryDirectory(prefix="kept-") as folder:  # the path of a socket is short
        made = Daemon(Path(folder))
        yield made
        made.close()


def echoes(connection: socket.socket, text: bytes = b"ab") -> bool:
    connection.sendall(text)
    return connection.recv(len(text), socket.MSG_WAITALL) == text


def lose(connection: socket.socket) -> None:
    """The connection is lost in the middle of a task."""
    assert echoes(connection)
    connection.close()


def await_end(pid: int) -> None:
    while is_alive(pid, of_others=False):
        time.sleep(0.001)


def test_processes_whose_connections_are_lost_take_the_next_ones_again_and_again(daemon):
    asked = [daemon.ask() for _ in range(3)]
    connections = {pid: connection for connection, pid in asked}
    assert len(connections) == 3
    for _ in range(3):
        for connection in connections.values():
            lose(connection)
        connections = daemon.ask_for(*connections)


def test_a_process_that_waited_serves_its_connection_again_after_the_end_of_a_task(daemon):
    """As Spark uses it for another task: the next one comes by the same connection."""
    connection, pid = daemon.ask()
    lose(connection)
    connection = daemon.ask_for(pid)[pid]
    assert echoes(connection, b"a.")
    assert echoes(connection, b"b.")


def test_a_process_whose_own_code_fails_ends(daemon):
    connection, pid = daemon.ask()
    connection.sendall(b"!")
    connection.close()
    await_end(pid)


def test_a_process_that_ended_a_task_is_not_kept(daemon):
    """Spark closes such a connection when it needs the process no more."""
    connection, pid = daemon.ask()
    assert echoes(connection, b"a.")
    connection.close()
    await_end(pid)


def test_where_a_process_that_waits_dies_there_is_a_new_one(daemon):
    connection, pid = daemon.ask()
    lose(connection)
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    connection, other = daemon.ask()
    assert (echoes(connection), other != pid) == (True, True)


@pytest.mark.parametrize("how", ["killed", "asked to end"])
def test_a_process_that_waits_ends_with_its_daemon(daemon, how):
    connection, pid = daemon.ask()
    lose(connection)
    if how == "killed":
        daemon.process.kill()
    else:
        daemon.process.stdin.close()
    daemon.process.wait()
    await_end(pid)
