"""One member of a consumer group: its partitions, the records it receives, the offsets it commits.

Rules of this file
------------------
1. A commit never passes the frontier: see ``progress.py``.
2. When a partition is revoked its frontier is committed, and its open messages are ``lost``: the next member
   that reads it begins at the frontier.
3. The client does not raise when the servers are gone; it calls ``error_cb``. :meth:`Member.check` raises
   what that noted.
4. The client's callbacks must not raise, or a rebalance would stay unanswered: a later call repeats what
   failed in them.

Source: librdkafka's pages on consumer groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acktree import ConfigError, ConnectorError
from acktree.connectors.kafka.client import (
    CONNECT_SECS,
    OFFSET_GONE,
    SERVERS_GONE,
    UNKNOWN_TOPIC,
    client_log,
    connector_error,
    is_final,
    is_other_protocol,
)
from acktree.connectors.kafka.progress import OpenRuns, Partition, decode_done, encode_done
from acktree.connectors.kafka.start import Key, Start

__all__ = ["Member"]

_COMMIT_SECS: Final = 1.0
_PROBE_SECS: Final = 1.0
_MEET_SECS: Final = 0.5
_CALLBACKS: Final = 20
_MISSING_SECS: Final = 2.0
"""A topic that is unknown for this time is gone; a server that starts may not know its topics yet."""


class Member:
    """A client in a group. Used on one thread, on which its callbacks run too.

    Attributes:
        partitions: The assigned partitions that have begun.
        runs: The messages that were emitted and are not done.
        ahead: Received records and partition ends, in order, that are not emitted yet.
        is_down: Whether no server could be reached at the last check.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        start: Start,
        where: str,
        on_lost: Callable[[list[int]], object],
        report: Callable[[ConnectorError], object],
        *,
        joins: bool = True,
    ) -> None:
        """Connect, check that the topics exist, and join the group.

        Args:
            settings: The client's settings.
            topics: Topics, or regular expressions that begin with ``^``.
            start: Where partitions begin.
            where: The ``where`` of errors.
            on_lost: Called with the ids of open messages whose partition is gone.
            report: Called with an error after which reading goes on.
            joins: False: only to look, and to be closed.

        Raises:
            ConnectorError: The servers cannot be reached, or refuse; or a topic does not exist.
            ConfigError: The client does not take a setting.
        """
        self.partitions: dict[Key, Partition] = {}
        self.runs = OpenRuns()
        self.ahead: deque[Message] = deque()
        self.is_down = False
        self._topics, self._start, self._where = topics, start, where
        self._on_lost, self._report = on_lost, report
        self._seeks: dict[Key, int] = {}
        self._unbegun: set[Key] = set()
        self._gone: set[Key] = set()  # their next offset does not exist
        self._assigned_now: set[Key] = set()
        self._errors: list[KafkaError] = []
        self._is_paused = self._is_closing = False
        self._missing_since: float | None = None
        self._commit_after = 0.0
        self._unanswered: set[Key] = set()  # a commit of theirs is under way
        strategy = str(settings.get("partition.assignment.strategy", "cooperative"))
        self._is_cooperative = "cooperative" in strategy
        callbacks = {"error_cb": self._errors.append, "on_commit": self._note_commit}
        try:
            self._consumer: Any = Consumer({**settings, **callbacks}, logger=client_log)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(
                f"Kafka's client refuses its settings: {error}", where, "correct config"
            ) from None
        try:
            self._meet_servers()
        except ConnectorError:
            self.close()
            raise
        if joins:
            self._consumer.subscribe(
                list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._forget
            )

    def lag(self) -> dict[str, int] | None:
        """By ``topic-partition`` how many records were not read yet, as far as the client knows."""
        known = {}
        for key, partition in self.partitions.items():
            with suppress(KafkaException):
                low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
                topic, number = key
                known[f"{topic}-{number}"] = max(0, high - max(low, partition.position)) if high >= 0 else 0
        return known or None

    def close(self) -> None:
        """Commit, and leave the group. ``on_lost`` is not called."""
        self._is_closing = True
        if not self.is_down:
            self._commit_now(self._consumer, self.partitions.values())
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _assign(self, consumer: Any, given: Sequence[TopicPartition]) -> None:  # noqa: ANN401
        """Begin partitions at the group's commit, or where ``first_poll`` says."""
        try:
            starts = self._begin(consumer, given)
        except KafkaException:  # `check` begins them later; their records are dropped until then
            starts = list(given)
            self._unbegun.update((each.topic, each.partition) for each in given)
        if self._is_cooperative:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)
        # In any case: a partition that is assigned again has the state it had when it was revoked.
        (consumer.pause if self._is_paused else consumer.resume)(starts)
        self._assigned_now.update((each.topic, each.partition) for each in given)

    def _begin(self, consumer: Any, given: Sequence[TopicPartition]) -> list[TopicPartition]:  # noqa: ANN401
        """Add the progress of partitions to ``partitions``. Returns where each begins."""
        begun: list[Partition] = []
        for found in consumer.committed(list(given), timeout=CONNECT_SECS):
            if found.error is not None:
                raise KafkaException(found.error)
            key = found.topic, found.partition
            if found.offset >= 0 and self._start.counts(key, found.metadata):
                done = decode_done(found.offset, found.metadata)
                begun.append(Partition(*key, found.offset, done, self._start.mark))
            else:
                begun.append(Partition(*key, self._start.first_offset(consumer, key), mark=self._start.mark))
        self.partitions.update({(each.topic, each.number): each for each in begun})
        self._commit_now(consumer, begun)  # at once: after a crash "latest" would be a later offset
        return [TopicPartition(each.topic, each.number, each.position) for each in begun]

    def _begin_late(self) -> None:
        """Begin partitions that could not begin when they were assigned. Raises if they still cannot."""
        if not self._unbegun:
            return
        try:
            starts = self._begin(self._consumer, [TopicPartition(*key) for key in self._unbegun])
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        self._seeks |= {(each.topic, each.partition): each.offset for each in starts}
        self._unbegun.clear()

    def _revoke(self, consumer: Any, taken: Sequence[TopicPartition]) -> None:  # noqa: ANN401
        """Commit the frontiers of partitions that another member reads next."""
        known = [self.partitions.get((each.topic, each.partition)) for each in taken]
        self._commit_now(consumer, [each for each in known if each is not None])
        self._forget(consumer, taken)

    def _forget(self, _: object, taken: Sequence[TopicPartition]) -> None:
        """Drop partitions that are gone; another member may read them already."""
        keys = {(each.topic, each.partition) for each in taken}
        self._unbegun -= keys
        lost: list[int] = []
        for key in keys & self.partitions.keys():
            partition = self.partitions.pop(key)
            lost += partition.open_ids()
            self.runs.forget(partition)
            self._seeks.pop(key, None)
            self._gone.discard(key)
        self.ahead = deque(each for each in self.ahead if (each.topic(), each.partition()) not in keys)
        if lost and not self._is_closing:
            self._on_lost(lost)

    def pause(self, *, wanted: bool) -> None:
        """Pause or resume receiving."""
        if wanted == self._is_paused:
            return
        partitions = [TopicPartition(*key) for key in self.partitions]
        with suppress(KafkaException):  # a partition that is about to be revoked
            (self._consumer.pause if wanted else self._consumer.resume)(partitions)
        self._is_paused = wanted

    def poll(self, most: int) -> None:
        """Take the records that the client has, and run its callbacks."""
        try:
            self._seek()
            self._assigned_now.clear()
            messages = self._consumer.consume(most, 0)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        # Records of a partition that was assigned again in this call may be of its earlier assignment.
        old = {(each.topic(), each.partition()) for each in messages} if self._assigned_now else set()
        for key in old & self._assigned_now & self.partitions.keys():
            self._seeks[key] = self.partitions[key].position
        self.ahead.extend([each for each in messages if not self._is_error(each)])

    def _seek(self) -> None:
        """Move partitions to other offsets by assigning them again, which always takes effect."""
        seeks, self._seeks = self._seeks, {}
        starts = [TopicPartition(*key, offset) for key, offset in seeks.items()]
        if not starts:
            return
        if self._is_cooperative:
            self._consumer.incremental_unassign(starts)
            self._consumer.incremental_assign(starts)
        else:
            positions = {key: each.position for key, each in self.partitions.items()} | seeks
            starts = [TopicPartition(*key, offset) for key, offset in positions.items()]
            self._consumer.assign(starts)
        (self._consumer.pause if self._is_paused else self._consumer.resume)(starts)

    def _is_error(self, message: Message) -> bool:
        """Whether it is neither a record nor the end of a partition; notes the error."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return False
        if error.code() in OFFSET_GONE:
            self._gone.add((message.topic() or "", message.partition() or 0))
        else:
            self._errors.append(error)
        return True

    def _jump_all(self) -> None:
        """Move partitions whose next offset does not exist. Raises a ConnectorError if that fails."""
        for key in sorted(self._gone):
            try:
                if key in self.partitions:
                    self._jump(key, self.partitions[key])
            except KafkaException as error:
                raise connector_error(error.args[0], self._where) from error
            self._gone.discard(key)

    def _jump(self, key: Key, partition: Partition) -> None:
        """Continue at the first existing record. Open records stay open: they are kept in memory."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=CONNECT_SECS)
        where = f"partition {partition.number} of topic {partition.topic!r}, {self._where}"
        if partition.position > high:
            what = f"the topic was created again: it ends at offset {high}, and {partition.position} is next"
            self.partitions[key] = Partition(*key, low, mark=partition.mark)  # the offsets are new
        elif partition.position >= low:
            low, what = partition.position, "a new leader does not have all records that were confirmed"
        else:
            what = (
                f"retention removed the records from {partition.position} to {low - 1} before they were read"
            )
            partition.read_through(low - 1)
        fix = f"it goes on at offset {low}; let the topic keep its records for longer (retention.ms)"
        self._report(ConnectorError(what, where, fix, can_retry=True))
        self._seeks[key] = low

    def is_moving(self, key: Key) -> bool:
        """Whether a partition is about to move to another offset: its received records are dropped."""
        return key in self._seeks

    def check(self) -> None:
        """Handle the errors that the client reported of its connections. Raises those that need action."""
        errors = list(self._errors)
        self._errors.clear()
        for error in errors:
            if error.code() in UNKNOWN_TOPIC:
                self.is_down = True  # `_see_topics` below finds out
            elif is_final(error):
                raise connector_error(error, self._where)
            elif error.code() in SERVERS_GONE:
                self.is_down = True
        if self.is_down:
            self._see_topics(_PROBE_SECS)
            self.is_down = False
        self._begin_late()
        self._jump_all()

    def _meet_servers(self) -> None:
        """Check that the topics exist, before anything is subscribed to."""
        deadline = monotonic() + CONNECT_SECS
        while True:
            try:
                self._see_topics(_MEET_SECS)
                return
            except ConnectorError as error:
                for _ in range(_CALLBACKS):  # runs callbacks; without a subscription it returns no record
                    self._consumer.poll(0)
                final = [each for each in self._errors if is_final(each) or is_other_protocol(each)]
                if final:
                    raise connector_error(final[0], self._where) from error
                if not error.can_retry or monotonic() > deadline:
                    raise

    def _see_topics(self, secs: float) -> None:
        """Ask a server for the topics. Raises a ConnectorError if one is missing, or no server answers."""
        try:
            for topic in self._topics:
                listed = self._consumer.list_topics(None if topic.startswith("^") else topic, timeout=secs)
                missing = getattr(listed.topics.get(topic), "error", None)
                if missing is not None:
                    raise self._unless_it_starts(missing)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        self._missing_since = None

    def _unless_it_starts(self, error: KafkaError) -> ConnectorError:
        """The error; it can be retried for a while where a starting server may not know the topic yet."""
        ours = connector_error(error, self._where)
        if error.code() in UNKNOWN_TOPIC and self.partitions:
            now = monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since < _MISSING_SECS:
                return ConnectorError(ours.what, ours.where, ours.fix, can_retry=True)
        return ours

    def commit_if_due(self) -> None:
        """Commit frontiers that have moved, once a second, without waiting for the answer."""
        if monotonic() >= self._commit_after:
            self._commit_after = monotonic() + _COMMIT_SECS
            offsets = self._to_commit(self.partitions.values())
            if offsets:
                self._unanswered.update((each.topic, each.partition) for each in offsets)
                with suppress(KafkaException):
                    self._consumer.commit(offsets=offsets, asynchronous=True)

    def _commit_now(self, consumer: Any, partitions: Iterable[Partition]) -> None:  # noqa: ANN401
        """Commit, and wait for the answer. Where that fails, records are delivered again.

        A commit that has no answer yet is repeated: nobody would hear that it failed.
        """
        committed = list(partitions)
        for partition in committed:
            if (partition.topic, partition.number) in self._unanswered:
                partition.committed = None
        offsets = self._to_commit(committed)
        if not offsets:
            return
        try:
            answer = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            answer = None
        done = {(each.topic, each.partition) for each in answer or () if each.error is None}
        asked = {(each.topic, each.partition) for each in offsets}
        for partition in committed:
            if (partition.topic, partition.number) in asked - done:
                partition.committed = None

    def commit_through(self, partition: Partition, end: int) -> None:
        """Commit up to an offset before its records are emitted. Raises where that fails."""
        metadata = encode_done(end, np.zeros(0, dtype=np.int64), partition.mark)
        offsets = [TopicPartition(partition.topic, partition.number, end, metadata)]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        partition.committed = (end, metadata)

    def _to_commit(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        found = []
        for each in partitions:
            wanted = each.to_commit()
            if wanted != each.committed:
                each.committed = wanted
                found.append(TopicPartition(each.topic, each.number, wanted[0], wanted[1]))
        return found

    def _note_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Note which commits failed: the next commit repeats them."""
        self._unanswered.difference_update((each.topic, each.partition) for each in offsets)
        for each in offsets:
            partition = self.partitions.get((each.topic, each.partition))
            if partition is not None and (error is not None or each.error is not None):
                partition.committed = None
