"""Breaks rules of acktree one by one, to see that the simulator notices: a rule that it misses is not tested.

Each break is a patch of one method, under the name that ``--break`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from acktree.checkpoint import acker_log as acker
from acktree.checkpoint import folder as checkpoint
from acktree.checkpoint.facts import Facts
from acktree.checkpoint.files import Files
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.journal import Journal
from acktree.checkpoint.memory_files import HEADS
from acktree.checkpoint.memory_log import MemoryLog, MemoryOfBatch
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.spout_threads import SpoutThread, Threads
from acktree.driver.supervisor import Supervisor
from acktree.spark.query.sink import Sink
from acktree.tasks.spouts.open_chunks import OpenChunks
from acktree.tasks.spouts.recovery import Recovery
from tests.simulator.disk import SimulatedDisk


@dataclass(frozen=True)
class Break:
    """One rule, broken.

    Attributes:
        rule: The rule.
        owner, name: The method that is replaced.
        broken: Makes the replacement from the method.
        needs_power_cuts: Whether only a power cut shows the break.
    """

    rule: str
    owner: Any
    name: str
    broken: Callable[[Any], Any]
    needs_power_cuts: bool = False


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _delivered_in_the_sink(hold: Any) -> Any:
    def deliver(self: Threads, batch_id: int, verdict_batch: Any) -> None:
        hold(self, batch_id, verdict_batch)
        self.dispatch(batch_id)

    return deliver


class _NoRows(tuple[()]):
    """What was written of a micro-batch's rows: nothing."""

    __slots__ = ()
    ids = ()


def _not_journalled(_: Any) -> Any:
    return lambda *_: _NoRows()


def _journal_after_commit(_: Any) -> Any:
    waiting: dict[int, list[tuple[Any, ...]]] = {}

    def write(self: Journal, *arguments: Any) -> _NoRows:
        for late in waiting.pop(id(self), ()):
            _journal_write(self, *late)
        waiting.setdefault(id(self), []).append(arguments)
        return _NoRows()

    return write


_journal_write = Journal.write


def _in_place(_: Any) -> Any:
    def write(self: FileInbox, blobs: Any, *, only_here: bool = False) -> int:
        publish, prepare = self._files.publish, self._files.prepare
        self._files.prepare = lambda file, content: self._disk.write(file, content) or file  # type: ignore[func-returns-value,method-assign,assignment]
        self._files.publish = lambda new, file: file  # type: ignore[method-assign]
        try:
            return int(_inbox_write(self, blobs, only_here=only_here))
        finally:
            self._files.publish, self._files.prepare = publish, prepare  # type: ignore[method-assign]

    return write


_inbox_write = FileInbox._write


def _first_to_last(_: Any) -> Any:
    def write(self: FileInbox, blobs: Any, *, only_here: bool = False) -> int:
        first = self._next
        for blob in blobs:
            _inbox_write(self, [blob], only_here=only_here)
        return first

    return write


def _deleted_before_commit(_: Any) -> Any:
    delete = FileInbox._delete_if_done

    def early(self: FileInbox, number: int) -> None:
        committed, self._committed = self._committed, self._next
        delete(self, number)
        self._committed = committed

    return early


def _uncommitted_counts(committed: Any) -> Any:
    return lambda files, folder, last, *further: committed(files, folder, 10**9, *further)


def _uncommitted_verdicts_count(earlier: Any) -> Any:
    return lambda self, last: earlier(self, 10**9)


def _stored_after_delivery(_: Any) -> Any:
    return lambda self, records: None


def _same_sequences(_: Any) -> Any:
    return property(lambda self: 0)


def _without_sync(write: Any) -> Any:
    return lambda self, file, content, sync=False: write(self, file, content)


def _delivered_before_sync(_: Any) -> Any:
    def note(self: Supervisor) -> None:
        batch_id, end = self.run.results.progress.last
        if batch_id > self._committed and self.run.checkpoint.is_committed(batch_id):
            self._committed = batch_id
            self.run.threads.dispatch(batch_id)
            self.run.inbox.committed(end)
            self.run.checkpoint.sync(batch_id)

    return note


def _sink_does_not_sync(call: Any) -> Any:
    def run(self: Sink, *arguments: Any) -> None:
        call(replace(self, sync=lambda _: None), *arguments)

    return run


def _all_noted(_: Any) -> Any:
    def say(self: SpoutThread, through: int) -> None:
        self.delivered_through = 10**9

    return say


