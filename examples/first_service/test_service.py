"""The whole service without Spark and RabbitMQ: its rates from a real HTTP server, its table in SQLite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("pika")

from acktree.testing import FeederSpout, LocalCluster, complete_topology  # noqa: E402
from examples.first_service.service import topology  # noqa: E402

HERE = Path(__file__).parent


def payment(number: int, customer: str = "ann", currency: str = "EUR") -> list[bytes]:
    """A message of the queue: its body."""
    return [
        json.dumps({"id": f"p{number}", "customer": customer, "cents": 100, "currency": currency}).encode()
    ]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database with the table."""
    url = f"sqlite:///{tmp_path / 'payments.db'}"
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text((HERE / "schema.sql").read_text(encoding="utf-8")))
    return url


def rows(database: str) -> list[tuple[str, str, int, int]]:
    """What is in the table."""
    with sa.create_engine(database).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text("SELECT * FROM payments ORDER BY id"))]


def server(port: int = 0) -> ThreadingHTTPServer:
    """A server of rates, on a free port at first."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(HERE / "rates"))
    serving = ThreadingHTTPServer(("127.0.0.1", port), handler)
    Thread(target=serving.serve_forever, daemon=True).start()
    return serving


@pytest.fixture
def rates() -> Iterator[ThreadingHTTPServer]:
    """A server of rates that is up."""
    serving = server()
    yield serving
    serving.shutdown()
    serving.server_close()


def test_each_payment_is_a_row_or_a_letter_with_its_reason(rates: ThreadingHTTPServer, database: str) -> None:
    service = topology(FeederSpout(["body"]), f"http://127.0.0.1:{rates.server_port}", database)
    sent = [payment(1), payment(2, "bob", "USD"), [b"not JSON"], payment(3, currency="XYZ"), payment(1)]
    results = complete_topology(service, {"payments": sent})
    assert results.verdicts.of("payments") == ["ACKED", "ACKED", "FAILED", "FAILED", "ACKED"]
    assert rows(database) == [("p1", "ann", 100, 100), ("p2", "bob", 90, 90)]
    assert [letter.component for letter in results.dead_letters] == ["parse", "convert"]
    assert results.failures["payments", 3].reason == "ValueError: no rate for 'XYZ': 404"


def test_payments_wait_while_the_rates_are_away(database: str) -> None:
    away = server()
    away.shutdown()
    away.server_close()
    payments = FeederSpout(["body"])
    with LocalCluster() as cluster:
        running = cluster.submit(topology(payments, f"http://127.0.0.1:{away.server_port}", database))
        for number in range(3):
            payments.feed(payment(number), message_id=number)
        cluster.advance(secs=600)
        assert not payments.acked + payments.failed
        assert not running.dead_letters
        back = server(away.server_port)
        try:
            cluster.advance(secs=60)
        finally:
            back.shutdown()
            back.server_close()
    assert sorted(payments.acked) == [0, 1, 2]
    assert sorted(total for _, _, _, total in rows(database)) == [100, 200, 300]
