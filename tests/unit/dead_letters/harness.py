"""A spout task that gives up the messages a test chooses, and their recorder."""

from __future__ import annotations

import numpy as np

from acktree import BasicBolt, TopologyBuilder
from acktree.core.data.values import decode_rows, encode_rows
from acktree.dead_letters.conversion import redriven_letter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.spout import Spout
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.retries import NO_CHUNK, Attempt, GivenUpRecord
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch
from tests.unit.tasks.spouts.spout_harness import HostOf

BROKEN = failure_of(ValueError("broken"), "sink")


class Fed(Spout):
    """Emits what it is fed, and counts its verdicts."""

    outputs = ["value"]
    redelivers = False

    def __init__(self):
        self.waiting, self.acked, self.given_up = [], [], []

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        for value in self.waiting:
            self.collector.emit([value], message_id=value)
        self.waiting.clear()

    def ack(self, message_id):
        self.acked.append(message_id)

    def fail(self, message_id, failure):
        assert failure.final
        self.given_up.append(message_id)


class Sink(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        """Never called: verdicts come from the test."""


class Inbox:
    """Chunks in a dict."""

    chunk_rows = 10**9

    def __init__(self):
        self.chunks, self.released = {}, []

    def append(self, chunks, parked=()):
        first = len(self.chunks)
        self.chunks |= {first + offset: chunk.to_bytes() for offset, chunk in enumerate(chunks)}
        return first

    def read(self, number):
        return Chunk.from_bytes(self.chunks[number])

    def room(self, wanted=1):
        return wanted

    def release(self, number):
        self.released.append(number)


class Harness:
    """One spout task with a recorder; only a test moves its clock."""

    def __init__(self, retry, letters, config, recorder=None, first_sequence=0, on_limit=lambda: None):
        builder = TopologyBuilder("harness")
        builder.set_spout("source", Fed(), retry=retry)
        builder.set_spout("other", Fed())
        builder.set_bolt("sink", Sink()).shuffle_grouping("source").shuffle_grouping("other")
        self.topology = builder.create_topology()
        self.plan = Plan.of(self.topology, config, 1, 5)
        self.letters, self.inbox, self.errors, self.now_ms = letters, Inbox(), [], 0
        self.journal, self._strangers = [], 0
        self.recorder = recorder or DeadLetterRecorder(letters, self.topology, config, on_limit)
        component = self.plan.topology.components["source"]
        self.spout = Fed()
        spout_host = HostOf(
            self.inbox, record=self.recorder.record, note_acked=self.recorder.acked,
            report=lambda *error: self.errors.append(error[2].reason),
            mark_settled=self.recorder.mark_settled, letters_among=self.recorder.letters_among,
        )  # fmt: skip
        self.task = SpoutTask(
            self.spout, component, component.task_ids[0], self.plan, spout_host, first_sequence
        )
        self.task.open()
        self.task.activate()

    def step(self):
        self.task.step(self.now_ms)
        self.task.flush(self.now_ms)

    def feed(self, *values):
        self.spout.waiting += values
        self.step()

    def fail_all(self, failure=BROKEN):
        self.verdicts(failed=self._sequences_ever(), failure=failure)

    def ack_all(self):
        self.verdicts(acked=self._sequences_ever())

    def verdicts(self, acked=(), failed=(), failure=BROKEN):
        """By sequence; those that are not open any more are passed over."""
        self.dispatch(acked, failed, failure)
        self.step()

    def dispatch(self, acked=(), failed=(), failure=BROKEN):
        self.journal.append(self.verdict_batch(acked, failed, failure))
        self.task.dispatch(self.journal[-1])

    def verdict_on(self, acked=(), failed=()):
        """By value, of the first attempt."""
        sequence_of = {}
        for number in self.inbox.chunks:
            chunk = self.inbox.read(number)
            for (value,), sequence in zip(decode_rows(chunk.values), chunk.sequences, strict=True):
                sequence_of.setdefault(value, int(sequence))
        self.verdicts([sequence_of[value] for value in acked], [sequence_of[value] for value in failed])

    def verdict_batch(self, acked=(), failed=(), failure=BROKEN):
        failures = [(np.array(failed, dtype=np.int64), failure)] if len(failed) else []
        return VerdictBatch(np.array(acked, dtype=np.int64), failures)

    def records(self, count):
        """What another task of this spout gave up: messages that this harness never had."""
        self._strangers += count
        values = encode_rows(["value"], [["stranger"]])
        return [
            GivenUpRecord("source", self.task.task + 1,
                          Attempt(f"stranger {n}", NO_CHUNK, 0, -1, 1, 0, "default"),
                     BROKEN, -1 - n, values, None, self.now_ms)
            for n in range(self._strangers - count, self._strangers)
        ]  # fmt: skip

    def resume(self, earlier, *, were_delivered=True):
        """Recover the inbox of an earlier harness, as after a restart of a spout that keeps positions.

        Unless its verdicts were noted as delivered, it died before any of its chunks was deleted.
        """
        self.inbox.chunks = dict(earlier.inbox.chunks)
        kept = [n for n in self.inbox.chunks if n not in earlier.inbox.released or not were_delivered]
        for number in kept:
            self.task.recovery.reopen(number, self.inbox.read(number))
        for number in kept:
            self.task.recovery.must_outlive(number, self.inbox.read(number))
        for verdict_batch in earlier.journal:
            self.task.recovery.apply_journalled(verdict_batch, self.now_ms, were_delivered=were_delivered)

    def redrive(self, letters):
        self.task.dispatch(Redrive([redriven_letter(letter) for letter in letters]))

    def open_values(self):
        """What is open, by value."""
        pending = self.task._pending
        return [
            value
            for number in self.inbox.chunks
            if number not in self.inbox.released
            for row, (value,) in enumerate(decode_rows(self.inbox.read(number).values))
            if row in pending.open_in_chunk(number)
        ]

    @property
    def given_up_count(self):
        return len(self.spout.given_up)

    def _sequences_ever(self):
        return [int(s) for number in self.inbox.chunks for s in self.inbox.read(number).sequences]
