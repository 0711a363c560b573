"""The sink that produces to a topic, a batch for each micro-batch and task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree import (  # isort: skip
    Bolt, Config, ConfigError, ConnectorError, MisuseError, OutputCollector, TaskContext, Tuple,
)  # fmt: skip
from acktree.connectors.batch_sink import as_bytes, headers_of
from acktree.connectors.kafka.client import client_log, connector_error, is_fatal, settings_of

_DELIVERY_MS: Final = 30_000
_FULL_SECS: Final = 0.1
_OF_THE_RECORD: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.POLICY_VIOLATION, KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)  # fmt: skip


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
    (``delivery.timeout.ms``); later tuples of the micro-batch then fail without being sent.
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
        self._outage: ConnectorError | None = None

    def execute(self, tup: Tuple) -> None:
        """Hand the record to the client."""
        producer = self._kept.producer(self._settings)
        record = self._record(tup)
        on_delivery = partial(self._delivered, tup)
        while self._outage is None:
            try:
                producer.produce(self.topic, on_delivery=on_delivery, **record)
                return
            except BufferError:  # the client's queue of unsent records is full
                producer.poll(_FULL_SECS)
            except KafkaException as error:
                self._is_spent |= is_fatal(error.args[0])
                raise refusal_of(error.args[0], self._where) from error
        raise self._outage

    def _record(self, tup: Tuple) -> dict[str, object]:
        """What is produced of a tuple. Raises ConnectorError for a value that Kafka cannot hold."""
        record: dict[str, object] = {
            name: None if tup[name] is None else as_bytes(repr(name), tup[name], self._where)
            for name in ("value", "key")
            if name == "value" or name in tup.fields
        }
        if "headers" in tup.fields:
            headers = headers_of(tup, "headers", self._where)
            record["headers"] = {
                name: None if value is None else as_bytes(f"the header {name!r:.60}", value, self._where)
                for name, value in headers.items()
            }
        return record

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
            outage, self._is_spent, self._outage = self._outage, False, None
        if outage is not None:
            raise outage

    def _delivered(self, tup: Tuple, error: KafkaError | None, _: object) -> None:
        """Called in ``flush`` and while the client's queue is full, once for each record."""
        with suppress(MisuseError):  # `execute` raised after `produce`: the tuple has failed already
            if error is None:
                self._collector.ack(tup)
                return
            self._is_spent |= is_fatal(error)
            refusal = refusal_of(error, self._where)
            if refusal.can_retry:
                self._outage = refusal  # flush raises it: the messages of what is open wait
            else:
                self._collector.fail(tup, str(refusal), exception=refusal)


def refusal_of(error: KafkaError, where: str) -> ConnectorError:
    """Why a record was not taken: what Kafka says of the record itself, or that it cannot be used."""
    if error.code() in _OF_THE_RECORD:
        fix = "send less, or raise message.max.bytes of config and topic; or correct what Kafka names"
        return ConnectorError(f"Kafka refused the record: {error.str():.200}", where, fix)
    return connector_error(error, where)


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
