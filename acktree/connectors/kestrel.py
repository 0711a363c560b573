"""Kestrel: items of a queue, each confirmed when its tree is done. Needs no extra.

Rules of this file
------------------
1. The protocol has no ids: a connection holds one open item at a time, and its commands concern that item. So
   there is one connection for each open message.
2. A message id is a number that is never reused: a verdict of an earlier connection confirms nothing.
3. A connection that was closed is found by polling its socket. Its item is ``lost``: the server puts it back.
4. Of several servers some may be away. It is an outage only when all are.

Source: Kestrel's guide, memcache protocol with reliable reads. The project is archived; this file was tested
against a stand-in that was written from that guide.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from acktree import (  # isort: skip
    Config, ConfigError, ConnectorError, Failure, OpenMessages, Spout, SpoutOutputCollector, TaskContext,
)  # fmt: skip
from acktree.connectors import client_errors
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames
from acktree.system.readable import is_readable

__all__ = ["KestrelSpout"]

_PORT: Final = 22133
_CONNECTIONS: Final = 100
_SECS: Final = 2.0
"""Longest wait for a server; a healthy one answers at once."""
_EMPTY_SECS: Final = 0.05
"""The shortest time between two requests to an empty queue."""
_FIRST_AWAY_SECS: Final = 1.0
"""After this time a server that is away is tried again, while there are others; the time doubles."""
_LONGEST_AWAY_SECS: Final = 30.0
_KEEP_ALIVE_SECS: Final = 1.0
_NAME: Final = re.compile(r"[^\s/]{1,200}")
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@]+)(?::(\d{1,5}))?")


class KestrelSpout(Spout):
    """The items of a queue, as ``["body"]``: bytes.

    Args:
        servers: ``host:22133``; several as a list or separated by commas. Each holds a part of the queue.
        queue: The queue. Kestrel creates it at its first use.
        connections: How many messages of one task may be open at once, over all servers: each needs a
            connection.
        label: What people call an item, as of a ``RabbitMQSpout``: ``"body:order"`` of a JSON object, or a
            function of ``{"body"}``. The protocol has no ids.
        key: What names the item in all its deliveries, from the same places: see ``key`` of ``emit``.

    A failed item returns to the head of its queue, and is delivered again at once; the protocol counts no
    deliveries. An item that a ``Retry`` gives up is confirmed, and acktree's dead letter is the copy.
    """

    outputs = ["body"]
    keep_alive_secs = _KEEP_ALIVE_SECS

    def __init__(
        self,
        servers: str | Sequence[str],
        queue: str,
        *,
        connections: int = _CONNECTIONS,
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        where = f"KestrelSpout(..., {queue!r})"
        self._names = MessageNames(where, label, key)
        names = servers.split(",") if isinstance(servers, str) else list(servers or ())
        addresses = [_address(name.strip(), where) for name in names]
        if not addresses:
            raise ConfigError("there is no server", where, 'give one or more: "host:22133"')
        if not _NAME.fullmatch(queue):
            fix = "give a name without white space and slashes, which mean something in the protocol"
            raise ConfigError(f"{queue!r:.80} is no name of a queue", where, fix)
        given: object = connections  # what a caller without a type checker may have passed
        if not (type(given) is int and given > 0):
            raise ConfigError(f"connections is {given!r}", where, "give a whole number above 0")
        self.queue, self.connections = queue, connections
        self._servers = deque(_Server(host, port) for host, port in addresses)
        self._open: dict[int, _Connection] = {}
        self._opened = 0

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether at least one of the servers answers, and is Kestrel. Raises ConnectorError."""
        errors = [error for server in self._servers if (error := self._greet(server)) is not None]
        for server in self._servers:
            server.close()
        if len(errors) == len(self._servers):
            raise errors[0]

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Check that at least one of the servers answers, and is Kestrel."""
        self._collector = collector
        self._most = min(context.max_spout_pending or self.connections, self.connections)
        errors = [error for server in self._servers if (error := self._greet(server)) is not None]
        if len(errors) == len(self._servers):
            raise errors[0]
        for error in errors:
            collector.report_error(error)

    def next_tuple(self) -> None:
        """Emit the next item of one of the servers, in turns."""
        if len(self._open) >= self._most:
            return
        is_outage = all(server.is_away for server in self._servers)
        for _ in range(len(self._servers)):
            self._servers.rotate(-1)
            server = self._servers[0]
            if (is_outage or server.ask_after <= time.monotonic()) and self._emit_from(server):
                return
        if all(server.is_away for server in self._servers):
            words = self._servers[0].away or ""
            raise client_errors.gone("Kestrel", words, self._where_of(*self._servers))

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        """Look for connections that the server or the network has closed."""
        self._look()

    def ack(self, message_id: Any) -> None:  # noqa: ANN401  # our own
        """Confirm the item. An item of an earlier connection was put back, and is not confirmed."""
        self._end(message_id, "close")

    def fail(self, message_id: Any, failure: Failure) -> None:  # noqa: ANN401  # our own
        """Put the item back; confirm it if it was given up."""
        self._end(message_id, "close" if failure.final else "abort")

    def lag(self) -> int | None:
        """Ask the servers how many items wait."""
        found = []
        for server in self._servers:
            with suppress(OSError), server.connection() as connection:
                found.append(connection.items_of(self.queue))
        return sum(found) if found else None

    def close(self) -> None:
        """Disconnect; the servers put open items back."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()
        for server in self._servers:
            server.close()

    def _emit_from(self, server: _Server) -> bool:
        """Emit an item of a server. False when it has none, or is away."""
        self._look()
        try:
            connection = server.take()
            body = connection.open(self.queue)
        except OSError as error:
            self._note_away(server, error)
            return False
        server.answered()
        if body is None:
            server.idle.append(connection)
            server.ask_after = time.monotonic() + _EMPTY_SECS
            return False
        self._opened += 1
        self._open[self._opened] = connection
        try:
            names = self._names.of({"body": body}, self._collector.report_error)
            self._collector.emit([body], message_id=self._opened, label=names.label, key=names.key)
        except BaseException:  # it was not emitted: it goes back
            self._end(self._opened, "abort")
            raise
        return True

    def _end(self, message_id: int, how: str) -> None:
        connection = self._open.pop(message_id, None)
        if connection is None:
            return
        try:
            connection.end(self.queue, how)
        except OSError as error:  # the server puts the item back by itself
            connection.close()
            self._note_away(connection.server, error)
        else:
            connection.server.idle.append(connection)

    def _look(self) -> None:
        """Drop connections that the other side has closed."""
        poll = select.poll()
        by_file = {connection.file: message_id for message_id, connection in self._open.items()}
        for file in by_file:
            poll.register(file, select.POLLIN)
        lost = [by_file[file] for file, _ in poll.poll(0)]
        for message_id in lost:
            self._open.pop(message_id).close()
        if lost:
            self._collector.lost(lost)

    def _note_away(self, server: _Server, error: OSError) -> None:
        """Note that a server did not answer, and try it later. Reported here while other servers answer."""
        is_news = server.away is None
        server.close()
        server.away = str(error) or type(error).__name__
        if server.ask_after <= time.monotonic():
            server.ask_after = time.monotonic() + server.pause_secs
            server.pause_secs = min(2 * server.pause_secs, _LONGEST_AWAY_SECS)
        if is_news and not all(each.is_away for each in self._servers):
            self._collector.report_error(client_errors.gone("Kestrel", server.away, self._where_of(server)))

    def _greet(self, server: _Server) -> ConnectorError | None:
        """Ask a server for its version. Returns the error of one that does not answer.

        Raises:
            ConnectorError: It answers, and is not Kestrel.
        """
        where = self._where_of(server)
        try:
            with server.connection() as connection:
                answer = connection.ask("VERSION")
        except OSError as error:
            server.away = str(error) or type(error).__name__
            return client_errors.gone("Kestrel", server.away, where)
        if not answer.startswith("VERSION"):
            server.close()
            fix = f"give host and port of Kestrel's memcache protocol, usually {_PORT}"
            raise ConnectorError(f"what answers is not Kestrel: {answer!r:.80}", where, fix)
        return None

    def _where_of(self, *servers: _Server) -> str:
        return f"queue {self.queue!r} at {', '.join(f'{each.host}:{each.port}' for each in servers)}"


