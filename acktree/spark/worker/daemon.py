"""The process from which Spark forks its Python workers, with what a level needs imported beforehand.

Spark's own daemon imports nothing: each worker imports PyArrow and pandas after its fork. That takes half a
second of CPU, and the first micro-batch starts a worker for each operator and partition. Workers of this one
share what it has imported.

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
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

PRELOADED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "acktree.spark.query.operators",
    "acktree.spark.query.source",
)


def preload() -> None:
    """Import what workers will need, and exempt it from garbage collection: it is never freed."""
    for module in PRELOADED:
        with suppress(Exception):  # two incompatible libraries may raise anything
            import_module(module)
    gc.freeze()


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


if __name__ == "__main__":
    from pyspark import daemon

    preload()
    vars(daemon)["worker"] = without_trace(daemon.worker)
    daemon.manager()
