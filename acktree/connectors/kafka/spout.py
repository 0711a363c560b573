"""The spout that receives in the driver: partitions are assigned by the consumer group.

Rules of this file
------------------
1. What is committed is the frontier, and never more: ``progress.py``.
2. A partition that is revoked is committed as far as it is done, and what is open of it is ``lost``: whoever
   reads it next begins at the frontier. Message ids are never used twice, so a late verdict means nothing.
3. The client is polled in every state. While no messages are wanted its partitions are paused: who does not
   poll for ``max.poll.interval.ms`` loses them.
4. The client does not raise when the servers are gone; it tells a callback. That is asked each time.

Source: Storm's ``KafkaSpout`` and ``KafkaSpoutConfig``; librdkafka's pages on consumer groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from acktree import (
    Config,
    ConfigError,
    ConnectorError,
    Failure,
    OpenMessages,
    Spout,
    SpoutOutputCollector,
    TaskContext,
)
from acktree.connectors.kafka.client import (
    CONNECT_SECS,
    SERVERS_GONE,
    UNKNOWN_TOPIC,
    client_log,
    connector_error,
    is_final,
    is_other_protocol,
    settings_of,
)
from acktree.connectors.kafka.progress import Int64s, OpenRuns, Partition, Run, decode_done

__all__ = ["FIELDS", "FirstPoll", "Guarantee", "KafkaSpout"]

Guarantee: TypeAlias = Literal["at_least_once", "at_most_once", "no_guarantee"]
FirstPoll: TypeAlias = Literal[
    "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp", "earliest", "latest", "timestamp"
]

FIELDS: Final = ("topic", "partition", "offset", "key", "value", "timestamp_ms")
_GUARANTEES: Final = ("at_least_once", "at_most_once", "no_guarantee")
_FIRST_POLLS: Final = (
    "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp", "earliest", "latest", "timestamp",
)  # fmt: skip
_PAGE: Final = 8192
_COMMIT_SECS: Final = 1.0
_PROBE_SECS: Final = 1.0
_MEET_SECS: Final = 0.5
_CALLBACKS: Final = 20
_MISSING_SECS: Final = 2.0
"""A topic that is unknown for so long is gone; a server that starts may not know its topics yet."""
_MAX_POLL_MS: Final = 300_000

_Key: TypeAlias = tuple[str, int]
"""(topic, partition number)"""


class KafkaSpout(Spout):
    """The records of topics for a consumer group, as FIELDS, with key and value as bytes or None.

    Args:
        bootstrap_servers: ``"host:9092,..."``.
        topics: A topic or several, which must be there; one that begins with ``^`` is a regular expression.
        group_id: The consumer group. Tasks of a spout, and other consumers, share its partitions.
        guarantee: ``"at_least_once"``: an offset is committed when every record up to it is acked or given
            up. ``"at_most_once"``: before the record is emitted. ``"no_guarantee"``: every second, whatever
            was emitted. Records are tracked messages with ``"at_least_once"`` only.
        max_uncommitted_offsets: So many records of a task may be emitted and lie above the frontier, done or
            not; beyond that nothing is read until the oldest open record is done.
        first_poll: Where a partition begins. ``"uncommitted_..."``: at the group's committed offset, and where
            there is none, at the earliest record, the latest, or the first of ``start_timestamp_ms``. Without
            ``uncommitted_``: there in any case, when this checkpoint reads the partition for the first time.
        start_timestamp_ms: For ``"timestamp"`` and ``"uncommitted_timestamp"``: milliseconds since 1970.
        config: Further settings of librdkafka, such as ``security.protocol`` and ``sasl.password``.

    Raises:
        ConfigError: A setting that cannot be.

    What a ``Retry`` gives up counts as done: acktree's dead letter is its copy. Without a ``Retry`` a failed
    record is emitted again at once. The records that are open are kept in memory for that. Kafka counts no
    deliveries: after a restart ``tup.attempt`` begins at 1.
    """

    outputs = list(FIELDS)
    remembers = ("begun",)

    def __init__(
        self,
        bootstrap_servers: str,
        topics: str | Sequence[str],
        group_id: str,
        *,
        guarantee: Guarantee = "at_least_once",
        max_uncommitted_offsets: int = 10_000_000,
        first_poll: FirstPoll = "uncommitted_earliest",
        start_timestamp_ms: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        where = f"KafkaSpout(..., {self.topics!r}, {group_id!r})"
        _one_of(guarantee, "guarantee", _GUARANTEES, where)
        _one_of(first_poll, "first_poll", _FIRST_POLLS, where)
        if not self.topics or not all(self.topics):
            raise ConfigError("topics names no topic", where, 'name one, or several: ["orders", "clicks"]')
        if first_poll.endswith("timestamp") != (start_timestamp_ms is not None):
            what = f"first_poll is {first_poll!r}, and start_timestamp_ms is {start_timestamp_ms!r}"
            raise ConfigError(what, where, 'give start_timestamp_ms with "timestamp", and with nothing else')
        if not max_uncommitted_offsets > 0:
            what = f"max_uncommitted_offsets is {max_uncommitted_offsets!r}"
            raise ConfigError(what, where, "give a whole number above 0")
        self.guarantee, self.first_poll, self.start_timestamp_ms = guarantee, first_poll, start_timestamp_ms
        self.max_uncommitted_offsets, self.group_id = max_uncommitted_offsets, group_id
        self.begun: frozenset[_Key] = frozenset()
        """Partitions that this checkpoint has read from."""
        ours = {"group.id": group_id, "session.timeout.ms": 45_000}
        if (config or {}).get("group.protocol", "classic") == "classic":
            ours["partition.assignment.strategy"] = "cooperative-sticky"
        else:
            del ours["session.timeout.ms"]  # the server's, in the newer protocol
        self._settings = settings_of(bootstrap_servers, config, ours, where) | {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        strategy = str(self._settings.get("partition.assignment.strategy", "cooperative"))
        self._is_cooperative = "cooperative" in strategy
        max_poll_secs = float(self._settings.get("max.poll.interval.ms", _MAX_POLL_MS)) / 1000
        self.keep_alive_secs = min(_COMMIT_SECS, max_poll_secs / 4)
        self._where = f"topics {', '.join(self.topics)}, group {group_id!r} at {bootstrap_servers}"
        self._consumer: Any = None

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Connect, see that the topics are there, and join the group."""
        self._collector = collector
        self._most = context.max_spout_pending
        self._partitions: dict[_Key, Partition] = {}
        self._runs = OpenRuns()
        self._ahead: deque[Message] = deque()
        self._again: deque[tuple[Run, int, int]] = deque()  # (run, place, attempt) of what failed
        self._seeks: dict[_Key, int] = {}
        self._assigned_now: set[_Key] = set()
        self._unbegun: set[_Key] = set()
        self._errors: list[KafkaError] = []
        self._is_down = self._is_paused = self._was_asked = self._is_closing = False
        self._missing_since: float | None = None
        self._commit_after = 0.0
        settings = self._settings | {"error_cb": self._errors.append, "on_commit": self._note_commit}
        try:
            self._consumer = Consumer(settings, logger=client_log)
        except (KafkaException, TypeError, ValueError) as error:
            what = f"Kafka's client refuses its settings: {error}"
            raise ConfigError(what, self._where, "mend config") from None
        try:
            self._meet_servers()
        except ConnectorError:
            self.close()
            raise
        self._consumer.subscribe(
            self.topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._forget
        )

    def next_tuple(self) -> None:
        """Emit what failed, or else the records that the client has received."""
        self._was_asked = True
        if self._again:
            self._emit_again()
            return
        if not self._ahead:
            room = _PAGE if self._most is None else min(_PAGE, self._most - self._collector.pending_count)
            uncommitted = sum(each.uncommitted for each in self._partitions.values())
            self._pause(wanted=room <= 0 or uncommitted >= self.max_uncommitted_offsets)
            self._poll(max(room, 1))
        self._check()
        self._commit_if_due()
        if self._ahead:
            self._emit()

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        """Poll, if ``next_tuple`` did not; commit."""
        if self._consumer is None:
            return
        if not self._was_asked:
            self._pause(wanted=True)
            self._poll(1)
        self._was_asked = False
        self._check()
        self._commit_if_due()

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Note what is done; it is committed within a second."""
        self._runs.close(message_ids)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Note what was given up as done; let the rest be emitted again."""
        self._runs.close([message_id for message_id, failure in failures if failure.final])
        attempts = {message_id: failure.attempt for message_id, failure in failures if not failure.final}
        for run, places in self._runs.find(list(attempts)):
            self._again.extend((run, place, attempts[run.first_id + place] + 1) for place in places.tolist())

    def lag(self) -> int | None:
        """How many records were not read yet, as far as the client knows."""
        known = []
        for topic, number in self._partitions:
            with suppress(KafkaException):
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)
                position = max(low, self._partitions[topic, number].position)
                known.append(max(0, high - position) if high >= 0 else 0)
        return sum(known) if known else None

    def close(self) -> None:
        """Commit, and leave the group."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        self._is_closing = True
        if not self._is_down:
            self._commit_now(consumer, self._partitions.values())
        with suppress(KafkaException, RuntimeError):
            consumer.close()

    # --- the group

    def _assign(self, consumer: Any, given: Sequence[TopicPartition]) -> None:  # noqa: ANN401
        """Begin partitions where the group, or ``first_poll``, says."""
        try:
            starts = self._begin(consumer, given)
        except KafkaException:  # they are begun by a later call; until then their records are not wanted
            starts = list(given)
            self._unbegun.update((each.topic, each.partition) for each in given)
        if self._is_cooperative:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)
        # Said in any case: a partition that comes again is paused as it was when it went.
        (consumer.pause if self._is_paused else consumer.resume)(starts)
        self._assigned_now.update((each.topic, each.partition) for each in given)

    def _begin(self, consumer: Any, given: Sequence[TopicPartition]) -> list[TopicPartition]:  # noqa: ANN401
        """Make the progress of partitions; gives where each begins."""
        begun: list[Partition] = []
        for found in consumer.committed(list(given), timeout=CONNECT_SECS):
            if found.error is not None:
                raise KafkaException(found.error)
            key = found.topic, found.partition
            is_anew = not self.first_poll.startswith("uncommitted") and key not in self.begun
            if found.offset >= 0 and not is_anew:
                begun.append(Partition(*key, found.offset, decode_done(found.offset, found.metadata)))
            else:
                begun.append(Partition(*key, self._first_offset(consumer, *key)))
        self._partitions.update({(each.topic, each.number): each for each in begun})
        self._commit_now(consumer, begun)  # at once: after a crash the latest offset is another one
        return [TopicPartition(each.topic, each.number, each.position) for each in begun]

    def _begin_late(self) -> None:
        """Begin partitions that could not be begun when they were assigned. Raises where they still cannot."""
        if not self._unbegun:
            return
        try:
            starts = self._begin(self._consumer, [TopicPartition(*key) for key in self._unbegun])
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        self._seeks |= {(each.topic, each.partition): each.offset for each in starts}
        self._unbegun.clear()

    def _first_offset(self, consumer: Any, topic: str, number: int) -> int:  # noqa: ANN401
        """Where a partition begins that is begun anew."""
        place = TopicPartition(topic, number)
        low, high = consumer.get_watermark_offsets(place, timeout=CONNECT_SECS)
        if self.first_poll.endswith("earliest"):
            return int(low)
        if self.start_timestamp_ms is None:
            return int(high)
        place = TopicPartition(topic, number, self.start_timestamp_ms)
        [found] = consumer.offsets_for_times([place], timeout=CONNECT_SECS)
        return int(found.offset if found.offset >= 0 else high)

    def _revoke(self, consumer: Any, taken: Sequence[TopicPartition]) -> None:  # noqa: ANN401
        """Another member reads these partitions next: commit how far they are done."""
        mine = [self._partitions.get((each.topic, each.partition)) for each in taken]
        self._commit_now(consumer, [each for each in mine if each is not None])
        self._forget(consumer, taken)

    def _forget(self, _: object, taken: Sequence[TopicPartition]) -> None:
        """Partitions are gone, and may be read by another member already."""
        keys = {(each.topic, each.partition) for each in taken}
        self._unbegun -= keys
        lost: list[int] = []
        for key in keys & self._partitions.keys():
            partition = self._partitions.pop(key)
            lost += partition.open_ids()
            self._runs.forget(partition)
            self._seeks.pop(key, None)
        self._ahead = deque(each for each in self._ahead if (each.topic(), each.partition()) not in keys)
        self._again = deque(each for each in self._again if each[0].partition in self._partitions.values())
        if lost and not self._is_closing:
            self._collector.lost(lost)

    def _pause(self, *, wanted: bool) -> None:
        if wanted == self._is_paused:
            return
        places = [TopicPartition(*key) for key in self._partitions]
        with suppress(KafkaException):  # of a partition that is about to be revoked
            (self._consumer.pause if wanted else self._consumer.resume)(places)
        self._is_paused = wanted

    # --- receiving

    def _poll(self, most: int) -> None:
        """Take what the client has, and run its callbacks."""
        try:
            self._seek()
            self._assigned_now.clear()
            messages = self._consumer.consume(most, 0)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        # What came before a partition was assigned anew in the same call is of its earlier assignment.
        old = {(each.topic(), each.partition()) for each in messages} if self._assigned_now else set()
        for key in old & self._assigned_now & self._partitions.keys():
            self._seeks[key] = self._partitions[key].position
        self._ahead.extend(each for each in messages if not self._is_error(each))

    def _seek(self) -> None:
        """Let partitions be read from elsewhere: they are assigned anew, which always takes effect."""
        seeks, self._seeks = self._seeks, {}
        places = [TopicPartition(*key, offset) for key, offset in seeks.items()]
        if not places:
            return
        if self._is_cooperative:
            self._consumer.incremental_unassign(places)
            self._consumer.incremental_assign(places)
        else:
            at = {key: each.position for key, each in self._partitions.items()} | seeks
            places = [TopicPartition(*key, offset) for key, offset in at.items()]
            self._consumer.assign(places)
        (self._consumer.pause if self._is_paused else self._consumer.resume)(places)

    def _is_error(self, message: Message) -> bool:
        """Whether it is neither a record nor the end of a partition; what is wrong is noted."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return False
        partition = self._partitions.get((message.topic() or "", message.partition() or 0))
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._errors.append(error)
        elif partition is not None:
            self._jump(partition)
        return True

    def _jump(self, partition: Partition) -> None:
        """The offset to be read next is not there: go on at the first that is."""
        key = partition.topic, partition.number
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=CONNECT_SECS)
        where = f"partition {partition.number} of topic {partition.topic!r}, {self._where}"
        if partition.position > high:
            what = f"the topic was made anew: it ends at offset {high}, and {partition.position} is next"
        else:
            what = (
                f"retention removed the records from {partition.position} to {low - 1} before they were read"
            )
        fix = f"it goes on at offset {low}; let the topic keep its records for longer (retention.ms)"
        self._collector.report_error(ConnectorError(what, where, fix, can_retry=True))
        self._runs.forget(partition)  # verdicts of what is open change nothing any more
        self._partitions[key] = Partition(*key, low)
        self._seeks[key] = low

    def _check(self) -> None:
        """Look at what the client told of its connections. Raises what is wrong."""
        errors = list(self._errors)
        self._errors.clear()
        for error in errors:
            if error.code() in UNKNOWN_TOPIC:
                self._is_down = True  # the question below says whether that is so
            elif is_final(error):
                raise connector_error(error, self._where)
            elif error.code() in SERVERS_GONE:
                self._is_down = True
        if self._is_down:
            self._see_topics(_PROBE_SECS)
            self._is_down = False
        self._begin_late()

    def _meet_servers(self) -> None:
        """See that the topics are there, before anything is subscribed to."""
        deadline = monotonic() + CONNECT_SECS
        while True:
            try:
                self._see_topics(_MEET_SECS)
                return
            except ConnectorError as error:
                for _ in range(
                    _CALLBACKS
                ):  # nothing is subscribed to: it runs callbacks, and gives no record
                    self._consumer.poll(0)
                told = [each for each in self._errors if is_final(each) or is_other_protocol(each)]
                if told:
                    raise connector_error(told[0], self._where) from error
                if not error.can_retry or monotonic() > deadline:
                    raise

    def _see_topics(self, secs: float) -> None:
        """Ask a server for the topics. Raises what is wrong."""
        try:
            for topic in self.topics:
                listed = self._consumer.list_topics(None if topic.startswith("^") else topic, timeout=secs)
                error = getattr(listed.topics.get(topic), "error", None)
                if error is not None:
                    raise KafkaException(error)
        except KafkaException as error:
            raise self._unless_it_starts(error.args[0]) from error
        self._missing_since = None

    def _unless_it_starts(self, error: KafkaError) -> ConnectorError:
        """The error; a topic that was there is unknown to a server that starts, too."""
        ours = connector_error(error, self._where)
        if error.code() in UNKNOWN_TOPIC and self._partitions:
            now = monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since < _MISSING_SECS:
                return ConnectorError(ours.what, ours.where, ours.fix, can_retry=True)
        return ours

    # --- emitting

    def _emit(self) -> None:
        """Emit what was received, a batch for each partition."""
        groups = groupby(self._ahead, lambda each: (each.topic(), each.partition(), each.error() is None))
        received = [(*key, list(group)) for key, group in groups]
        self._ahead.clear()
        for place, (topic, number, is_record, group) in enumerate(received):
            partition = self._partitions.get((topic, number))
            if partition is None or (topic, number) in self._seeks:
                continue
            if not is_record:  # the end: what lies before it and did not come is no record
                partition.read_through(group[-1].offset() - 1)
                continue
            try:
                self._emit_records(partition, group)
            except ConnectorError:  # nothing of these records was emitted
                self._ahead.extend(each for *_, left in received[place:] for each in left)
                raise

    def _emit_records(self, partition: Partition, records: Sequence[Message]) -> None:
        offsets = np.array([each.offset() for each in records], dtype=np.int64)
        is_new = partition.fresh(offsets)
        if not is_new.all():
            records = [each for each, wanted in zip(records, is_new, strict=True) if wanted]
        end = int(offsets[-1]) + 1
        if self.guarantee == "at_most_once":
            self._commit_through(partition, end)
        partition.read_through(end - 1)
        if not records:
            return
        key = partition.topic, partition.number
        if key not in self.begun:
            self.begun |= {key}
        batch = batch_of(*key, offsets[is_new], records)
        if self.guarantee != "at_least_once":
            self._collector.emit_batch(batch)
            return
        run = self._runs.open(partition, offsets[is_new], batch)
        self._collector.emit_batch(batch, run.first_id + np.arange(len(run.offsets)))

    def _emit_again(self) -> None:
        """Emit what failed once more."""
        waiting, self._again = self._again, deque()
        for run, group in groupby(waiting, lambda each: each[0]):
            rows = list(group)
            if run.batch is None:
                continue
            places = [place for _, place, _ in rows]
            batch = run.batch.take(pa.array(places, pa.int64()))
            ids, attempts = run.first_id + np.array(places), np.array([attempt for _, _, attempt in rows])
            self._collector.emit_batch(batch, ids, attempts=attempts)

    # --- committing

    def _commit_if_due(self) -> None:
        if monotonic() >= self._commit_after:
            self._commit_after = monotonic() + _COMMIT_SECS
            offsets = self._to_commit(self._partitions.values())
            if offsets:
                with suppress(KafkaException):
                    self._consumer.commit(offsets=offsets, asynchronous=True)

    def _commit_now(self, consumer: Any, partitions: Iterable[Partition]) -> None:  # noqa: ANN401
        """Commit, and wait for the answer. What could not be committed is delivered again."""
        mine = list(partitions)
        offsets = self._to_commit(mine)
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            for each in mine:
                each.committed = None

    def _commit_through(self, partition: Partition, end: int) -> None:
        """Commit what is emitted next. Raises where that fails."""
        offsets = [TopicPartition(partition.topic, partition.number, end)]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        partition.committed = (end, "")

    def _to_commit(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        found = []
        for each in partitions:
            wanted = each.to_commit()
            if wanted != each.committed:
                each.committed = wanted
                found.append(TopicPartition(each.topic, each.number, wanted[0], wanted[1]))
        return found

    def _note_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """What was not committed is committed with the next."""
        for each in offsets:
            partition = self._partitions.get((each.topic, each.partition))
            if partition is not None and (error is not None or each.error is not None):
                partition.committed = None


def batch_of(topic: str, number: int, offsets: Int64s, records: Sequence[Message]) -> pa.RecordBatch:
    """Records of one partition as a batch of FIELDS."""
    count = len(records)
    times = [each.timestamp() for each in records]
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(number, pa.int32()), count),
            pa.array(offsets),
            pa.array([each.key() for each in records], pa.binary()),
            pa.array([each.value() for each in records], pa.binary()),
            pa.array([None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in times], pa.int64()),
        ],
        names=list(FIELDS),
    )


def _one_of(given: object, name: str, known: Sequence[str], where: str) -> None:
    if given not in known:
        what = f"{name} is {given!r}"
        raise ConfigError(what, where, "give one of " + ", ".join(map(repr, known)))
