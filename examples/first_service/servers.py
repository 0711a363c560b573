"""RabbitMQ, PostgreSQL and the rates, each on loopback with a port of its own: what the service needs.

They are those that the system has installed (Debian: ``apt-get install rabbitmq-server postgresql``); no
service of the system is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pika

from tests.services.postgresql import PostgreSQL, programs
from tests.services.servers import RabbitMQ, free_port

HERE = Path(__file__).parent
QUEUE = "payments"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base class
        """Print nothing."""


class Rates:
    """Answers ``GET /EUR`` with the content of that file of a folder."""

    def __init__(self, folder: Path) -> None:
        """Runs from now on."""
        self.folder, self.port = folder, free_port()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        """Of all rates."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Answer."""
        handler = partial(_Handler, directory=str(self.folder))
        self._server = server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        Thread(target=server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Be away: connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


@dataclass(frozen=True)
class Servers:
    """What runs."""

    rabbitmq: RabbitMQ
    postgresql: PostgreSQL
    rates: Rates

    @property
    def environment(self) -> dict[str, str]:
        """The settings of the service and of the sender."""
        return {
            "QUEUE_URL": self.rabbitmq.url,
            "DATABASE_URL": self.postgresql.url(),
            "RATES_URL": self.rates.url,
        }


def missing() -> str:
    """What has to be installed first; empty if nothing has."""
    return RabbitMQ.missing() or (
        "" if programs() else "no PostgreSQL (Debian: apt-get install rabbitmq-server postgresql)"
    )


@contextmanager
def servers(rates: Path = HERE / "rates") -> Iterator[Servers]:
    """All three, with an empty queue and an empty table; they are gone afterwards.

    Args:
        rates: The folder of the rates.
    """
    found = programs()
    if missing() or found is None:
        sys.exit(missing())
    with ExitStack() as stack:
        rabbitmq = RabbitMQ()
        stack.callback(rabbitmq.remove)
        postgresql = PostgreSQL(found)
        stack.callback(postgresql.remove)
        running = Servers(rabbitmq, postgresql, Rates(rates))
        stack.callback(running.rates.stop)
        with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq.url))) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        with postgresql.connect() as database:
            database.execute((HERE / "schema.sql").read_bytes())
        yield running
