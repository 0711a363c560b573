"""Where a partition begins: at the group's commit, or where ``first_poll`` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from confluent_kafka import TopicPartition

from acktree.connectors.kafka.client import CONNECT_SECS
from acktree.connectors.kafka.progress import is_marked

__all__ = ["Key", "Start"]

Key: TypeAlias = tuple[str, int]
"""(topic, partition number)"""


@dataclass(frozen=True)
class Start:
    """Where a partition begins.

    Attributes:
        first_poll: As given to the spout.
        timestamp_ms: For ``first_poll`` with a timestamp.
        has_begun: Tells whether this task has read from a partition.
        mark: The checkpoint's mark in the metadata of its tasks' commits; "" where every commit counts.
    """

    first_poll: str
    timestamp_ms: int | None
    has_begun: Callable[[Key], bool]
    mark: str = ""

    def counts(self, key: Key, metadata: str | None) -> bool:
        """Whether a partition begins at the group's commit."""
        is_any = self.first_poll.startswith("uncommitted")
        return is_any or self.has_begun(key) or is_marked(metadata, self.mark)

    def first_offset(self, consumer: Any, key: Key) -> int:  # noqa: ANN401  # the client's
        """Where a partition begins that has no commit to begin at. Raises KafkaException."""
        low, high = consumer.get_watermark_offsets(TopicPartition(*key), timeout=CONNECT_SECS)
        if self.first_poll.endswith("earliest"):
            return int(low)
        if self.timestamp_ms is None:
            return int(high)
        asked = TopicPartition(*key, self.timestamp_ms)
        [found] = consumer.offsets_for_times([asked], timeout=CONNECT_SECS)
        return int(found.offset if found.offset >= 0 else high)