def _newest_file(init: Any) -> Any:
    def open_newest(self: MemoryOfBatch, state: Any, batch_id: int, disk: Any) -> None:
        init(self, state, batch_id, disk)
        for task in disk.names(state):
            if task != HEADS and disk.names(state / task):
                self._head[task] = max(disk.names(state / task))

    return open_newest


def _forgotten_early(keep: Any) -> Any:
    def keep_and_forget(self: MemoryLog, *arguments: Any) -> None:
        keep(self, *arguments)
        self._forget(self._before, self._now)

    return keep_and_forget


BREAKS: Final[Mapping[str, Break]] = {
    "ack-before-commit": Break(
        "a verdict is delivered after Spark has logged the commit", Threads, "hold", _delivered_in_the_sink
    ),
    "no-journal": Break("verdicts are journalled before the commit", Journal, "write", _not_journalled),
    "journal-after-commit": Break(
        "verdicts are journalled before the commit, not after it", Journal, "write", _journal_after_commit
    ),
    "release-chunk-early": Break(
        "a chunk's file is deleted after its micro-batch's commit",
        FileInbox,
        "_delete_if_done",
        _deleted_before_commit,
    ),
    "torn-chunk": Break(
        "a chunk is written under a temporary name and renamed", FileInbox, "_write", _in_place
    ),
    "group-not-at-once": Break(
        "a group of chunks appears as a whole or not at all", FileInbox, "_write", _first_to_last
    ),
    "uncommitted-ledger": Break(
        "what the acker wrote for a micro-batch that was not committed is discarded",
        acker,
        "_committed",
        _uncommitted_counts,
    ),
    "uncommitted-verdicts": Break(
        "what was journalled for a micro-batch that was not committed is discarded",
        Journal,
        "earlier",
        _uncommitted_verdicts_count,
    ),
    "memory-of-no-head": Break(
        "a file of memory counts when the head of its micro-batch names it",
        MemoryOfBatch,
        "__init__",
        _newest_file,
    ),
    "memory-forgotten-early": Break(
        "memory of the last committed micro-batch is kept until the next one is committed",
        MemoryLog,
        "keep",
        _forgotten_early,
    ),
    "forget-retry": Break(
        "a failed message that waited for its next attempt is tried again after a restart",
        Recovery,
        "decide",
        _nothing,
    ),
    "forget-next-attempt": Break(
        "a chunk with a next attempt outlives the chunk of the attempt before",
        OpenChunks,
        "must_outlive",
        _nothing,
    ),
    "letter-not-stored": Break(
        "a dead letter is stored before its verdict is delivered",
        DeadLetterRecorder,
        "record",
        _stored_after_delivery,
    ),
    "sequence-reuse": Break(
        "a run's sequences begin after all those of the run before",
        Facts,
        "first_sequence",
        _same_sequences,
    ),
    "all-noted-as-delivered": Break(
        "a verdict is noted as delivered after its delivery", SpoutThread, "_note_delivered", _all_noted
    ),
    "no-fsync": Break(
        "a file's content is synced before its name",
        SimulatedDisk,
        "write",
        _without_sync,
        needs_power_cuts=True,
    ),
    "names-not-synced": Break(
        "names are synced before anything depends on them",
        SimulatedDisk,
        "sync_folder",
        _nothing,
        needs_power_cuts=True,
    ),
    "no-syncfs": Break(
        "all is synced before the verdicts of a micro-batch are delivered",
        Files,
        "sync_all",
        _nothing,
        needs_power_cuts=True,
    ),
    "delivered-before-sync": Break(
        "all is synced before the verdicts of a micro-batch are delivered, not after",
        Supervisor,
        "note_commit",
        _delivered_before_sync,
        needs_power_cuts=True,
    ),
    "sink-before-sync": Break(
        "all is synced before the sink of the next micro-batch depends on it",
        Sink,
        "__call__",
        _sink_does_not_sync,
        needs_power_cuts=True,
    ),
    "no-roll-back": Break(
        "what Spark logged after the last sync does not count",
        checkpoint,
        "roll_back",
        lambda _: lambda folder, spark, first, disk: None,
        needs_power_cuts=True,
    ),
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break a rule in this block."""
    chosen = BREAKS[name]
    before = vars(chosen.owner)[chosen.name]
    setattr(chosen.owner, chosen.name, chosen.broken(before))
    try:
        yield
    finally:
        setattr(chosen.owner, chosen.name, before)
