"""A harness for a spout task: its spout follows a script, and every call around it is recorded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from acktree import Config, Spout
from acktree.core.data.values import decode_rows
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.dead_letters.conversion import letter_of
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row

BROKEN = failure_of(ValueError("broken"), "b0")
LATE = Failure(
    reason="late", kind=FailureKind.TIMED_OUT, cause=FailureCause.TIMEOUT, component=None, exception=None,
    exception_types=(), traceback=None, attempt=1, final=False,
)  # fmt: skip


def replace_in_host(task, **replaced):
    """Replace callbacks of a task's host; all parts of the task share it."""
    for name, callback in replaced.items():
        object.__setattr__(task._host, name, callback)


class Source(Spout):
    """Makes the next step of its script at each ``next_tuple``, and notes every call."""

    outputs = {"default": ["value"], "typed": pa.schema([("n", pa.int32())]), "direct": ["value"]}

    def __init__(self, *plan):
        self.plan = list(plan)
        self.calls = []
        self.in_call = None

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.context = collector, context
        self.note("open")

    def next_tuple(self):
        self.in_call = "next_tuple"
        try:
            if self.plan:
                self.plan.pop(0)(self)
        finally:
            self.in_call = None

    def note(self, *what):
        assert self.in_call is None, f"{what} while {self.in_call} runs"
        self.calls.append(what)

    def ack(self, message_id):
        self.note("ack", message_id)

    def fail(self, message_id, failure):
        self.note("fail", message_id, failure.reason, failure.attempt, failure.final)

    def activate(self):
        self.note("activate")

    def deactivate(self):
        self.note("deactivate")

    def close(self):
        self.note("close")

    def delivered(self):
        """The verdicts that were delivered to it."""
        return [call for call in self.calls if call[0] in {"ack", "fail"}]


class Inbox:
    """Chunks in a list."""

    def __init__(self):
        self.chunks, self.parked, self.released, self.has_room = {}, [], [], True

    chunk_rows = most = 10**9

    def append(self, chunks, parked=()):
        first = len(self.chunks)
        for offset, chunk in enumerate([*chunks, *parked]):
            self.chunks[first + offset] = chunk.to_bytes()
        self.parked += range(first + len(chunks), len(self.chunks))
        return first

    def read(self, number):
        assert number not in self.released, f"chunk {number} was released"
        return Chunk.from_bytes(self.chunks[number])

    def room(self, wanted=1):
        return self.most if self.has_room else 0

    def release(self, number):
        assert number not in self.released, f"chunk {number} was released twice"
        self.released.append(number)


class HostOf(SpoutHost):
    """A host whose methods are replaced by functions; without them it does nothing."""

    def __init__(self, inbox, keys=None, **methods):
        super().__init__(inbox, keys)
        vars(self).update(methods)

    def record(self, records):
        """Nothing is kept."""

    def report(self, component, task, failure):
        """Nothing is kept."""

    def reserve(self, first):
        return first + 1_000


class Harness:
    """One spout task, and everything around it."""

    def __init__(self, spout, retry=None, config=None, build=None, first_sequence=0, *, is_open=True, **host):
        self.spout, self.inbox, self.reports, self.reserved = spout, Inbox(), [], []
        self.letters, self.broken_store = [], None
        self.topology = in_a_row(spout, Calls(print), retry=retry, build=build)
        self.plan = Plan.of(self.topology, config or Config(), 1, 5)
        methods = {"record": self.record, "reserve": self.reserve, **host}
        spout_host = HostOf(self.inbox, report=lambda *delivered: self.reports.append(delivered), **methods)
        component = self.plan.topology.components["source"]
        self.number = component.task_ids[0]
        self.task = SpoutTask(spout, component, self.number, self.plan, spout_host, first_sequence)
        self.now_ms = 0
        if is_open:
            self.open()

    def open(self):
        """Call the spout's ``open``, and let it emit."""
        self.task.open()
        self.task.activate()

    def reserve(self, first):
        self.reserved.append(first)
        return first + 10

    def record(self, records):
        if self.broken_store is not None:
            raise self.broken_store
        assert self.spout.delivered() == self.delivered_before_record
        self.letters += [letter_of(record, self.topology, len(self.letters) + 1) for record in records]

    @property
    def delivered_before_record(self):
        return [
            call for call in self.spout.delivered() if call[0] == "ack" or call[1] in self.may_be_delivered
        ]

    may_be_delivered = frozenset()

    def run(self, steps=1):
        """Step and hand over so often; returns the values of all chunks that came."""
        before = len(self.inbox.chunks)
        for _ in range(steps):
            self.task.step(self.now_ms)
            self.task.flush(self.now_ms)
        return [decode_rows(self.chunk(number).values) for number in range(before, len(self.inbox.chunks))]

    def chunk(self, number):
        """A chunk, released or not."""
        return Chunk.from_bytes(self.inbox.chunks[number])

    def verdict(self, acked=(), failed=(), failure=BROKEN):
        """Deliver verdicts by sequence, and take them."""
        failures = [(np.array(failed, dtype=np.int64), failure)] if failed else []
        self.task.dispatch(VerdictBatch(np.array(acked, dtype=np.int64), failures))
        return self.run()


def emits(*messages, **options):
    """At this ``next_tuple`` emit these (value, message id)."""

    def emit(spout):
        for value, message_id in messages:
            spout.collector.emit([value], message_id=message_id, **options)

    return emit


def raises(error):
    """At this ``next_tuple`` raise."""

    def throw(spout):
        raise error

    return throw
