"""The process from which Spark forks its Python workers, with what a level needs imported beforehand.

Spark's own daemon imports nothing: each worker imports PyArrow and pandas after its fork. That takes half a
second of CPU, and the first micro-batch starts a worker for each operator and partition. Workers of this one
share what it has imported. ``kept_workers.py`` says which of them take more than one connection.

Rules of this file
------------------
1. No thread may run when a worker is forked. PyArrow's allocator starts one when it is imported, unless
   ``JE_ARROW_MALLOC_CONF`` says not to, and NumPy's linear algebra starts some, unless ``OMP_NUM_THREADS`` is
   1. ``spark/session/settings.py`` sets the former, Spark the latter.
2. User code is never imported here: it may start threads, or connect to something.
3. A module that cannot be imported is left to the worker, whose error reaches the user.

Spark starts it by ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import select
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Final

from acktree.spark.worker.kept_workers import KeptWorkers
from acktree.spark.worker.stopped import StoppedChildren

PRELOADED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "acktree.spark.query.operators",
    "acktree.spark.query.source",
    "acktree.spark.realtime.level",
)


LATER: Final = ("acktree.checkpoint.folder", "acktree.driver.assembly", "acktree.spark.submit")
"""What a user's module imports that names ``submit``: a third of a second of CPU. No start waits for it."""
_RESTS: Final = 10
"""After how many seconds in which Spark asks for no worker one of these is imported."""


def preload() -> None:
    """Import what workers will need, and exempt it from garbage collection: it is never freed."""
    _import(PRELOADED)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with suppress(Exception):  # two incompatible libraries may raise anything
            import_module(module)
    gc.freeze()


class Poll:
    """``select.poll`` of PySpark's daemon, which waits a second at a time. At rest it imports ``LATER``.

    After each wait it ends the workers that have been stopped for too long.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister
        self._left, self._rests = list(LATER), 0
        self._stopped = StoppedChildren()

    def poll(self, ms: float) -> list[tuple[int, int]]:
        """What is ready after this time at most."""
        ready = self._poll.poll(ms)
        with suppress(Exception):  # what ends the daemon ends every worker
            self._stopped.kill_overdue()
        self._rests = 0 if ready else self._rests + 1
        if self._left and self._rests >= _RESTS:
            _import([self._left.pop(0)])
        return ready


def without_trace(
    worker: Callable[[socket.socket, bool], int],
) -> Callable[[socket.socket, bool], int]:
    """A worker that ends in silence when Spark closes its connection: so it ends one that is idle."""

    def run(connection: socket.socket, authenticated: bool) -> int:  # noqa: FBT001  # as PySpark calls it
        try:
            return worker(connection, authenticated)
        except BrokenPipeError:
            return 1

    return run


def manage(daemon: ModuleType) -> None:
    """Run PySpark's daemon, whose workers may be kept.

    Args:
        daemon: ``pyspark.daemon``.
    """
    for number in (signal.SIGTTIN, signal.SIGTTOU):  # a terminal stops the whole group, this process too
        signal.signal(number, signal.SIG_IGN)
    kept, worker = KeptWorkers(), without_trace(daemon.worker)

    class Listening(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            return kept.accept(self)

    def serve(connection: socket.socket, authenticated: bool) -> int:  # noqa: FBT001  # as PySpark calls it
        return kept.serve(worker, connection, is_authenticated=authenticated)

    vars(daemon).update(
        worker=serve,
        socket=SimpleNamespace(**vars(socket) | {"socket": Listening}),
        select=SimpleNamespace(**vars(select) | {"poll": Poll}),
    )
    daemon.manager()


if __name__ == "__main__":
    from pyspark import daemon

    preload()
    manage(daemon)
