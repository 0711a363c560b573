"""A task of a bolt of pystorm's kind, over its micro-batches and runs, without a topology."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import Counter
from typing import NamedTuple

from acktree import Config, TaskContext
from acktree.core.data import context as contexts
from acktree.pystorm.hosted import HostedBolt, Program
from acktree.streamparse import Bolt, Spout
from acktree.streamparse.testing import _Recorder as Recorder

SETTING = {"streams": ["default"], "stream->target->grouping": {}, "source->stream->fields": {}}
_names = itertools.count()


class Given(NamedTuple):
    values: tuple[object, ...]
    component: str = "words"
    stream: str = "default"
    task_id: int = 2
    is_tick: bool = False


class Checkpoint:
    """What a task of a bolt remembers, over its micro-batches and runs."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.given = 0
        self.context = TaskContext(f"test {next(_names)}", "count", 1, 0, {"count": (1,), "words": (2,)})

    def run(self, kind: type[Bolt], conf: dict[str, object] | None = None) -> Run:
        """A new run, in processes of its own."""
        contexts._cached.clear()
        return Run(self, HostedBolt(Program(kind, conf or {}, SETTING), ()))


class Run:
    def __init__(self, checkpoint: Checkpoint, bolt: HostedBolt) -> None:
        self.checkpoint, self.bolt = checkpoint, bolt

    def batch(self, *words: str, commits: bool = True, moves: bool = False) -> Run:
        """A micro-batch; ``attributes`` are those that its component had afterwards."""
        if moves:
            contexts._cached.clear()
        bolt, recorder = copy.deepcopy(self.bolt), Recorder()
        bolt.prepare(Config(), self.checkpoint.context, recorder)
        bolt._kept.update(self.checkpoint.kept)
        bolt._given = self.checkpoint.given
        self.raised = []
        for word in words or ("a",):
            try:
                bolt.execute(Given((word,)))
            except Exception as error:  # noqa: BLE001  # as a task does
                self.raised.append(error)
        bolt.flush(recorder)
        self.reported, self.unsaved = recorder.ran.errors, None
        self.acked, self.failed = recorder.ran.acked, recorder.ran.failed
        self.emitted = recorder.ran.emitted
        kept = dict(bolt._kept.items())
        try:
            pickle.dumps(kept)
        except Exception as error:  # noqa: BLE001  # as a task does, which fails all then
            self.unsaved, commits = error, False
        if commits:
            self.checkpoint.kept, self.checkpoint.given = kept, bolt._given
        self.attributes = vars(bolt._live.component) if bolt._live else {}
        return self


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]


class Words(Spout):
    outputs = ["word"]


class Counting(Bolt):
    """Counts words; ``make`` makes what is beside the count."""

    outputs = ["word", "count"]

    def initialize(self, storm_conf, context):
        self.total = 0

    def process(self, tup):
        self.total += 1
        self.emit([tup.values[0], self.total])


def holding(make):
    class Holding(Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.counts = Counter()
            self.held = make(self)

        def process(self, tup):
            self.counts[tup.values[0]] += 1

    return Holding
