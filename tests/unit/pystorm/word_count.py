"""A word count of pystorm's classes, and what feeds a topology of one bolt."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict

from acktree.streamparse import (
    Bolt,
    Grouping,
    Spout,
    Topology,
    load,
)
from acktree.testing import FeederSpout, LocalCluster

TOLD = defaultdict(list)
"""What components noted: each test has keys of its own."""


class Words(Spout):
    outputs = ["word"]


class Count(Bolt):
    outputs = ["word", "count"]

    def initialize(self, storm_conf, context):
        self.counter = Counter()
        self.shared = self.counter
        self.lock = threading.Lock()
        self.numbers = (n for n in itertools.count())

    def process(self, tup):
        with self.lock:
            self.counter[tup.values.word] += 1
        assert self.shared is self.counter
        next(self.numbers)
        self.emit([tup.values.word, self.counter[tup.values.word]])


class WordCount(Topology):
    words = Words.spec()
    count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)


def fed(topology, *, after_each=lambda: None, batches, config=None, clock_secs=0, **options):
    """Run a topology over batches of values; returns the feeder and what ``count`` emitted."""
    feeder = FeederSpout(["word"])
    loaded = load(topology, replace={"words": feeder}, options=options)
    numbers = itertools.count()
    with LocalCluster() as cluster:
        running = cluster.submit(loaded.topology, config=config or loaded.config)
        for batch in batches:
            for word in batch:
                feeder.feed([word], message_id=next(numbers))
            cluster.advance(clock_secs)
            after_each()
        return feeder, cluster.tuples("count"), running.stats(), running.errors


BATCHES = [["dog", "cat", "dog"], ["cat", "dog"], ["emu", "dog"]] * 3
WORDS = [*itertools.chain(*BATCHES)]
COUNTS = [[word, WORDS[: at + 1].count(word)] for at, word in enumerate(WORDS)]


class Picky(Bolt):
    outputs = ["word"]

    def process(self, tup):
        (word,) = tup.values
        if word == "raise":
            raise ValueError("no such word")
        if word == "fail":
            self.fail(tup)  # and is acked by itself afterwards, as the documentation of streamparse has it
            return
        if word == "report":
            try:
                {}[word]
            except KeyError as error:
                self.raise_exception(error, tup)
        if word == "twice":
            self.ack(tup)
            self.ack(tup)
        if word == "unknown":
            self.ack("99")
        if word == "late":
            self.ack(tup)
            self.emit([word])
        if word == "undeclared":
            self.emit([word], stream="nowhere")
        if word == "wide":
            self.emit([word, word])
