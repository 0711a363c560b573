"""The sink that produces to a topic, a batch for each micro-batch and task.

As a bolt it writes at least once, here; as an ``acktree.Sink`` once, in ``transactions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # documented

from acktree import (  # isort: skip
    Bolt, Config, ConfigError, ConnectorError, MisuseError, OutputCollector, Sink, TaskContext, Tuple,
)  # fmt: skip
from acktree.connectors.batch_sink import as_bytes, headers_in, must_read, rows_of, writer_of
from acktree.connectors.kafka.client import ABSENT, CONNECT_SECS, client_log, is_fatal, settings_of
from acktree.connectors.kafka.member import Member
from acktree.connectors.kafka.start import Start
from acktree.connectors.kafka.transactions import OF_PRODUCERS, Record, Transactions, refusal_of

_DELIVERY_MS: Final = 30_000
_FULL_SECS: Final = 0.1
_FIELDS: Final = ("value", "key", "headers")


class KafkaSink(Bolt, Sink):
    """Produces each tuple's ``value`` and acks it when the server has confirmed it.

    At least once in ``set_bolt``; in ``set_sink`` each row once.

    Args:
        bootstrap_servers: As of the spout.
        topic: The topic.
        config: Further settings of librdkafka, such as ``security.protocol`` and ``compression.type``.

    Reads the field ``value`` (bytes, str or None), and, if they are there, ``key`` and ``headers`` (a mapping
    from str to bytes). The records of a micro-batch are confirmed together; a record that is refused for its
    size or type fails alone. The producer is idempotent: a broken connection writes no record twice, but a
    tuple that is tried again is written again. An unconfirmed record is given up after 30 s
    (``delivery.timeout.ms``). Then later tuples of the micro-batch are not sent, and the messages of all that
    are not confirmed wait.

    As a sink, a task writes its records of a micro-batch in one transaction: a consumer with
    ``isolation.level=read_committed`` reads each once. The mark stands beside an offset of a consumer group
    of the task's own, ``acktree/<checkpoint>/<component>/<task>``, which is its transactional id, too. The
    user needs the right to WRITE with this transactional id, and to READ with this group.
    """

    outputs = []

    def __init__(
        self, bootstrap_servers: str, topic: str, *, config: Mapping[str, Any] | None = None
    ) -> None:
        ours = {"enable.idempotence": True, "delivery.timeout.ms": _DELIVERY_MS, "linger.ms": 5}
        self._settings = settings_of(bootstrap_servers, config, ours, f"KafkaSink(..., {topic!r})")
        self.topic = topic
        self._where = f"topic {topic!r} at {bootstrap_servers}"

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the topic is there, or the servers make it at its first record. Nothing is produced.

        Raises:
            ConfigError: No stream that it reads has the field ``value``, or the client refuses a setting.
            ConnectorError: The servers cannot be reached, or refuse; or the topic does not exist.
        """
        must_read(context, self._where, "value")
        # A producer that asks for a topic makes it, where the servers allow that.
        plain = {name: each for name, each in self._settings.items() if name not in OF_PRODUCERS}
        plain |= {"group.id": "acktree", "enable.auto.commit": False}
        start = Start("latest", None, lambda _: False, "")
        try:
            with closing(
                Member(plain, (self.topic,), start, self._where, on_lost=list, report=repr, joins=False)
            ):
                pass
        except ConnectorError as error:
            if not (error.what.startswith(ABSENT.what) and _makes_topics(plain)):
                raise

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:  # noqa: ARG002
        """Take the producer, which stays with the process."""
        self._kept = context.cached((self._where, context.task_id), lambda: _Kept(self._where))
        self._collector = collector
        self._is_spent = False
        self._outage: ConnectorError | None = None

    def open(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """Take the producer; it connects at its first use, and stays with the process."""
        writer, plain = writer_of(context), repr(sorted(self._settings.items(), key=itemgetter(0)))
        self._transactions = context.cached(
            ("kafka", self._where, writer, plain),
            lambda: Transactions(self._settings, self.topic, writer, self._where),
        )
        self._seen = b""

    def last_mark(self) -> bytes | None:
        """The mark beside the offset of the task's group."""
        self._seen = self._transactions.last()
        return self._seen or None

    def write(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str]:
        """Write records and the mark in one transaction."""
        rows, refused = rows_of(batch)
        records: dict[int, Record] = {}
        for index, row in rows.items():
            try:
                records[index] = self._record(row)
            except ConnectorError as error:
                refused[index] = str(error)
        refusals = self._transactions.write(self._seen, mark, records, refused)
        self._seen = mark
        return refusals

    def close(self) -> None:
        """Do nothing: the producer stays with the process."""

    def execute(self, tup: Tuple) -> None:
        """Hand the record to the client."""
        producer = self._kept.producer(self._settings)
        record = self._record({name: tup[name] for name in _FIELDS if name == "value" or name in tup.fields})
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

    def _record(self, values: Mapping[str, Any]) -> dict[str, object]:
        """What is produced of a tuple. Raises ConnectorError for a value that Kafka cannot hold."""
        if "value" not in values:
            raise ConnectorError("the tuple has no field 'value'", self._where, "emit a field of this name")
        record: dict[str, object] = {
            name: None if values[name] is None else as_bytes(repr(name), values[name], self._where)
            for name in ("value", "key")
            if name in values
        }
        if "headers" in values:
            headers = headers_in(values["headers"], "headers", self._where)
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


def _makes_topics(settings: Mapping[str, Any]) -> bool:
    """Whether the servers make a topic that is not there; yes where this user may not ask."""
    name = "auto.create.topics.enable"
    plain = {each: value for each, value in settings.items() if each != "group.id"}
    try:
        admin: Any = AdminClient(plain, logger=client_log)
        number = next(iter(admin.list_topics(timeout=CONNECT_SECS).brokers))
        asked = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(number))])
        [answer] = asked.values()
        return bool(answer.result(CONNECT_SECS)[name].value != "false")
    except (KafkaException, TimeoutError):
        return True


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
