"""Transactions of a producer that write records and a mark: for ``KafkaSink`` as an ``acktree.Sink``.

Rules of this file
------------------
1. A task's mark is the metadata of an offset that its transaction commits: of partition 0 of the topic, in a
   consumer group of the task's own. No consumer is ever a member of that group.
2. The transactional id is the task's, too. A producer is initialised before its first write: this ends what
   another process of the task has begun, and fences it. Then the mark is read, and compared with the one that
   the task has seen. To look at a mark fences nobody, unless a transaction is open: its process is gone.
3. A refused record ends its transaction, and its producer. It is found by halving, in transactions that are
   aborted; then all others are written in one.
4. After an error that says nothing of a record, the producer is given up: the next one ends its transaction.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree import ConfigError, ConnectorError
from acktree.connectors.batch_sink import otherwise_marked, refusals_of
from acktree.connectors.kafka.client import client_log, connector_error

__all__ = ["OF_THE_RECORD", "Record", "Transactions", "refusal_of"]

OF_THE_RECORD: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.POLICY_VIOLATION, KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)  # fmt: skip
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID,
    }
)  # fmt: skip
_FULL_SECS: Final = 0.1
_LOOK_SECS: Final = 2.0
_SECS: Final = 30.0
_MOST_METADATA: Final = 4096
"""What a broker takes, by default."""

Record = Mapping[str, Any]
"""The arguments of ``Producer.produce``, but for the topic."""


class _Marked(NamedTuple):
    """What a task has written last: its mark, empty for none; which rows were refused; how many writes."""

    mark: bytes
    refused: Mapping[int, str]
    number: int


class _RefusedError(Exception):
    """Kafka refuses records.

    Attributes:
        reasons: Why, by row.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Transactions:
    """The transactions of one task. It outlives the sink, which lives for one micro-batch."""

    def __init__(self, settings: Mapping[str, Any], topic: str, writer: str, where: str) -> None:
        """Nothing is connected until it is used.

        Args:
            settings: Of the client.
            topic: The topic.
            writer: The name of the task among all that write marks.
            where: The topic, for errors.
        """
        self._settings, self._topic, self._where = dict(settings), topic, where
        self._name = f"acktree/{writer}"
        self._producer: Any = None
        self._consumer: Any = None
        self._last: _Marked | None = None  # what the producer has written last, and no other one since

    def last(self) -> bytes:
        """The task's mark; empty for none. Raises ConnectorError if Kafka cannot be asked."""
        try:
            return self._read(_LOOK_SECS).mark
        except ConnectorError as error:
            if not error.can_retry:
                raise
        self._begin_anew()  # a transaction may be open, of a process that was killed
        return self._read(_SECS).mark

    def write(
        self, seen: bytes, mark: bytes, records: Mapping[int, Record], refused: Mapping[int, str]
    ) -> Mapping[int, str]:
        """Write records and a mark in one transaction, unless that is done. Returns why rows are refused.

        Args:
            seen: The mark that the task has seen.
            mark: Its new mark.
            records: By their row.
            refused: Why other rows are refused.

        Raises:
            ConnectorError: Kafka cannot be used, or another process runs the task.
        """
        failure: KafkaError | None = None
        for _ in range(2):
            last = self._last
            if last is None or last.mark not in (seen, mark):  # another process may have written since
                last = self._begin_anew()
            if last.mark == mark:
                return last.refused
            if last.mark != seen:
                raise otherwise_marked(self._where)
            try:
                self._last = self._written(_Marked(mark, refused, last.number + 1), records)
                return self._last.refused
            except KafkaException as error:
                self._leave()
                failure = error.args[0]
        assert failure is not None, "without one the loop has returned"
        if failure.code() in _FENCED:
            raise otherwise_marked(self._where)
        raise connector_error(failure, self._where)

    def _written(self, new: _Marked, records: Mapping[int, Record]) -> _Marked:
        """Write records and a mark; those that are refused are left out."""
        pieces, refused = [list(records)], dict(new.refused)
        while True:
            new = new._replace(refused=refused)
            try:
                self._transaction(pieces, records, partial(self._commit, new))
            except _RefusedError:
                fit: list[list[int]] = []
                for piece in pieces:
                    refused |= self._divided(piece, records, fit)
                pieces = fit
            else:
                return new

    def _divided(
        self, rows: Sequence[int], records: Mapping[int, Record], fit: list[list[int]]
    ) -> dict[int, str]:
        """Find the records that Kafka refuses by halving; ``fit`` is given pieces without one."""
        try:
            self._transaction([rows], records, self._producer.abort_transaction)
        except _RefusedError as error:
            if len(rows) == 1:
                return dict(error.reasons)
            middle = len(rows) // 2
            first = self._divided(rows[:middle], records, fit)
            return first | self._divided(rows[middle:], records, fit)
        fit.append(list(rows))
        return {}

    def _transaction(
        self, pieces: Sequence[Sequence[int]], records: Mapping[int, Record], end: Callable[[], None]
    ) -> None:
        """Produce records, those of a piece together. Raises _RefusedError: nothing is written then."""
        errors: dict[int, KafkaError] = {}
        self._producer.begin_transaction()
        for piece in pieces:
            for row in piece:
                self._produce(records[row], partial(_note, errors, row))
            self._producer.flush()
        if not errors:
            end()
            return
        refused = {row: error for row, error in errors.items() if error.code() in OF_THE_RECORD}
        if not refused:
            raise KafkaException(next(iter(errors.values())))
        # Not abort_transaction: after it this client purges records of the next transaction.
        before = self._last
        if self._begin_anew() != before:
            raise otherwise_marked(self._where)
        raise _RefusedError({row: str(refusal_of(error, self._where)) for row, error in refused.items()})

    def _produce(self, record: Record, on_delivery: Callable[[KafkaError | None, object], None]) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=on_delivery, **record)
                return
            except BufferError:  # the client's queue of unsent records is full
                self._producer.poll(_FULL_SECS)
            except KafkaException as error:
                if error.args[0].code() not in OF_THE_RECORD:
                    raise
                on_delivery(error.args[0], None)
                return

    def _commit(self, new: _Marked) -> None:
        marked = TopicPartition(self._topic, 0, new.number, metadata=self._metadata_of(new))
        group = self._looking().consumer_group_metadata()
        self._producer.send_offsets_to_transaction([marked], group, _SECS)
        self._producer.commit_transaction(_SECS)

    def _metadata_of(self, new: _Marked) -> str:
        text = json.dumps({str(row): reason for row, reason in new.refused.items()})
        parts = (base64.b64encode(part).decode() for part in (new.mark, zlib.compress(text.encode(), 9)))
        metadata = " ".join(parts)
        if len(metadata) > _MOST_METADATA:
            what = f"{len(new.refused)} rows are refused, more than fit into the metadata of an offset"
            fix = "correct the rows, or lower max_spout_pending: a micro-batch then has fewer"
            raise ConnectorError(what, self._where, fix)
        return metadata

    def _begin_anew(self) -> _Marked:
        """A producer that fences those before it, and what they have written last."""
        self._leave()
        # Without error_cb, flush() raises what makes the client useless, and loses what it says of records.
        settings = {"error_cb": _ignored} | self._settings
        settings |= {"transactional.id": self._name, "enable.idempotence": True}
        self._producer = _made(Producer, settings, self._where)
        try:
            self._producer.init_transactions(_SECS)
        except KafkaException as error:
            self._leave()
            raise connector_error(error.args[0], self._where) from error
        self._last = self._read(_SECS)
        return self._last

    def _leave(self) -> None:
        """Give the producer up. What it has begun is ended by the next one."""
        producer, self._producer, self._last = self._producer, None, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge()

    def _read(self, secs: float) -> _Marked:
        try:
            [found] = self._looking().committed([TopicPartition(self._topic, 0)], timeout=secs)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        if found.error is not None:
            raise connector_error(found.error, self._where)
        if not found.metadata:
            return _Marked(b"", {}, 0)
        mark, refused = map(base64.b64decode, found.metadata.split(" "))
        return _Marked(mark, refusals_of(zlib.decompress(refused)), found.offset)

    def _looking(self) -> Any:  # noqa: ANN401  # the client's
        """A consumer that reads what transactions have committed, and belongs to the group of the task."""
        if self._consumer is None:
            common = {
                name: each for name, each in self._settings.items() if name not in OF_PRODUCERS
            }  # fmt: skip
            settings = common | {
                "group.id": self._name, "isolation.level": "read_committed", "enable.auto.commit": False,
            }  # fmt: skip
            self._consumer = _made(Consumer, settings, self._where)
        return self._consumer


