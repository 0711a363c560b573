"""The sink that produces to a topic, a batch for each micro-batch and task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree import Bolt, Config, ConfigError, MisuseError, OutputCollector, TaskContext, Tuple
from acktree.connectors.kafka.client import client_log, connector_error, is_fatal, settings_of

_DELIVERY_MS: Final = 30_000
_FULL_SECS: Final = 0.1


class KafkaSink(Bolt):
    """Produces each tuple's ``value`` and acks it when the server has confirmed it. At least once.

    Args:
        bootstrap_servers: As of the spout.
        topic: The topic.
        config: Further settings of librdkafka, such as ``security.protocol`` and ``compression.type``.

    Reads the field ``value`` (bytes, str or None), and, if they are there, ``key`` and ``headers`` (a mapping
    from str to bytes). The records of a micro-batch are confirmed together; a record that is refused for its
    size or type fails alone. The producer is idempotent: a broken connection writes no record twice, but a
    tuple that is tried again is written again. An unconfirmed record is given up after 30 s
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
        self._kept = context.cached((self._where, context.task_id), lambda: _Kept(self._where))
        self._collector = collector
        self._is_spent = False

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
            except BufferError:  # the client's queue of unsent records is full
                producer.poll(_FULL_SECS)
            except KafkaException as error:
                self._is_spent |= is_fatal(error.args[0])
                raise connector_error(error.args[0], self._where) from error

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002
        """Wait until every record of this micro-batch is confirmed or given up."""
        producer = self._kept.made
        if producer is None:  # no record came
            return
        try:
            producer.flush()
        except BaseException:  # such as a time limit: all tuples fail, and the producer is discarded
            self._is_spent = True
            raise
        finally:
            if self._is_spent:
                self._kept.made = None

    def _delivered(self, tup: Tuple, error: KafkaError | None, _: object) -> None:
        """Called in ``flush`` and while the client's queue is full, once for each record."""
        with suppress(MisuseError):  # `execute` raised after `produce`: the tuple has failed already
            if error is None:
                self._collector.ack(tup)
            else:
                self._collector.fail(tup, str(connector_error(error, self._where)))
        self._is_spent |= error is not None and is_fatal(error)


class _Kept:
    """A producer that outlives the bolt, which lives for one micro-batch.

    Attributes:
        made: The producer, if there is one.
    """

    def __init__(self, where: str) -> None:
        self.made: Any = None
        self._where = where
        self._plain: dict[str, object] = {}

    def producer(self, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the client's
        """The producer, connected at its first record. Changed settings make another one."""
        plain: dict[str, object] = {
            name: each for name, each in settings.items() if isinstance(each, str | int | float)
        }
        if self.made is None or plain != self._plain:
            try:
                self.made = Producer(dict(settings), logger=client_log)
            except (KafkaException, TypeError, ValueError) as error:
                what = f"Kafka's client refuses its settings: {error}"
                raise ConfigError(what, self._where, "correct config") from None
            self._plain = plain
        return self.made
