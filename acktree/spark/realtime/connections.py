"""The driver's end of a resident query: sockets to its readers, which get rows, and from its levels.

Each connection begins with a hello. A connection that does not name this query's token and incarnation is
closed. The *incarnation* is the number of the query's last start: tasks of a query that failed may still run
when the next one starts.

Rules of this file
------------------
1. Before its hello a connection is sent nothing, and nothing of it is decoded but the hello's fields.
2. Nothing is buffered here. ``send`` waits while a reader does not read.
3. Nothing is delivered from a connection of an earlier incarnation.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import BoundedSemaphore, Condition, Thread
from typing import Final, NamedTuple

from acktree.system.forks import close_in_children, note_closed

__all__ = [
    "HELLO",
    "REPORT",
    "SOURCE_LEVEL",
    "Address",
    "ConnectionLostError",
    "Connections",
    "Moments",
    "OnReport",
    "Peer",
    "Report",
    "connect",
]

HELLO: Final = struct.Struct(">64siii")
"""Token, incarnation, level, partition; the reader of a partition names the level SOURCE_LEVEL."""
FRAME: Final = struct.Struct(">biiiiq")
"""FRAME_TYPE, length of the body, target, sender, kind, epoch; the body follows."""
REPORT: Final = struct.Struct(">qq3q")
"""Epoch, length of the body, which follows, and :class:`Moments`."""
SOURCE_LEVEL: Final = -1
FRAME_TYPE: Final = 1
END: Final = b"\0"
"""In the place of a frame: Spark's batch is over."""
_HELLO_SECS: Final = 10.0
BATCH_ENDS_SECS: Final = 30.0
"""How long the tasks of Spark's batch may take to end, and with them the ``cleanup`` of their bolts."""
_MOST_UNPROVEN: Final = 64
"""How many connections may wait for their hello; more are closed at once."""


class Address(NamedTuple):
    """Where a query's tasks find the driver, and what they say there."""

    host: str
    port: int
    token: str
    incarnation: int


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    level: int
    partition: int


class ConnectionLostError(Exception):
    """A task's connection was closed in the middle of a batch: the query fails."""


class Moments(NamedTuple):
    """When a level did what for an epoch in a partition, by the machine's stopwatch, in nanoseconds.

    Attributes:
        whole: All rows and markers have come.
        ran: The bolts were executed.
        spent: The CPU time of that, of its thread alone.
    """

    whole: int
    ran: int
    spent: int


class Report(NamedTuple):
    """What a level reports of an epoch in a partition."""

    epoch: int
    body: bytes
    moments: Moments


OnReport = Callable[[int, Peer, Report], bool]
"""Is given the incarnation, the peer and each report, while ``changed`` is locked. Returns whether anybody
waits for it: to wake a thread takes longer than to note a report."""


def connect(address: Address, peer: Peer) -> socket.socket:
    """A connection to the driver, with the hello said."""
    connection = socket.create_connection(address[:2])
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(HELLO.pack(address.token.encode(), address.incarnation, *peer))
    except OSError:
        connection.close()
        raise
    return connection


