"""A spout for beanstalkd, written from docs/connectors.md: a job is deleted when its tuple tree is done."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenstalk

from acktree import Config, ConnectorError, Failure, OpenMessages, Spout, SpoutOutputCollector, TaskContext

IDLE_SECS = 0.05  # the time between two requests to an empty tube
PASSING = (OSError, greenstalk.UnknownResponseError, greenstalk.InternalError, greenstalk.OutOfMemoryError)


class BeanstalkdSpout(Spout):
    """The jobs of a tube as ``["body"]``. A reservation belongs to its connection, and to the job's TTR.

    With ``buries`` a job that a ``Retry`` gives up is buried, and acktree writes no dead letter for it.
    ``key`` returns what names a job in all its deliveries, from its body: a server that has lost its jobs
    counts their ids from 1 again.
    """

    outputs = ["body"]
    keep_alive_secs = 0.5  # beanstalkd wants a second left: a TTR of 2 seconds is the shortest

    def __init__(
        self, host: str, port: int, tube: str, *, buries: bool = False,
        key: Callable[[bytes], str | bytes | int | None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.key = key
        self.address, self.tube, self.own_dead_letters = (host, port), tube, buries
        self.epoch, self.idle_until = 0, 0.0
        self.client: greenstalk.Client[bytes] | None = None

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector = collector
        with self.connected():
            pass

    def next_tuple(self) -> None:
        if time.monotonic() < self.idle_until:
            return
        with self.connected() as client:
            try:
                job = client.reserve(timeout=0)
            except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
                self.idle_until = time.monotonic() + IDLE_SECS
                return
            stats = client.stats_job(job)
        attempt = 1 if stats["kicks"] else int(stats["reserves"])  # a job that was kicked begins anew
        message_id, key = (self.epoch, job.id), self.key(job.body)
        self.collector.emit([job.body], message_id, attempt=attempt, label=f"job {job.id}", key=key)

    def keep_alive(self, open_messages: OpenMessages) -> None:
        for message_id in open_messages.older_than(0):
            self.send("touch", message_id)

    def ack(self, message_id: Any) -> None:
        self.send("delete", message_id)

    def fail(self, message_id: Any, failure: Failure) -> None:
        given_up = "bury" if self.own_dead_letters else "delete"
        self.send(given_up if failure.final else "release", message_id)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    def send(self, command: str, message_id: Any) -> None:
        """Send a command about a job, unless another connection reserved it."""
        epoch, job_id = message_id
        if epoch != self.epoch or self.client is None:
            return
        with self.connected() as client:
            try:
                getattr(client, command)(greenstalk.Job(job_id, b""))
            except greenstalk.NotFoundError:  # its time ran out: it is in the tube again
                self.collector.lost([message_id])

    @contextmanager
    def connected(self) -> Iterator[greenstalk.Client[bytes]]:
        """The client; raises its errors as a ConnectorError."""
        try:
            self.client = self.client or self.connect()
            yield self.client
        except PASSING as error:
            self.close()
            self.client, self.epoch = None, self.epoch + 1
            self.collector.lost()
            what, where = f"the connection to beanstalkd is gone: {error}", f"tube {self.tube!r}"
            fix = "check that it runs and is reachable; it is tried again until then"
            raise ConnectorError(what, f"{where} at {self.address}", fix, can_retry=True) from error

    def connect(self) -> greenstalk.Client[bytes]:
        link = socket.create_connection(self.address, timeout=5)
        try:
            return greenstalk.Client(link, encoding=None, watch=self.tube)
        except BaseException:
            link.close()
            raise
