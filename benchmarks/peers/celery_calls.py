"""Calls of a service in Celery: RabbitMQ as its broker, green threads, acks after the work.

Celery rather than Dramatiq: more people use it, and it has a pool of green threads for work that waits.
Used by ``python -m benchmarks waiting --celery``. Celery has a separate environment, made by the first run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import places

VERSIONS: Final = {"celery": "5.7.0", "gevent": "26.9.0"}
_HERE: Final = Path(__file__).parent
_READY: Final = 20
"""Tasks that do nothing, executed before the measurement: both workers have taken some."""
_MOST_SECS: Final = 600.0


class Celery:
    """A broker, workers that are ready, and a program that sends tasks."""

    def __init__(self, sender: subprocess.Popen[str], found: Path) -> None:
        self._sender, self._found, self._sent = sender, found, 0

    def run(self, name: str, count: int) -> float:
        """Seconds from the first task that is sent until the last one is executed."""
        assert self._sender.stdin is not None, "a pipe"
        began = time.perf_counter()
        self._sent += count
        self._sender.stdin.write(f"{name} {count}\n")
        self._sender.stdin.flush()
        while sum(file.stat().st_size for file in self._found.iterdir()) < self._sent:
            if time.perf_counter() - began > _MOST_SECS or self._sender.poll() is not None:
                sys.exit("Celery does not execute its tasks: see what it said")
            time.sleep(0.005)
        secs = time.perf_counter() - began
        self.waiting()  # the answer to this order
        return secs

    def waiting(self) -> int:
        """How many messages were in the queue after the last order."""
        assert self._sender.stdout is not None, "a pipe"
        return int(self._sender.stdout.readline())

    def left(self) -> int:
        """How many messages are in the queue now."""
        assert self._sender.stdin is not None, "a pipe"
        self._sender.stdin.write("nothing 0\n")
        self._sender.stdin.flush()
        return self.waiting()


@contextmanager
def celery(port: int, at_once: int, processes: int) -> Iterator[Celery]:
    """Workers in ``processes`` processes, which execute ``at_once`` calls of the service together.

    At the end it is checked that the broker has an ack for each message.
    """
    server: Any = import_module("tests.services.servers").RabbitMQ
    if missing := server.missing():
        places.refuse(missing, "install it, or leave --celery out")
    python = places.python_with("celery", *(f"{name}=={version}" for name, version in VERSIONS.items()))
    with ExitStack() as opened:
        broker = server()
        opened.callback(broker.remove)
        found = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="acktree-benchmark-")))
        environment = os.environ | {
            "CALLS_BROKER": broker.url,
            "CALLS_PORT": str(port),
            "CALLS_FOUND": str(found),
        }
        workers = [
            opened.enter_context(_worker(python, number, at_once // processes, environment))
            for number in range(processes)
        ]
        sender = opened.enter_context(
            subprocess.Popen(  # noqa: S603  # a fixed command
                [str(python), "celery_app.py"],
                cwd=_HERE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        peer = Celery(sender, found)
        peer.run("nothing", _READY)
        yield peer
        for worker in workers:
            worker.terminate()  # a warm shutdown: acks are sent, and what has none goes back to the queue
        for worker in workers:
            worker.wait()
        if left := peer.left():
            sys.exit(f"Celery left {left} messages without an ack")


@contextmanager
def _worker(
    python: Path, number: int, at_once: int, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    program = [str(python), "-m", "celery", "-A", "celery_app", "worker", "--loglevel", "WARNING"]
    program += ["--pool", "gevent", "--concurrency", str(at_once), "--hostname", f"worker-{number}@localhost"]
    program += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with subprocess.Popen(program, cwd=_HERE, env=environment, stdout=sys.stderr) as worker:  # noqa: S603
        try:
            yield worker
        finally:
            worker.terminate()
