"""What follows from the verdicts of one spout task's messages: numbers, hooks, and the next attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from acktree.core.spouts.pending import Closed
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.dependencies import dependency_of
from acktree.tasks.spouts.given_up import GivenUp
from acktree.tasks.spouts.labels import Labelled, id_of
from acktree.tasks.spouts.parts import SpoutParts
from acktree.tasks.spouts.retries import Redriven
from acktree.tasks.spouts.runs import UnfitMessage

__all__ = ["Delivery"]

_OURS: Final = frozenset({Redriven, Labelled})
"""Types of message ids that a spout is not given as they are."""


class Delivery:
    """Delivers verdicts to one spout: without a retry policy all of them, with one the final ones."""

    def __init__(self, parts: SpoutParts, given_up: GivenUp) -> None:
        """Deliver through the hooks of these parts."""
        self._parts, self._given_up = parts, given_up

    def acked(self, closed: Closed, now_ms: int) -> None:
        """Messages of one segment were acked."""
        parts, count = self._parts, len(closed.message_ids)
        stream = parts.chunks.stream_of(closed.chunk)
        parts.reporter.count_verdicts(stream, "acked", count)
        waited_ms = max(0.0, float(closed.waited_ms(now_ms)))
        parts.reporter.add_complete_latency(stream, waited_ms, count)
        parts.reporter.complete_ms.add_all(closed.waits_ms(now_ms), count)
        parts.host.note_acked(parts.component.id, count, now_ms)
        mine = closed.message_sequence()
        if isinstance(closed.message_ids, list) and not _OURS.isdisjoint(map(type, mine)):
            mine = [id_of(message_id) for message_id in mine if not isinstance(message_id, Redriven)]
            if len(mine) < count:
                self._given_up.mark_settled(closed.message_ids, now_ms)
        if mine:
            parts.hooks.ack(mine)
        parts.task_hooks.acked(closed, now_ms)

    def failed(self, closed: Closed, failure: Failure, now_ms: int) -> None:
        """Messages of one segment failed, or timed out: try them again, or give them up."""
        parts = self._parts
        stream = parts.chunks.stream_of(closed.chunk)
        parts.reporter.count_failed(stream, failure, len(closed.message_ids))
        waits = dependency_of(failure) is not None
        if not waits:
            self.note_failed(len(closed.message_ids), _named(closed), failure)
        if parts.component.retry is None and not waits:
            failures = [
                (id_of(message_id), replace(failure, attempt=int(attempt)))
                for message_id, attempt in zip(closed.message_list(), closed.attempts, strict=True)
                if not isinstance(message_id, Redriven)
            ]
            if failures:
                parts.hooks.fail(failures)
        parts.task_hooks.failed(closed, failure, now_ms)
        parts.recovery.decide(closed, failure, now_ms)

    def note_failed(self, count: int, named: Iterable[tuple[object, int]], failure: Failure) -> None:
        """Let the host log failed attempts.

        Args:
            named: The id and the attempt of each, as far as they are known.
        """
        retry = self._parts.component.retry
        most = None if retry is None else retry.max_attempts
        self._parts.host.note_failed(self._parts.component.id, count, named, failure, most)

    def ack_untracked(self, emitted: Mapping[str, Sequence[object]]) -> None:
        """Ack emitted messages that nothing tracks, as there are no ackers; by stream."""
        parts = self._parts
        for stream, message_ids in emitted.items():
            parts.reporter.count(stream, "acked", len(message_ids))
            parts.hooks.ack(message_ids)
            parts.task_hooks.acked_untracked(message_ids)

    def fail_unfit(self, unfit: Iterable[UnfitMessage]) -> None:
        """Fail the messages whose values were changed after their emit so that they cannot be encoded.

        They are neither tried again nor dead letters: their values are lost.
        """
        parts = self._parts
        for message in unfit:
            parts.reporter.error(message.error)
            if message.message_id is not None:
                failure = replace(failure_of(message.error, parts.component.id), final=True)
                parts.reporter.count_failed(message.stream, failure, 1, is_own=True)
                parts.reporter.call(parts.spout.fail_batch, [(id_of(message.message_id), failure)])


def _named(closed: Closed) -> Iterator[tuple[object, int]]:
    """The id and the attempt of each message; a generator, since few are asked for."""
    yield from zip(closed.message_sequence(), closed.attempts.tolist(), strict=True)
