"""A TCP proxy in a process of its own, whose connections can be cut: ``python proxy.py TARGET_PORT``.

It prints its port, then reads ``cut`` from its input, resets every connection and answers ``done``.
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

    def __init__(self, target_port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(target_port)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.port = int(self._answer())

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        self._process.stdin.write("cut\n")
        self._process.stdin.flush()
        assert self._answer() == "done\n"

    def remove(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _answer(self) -> str:
        return self._process.stdout.readline()


def serve(target_port: int) -> None:
    """Until the input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201  # that is how its port is known
    other: dict[socket.socket, socket.socket] = {}
    while True:
        readable, _, _ = select.select([sys.stdin, listener, *other], [], [])
        for each in readable:
            if each is listener:
                _connect(listener, target_port, other)
            elif each in other:
                _pass_on(each, other)
            elif each is sys.stdin:
                if not sys.stdin.readline():
                    return
                for one in list(other):
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
    serve(int(sys.argv[1]))
