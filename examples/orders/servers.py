"""Starts RabbitMQ and PostgreSQL for the example: ``python -m examples.orders.servers [--docker]``.

Without Docker it runs what the system has installed (Debian: ``apt-get install rabbitmq-server postgresql``),
on loopback, each with a folder and a port of its own; no service of the system is touched.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.services.postgresql import PostgreSQL, programs
from tests.services.servers import RabbitMQ

COMPOSE = ["docker", "compose", "-f", str(Path(__file__).with_name("compose.yaml"))]


@contextmanager
def servers(*, with_docker: bool = False) -> Iterator[tuple[str, str]]:
    """The URLs of RabbitMQ and PostgreSQL; both are gone afterwards."""
    with ExitStack() as stack:
        if with_docker:
            stack.callback(subprocess.run, [*COMPOSE, "down", "--volumes"], check=True)
            subprocess.run([*COMPOSE, "up", "--detach", "--wait"], check=True)  # noqa: S603  # written above
            yield (
                "amqp://guest:guest@127.0.0.1:5672/",
                "postgresql+psycopg://tester:example@127.0.0.1:5432/tester",
            )
            return
        found = programs()
        missing = RabbitMQ.missing() or (
            "" if found else "no PostgreSQL (Debian: apt-get install postgresql)"
        )
        if missing or found is None:
            sys.exit(f"{missing}, or --docker")
        rabbitmq = RabbitMQ()
        stack.callback(rabbitmq.remove)
        postgresql = PostgreSQL(found)
        stack.callback(postgresql.remove)
        yield rabbitmq.url, postgresql.url()


if __name__ == "__main__":
    with servers(with_docker="--docker" in sys.argv) as (queue, database):
        print(f"RabbitMQ:   {queue}\nPostgreSQL: {database}\nEnter ends both.", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves the block, which ends both
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))  # a shell lets what is behind & ignore it
        if not sys.stdin.readline():  # started with & or by a script: nobody can press Enter
            print("There is no input: SIGINT or SIGTERM ends both.", flush=True)
            signal.pause()
