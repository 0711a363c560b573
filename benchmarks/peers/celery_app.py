"""Calls of a service as Celery tasks. Run by Celery's own interpreter, which has no acktree.

``celery -A celery_app worker`` executes the tasks. As a program this file sends them: it reads lines
``NAME COUNT`` from stdin, sends COUNT tasks of that name, and answers each line with the number of messages
that wait in the queue.

Environment variables: CALLS_BROKER, a URL; CALLS_PORT, the service's port on loopback; CALLS_FOUND, a folder
in which each worker has a file with a byte for each task that it has executed.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from typing import Any, BinaryIO

from celery import Celery
from celery.signals import task_postrun

QUEUE = "calls"

app = Celery("calls", broker=os.environ["CALLS_BROKER"])
app.conf.update(
    task_acks_late=True,  # after the work, as acktree's verdicts are
    task_ignore_result=True,
    task_default_queue=QUEUE,
    worker_hijack_root_logger=False,
)
_idle: list[BinaryIO] = []
"""Connections that no task uses: list.pop() and append() are atomic for green threads and for threads."""


@app.task(name="nothing")  # type: ignore[untyped-decorator]  # Celery is not where types are checked
def nothing(number: int) -> None:
    """Return at once: a worker that executes it is ready."""


@app.task(name="call")  # type: ignore[untyped-decorator]
def call(number: int) -> None:
    """One call and its answer."""
    file: Any = (
        _idle.pop()
        if _idle
        else socket.create_connection(("127.0.0.1", int(os.environ["CALLS_PORT"]))).makefile("rwb")
    )
    file.write(b"%d\n" % number)
    file.flush()
    assert int(file.readline()) == number
    _idle.append(file)


@cache
def _found() -> int:
    """The file of this worker."""
    name = os.path.join(os.environ["CALLS_FOUND"], str(os.getpid()))  # noqa: PTH118  # one call at start
    return os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)


@task_postrun.connect  # type: ignore[untyped-decorator]
def _note(**_: object) -> None:
    os.write(_found(), b".")


def main() -> None:
    """Send what stdin says."""
    tasks = {"call": call, "nothing": nothing}
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for line in sys.stdin:
            name, count = line.split()
            for number in range(int(count)):
                tasks[name].apply_async((number,), producer=producer)
            waiting = producer.channel.queue_declare(QUEUE, durable=True, auto_delete=False)
            print(waiting.message_count, flush=True)


if __name__ == "__main__":
    main()
