"""The payments of a trial, and who sends them. Of a hundred some cannot become a row, one comes twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from typing import Any

import pika
from pika.exceptions import AMQPError

from examples.first_service.servers import QUEUE

CURRENCIES = 20_000
"""More than payments are sent: the service asks for the rate of each."""
AGAIN = 9
CUT = {19: b'{"id": "p%d", "custom', 29: b'{"id": "p%d", "customer": "J\xfcrgen"}'}  # the latter is Latin-1
WRONG: dict[int, dict[str, Any]] = {
    39: {"cents": None}, 49: {"cents": "much"}, 59: {"currency": "XYZ"},  # which has no rate
    69: {"customer": "c\0"},  # PostgreSQL refuses this text
}  # fmt: skip


def payment(number: int) -> bytes:
    """A message of the queue."""
    place = number % 100
    number -= place == AGAIN
    if place in CUT:
        return CUT[place] % number
    currency = ("EUR", "USD")[number % 2]
    found = {"id": f"p{number}", "customer": f"c{number % 7}", "cents": 100, "currency": currency}
    return json.dumps(found | WRONG.get(place, {})).encode()


class Sender:
    """Sends payments from a thread, each until RabbitMQ has confirmed it."""

    def __init__(self, queue: str, per_sec: float) -> None:
        """Sends nothing yet."""
        self.sent: Counter[bytes] = Counter()
        self._queue, self._per_sec = queue, per_sec
        self._stop, self._thread = Event(), Thread(target=self._run, daemon=True)
        self._next: Callable[[], bytes | None] = lambda: None
        self._channel: Any = None

    def start(self, next_body: Callable[[], bytes | None]) -> None:
        """Send what a function returns, until it returns None."""
        self._next = next_body
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and return when all is confirmed, or the queue is away."""
        self._stop.set()
        if self._thread.is_alive():
            self.join()

    def join(self) -> None:
        """Return when the last one is confirmed."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set() and (body := self._next()) is not None:
            self.send(body)
            self._stop.wait(1 / self._per_sec)
        self._close()

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(AMQPError, OSError):  # of a dead server it is closed
                channel.connection.close()

    def send(self, body: bytes) -> None:
        """Send one. One that a dead server has not confirmed is sent again, and may come twice."""
        while True:
            try:
                if self._channel is None:
                    connection = pika.BlockingConnection(pika.URLParameters(self._queue))
                    self._channel = connection.channel()
                    self._channel.confirm_delivery()
                self.sent[body] += 1
                self._channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))
            except (AMQPError, OSError):
                self._close()
                if self._stop.wait(0.1):
                    return
            else:
                return


def good_payments() -> Iterator[bytes]:
    """Payments that can become rows, each in another currency than the one before."""
    for number in count():
        found = {
            "id": f"p{number}",
            "customer": f"c{number % 7}",
            "cents": 100,
            "currency": f"C{number % CURRENCIES}",
        }
        yield json.dumps(found).encode()
