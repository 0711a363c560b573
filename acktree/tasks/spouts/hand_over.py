"""Hands messages of one spout task over to the inbox: new ones, and next attempts.

Each chunk of tracked messages is registered with ``OpenChunks`` before the task does anything else, so that
its verdicts find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core import durable
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.ids import Int32s, root_ids
from acktree.core.spouts.pending import MessageIds
from acktree.errors import MisuseError
from acktree.spout import Spout
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.chunks.stored_ids import ids_to_bytes
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.keys.keyed_messages import KeyedMessages
from acktree.tasks.spouts.keys.latest import Latest
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.retries import Payloads, Retries
from acktree.tasks.spouts.runs import MessageRun, runs_together
from acktree.tasks.spouts.task_hooks import SpoutHooks
from acktree.tasks.spouts.trace_marks import TraceMarks
from acktree.texts import error_text

_NO_VALUES: Final = pa.record_batch([], names=[])


class HandOver:
    """Makes chunks of one spout task's messages, and appends them to the inbox."""

    def __init__(
        self,
        spout: Spout,
        remembers: Sequence[str],
        *,
        host: SpoutHost,
        chunks: OpenChunks,
        retries: Retries,
        keyed: KeyedMessages,
        latest: Latest,
        reporter: Reporter,
        task_hooks: SpoutHooks,
        first_sequence: int,
    ) -> None:
        """Reserve the first block of sequences.

        Args:
            spout: The task's own copy of the spout.
            remembers: The attributes of the spout that go with its messages.
            host: Its inbox takes the chunks.
            chunks: Where they are open from then on.
            retries: Where next attempts come from.
            keyed: The messages that wait for their keys.
            latest: Says which of them wait for newer messages.
            reporter: Counts next attempts.
            task_hooks: Are called with what was handed over.
            first_sequence: The first sequence of this run.
        """
        self._spout, self._remembers, self._host = spout, remembers, host
        self._chunks, self._retries = chunks, retries
        self._keyed, self._latest = keyed, latest
        self._reporter, self._task_hooks = reporter, task_hooks
        self._position = b""  # the last one that was handed over
        self._next_sequence = first_sequence
        self._reserved = host.reserve(first_sequence)
        self._marks = TraceMarks(
            host.trace_rate, host.max_traces_per_sec, host.max_retries_traced_per_sec, host.watched
        )

    @property
    def next_sequence(self) -> int:
        """The first sequence that no message has."""
        return self._next_sequence

    def sequences(self, count: int) -> int:
        """Take new sequences and return the first; no message has one of them before."""
        first = self._next_sequence
        self._next_sequence += count
        while self._next_sequence > self._reserved:
            self._reserved = self._host.reserve(self._reserved)
        return first

    def _marked(
        self, first: int, attempts: Int32s | None, message_ids: MessageIds, now_ms: int
    ) -> Int32s | None:
        """The attempts of tracked messages, with a mark on those that are traced."""
        names = root_ids(0, self._reporter.task, np.arange(first, first + len(message_ids)))
        return self._marks.put_on(attempts, message_ids, names, now_ms)

    def emitted(self, taken: Sequence[MessageRun], position: bytes, now_ms: int) -> bool:
        """Hand over what the spout emitted, and what waits for its key. True if there was anything.

        Args:
            taken: What it emitted.
            position: What the spout remembered before that was taken: other threads may emit meanwhile.
            now_ms: The time.
        """
        runs = [part for run in runs_together(taken) for part in run.cut(self._host.inbox.chunk_rows)]
        waiting = self._keyed.take_to_park()
        if not (runs or waiting):
            return False
        parked = [self._chunk_of(run, b"", now_ms, is_marked=False) for run in waiting]
        chunks = [self._chunk_of(run, position, now_ms) for run in runs]
        tracked = [
            (chunk, run.message_ids) for run, chunk in zip(runs, chunks, strict=True) if run.is_tracked
        ]
        self._announce(tracked)
        # In one group: else a crash would find some of them here, and the position of before.
        is_alone = not runs and position != self._position
        alone = [self._position_alone(position, now_ms)] if is_alone else []
        number = self._host.inbox.append(chunks + alone, parked)
        self._position = position
        for of_parked, chunk in enumerate(parked, number + len(chunks + alone)):
            self._keyed.wait_in(of_parked, chunk)
        for offset, (run, chunk) in enumerate(zip(runs, chunks, strict=True)):
            if run.is_tracked:
                self._open(number + offset, chunk, run.message_ids, run.parents)
            else:
                self._host.inbox.release(number + offset)
        if alone:
            self._host.inbox.release(number)
        self._task_hooks.emitted(chunks)
        return True

    def due_attempts(self, now_ms: int) -> bool:
        """Emit again what is due, as new attempts with roots of their own. True if anything was."""
        due = self._retries.take_due(now_ms, self._latest.blocks())
        for stream, unordered in due.items():
            attempts = self._latest.in_order(unordered)
            parts = list(self._retries.payloads_of(attempts, self._host.inbox.read))
            chunks = [self._next_attempts(stream, part, now_ms) for part in parts]
            self._announce([(chunk, part.message_ids) for chunk, part in zip(chunks, parts, strict=True)])
            # All or none: the chunks that are released below may hold messages of each.
            number = self._host.inbox.append(chunks)
            earlier = {attempt.chunk for attempt in attempts}
            for offset, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
                self._open(number + offset, chunk, part.message_ids, {})
                for sequence, attempt in enumerate(part.attempts, chunk.first_sequence):
                    if attempt.dependency or attempt.waited_ms:
                        self._retries.dependencies.note_sent(attempt.dependency, sequence, attempt.waited_ms)
                if not self._spout.redelivers:
                    self._chunks.must_outlive(number + offset, {attempt.chunk for attempt in part.attempts})
            self._chunks.release_unneeded(earlier)
            # A redriven letter starts at attempt 1, so it is not counted as a retry.
            self._reporter.count(stream, "retried", sum(attempt.attempt > 0 for attempt in attempts))
            self._task_hooks.emitted(chunks)
        return bool(due)

    def _announce(self, chunks: Sequence[tuple[Chunk, MessageIds]]) -> None:
        """Before chunks of tracked messages are handed over."""
        self._chunks.announce([chunk for chunk, _ in chunks])
        for chunk, message_ids in chunks if self._host.keys.is_used else ():
            self._host.keys.sent(self._chunks.roots_of(chunk.sequences), message_ids)

    def _position_alone(self, position: bytes, now_ms: int) -> Chunk:
        """An empty chunk with the position behind messages none of which goes on."""
        return Chunk(
            self._reporter.component, self._reporter.task, stream=DEFAULT_STREAM, is_tracked=False,
            first_sequence=self._next_sequence, emitted_ms=now_ms, values=_NO_VALUES, position=position,
        )  # fmt: skip

    def _chunk_of(self, run: MessageRun, position: bytes, now_ms: int, *, is_marked: bool = True) -> Chunk:
        first, attempts = self.sequences(len(run)), run.attempts
        if run.is_tracked and is_marked:
            attempts = self._marked(first, attempts, run.message_ids, now_ms)
        ids = ids_to_bytes(run.message_ids) if run.is_tracked and not self._spout.redelivers else b""
        return Chunk(
            self._reporter.component, self._reporter.task, run.stream, run.is_tracked, first_sequence=first,
            emitted_ms=now_ms, values=run.values, attempts=attempts, tasks=run.tasks, message_ids=ids,
            position=position,
        )  # fmt: skip

    def _next_attempts(self, stream: str, part: Payloads, now_ms: int) -> Chunk:
        attempts = part.attempts
        numbers = np.array([attempt.attempt + 1 for attempt in attempts], dtype=np.int32) | part.marks
        first = self.sequences(len(attempts))
        marked = self._marked(first, numbers, part.message_ids, now_ms)
        return Chunk(
            self._reporter.component, self._reporter.task, stream, is_tracked=True, first_sequence=first,
            emitted_ms=now_ms, values=part.values, attempts=marked, tasks=part.targets,
            first_emitted_ms=np.array([attempt.first_emitted_ms for attempt in attempts], dtype=np.int64),
            retry_of=np.array([attempt.sequence for attempt in attempts], dtype=np.int64),
            message_ids=b"" if self._spout.redelivers else ids_to_bytes(part.message_ids),
        )  # fmt: skip

    def _open(self, number: int, chunk: Chunk, message_ids: MessageIds, parents: Mapping[int, str]) -> None:
        self._host.note_emitted(chunk, message_ids, parents)  # before it counts as open
        self._chunks.add(number, chunk, message_ids)

    def position(self) -> bytes:
        """What the spout remembers, as its checkpoint has it."""
        if not self._remembers:
            return b""
        remembered = {name: getattr(self._spout, name, None) for name in self._remembers}
        try:
            return durable.dumps(remembered)
        except Exception as error:
            raise self._explained(error, remembered) from error

    def _explained(self, error: Exception, remembered: Mapping[str, object]) -> Exception:
        """Which attribute cannot be saved, and why."""
        for name, value in remembered.items():
            try:
                durable.dumps(value)
            except Exception as own:  # noqa: BLE001  # it may be of the user's __reduce__
                return MisuseError(
                    f"{name}, which the spout remembers, cannot be saved: {error_text(own)}",
                    f"class {type(self._spout).__name__}, remembers",
                    f"let {name} be a value that pickle takes, or leave it out of remembers",
                )
        return error
