"""The spout that receives in the driver. Its consumer group assigns the partitions.

Rules of this file
------------------
1. Message ids are never reused: a verdict on a record of a partition that is gone has no effect.
2. The client is polled in every state, since a member that does not poll for ``max.poll.interval.ms`` loses
   its partitions. While no messages are wanted its partitions are paused.
3. ``member.py`` holds the client's partitions and commits, ``progress.py`` how far records are done.

Source: Storm's ``KafkaSpout`` and ``KafkaSpoutConfig``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from acktree import (
    Config,
    ConfigError,
    Failure,
    OpenMessages,
    Spout,
    SpoutOutputCollector,
    TaskContext,
)
from acktree.connectors.kafka.client import FIELDS, settings_of
from acktree.connectors.kafka.member import Member
from acktree.connectors.kafka.progress import Int64s, Partition, RecordRun
from acktree.connectors.kafka.start import Key, Start
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames, names_by_row

__all__ = ["FirstPoll", "Guarantee", "KafkaSpout"]

Guarantee: TypeAlias = Literal["at_least_once", "at_most_once", "no_guarantee"]
FirstPoll: TypeAlias = Literal[
    "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp", "earliest", "latest", "timestamp"
]

_GUARANTEES: Final = ("at_least_once", "at_most_once", "no_guarantee")
_FIRST_POLLS: Final = (
    "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp", "earliest", "latest", "timestamp",
)  # fmt: skip
_PAGE: Final = 8192
_KEEP_ALIVE_SECS: Final = 1.0
_MAX_POLL_MS: Final = 300_000
_FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
_SAID_BY: Final = {"group.id": "group_id", "auto.offset.reset": "first_poll"}


class KafkaSpout(Spout):
    """The records of topics for a consumer group.

    Emits ``["topic", "partition", "offset", "key", "value", "timestamp_ms"]``; key and value are bytes or
    None, the timestamp is milliseconds since 1970 or None.

    Args:
        bootstrap_servers: ``"host:9092,..."``.
        topics: A topic or several, which must exist. A name that begins with ``^`` is a regular expression.
        group_id: The consumer group. Tasks of a spout, and other consumers, share its partitions.
        guarantee: ``"at_least_once"``: an offset is committed when every record up to it is acked or given
            up. ``"at_most_once"``: before the record is emitted. ``"no_guarantee"``: every second, up to the
            last emitted record. Only with ``"at_least_once"`` are records tracked messages.
        max_uncommitted_offsets: The largest number of emitted records of a task above the frontier, done or
            not. At that number nothing is read until the oldest open record is done.
        first_poll: Where a partition begins. ``"uncommitted_..."``: at the group's committed offset; where
            there is none, at the earliest record, the latest, or the first at ``start_timestamp_ms`` or
            later. Without ``uncommitted_``: at that record in any case, when this checkpoint reads the
            partition for the first time.
        start_timestamp_ms: For ``"timestamp"`` and ``"uncommitted_timestamp"``: milliseconds since 1970.
        config: Further settings of librdkafka, such as ``security.protocol`` and ``sasl.password``. What the
            spout sets itself, such as ``group.id`` and ``auto.offset.reset``, may not have another value.
        label: What people call a record, as of a ``RabbitMQSpout``: ``"header:order"``; ``"body:order"`` of a
            value that is a JSON object; ``"key"``, the record's key; ``"offset"``, which is
            ``topic-partition-offset``; or a function of the emitted values and ``headers`` by field. Only
            with ``"at_least_once"``.
        key: What names the message in all its deliveries, from the same places: see ``key`` of ``emit``. With
            ``"offset"`` a record that a rebalance brings again is acked without running; a topic that is made
            anew counts from 0 again.

    Raises:
        ConfigError: A setting has a value that is not allowed.

    A record that a ``Retry`` gives up counts as done: acktree's dead letter is its copy. Without a ``Retry``
    a failed record is emitted again at once; open records are kept in memory for that. Kafka counts no
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
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        self.topics = [topics] if isinstance(topics, str) else list(topics or ())
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
        self._names = MessageNames(
            where, label, key, dicts={"header": "headers"}, body="value", properties=("key", "offset")
        )
        if self._names.are_wanted and guarantee != "at_least_once":
            what = f"records have a label or a key, and guarantee={guarantee!r} tracks none"
            raise ConfigError(what, where, 'leave label and key out, or give guarantee="at_least_once"')
        self.guarantee, self.first_poll, self.start_timestamp_ms = guarantee, first_poll, start_timestamp_ms
        self.max_uncommitted_offsets, self.group_id = max_uncommitted_offsets, group_id
        self.begun: frozenset[Key] = frozenset()
        """Partitions that this task has read from. Commits show those of the checkpoint's other tasks."""
        ours: dict[str, Any] = {"session.timeout.ms": 45_000}
        if (config or {}).get("group.protocol", "classic") == "classic":
            ours["partition.assignment.strategy"] = "cooperative-sticky"
        else:
            del ours["session.timeout.ms"]  # the newer protocol takes it from the server
        fixed = {"group.id": group_id, **_FIXED}
        _refuse_other(config or {}, fixed, where)
        self._settings = settings_of(bootstrap_servers, config, ours, where) | fixed
        max_poll_secs = float(self._settings.get("max.poll.interval.ms", _MAX_POLL_MS)) / 1000
        self.keep_alive_secs = min(_KEEP_ALIVE_SECS, max_poll_secs / 4)
        self._where = f"topics {', '.join(self.topics)}, group {group_id!r} at {bootstrap_servers}"
        self._member: Member | None = None

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the topics are there. The group is not joined.

        Raises:
            ConnectorError: The servers cannot be reached, or refuse; or a topic does not exist.
        """
        start = Start(self.first_poll, self.start_timestamp_ms, lambda _: False, "")
        member = Member(
            self._settings, self.topics, start, self._where, on_lost=list, report=repr, joins=False
        )
        member.close()

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Connect, check that the topics exist, and join the group."""
        self._collector = collector
        self._most = context.max_spout_pending
        self._again: deque[tuple[RecordRun, int, int]] = deque()  # (run, index, attempt) of failed records
        self._was_asked = False
        mark = "" if self.first_poll.startswith("uncommitted") else context.checkpoint_id
        start = Start(self.first_poll, self.start_timestamp_ms, lambda key: key in self.begun, mark)
        self._member = Member(
            self._settings, self.topics, start, self._where, on_lost=collector.lost,
            report=collector.report_error,
        )  # fmt: skip

    def next_tuple(self) -> None:
        """Emit failed records again, and those that the client has received."""
        member = self._member
        assert member is not None, "called after `open`"
        self._was_asked = True
        if self._again:
            self._emit_again()
        if not member.ahead:
            room = _PAGE if self._most is None else min(_PAGE, self._most - self._collector.pending_count)
            uncommitted = sum(each.uncommitted for each in member.partitions.values())
            member.pause(wanted=room <= 0 or uncommitted >= self.max_uncommitted_offsets)
            member.poll(max(room, 1))
        member.check()
        member.commit_if_due()
        self._emit(member)

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        """Poll, if ``next_tuple`` did not; commit."""
        if self._member is None:
            return
        if not self._was_asked:
            self._member.pause(wanted=True)
            self._member.poll(1)
        self._was_asked = False
        self._member.check()
        self._member.commit_if_due()

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Note records as done; the frontier is committed within a second."""
        if self._member is not None:
            self._member.runs.close(message_ids)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Note records that were given up as done; emit the others again."""
        self.ack_batch([message_id for message_id, failure in failures if failure.final])
        attempts = {message_id: failure.attempt for message_id, failure in failures if not failure.final}
        if self._member is not None:
            for run, indices in self._member.runs.find(list(attempts)):
                again = ((run, index, attempts[run.first_id + index] + 1) for index in indices.tolist())
                self._again.extend(again)

    def lag(self) -> dict[str, int] | None:
        """By ``topic-partition`` how many records were not read yet, as far as the client knows."""
        return None if self._member is None else self._member.lag()

    def close(self) -> None:
        """Commit, and leave the group."""
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _emit(self, member: Member) -> None:
        """Emit received records, a batch for each partition."""
        groups = groupby(member.ahead, lambda each: (each.topic(), each.partition(), each.error() is None))
        received = [(*key, list(group)) for key, group in groups]
        member.ahead.clear()
        for index, (topic, number, is_record, group) in enumerate(received):
            partition = member.partitions.get((topic, number))
            if partition is None or member.is_moving((topic, number)):
                continue
            if not is_record:  # the partition's end: the offsets before it that were not received are gaps
                partition.read_through(int(group[-1].offset() or 0) - 1)
                continue
            try:
                self._emit_records(member, partition, group)
            except BaseException:  # none of these was emitted: without this a later commit would pass them
                member.ahead.extend(each for *_, left in received[index:] for each in left)
                raise

    def _emit_records(self, member: Member, partition: Partition, records: Sequence[Message]) -> None:
        offsets = np.array([each.offset() for each in records], dtype=np.int64)
        is_new = partition.fresh(offsets)
        if not is_new.all():
            records = [each for each, wanted in zip(records, is_new, strict=True) if wanted]
        end = int(offsets[-1]) + 1
        if self.guarantee == "at_most_once":
            member.commit_through(partition, end)
        if not records:
            partition.read_through(end - 1)
            return
        key = partition.topic, partition.number
        if key not in self.begun:
            self.begun |= {key}
        batch = batch_of(*key, offsets[is_new], records)
        if self.guarantee == "at_least_once":
            names = self._names.of_all(
                map(_nameable, batch.to_pylist() if self._names.are_wanted else (), records),
                self._collector.report_error,
            )
            ids = member.runs.next_id + np.arange(len(records))
            self._collector.emit_batch(batch, ids, **names_by_row(names))
            member.runs.open(partition, offsets[is_new], batch, names)
        else:
            self._collector.emit_batch(batch)
        partition.read_through(end - 1)

    def _emit_again(self) -> None:
        """Emit failed records again, unless their partition is gone."""
        waiting, self._again = self._again, deque()
        for run, group in groupby(waiting, lambda each: each[0]):
            if run.batch is None:
                continue
            rows = list(group)
            indices = [index for _, index, _ in rows]
            batch = run.batch.take(pa.array(indices, pa.int64()))
            ids, attempts = run.first_id + np.array(indices), np.array([attempt for _, _, attempt in rows])
            names = None if run.names is None else [run.names[index] for index in indices]
            self._collector.emit_batch(batch, ids, attempts=attempts, **names_by_row(names))


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


def _nameable(values: dict[str, Any], record: Message) -> tuple[dict[str, Any], dict[str, object]]:
    """What a record's label and key are read from: its values with its headers, and its properties."""
    place = f"{values['topic']}-{values['partition']}-{values['offset']}"
    return {**values, "headers": dict(record.headers() or ())}, {"key": values["key"], "offset": place}


def _refuse_other(config: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    """Refuse settings that would be overruled, or would overrule what the spout was given."""
    for name, ours in fixed.items():
        given = config.get(name, ours)
        if str(given).lower() != str(ours).lower():
            fix = f"leave it out of config; give {_SAID_BY.get(name, 'guarantee')}="
            raise ConfigError(f"config has {name}={given!r}, and the spout sets it itself", where, fix)


def _one_of(given: object, name: str, known: Sequence[str], where: str) -> None:
    if given not in known:
        what = f"{name} is {given!r}"
        raise ConfigError(what, where, "give one of " + ", ".join(map(repr, known)))
