"""One member of a consumer group: what partitions it has, what it receives, how far it has committed.

Rules of this file
------------------
1. What is committed is the frontier, and never more: ``progress.py``.
2. A partition that is revoked is committed as far as it is done, and what is open of it is ``lost``: whoever
   reads it next begins at the frontier.
3. The client does not raise when the servers are gone; it tells a callback. That is asked each time.
4. A callback of the client that raises would leave it without an answer: what fails there is made up for by a
   later call.

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
        partitions: Those that are assigned and have begun.
        runs: The messages that were emitted and are not done.
        ahead: Records that were received, and ends of partitions, in order.
        is_down: Whether no server could be reached when that was last asked.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        start: Start,
        where: str,
        on_lost: Callable[[list[int]], None],
        report: Callable[[ConnectorError], None],
    ) -> None:
        """Connect, see that the topics are there, and join the group.

        Args:
            settings: The client's.
            topics: Topics, or regular expressions that begin with ``^``.
            start: Where partitions begin.
            where: As errors name the place.
            on_lost: Called with the ids of open messages whose partition is gone.
            report: Called with an error after which reading goes on.

        Raises:
            ConnectorError: The servers cannot be reached, or refuse; or a topic is not there.
            ConfigError: A setting that the client does not take.
        """
        self.partitions: dict[Key, Partition] = {}
        self.runs = OpenRuns()
        self.ahead: deque[Message] = deque()
        self.is_down = False
        self._topics, self._start, self._where = topics, start, where
        self._on_lost, self._report = on_lost, report
        self._seeks: dict[Key, int] = {}
        self._unbegun: set[Key] = set()
        self._gone: set[Key] = set()  # whose next offset is not there
        self._assigned_now: set[Key] = set()
        self._errors: list[KafkaError] = []
        self._is_paused = self._is_closing = False
        self._missing_since: float | None = None
        self._commit_after = 0.0
        strategy = str(settings.get("partition.assignment.strategy", "cooperative"))
        self._is_cooperative = "cooperative" in strategy
        callbacks = {"error_cb": self._errors.append, "on_commit": self._note_commit}
        try:
            self._consumer: Any = Consumer({**settings, **callbacks}, logger=client_log)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka's client refuses its settings: {error}", where, "mend config") from None
        try:
            self._meet_servers()
        except ConnectorError:
            self.close()
            raise
        self._consumer.subscribe(
            list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._forget
        )

    def lag(self) -> int | None:
        """How many records were not read yet, as far as the client knows."""
        known = []
        for key, partition in self.partitions.items():
            with suppress(KafkaException):
                low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
                known.append(max(0, high - max(low, partition.position)) if high >= 0 else 0)
        return sum(known) if known else None

    def close(self) -> None:
        """Commit, and leave the group. Nothing is told to be lost."""
        self._is_closing = True
        if not self.is_down:
            self._commit_now(self._consumer, self.partitions.values())
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

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
            if found.offset >= 0 and self._start.counts(key, found.metadata):
                done = decode_done(found.offset, found.metadata)
                begun.append(Partition(*key, found.offset, done, self._start.mark))
            else:
                begun.append(Partition(*key, self._start.first_offset(consumer, key), mark=self._start.mark))
        self.partitions.update({(each.topic, each.number): each for each in begun})
        self._commit_now(consumer, begun)  # at once: after a crash the latest offset is another one
        return [TopicPartition(each.topic, each.number, each.position) for each in begun]

    def _begin_late(self) -> None:
        """Begin partitions that could not be begun when they were assigned. Raises if they still cannot."""
        if not self._unbegun:
            return
        try:
            starts = self._begin(self._consumer, [TopicPartition(*key) for key in self._unbegun])
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        self._seeks |= {(each.topic, each.partition): each.offset for each in starts}
        self._unbegun.clear()

    def _revoke(self, consumer: Any, taken: Sequence[TopicPartition]) -> None:  # noqa: ANN401
        """Another member reads these partitions next: commit how far they are done."""
        mine = [self.partitions.get((each.topic, each.partition)) for each in taken]
        self._commit_now(consumer, [each for each in mine if each is not None])
        self._forget(consumer, taken)

    def _forget(self, _: object, taken: Sequence[TopicPartition]) -> None:
        """Partitions are gone, and may be read by another member already."""
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
        """Let the client receive nothing, or let it receive again."""
        if wanted == self._is_paused:
            return
        places = [TopicPartition(*key) for key in self.partitions]
        with suppress(KafkaException):  # of a partition that is about to be revoked
            (self._consumer.pause if wanted else self._consumer.resume)(places)
        self._is_paused = wanted

    def poll(self, most: int) -> None:
        """Take what the client has, and run its callbacks."""
        try:
            self._seek()
            self._assigned_now.clear()
            messages = self._consumer.consume(most, 0)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        # What came before a partition was assigned anew in the same call is of its earlier assignment.
        old = {(each.topic(), each.partition()) for each in messages} if self._assigned_now else set()
        for key in old & self._assigned_now & self.partitions.keys():
            self._seeks[key] = self.partitions[key].position
        self.ahead.extend([each for each in messages if not self._is_error(each)])

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
            at = {key: each.position for key, each in self.partitions.items()} | seeks
            places = [TopicPartition(*key, offset) for key, offset in at.items()]
            self._consumer.assign(places)
        (self._consumer.pause if self._is_paused else self._consumer.resume)(places)

    def _is_error(self, message: Message) -> bool:
        """Whether it is neither a record nor the end of a partition; what is wrong is noted."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return False
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._errors.append(error)
        else:
            self._gone.add((message.topic() or "", message.partition() or 0))
        return True

    def _jump_all(self) -> None:
        """Go on in partitions in which the next offset is not there. Raises a ConnectorError if it cannot."""
        for key in sorted(self._gone):
            try:
                if key in self.partitions:
                    self._jump(key, self.partitions[key])
            except KafkaException as error:
                raise connector_error(error.args[0], self._where) from error
            self._gone.discard(key)

    def _jump(self, key: Key, partition: Partition) -> None:
        """Go on at the first record that there is. Open records stay: memory has them for another try."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=CONNECT_SECS)
        where = f"partition {partition.number} of topic {partition.topic!r}, {self._where}"
        if partition.position > high:
            what = f"the topic was made anew: it ends at offset {high}, and {partition.position} is next"
            self.partitions[key] = Partition(*key, low, mark=partition.mark)  # its offsets mean other records
        else:
            what = (
                f"retention removed the records from {partition.position} to {low - 1} before they were read"
            )
            partition.read_through(low - 1)
        fix = f"it goes on at offset {low}; let the topic keep its records for longer (retention.ms)"
        self._report(ConnectorError(what, where, fix, can_retry=True))
        self._seeks[key] = low

    def is_moving(self, key: Key) -> bool:
        """Whether a partition is about to be read from elsewhere, so that what it brings counts nothing."""
        return key in self._seeks

    def check(self) -> None:
        """Look at what the client told of its connections. Raises what is wrong."""
        errors = list(self._errors)
        self._errors.clear()
        for error in errors:
            if error.code() in UNKNOWN_TOPIC:
                self.is_down = True  # the question below says whether that is so
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
            for topic in self._topics:
                listed = self._consumer.list_topics(None if topic.startswith("^") else topic, timeout=secs)
                told = getattr(listed.topics.get(topic), "error", None)
                if told is not None:
                    raise self._unless_it_starts(told)
        except KafkaException as error:
            raise connector_error(error.args[0], self._where) from error
        self._missing_since = None

    def _unless_it_starts(self, error: KafkaError) -> ConnectorError:
        """The error; a topic that was there is unknown to a server that starts, too."""
        ours = connector_error(error, self._where)
        if error.code() in UNKNOWN_TOPIC and self.partitions:
            now = monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since < _MISSING_SECS:
                return ConnectorError(ours.what, ours.where, ours.fix, can_retry=True)
        return ours

    def commit_if_due(self) -> None:
        """Commit what has moved, once a second, without waiting for the answer."""
        if monotonic() >= self._commit_after:
            self._commit_after = monotonic() + _COMMIT_SECS
            offsets = self._to_commit(self.partitions.values())
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
            told = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            told = None
        done = {(each.topic, each.partition) for each in told or () if each.error is None}
        asked = {(each.topic, each.partition) for each in offsets}
        for partition in mine:
            if (partition.topic, partition.number) in asked - done:
                partition.committed = None

    def commit_through(self, partition: Partition, end: int) -> None:
        """Commit what is emitted next. Raises where that fails."""
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
        """What was not committed is committed with the next."""
        for each in offsets:
            partition = self.partitions.get((each.topic, each.partition))
            if partition is not None and (error is not None or each.error is not None):
                partition.committed = None
