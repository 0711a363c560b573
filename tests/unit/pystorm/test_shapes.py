"""Components of every shape that Python allows count the same wherever their task goes, as in one process."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from dataclasses import dataclass, field

import pytest

from acktree.streamparse import BatchingBolt, Bolt
from acktree.streamparse.testing import run_bolt
from tests.unit.pystorm.one_task import Checkpoint, lines

WORDS = ["a", "b", "a", "c", "a"]
COUNTS = [["a", 1], ["b", 1], ["a", 2], ["c", 1], ["a", 3]]


class Counting(Bolt):
    outputs = ["word", "count"]

    def initialize(self, storm_conf, context):
        super().initialize(storm_conf, context)
        self.counts = Counter()

    def process(self, tup):
        self.counts[tup.values[0]] += 1
        self.emit([tup.values[0], self.counts[tup.values[0]]])


class Logging(Bolt):
    """Another component, of which a class may be both."""

    def initialize(self, storm_conf, context):
        super().initialize(storm_conf, context)
        self.lines = []

    def process(self, tup):
        self.lines.append(tup.values[0])
        super().process(tup)


class Both(Logging, Counting):
    pass


class Strict(Counting):
    """Takes no attribute that it does not know."""

    def __setattr__(self, name, value):
        if name == "_closed" or name.startswith("_acktree_t"):
            raise AttributeError(name)
        super().__setattr__(name, value)


class Answering(Counting):
    """Has an answer to every name."""

    def __getattr__(self, name):
        return self.storm_conf.get(name, 0)


class Watching(Counting):
    def __getattribute__(self, name):
        if name in {"_closed", "_take", "_is_hosted"}:
            raise AssertionError(name)
        return super().__getattribute__(name)


class Proper(Counting):
    @property
    def counts(self):
        return self._counts

    @counts.setter
    def counts(self, value):
        assert not hasattr(self, "_counts"), "it is set once, by initialize"
        self._counts = value


class Cached(Counting):
    def initialize(self, storm_conf, context):
        pass

    @functools.cached_property
    def counts(self):
        return Counter()


class Slotted(Counting):
    __slots__ = ("__hidden", "counts")

    def process(self, tup):
        self.__hidden = getattr(self, "_Slotted__hidden", 0) + 1
        super().process(tup)


@dataclass
class Stats:
    counts: Counter = field(default_factory=Counter)


class Nested(Bolt):
    outputs = ["word", "count"]

    def initialize(self, storm_conf, context):
        self.stats = Stats()
        self.counts = self.stats.counts
        self.log = logging.getLogger("mine").info

    def process(self, tup):
        self.counts[tup.values[0]] += 1
        assert self.stats.counts is self.counts
        self.emit([tup.values[0], self.stats.counts[tup.values[0]]])


class Own(Bolt):
    """Has a loop of its own, as the documentation of pystorm shows it."""

    outputs = ["word", "count"]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = Counter()

    def _run(self):
        tup = self.read_tuple()
        self._current_tups = [tup]
        self.counts[tup.values[0]] += 1
        self.emit([tup.values[0], self.counts[tup.values[0]]])
        self.ack(tup)
        self._current_tups = []


SHAPES = [Counting, Both, Strict, Answering, Watching, Proper, Cached, Slotted, Nested, Own]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_component_of_any_shape_counts_on_in_another_process_and_in_another_run(kind, moves, caplog):
    checkpoint = Checkpoint()
    run = checkpoint.run(kind)
    counted, acked = [], []
    for at, word in enumerate(WORDS):
        if at == 3:
            run = checkpoint.run(kind)
        run.batch(word, moves=moves)
        assert (run.raised, run.reported, run.unsaved, run.failed) == ([], [], None, [])
        counted += run.emitted
        acked += run.acked
    assert (counted, acked) == (COUNTS, [[word] for word in WORDS])
    assert lines(caplog) == []


class Strange(BatchingBolt):
    """Keeps batches by keys of its own, and closes some tuples itself."""

    outputs = ["key", "count"]

    def group_key(self, tup):
        return (tup.values[0], frozenset(tup.values))

    def process_batch(self, key, tups):
        if key[0] == "a":
            self.fail(tups[0])
        if key[0] == "b":
            self.ack(tups[0])
        self.emit([key[0], len(tups)], anchors=tups[1:])


def test_a_batch_of_which_the_bolt_closes_a_tuple_itself_closes_the_others_once():
    ran = run_bolt(Strange, [["a"], ["b"], ["a"]], ticks=2)
    assert (ran.emitted, ran.failed) == ([["a", 2], ["b", 1]], [["a"]])
    assert (sorted(ran.acked), ran.errors) == ([["a"], ["b"]], [])
