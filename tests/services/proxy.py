"""A TCP proxy in a process of its own, whose connections can be cut: ``python proxy.py TARGET_PORT [PORT]``.

It prints its port, then reads commands from its input and answers each with ``done``. ``cut`` resets every
connection. ``hold`` passes nothing on any more, of new connections too, as a server that hangs.
"""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
from pathlib import Path


class Proxy:
    """The proxy, for tests."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(target_port), str(port)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.port = int(self._answer())

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        self._do("cut")

    def hold(self) -> None:
        """Pass nothing on any more; connections stay, and new ones are taken."""
        self._do("hold")

    def _do(self, command: str) -> None:
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._answer() == "done\n"

    def remove(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _answer(self) -> str:
        return self._process.stdout.readline()


def serve(target_port: int, port: int = 0) -> None:
    """Until the input ends."""
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)  # noqa: T201  # that is how its port is known
    other: dict[socket.socket, socket.socket] = {}
    holds = False
    while True:
        readable, _, _ = select.select([sys.stdin, listener, *([] if holds else other)], [], [])
        for each in readable:
            if each is listener:
                _connect(listener, target_port, other)
            elif each in other:
                _pass_on(each, other)
            elif each is sys.stdin:
                command = sys.stdin.readline().strip()
                if not command:
                    return
                holds = command == "hold"
                for one in [] if holds else list(other):
                    _reset(one, other)
                print("done", flush=True)  # noqa: T201


def _connect(listener, target_port, other) -> None:
    client, _ = listener.accept()
    try:
        server = socket.create_connection(("127.0.0.1", target_port))
    except OSError:
        client.close()
    else:
        other[client], other[server] = server, client


def _pass_on(one, other) -> None:
    try:
        data = one.recv(1 << 16)
        if data:
            other[one].sendall(data)
            return
    except OSError:
        pass
    _reset(one, other)


def _reset(one, other) -> None:
    """Reset a connection and the one that it is passed on to, unless that was done."""
    if one in other:
        for each in (one, other.pop(one)):
            other.pop(each, None)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