def _address(name: str, where: str) -> tuple[str, int]:
    match = _SERVER.fullmatch(name)
    port = int(match[2] or _PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise ConfigError("a server cannot be read", where, f'write "host" or "host:{_PORT}"')
    return match[1].strip("[]"), port


class _Server:
    """A server, and the connections to it that hold no item.

    Attributes:
        away: Why it did not answer the last request; None when it did.
        ask_after: When it is asked for an item again, as ``time.monotonic()`` counts.
        pause_secs: How long to wait before it is tried again if it does not answer.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.idle: list[_Connection] = []
        self.away: str | None = None
        self.ask_after = 0.0
        self.pause_secs = _FIRST_AWAY_SECS

    @property
    def is_away(self) -> bool:
        return self.away is not None

    def answered(self) -> None:
        """Note that it answered."""
        self.away, self.ask_after, self.pause_secs = None, 0.0, _FIRST_AWAY_SECS

    def take(self) -> _Connection:
        """A connection without an open item: an idle one that is still up, or a new one."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_up():
                return connection
            connection.close()
        return _Connection(self)

    @contextmanager
    def connection(self) -> Iterator[_Connection]:
        """A connection for one request; kept if it was answered."""
        connection = self.take()
        try:
            yield connection
        except OSError:
            connection.close()
            raise
        self.idle.append(connection)

    def close(self) -> None:
        """Close what is idle."""
        while self.idle:
            self.idle.pop().close()


class _Connection:
    """A connection that holds one open item, or none. Its calls raise OSError when it is broken."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self._socket = socket.create_connection((server.host, server.port), _SECS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    @property
    def file(self) -> int:
        """The file descriptor of the connection."""
        return self._socket.fileno()

    def is_up(self) -> bool:
        """Whether its socket has neither data nor an end: an idle connection gets none while it is up."""
        return not is_readable(self._socket)

    def ask(self, command: str) -> str:
        """Send a command, and return the first line of its answer."""
        self._socket.sendall(f"{command}\r\n".encode())
        return self._line()

    def open(self, queue: str) -> bytes | None:
        """Open the next item; None when there is none."""
        try:
            return self._value(self.ask(f"GET {queue}/open"))
        except OSError:
            self.close()
            raise

    def end(self, queue: str, how: str) -> None:
        """Confirm the open item (``close``), or put it back (``abort``)."""
        answer = self.ask(f"GET {queue}/{how}")
        if answer != "END":
            raise ConnectionError(f"Kestrel says {answer!r:.80}")

    def items_of(self, queue: str) -> int:
        """How many items wait in a queue; 0 where the server has no such queue."""
        found, line = 0, self.ask("STATS")
        while line != "END":
            name, _, value = line.removeprefix("STAT ").partition(" ")
            if not line.startswith("STAT "):
                raise ConnectionError(f"Kestrel says {line!r:.80}")
            if name == f"queue_{queue}_items":
                found = int(value)
            line = self._line()
        return found

    def close(self) -> None:
        """Close it; an open item is put back by the server."""
        with suppress(OSError):
            self._reader.close()
            self._socket.close()

    def _value(self, line: str) -> bytes | None:
        if line == "END":
            return None
        words = line.split(" ")
        if words[0] != "VALUE" or not words[-1].isdecimal():
            raise ConnectionError(f"Kestrel says {line!r:.80}")
        size = int(words[-1])
        data = self._reader.read(size + 2)
        if len(data) != size + 2 or self._line() != "END":
            raise ConnectionError("the answer ended early")
        return data[:-2]

    def _line(self) -> str:
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server closed the connection")
        return line.decode(errors="replace").rstrip("\r\n")
