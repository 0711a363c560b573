"""Worker processes that lost their connection to Spark, kept for the next task: what they imported stays.

In real time a dead worker ends the query, so Spark closes the connections of all other workers too. By itself
each of these would end, and its successor import the user's program anew: that takes most of a restart. A
process whose level ended only because its connection did waits here instead. When Spark asks its daemon for
a worker, the daemon hands the new connection to one that waits, and forks where none does.

Rules of this file
------------------
1. A process is kept only if no code of its own failed: see :func:`lose_connection_only`.
2. A connection is handed to one process, or to a new one. If that process dies before it has read it, Spark
   finds the connection closed, as where a worker dies.
3. A process waits as long as Spark keeps one that is idle, and never longer than its daemon lives.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from acktree.system.forks import close_in_children, lose_in_children, note_closed

_KEPT_SECS: Final = 60.0
_PID: Final = struct.Struct("!i")
"""What a worker says first on a connection, as PySpark's daemon does: its process id."""
_UNIX: Final = "PYTHON_UNIX_DOMAIN_ENABLED"

RowT = TypeVar("RowT")
_Worker = Callable[[socket.socket, bool], int]
"""PySpark's: serves a connection until it ends. Returns 0 if Spark may use the connection again."""


class _Process:
    """What this process knows of itself."""

    may_stay = False


def lose_connection_only(rows: Iterable[RowT]) -> Iterator[RowT]:
    """Rows of a level. From now on this process may be kept, unless the level ends by an error of its own."""
    _Process.may_stay = True
    try:
        yield from rows
    except (OSError, EOFError, GeneratorExit):
        raise  # a connection is gone, to Spark or to the driver
    except BaseException:
        _Process.may_stay = False
        raise


class KeptWorkers:
    """Those of a daemon. It is made before any worker is forked: workers say by it that they wait."""

    def __init__(self) -> None:
        self._daemons_end, self._workers_end = socket.socketpair()
        self._daemons_end.setblocking(False)  # noqa: FBT003  # Python's name of it is its place
        close_in_children(self._daemons_end.fileno())
        self._waiting: list[int] = []
        """The daemon's ends of sockets to processes that wait, or have waited."""

    def accept(self, listening: socket.socket) -> tuple[socket.socket, object]:
        """In the daemon: the next connection that a new process has to take.

        Raises:
            InterruptedError: A process that waited has it. PySpark's daemon waits for the next one then.
        """
        connection, address = socket.socket.accept(listening)
        self._note_waiting()
        while self._waiting:
            if _is_handed_over(connection, self._waiting.pop()):
                connection.close()
                raise InterruptedError(errno.EINTR, "a process that waited has it")
        return connection, address

    def serve(self, worker: _Worker, connection: socket.socket, *, is_authenticated: bool) -> int:
        """In a worker: serve a connection, and then those that this process is kept for."""
        while True:
            _Process.may_stay = False
            lose_in_children(connection.fileno())
            code = worker(connection, is_authenticated)
            if code == 0 or not _Process.may_stay or not self._has_another(connection):
                return code
            is_authenticated = os.environ.get(_UNIX, "").lower() == "true"

    def _note_waiting(self) -> None:
        with suppress(BlockingIOError):
            while True:
                _, descriptors, *_ = socket.recv_fds(self._daemons_end, 1, 1)
                for descriptor in descriptors:
                    close_in_children(descriptor)
                    self._waiting.append(descriptor)

    def _has_another(self, connection: socket.socket) -> bool:
        """Wait for another connection, which takes the place of this one; False: there is none."""
        gc.collect()  # files over the connection that is lost
        mine, daemons = socket.socketpair()
        with mine:
            with daemons, suppress(OSError):
                socket.send_fds(self._workers_end, [b"\0"], [daemons.fileno()])
            waits = select.poll()
            waits.register(mine, select.POLLIN)
            if not waits.poll(_KEPT_SECS * 1000):
                return False
            with suppress(OSError):
                _, descriptors, *_ = socket.recv_fds(mine, 1, 1)
                for descriptor in descriptors:
                    os.dup2(descriptor, connection.fileno(), inheritable=False)
                    os.close(descriptor)
                    connection.sendall(_PID.pack(os.getpid()))
                    return True
        return False


def _is_handed_over(connection: socket.socket, descriptor: int) -> bool:
    """Hand a connection to a process, by the daemon's end of the socket to it; False if it waits no more."""
    note_closed(descriptor)
    with socket.socket(fileno=descriptor) as worker, suppress(OSError):
        socket.send_fds(worker, [b"\0"], [connection.fileno()])
        return True
    return False