OF_PRODUCERS: Final = frozenset(
    {
        "enable.idempotence", "delivery.timeout.ms", "message.timeout.ms", "linger.ms",
        "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes",
        "compression.type", "compression.codec", "compression.level", "batch.size", "batch.num.messages",
        "acks", "request.required.acks", "request.timeout.ms", "retries", "message.send.max.retries",
        "max.in.flight", "max.in.flight.requests.per.connection", "partitioner", "transaction.timeout.ms",
        "enable.gapless.guarantee", "sticky.partitioning.linger.ms", "queuing.strategy",
        "queue.buffering.backpressure.threshold", "delivery.report.only.error",
    }
)  # fmt: skip
"""Settings that the client ignores of a consumer, with a warning."""


def _ignored(_: KafkaError) -> None:
    """Each call says itself why it fails."""


def _note(errors: dict[int, KafkaError], row: int, error: KafkaError | None, _: object) -> None:
    if error is not None:
        errors[row] = error


def _made(kind: Callable[..., Any], settings: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401
    try:
        return kind(dict(settings), logger=client_log)
    except (KafkaException, TypeError, ValueError) as error:
        what = f"Kafka's client refuses its settings: {error}"
        raise ConfigError(what, where, "correct config") from None


def refusal_of(error: KafkaError, where: str) -> ConnectorError:
    """Why a record was not taken: what Kafka says of the record itself, or that it cannot be used."""
    if error.code() in OF_THE_RECORD:
        fix = "send less, or raise message.max.bytes of config and topic; or correct what Kafka names"
        return ConnectorError(f"Kafka refused the record: {error.str():.200}", where, fix)
    return connector_error(error, where)
