"""The sink that produces to a topic, a batch for each micro-batch and task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree import Bolt, Config, MisuseError, OutputCollector, TaskContext, Tuple
from acktree.connectors.kafka.client import client_log, connector_error, is_fatal, settings_of

_DELIVERY_MS: Final = 30_000
_FULL_SECS: Final = 0.1


class KafkaSink(Bolt):
    """Produces each tuple's ``value`` and acks it when the server has confirmed it. At least once.

    Args:
        bootstrap_servers: As of the spout.
        topic: The topic.
        config: Further settings of librdkafka, such as ``security.protocol`` and ``compression.type``.

    Reads the field ``value`` (bytes, str or None), and where there are such fields ``key`` and ``headers`` (a
    mapping from str to bytes). The records of a micro-batch are confirmed together; one that is refused, by
    its size or its type, fails alone. The producer is idempotent: a connection that breaks makes no record
    twice, but a tuple that is tried again does. An unconfirmed record is given up after 30 s
    (``delivery.timeout.ms``).
    """

    outputs = []

    def __init__(
        self, bootstrap_servers: str, topic: str, *, config: Mapping[str, Any] | None = None
    ) -> None:
        ours = {"enable.idempotence": True, "delivery.timeout.ms": _DELIVERY_MS, "linger.ms": 5}
        self._settings = settings_of(bootstrap_servers, config, ours, f"KafkaSink(..., {topic!r})")
        self.topic = topic
        self._where = f"topic {topic!r} at {bootstrap_servers}"

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:  # noqa: ARG002
        """Take the producer, which stays with the process."""
        # With all settings: one that was mended must not find the producer that was made before.
        settings = tuple(sorted((name, repr(value)) for name, value in self._settings.items()))
        self._kept = context.cached((self.topic, settings, context.task_id), _Kept)
        self._collector = collector

    def execute(self, tup: Tuple) -> None:
        """Hand the record to the client."""
        producer = self._kept.producer(self._settings)
        record = {"value": tup["value"]}
        record |= {name: tup[name] for name in ("key", "headers") if name in tup.fields}
        on_delivery = partial(self._delivered, tup)
        while True:
            try:
                producer.produce(self.topic, on_delivery=on_delivery, **record)
                return
            except BufferError:  # what waits to be sent fills the client's queue
                producer.poll(_FULL_SECS)
            except KafkaException as error:
                self._let_go_if_fatal(error.args[0])
                raise connector_error(error.args[0], self._where) from error

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002
        """Wait until every record of this micro-batch is confirmed or given up."""
        producer = self._kept.producer(self._settings)
        try:
            producer.flush()
        except BaseException:  # such as a time limit: its tuples fail, and what it holds is nobody's
            self._kept.drop()
            raise

    def _delivered(self, tup: Tuple, error: KafkaError | None, _: object) -> None:
        """Called in ``flush`` and while the client's queue is full, once for each record."""
        with suppress(MisuseError):  # `execute` raised after it had handed over the record: it has failed
            if error is None:
                self._collector.ack(tup)
            else:
                self._collector.fail(tup, str(connector_error(error, self._where)))
        if error is not None:
            self._let_go_if_fatal(error)

    def _let_go_if_fatal(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._kept.drop()


class _Kept:
    """A producer that outlives the bolt, which lives for one micro-batch."""

    def __init__(self) -> None:
        self._producer: Any = None

    def producer(self, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the client's
        """The producer, connected at its first record."""
        if self._producer is None:
            self._producer = Producer(dict(settings), logger=client_log)
        return self._producer

    def drop(self) -> None:
        """Let go of a producer that can send no more."""
        with suppress(KafkaException):
            self._producer = None
