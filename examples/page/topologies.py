"""The two topologies of page.py: one with poison, one whose bolt forgets to ack."""

from __future__ import annotations

import time

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Config,
    KeyValueState,
    OutputCollector,
    Retry,
    Spout,
    SpoutOutputCollector,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
)

_A_TIME = 2
_POISON_EVERY = 100
_LONG = 4


class Sentences(Spout):
    """Emits two hundred sentences a second; one in 100 contains the word poison."""

    outputs = ["sentence"]

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.count = collector, 0

    def next_tuple(self) -> None:
        for _ in range(_A_TIME):
            self.count += 1
            word = "poison" if self.count % _POISON_EVERY == 0 else "fox"
            self.collector.emit([f"the quick <b>{word}</b> {self.count % 97}"], message_id=self.count)
        time.sleep(0.01)

    def lag(self) -> int:
        return 97 - self.count % 97


class Split(BasicBolt):
    """Words, the long ones on a stream of their own."""

    outputs = {"default": ["word"], "long": ["word"]}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if "poison" in tup["sentence"]:
            raise ValueError("<script>alert('poison')</script>")
        for word in tup["sentence"].split():
            collector.emit([word], stream="long" if len(word) > _LONG else "default")


class Count(BasicBolt):
    """How often each word came."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts: KeyValueState[str, int] = KeyValueState()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class Work(BasicBolt):
    """Takes its time."""

    outputs = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        end = time.perf_counter() + 0.0001
        while time.perf_counter() < end:
            pass


class Forgetful(Bolt):
    """Acks all but the sentences that end with 13."""

    outputs = []

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        if not tup["sentence"].endswith(" 13"):
            self.collector.ack(tup)


def poison() -> Topology:
    """Four components; poisoned sentences become dead letters."""
    builder = TopologyBuilder("poison")
    builder.set_spout("sentences", Sentences(), retry=Retry(max_attempts=2, backoff_secs=(1, 2)))
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("sentences")
    count = builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", ["word"])
    count.fields_grouping("split", ["word"], stream="long")
    builder.set_bolt("report", Work()).global_grouping("count")
    builder.set_bolt("archive", Work()).shuffle_grouping("sentences")
    return builder.create_topology()


def forgets() -> Topology:
    """Two components; one sentence in 97 times out."""
    builder = TopologyBuilder("forgets")
    builder.set_spout("sentences", Sentences())
    builder.set_bolt("forgetful", Forgetful()).shuffle_grouping("sentences")
    return builder.create_topology()
