"""What the driver sees of a resident level whose process dies, without Spark."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from acktree.spark.realtime.connections import Address
from acktree.spark.realtime.level import ResidentLevel
from tests.spark.realtime_driver import Cluster
from tests.unit.spark.realtime.resident import ThreadedQuery


def test_the_driver_sees_a_level_die_although_a_process_that_its_bolt_has_forked_lives(tmp_path) -> None:
    query = Cluster(ThreadedQuery, tmp_path).query
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1], "token", 1)

        def epochs() -> Iterator[pa.RecordBatch]:
            """None: a bolt would fork while the level runs one."""
            if not (child := os.fork()):
                signal.pause()
            os.write(write, str(child).encode())
            os.kill(os.getpid(), signal.SIGKILL)
            yield

        if not (worker := os.fork()):
            try:
                list(ResidentLevel(query._shared, 0, 0, query._places).epochs(address, epochs()))
            finally:
                os._exit(1)
        try:
            connection, _ = server.accept()
            forked = int(os.read(read, 100))
            with connection:
                connection.settimeout(120)
                while connection.recv(1000):  # what it said first
                    pass
        finally:
            os.waitpid(worker, 0)
            os.kill(forked, signal.SIGKILL)
            for descriptor in (read, write):
                os.close(descriptor)
