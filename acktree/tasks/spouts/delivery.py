"""What follows from the verdicts of one spout task's messages: numbers, hooks, and the next attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from acktree.core.spouts.pending import Closed
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.dependencies import dependency_of
from acktree.tasks.spouts.given_up import GivenUp
from acktree.tasks.spouts.keys.labels import Labelled, id_of
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.retries import Attempt, Redriven, Retries, chunks_of
from acktree.tasks.spouts.runs import UnfitMessage
from acktree.tasks.spouts.spout_calls import Hooks
from acktree.tasks.spouts.task_hooks import SpoutHooks

_OURS: Final = frozenset({Redriven, Labelled})
"""Types of message ids that a spout is not given as they are."""


class Delivery:
    """Delivers verdicts to one spout: without a retry policy all of them, with one the final ones."""

    def __init__(
        self,
        chunks: OpenChunks,
        retries: Retries,
        *,
        given_up: GivenUp,
        reporter: Reporter,
        hooks: Hooks,
        task_hooks: SpoutHooks,
    ) -> None:
        """Nothing was delivered yet.

        Args:
            chunks: Where the messages were open.
            retries: Decides whether an attempt follows.
            given_up: Settles redriven messages.
            reporter: Counts.
            hooks: Deliver to the spout.
            task_hooks: Are called with each verdict.
        """
        self._chunks, self._retries, self._given_up = chunks, retries, given_up
        self._reporter, self._hooks, self._task_hooks = reporter, hooks, task_hooks
        self._to_tell: list[tuple[object, Failure]] = []
        self._failed: list[tuple[Closed, Failure]] = []

    def acked(self, closed: Closed, now_ms: int) -> None:
        """Messages of one segment were acked."""
        reporter, count = self._reporter, len(closed.message_ids)
        stream = self._chunks.stream_of(closed.chunk)
        reporter.count_verdicts(stream, "acked", count)
        waited_ms = max(0.0, float(closed.waited_ms(now_ms)))
        reporter.add_complete_latency(stream, waited_ms, count)
        reporter.complete_ms.add_all(closed.waits_ms(now_ms), count)
        reporter.note_acked(count, now_ms)
        message_ids = closed.message_sequence()
        if isinstance(closed.message_ids, list) and not _OURS.isdisjoint(map(type, message_ids)):
            message_ids = [
                id_of(message_id) for message_id in message_ids if not isinstance(message_id, Redriven)
            ]
            if len(message_ids) < count:
                self._given_up.mark_settled(closed.message_ids, now_ms)
        if message_ids:
            self._hooks.ack(message_ids)
        self._task_hooks.acked(closed, now_ms)

    def failed(self, closed: Closed, failure: Failure, now_ms: int) -> None:
        """Messages of one segment failed, or timed out: try them again, or give them up."""
        stream = self._chunks.stream_of(closed.chunk)
        self._reporter.count_failed(stream, failure, len(closed.message_ids))
        waits = dependency_of(failure) is not None
        if not waits:
            self.note_failed(len(closed.message_ids), _named(closed), failure)
        roots = self._chunks.roots_of(closed.sequences).tolist()
        self._retries.decide(self._chunks.attempts_of(closed), roots, failure, now_ms)
        if self._retries.policy is None and not waits:
            self._to_tell += [
                (id_of(message_id), replace(failure, attempt=int(attempt)))
                for message_id, attempt in zip(closed.message_list(), closed.attempts, strict=True)
                if not isinstance(message_id, Redriven)
            ]
        self._failed.append((closed, failure))

    def tell_failed(self, now_ms: int) -> None:
        """Tell the spout and its hooks what failed since the last call, each message for its own reason."""
        failures, self._to_tell = self._to_tell, []
        failed, self._failed = self._failed, []
        if failures:
            self._hooks.fail(failures)
        for closed, failure in failed:
            self._task_hooks.failed(closed, failure, now_ms)

    def superseded(self, attempts: Sequence[Attempt], newer: int, now_ms: int) -> None:
        """Ack messages that wait though they were not written: newer ones with their keys were.

        Args:
            attempts: What waited, of one stream; it is taken out.
            newer: The chunk of the newer messages. At a restart their verdicts supersede these again.
        """
        stream, count = attempts[0].stream, len(attempts)
        self._reporter.count(stream, "acked", count)
        self._reporter.count(stream, "superseded", count)
        self._reporter.note_acked(count, now_ms)
        self._reporter.note_superseded(count)
        self._given_up.mark_settled((attempt.message_id for attempt in attempts), now_ms)
        ids = [
            id_of(attempt.message_id) for attempt in attempts if not isinstance(attempt.message_id, Redriven)
        ]
        if ids:
            self._hooks.ack(ids)
        self._task_hooks.acked_untracked(ids)
        earlier = chunks_of(attempts)
        self._chunks.must_outlive(newer, earlier - {newer})
        self._chunks.release_unneeded(earlier)

    def note_failed(self, count: int, named: Iterable[tuple[object, int]], failure: Failure) -> None:
        """Let the host log failed attempts.

        Args:
            named: The id and the attempt of each, as far as they are known.
        """
        policy = self._retries.policy
        self._reporter.note_failed(count, named, failure, None if policy is None else policy.max_attempts)

    def ack_untracked(self, emitted: Mapping[str, Sequence[object]]) -> None:
        """Ack emitted messages that nothing tracks, as there are no ackers; by stream."""
        for stream, message_ids in emitted.items():
            self._reporter.count(stream, "acked", len(message_ids))
            self._hooks.ack(message_ids)
            self._task_hooks.acked_untracked(message_ids)

    def ack_repeated(self, repeated: Mapping[str, Sequence[object]], now_ms: int) -> None:
        """Ack emitted messages whose keys were ACKED before; by stream."""
        for stream, message_ids in repeated.items():
            self._reporter.count(stream, "emitted", len(message_ids))
            self._reporter.count(stream, "acked", len(message_ids))  # no micro-batch decides it
            self._reporter.note_acked(len(message_ids), now_ms)
            self._hooks.ack(message_ids)
            self._task_hooks.acked_untracked(message_ids)

    def fail_unfit(self, unfit: Iterable[UnfitMessage]) -> None:
        """Fail the messages whose values were changed after their emit so that they cannot be encoded.

        They are neither tried again nor dead letters: their values are lost.
        """
        for message in unfit:
            self._reporter.error(message.error)
            if message.message_id is not None:
                failure = replace(failure_of(message.error, self._reporter.component), final=True)
                self._reporter.count_failed(message.stream, failure, 1, is_own=True)
                self._hooks.fail([(id_of(message.message_id), failure)])


def _named(closed: Closed) -> Iterator[tuple[object, int]]:
    """The id and the attempt of each message; a generator, since few are asked for."""
    yield from zip(closed.message_sequence(), closed.attempts.tolist(), strict=True)
