"""The server of moto: ``python moto_server.py PORT``; moto alone gives one message to two requests."""

from __future__ import annotations

import sys
import threading
import time

from moto.server import main
from moto.sqs.models import SQSBackend

_lock = threading.Lock()
_receive = SQSBackend.receive_message


def receive_message(self, queue_name, count, wait_seconds_timeout, *more, **named):
    """One request at a time; while it waits, others have their turn."""
    deadline = time.monotonic() + wait_seconds_timeout
    while True:
        with _lock:
            found = _receive(self, queue_name, count, 0, *more, **named)
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


if __name__ == "__main__":
    SQSBackend.receive_message = receive_message
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