class Connections:
    """All connections of one resident query.

    Any thread may call these methods; only one at a time may send.

    Attributes:
        changed: Notified whenever a connection begins or ends, and after a report that is waited for.
        lost: Who is gone in the middle of a batch. Then the query fails.
    """

    def __init__(self, partitions: int, on_report: OnReport, host: str = "127.0.0.1") -> None:
        """Listen.

        Args:
            partitions: How many readers there are.
            on_report: Called in the thread of the connection.
            host: The address on which to listen.
        """
        self._partitions, self._on_report = partitions, on_report
        self._token = secrets.token_hex(32)
        self._incarnation = 0
        self.changed = Condition()
        self._peers: dict[socket.socket, Peer] = {}
        self.lost: Peer | None = None
        self._is_ending = False
        self._unproven = BoundedSemaphore(_MOST_UNPROVEN)
        self._server = socket.create_server((host, 0), backlog=128)
        self._descriptor = self._server.fileno()
        close_in_children(self._descriptor)
        Thread(target=self._accept, name="acktree connections", daemon=True).start()

    @property
    def address(self) -> Address:
        """For the tasks of the current incarnation."""
        host, port = self._server.getsockname()
        return Address(host, port, self._token, self._incarnation)

    def begin(self) -> Address:
        """Begin the next incarnation: close the connections of the one before it."""
        with self.changed:
            self._incarnation += 1
            self.lost, self._is_ending = None, False
            for connection in self._peers:
                _shut(connection)
            self._peers.clear()
            self.changed.notify_all()
        return self.address

    def await_readers(self, secs: float) -> bool:
        """Wait until each partition's reader is connected; False if that takes longer than ``secs``."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._readers()) == self._partitions, secs)

    def send(self, partition: int, frames: bytes) -> None:
        """Send frames to the reader of a partition. Waits while it does not read.

        Raises:
            ConnectionLostError: A task is gone, or the reader is not there.
        """
        with self.changed:
            reader = self._readers().get(partition)
            if self.lost is not None or reader is None:
                raise ConnectionLostError(f"connection lost: {self.lost or Peer(SOURCE_LEVEL, partition)}")
        try:
            reader.sendall(frames)
        except OSError as error:
            raise ConnectionLostError(f"the reader of partition {partition} is gone: {error}") from error

    def end_batch(self) -> None:
        """End Spark's batch, and wait until its tasks have closed their connections.

        Call it between two epochs. The readers of Spark's next batch connect by themselves.

        Raises:
            ConnectionLostError: A task is gone, or does not end: a bolt's ``cleanup`` may hang.
        """
        with self.changed:
            self._is_ending = True
            before = set(self._peers)
        for partition in range(self._partitions):
            self.send(partition, END)
        with self.changed:
            has_ended = self.changed.wait_for(lambda: before.isdisjoint(self._peers), BATCH_ENDS_SECS)
            self._is_ending = False
            if not has_ended:
                late = sorted(peer for connection, peer in self._peers.items() if connection in before)
                raise ConnectionLostError(
                    f"tasks (level, partition) {[tuple(peer) for peer in late]} have not ended after "
                    f"{BATCH_ENDS_SECS:g} s: a cleanup() of their bolts may hang"
                )

    def give_up(self) -> None:
        """Close what is connected, and let those who wait find it lost."""
        with self.changed:
            self.lost = self.lost or Peer(SOURCE_LEVEL, 0)
            for connection in self._peers:
                _shut(connection)
            self.changed.notify_all()

    def close(self) -> None:
        """Close everything."""
        self.begin()
        note_closed(self._descriptor)
        _shut(self._server)
        self._server.close()

    def _readers(self) -> dict[int, socket.socket]:
        return {peer.partition: each for each, peer in self._peers.items() if peer.level == SOURCE_LEVEL}

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            if self._unproven.acquire(blocking=False):
                Thread(target=self._serve, args=(connection,), name="acktree connection", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            descriptor = connection.fileno()
            close_in_children(descriptor)
            try:
                proven = self._proven(connection)
                if proven is not None:
                    self._read(connection, *proven)
            except OSError:
                pass  # it is gone
            finally:
                self._drop(connection)
                note_closed(descriptor)

    def _proven(self, connection: socket.socket) -> tuple[int, Peer] | None:
        """Read the hello; None where it is not one of the current incarnation. Waits ten seconds at most."""
        try:
            connection.settimeout(_HELLO_SECS)
            hello = connection.recv(HELLO.size, socket.MSG_WAITALL)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        finally:
            self._unproven.release()
        if len(hello) != HELLO.size:
            return None
        token, incarnation, *place = HELLO.unpack(hello)
        with self.changed:
            if incarnation != self._incarnation or not hmac.compare_digest(token, self._token.encode()):
                return None
            self._peers[connection] = peer = Peer(*place)
            self.changed.notify_all()
        return incarnation, peer

    def _read(self, connection: socket.socket, incarnation: int, peer: Peer) -> None:
        """Deliver the reports of a connection until it is closed. A reader sends none."""
        with connection.makefile("rb") as file:
            while len(head := file.read(REPORT.size)) == REPORT.size:
                epoch, length, *moments = REPORT.unpack(head)
                body = file.read(length)
                with self.changed:
                    counts = len(body) == length and connection in self._peers
                    report = Report(epoch, body, Moments(*moments))
                    if counts and self._on_report(incarnation, peer, report):
                        self.changed.notify_all()

    def _drop(self, connection: socket.socket) -> None:
        with self.changed:
            peer = self._peers.pop(connection, None)
            if peer is not None and not self._is_ending:
                self.lost = peer
            self.changed.notify_all()


def _shut(connection: socket.socket) -> None:
    """End what other threads do with a socket; they close it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
