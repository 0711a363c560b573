"""Breaks rules of acktree one by one, to see that the simulator notices: a rule that it misses is not tested.

Each break is a patch of one method, under the name that ``--break`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from acktree.checkpoint import folder as checkpoint
from acktree.checkpoint.facts import CheckpointFacts
from acktree.checkpoint.files import Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.logs.commit_log import CommitLog
from acktree.checkpoint.logs.gate_log import GateLog
from acktree.checkpoint.logs.journal import Journal
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.checkpoint.logs.memory_log import MemoryLog, MemoryOfBatch
from acktree.core.gate import Gate
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.spouts.spout_threads import SpoutThread, Threads
from acktree.driver.supervisor import Supervisor
from acktree.spark.query.sink import QuerySink
from acktree.spark.realtime.drive import Drive as EpochDrive
from acktree.spark.realtime.epochs import Alignment, Epochs
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.chunks.recovery import Recovery
from acktree.topology.gates import GateSpout
from tests.simulator.disk import SimulatedDisk
from tests.simulator.world import Drive


@dataclass(frozen=True)
class Break:
    """One rule, broken.

    Attributes:
        rule: The rule.
        owner, name: The method that is replaced.
        broken: Makes the replacement from the method.
        needs_power_cuts: Whether only a power cut shows the break.
        needs_gates: Whether it is a rule of gates, keys or sinks.
        drives: On which drives it is tried.
    """

    rule: str
    owner: Any
    name: str
    broken: Callable[[Any], Any]
    needs_power_cuts: bool = False
    needs_gates: bool = False
    drives: tuple[Drive, ...] = ("micro-batches", "epochs")


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _delivered_in_the_sink(hold: Any) -> Any:
    def deliver(self: Threads, batch_id: int, verdict_batch: Any) -> None:
        hold(self, batch_id, verdict_batch)
        self.dispatch(batch_id)

    return deliver


def _log_after_commit(write: Any) -> Any:
    waiting: dict[int, list[tuple[Any, ...]]] = {}

    def late(self: CommitLog, *arguments: Any) -> None:
        for before in waiting.pop(id(self), ()):
            write(self, *before)
        waiting.setdefault(id(self), []).append(arguments)

    return late


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


def _uncommitted_counts(recover: Any) -> Any:
    def all_there(self: CommitLog, last: int, *arguments: Any) -> None:
        recover(self, max([last, *(int(name) for name in self._names() if name.isdigit())]), *arguments)

    return all_there


def _nothing_is_taken_back(roll_back: Any) -> Any:
    class Nothing(roll_back):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.synced, self._lasts = None, {}

    return Nothing


def _deleted_too_early(write: Any) -> Any:
    def write_and_delete(self: CommitLog, *arguments: Any) -> None:
        write(self, *arguments)
        self._kept.discard(self._before[0] if self._before else -1)
        self._delete_unlisted()

    return write_and_delete


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


def _sink_does_not_sync(init: Any) -> Any:
    def make(self: QuerySink, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        object.__setattr__(self, "sync", lambda *_, **__: None)

    return make


def _all_noted(_: Any) -> Any:
    def say(self: SpoutThread, through: int) -> None:
        self.delivered_through = 10**9

    return say


def _newest_file(init: Any) -> Any:
    def open_newest(self: MemoryOfBatch, state: Any, batch_id: int, began: int, disk: Any) -> None:
        init(self, state, batch_id, began, disk)
        for task in disk.names(state):
            if disk.names(state / task):
                self._head[task] = max(disk.names(state / task))

    return open_newest


def _forgotten_early(write: Any) -> Any:
    def write_and_forget(self: MemoryLog, *arguments: Any) -> Any:
        section = write(self, *arguments)
        self.committed(-1)
        return section

    return write_and_forget


def _failed_pass(find: Any) -> Any:
    def all_decided(self: GateLog, verdicts: Any, roots: Any) -> Any:
        failed = () if verdicts is None else (verdicts.failed.roots, verdicts.timed_out.roots)
        return find(self, verdicts, roots) | np.isin(roots, np.concatenate((roots[:0], *failed)))

    return all_decided


def _dropped_never(decide: Any) -> Any:
    return lambda self, staged, acked, still_open: decide(self, staged, acked, lambda roots: roots)


def _passes_before_commit(write: Any) -> Any:
    def write_and_publish(self: GateLog, *arguments: Any) -> Any:
        section = write(self, *arguments)
        self._publish()
        return section

    return write_and_publish


def _not_logged(write: Any) -> Any:
    def write_nothing(self: Any, *arguments: Any) -> None:
        write(self, *arguments)

    return write_nothing


def _handed_over_when_emitted(next_tuple: Any) -> Any:
    def emit_and_forget(self: GateSpout) -> None:
        next_tuple(self)
        self._passed.handed_over(self._gate, self.end)

    return emit_and_forget


def _without_position(open_: Any) -> Any:
    def open_at_the_start(self: GateSpout, *arguments: Any) -> None:
        self.end = 0
        open_(self, *arguments)

    return open_at_the_start


def _keys_before_commit(write: Any) -> Any:
    def write_and_publish(self: KeyLog, *arguments: Any) -> Any:
        section = write(self, *arguments)
        self.keys.publish(self._age_ms)
        return section

    return write_and_publish


def _whole_at_first_marker(marked: Any) -> Any:
    def mark(self: Alignment[Any], sender: int, epoch: int) -> Any:
        is_first = epoch not in self._marked
        rows = marked(self, sender, epoch)
        if is_first:
            return self._rows.get(epoch, []) if rows is None else rows
        return None

    return mark


def _of_any_incarnation(reported: Any) -> Any:
    def note(self: Epochs[Any, Any], _: int, place: Any, number: int, report: Any) -> None:
        epoch = self._under_way.get(number)
        if epoch is not None and place not in epoch.reports:  # the first one counts
            reported(self, self.incarnation, place, number, report)

    return note


def _reports_kept(_: Any) -> Any:
    def begin(self: Epochs[Any, Any]) -> dict[int, Any]:
        self.incarnation += 1
        return {number: epoch.content for number, epoch in self._under_way.items()}

    return begin


def _always_committed(_: Any) -> Any:
    return lambda self, batch_id: True


def _both_logged(send: Any) -> Any:
    def log_and_send(self: EpochDrive, cut: Any) -> None:
        if self._under_way:
            self._log_offsets(cut)
        send(self, cut)

    return log_and_send


def _always_two(init: Any) -> Any:
    return lambda self, places, last_committed=-1, most=2: init(self, places, last_committed, 2)


def _run_anew(_: Any) -> Any:
    return lambda self, batch_id: self.sync(batch_id - 1)


def _named_as_needed(_: Any) -> Any:
    return lambda self: {place.file for frames in self._gates.values() for place in frames.places}


BREAKS: Final[Mapping[str, Break]] = {
    "ack-before-commit": Break(
        "a verdict is delivered after Spark has logged the commit",
        Threads,
        "hold",
        _delivered_in_the_sink,
        drives=("micro-batches",),
    ),
    "no-journal": Break("verdicts are a part of the commit log", Journal, "write", _nothing),
    "log-after-commit": Break(
        "the commit log is written before Spark's commit, not after it",
        CommitLog,
        "write",
        _log_after_commit,
    ),
    "log-deleted-early": Break(
        "the last committed file of the log is kept until the next one is committed",
        CommitLog,
        "write",
        _deleted_too_early,
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
    "uncommitted-log": Break(
        "what the log has of a micro-batch that was not committed is discarded",
        CommitLog,
        "recover",
        _uncommitted_counts,
    ),
    "memory-of-no-commit": Break(
        "a file of memory counts when the commit log names it",
        MemoryOfBatch,
        "__init__",
        _newest_file,
    ),
    "memory-forgotten-early": Break(
        "memory of the last committed micro-batch is kept until the next one is committed",
        MemoryLog,
        "write",
        _forgotten_early,
    ),
    "forget-retry": Break(
        "a failed message that waited for its next attempt is tried again after a restart",
        Recovery,
        "_decide",
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
        CheckpointFacts,
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
        QuerySink,
        "__init__",
        _sink_does_not_sync,
        needs_power_cuts=True,
        drives=("micro-batches",),
    ),
    "failed-passes": Break(
        "a tuple passes a gate if each of its messages is ACKED",
        GateLog,
        "_acked",
        _failed_pass,
        needs_gates=True,
    ),
    "dropped-never": Break(
        "a tuple is dropped with a message that is forgotten",
        Gate,
        "decide",
        _dropped_never,
        needs_gates=True,
    ),
    "passage-not-logged": Break(
        "what a gate decides is a part of the commit log", GateLog, "write", _not_logged, needs_gates=True
    ),
    "passes-before-commit": Break(
        "what passes is handed to the inbox after the commit",
        GateLog,
        "write",
        _passes_before_commit,
        needs_gates=True,
        drives=("micro-batches",),
    ),
    "passage-forgotten-early": Break(
        "what has passed is kept until the inbox has it",
        GateSpout,
        "next_tuple",
        _handed_over_when_emitted,
        needs_gates=True,
    ),
    "staged-forgotten-early": Break(
        "a file of staged values is kept as long as the log names it",
        GateLog,
        "_named",
        _named_as_needed,
        needs_gates=True,
    ),
    "passage-twice": Break(
        "a gate remembers how far the inbox has it", GateSpout, "open", _without_position, needs_gates=True
    ),
    "keys-not-logged": Break(
        "the keys that a micro-batch ACKED are a part of its commit",
        KeyLog,
        "write",
        _not_logged,
        needs_gates=True,
    ),
    "keys-before-commit": Break(
        "a key is kept after the commit that ACKED it",
        KeyLog,
        "write",
        _keys_before_commit,
        needs_gates=True,
        drives=("micro-batches",),
    ),
    "begun-anew": Break(
        "with gates a micro-batch that has begun runs again over the same messages, also after a power cut",
        QuerySink,
        "begin",
        _run_anew,
        needs_power_cuts=True,
        needs_gates=True,
    ),
    "marker-of-one": Break(
        "a level runs an epoch when the markers of all partitions before it have come",
        Alignment,
        "marked",
        _whole_at_first_marker,
        drives=("epochs",),
    ),
    "late-report": Break(
        "a report of an earlier incarnation does not count",
        Epochs,
        "reported",
        _of_any_incarnation,
        drives=("epochs",),
    ),
    "reports-kept": Break(
        "what was reported of epochs under way does not count in the next incarnation",
        Epochs,
        "begin",
        _reports_kept,
        drives=("epochs",),
    ),
    "told-before-commit": Break(
        "verdicts of an epoch are told when its commit is logged",
        Checkpoint,
        "is_committed",
        _always_committed,
        drives=("epochs",),
    ),
    "logged-cut-anew": Break(
        "an epoch that was logged runs again over the same messages",
        EpochDrive,
        "_run_again_what_was_logged",
        _nothing,
        needs_gates=True,
        drives=("epochs",),
    ),
    "two-logged": Break(
        "at most one epoch is logged and not committed", EpochDrive, "_send", _both_logged, drives=("both",)
    ),
    "sink-two-under-way": Break(
        "with a sink one epoch is under way",
        Epochs,
        "__init__",
        _always_two,
        needs_gates=True,
        drives=("epochs",),
    ),
    "no-roll-back": Break(
        "what Spark logged after the last sync does not count",
        checkpoint,
        "RollBack",
        _nothing_is_taken_back,
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
