"""Declares the queue and sends payments: ``python send.py [COUNT]``. Every hundredth is not JSON."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing

import pika

QUEUE_URL = os.environ.get("QUEUE_URL", "amqp://guest:guest@127.0.0.1:5672/")


def body(number: int) -> bytes:
    """A message."""
    if number % 100 == 99:  # noqa: PLR2004  # as the module says
        return b"not JSON"
    currency = ("EUR", "USD")[number % 2]
    payment = {"id": f"p{number}", "customer": f"c{number % 7}", "cents": number % 50, "currency": currency}
    return json.dumps(payment).encode()


def main() -> None:
    """Send them; each is confirmed by the server."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with closing(pika.BlockingConnection(pika.URLParameters(QUEUE_URL))) as connection:
        channel = connection.channel()
        channel.queue_declare("payments", durable=True)
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", "payments", body(number), pika.BasicProperties(delivery_mode=2))


if __name__ == "__main__":
    main()
