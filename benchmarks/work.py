"""The work that is measured: sentences of six words, split, counted by fields grouping.

Every sentence is a message; its tree has seven tuples (the sentence and its words). All sentences are made
once, before the measurement. Bolts are in this module so that workers import them by name.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from operator import add
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acktree import (
    ArrowBolt,
    BasicBolt,
    Bolt,
    ColumnState,
    KeyValueState,
    Spout,
    Topology,
    TopologyBuilder,
    bolt,
    pystorm,
)
from acktree.bolt import AnyBolt, ArrowOutputCollector, BasicOutputCollector, OutputCollector
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.multilang import ShellBolt
from acktree.pystorm.hosted import HostedBolt, Program
from acktree.spout import SpoutOutputCollector
from benchmarks.meter import Meter

WORDS: Final = 6
"""Words in a sentence."""
VOCABULARY: Final = 5_000
"""The default number of different words; drawn uniformly."""
DIFFERENT_BATCHES: Final = 16
"""The number of batches that the spout repeats; each has every one of 5,000 words."""


@cache
def vocabulary(size: int = VOCABULARY, sentence_bytes: int | None = None) -> tuple[str, ...]:
    """Different words, the same in every run.

    Args:
        size: How many.
        sentence_bytes: The length of a sentence of :data:`WORDS` of them, spaces included. Without one, words
            have 4 to 10 letters, and a sentence some 47 bytes.
    """
    letters = 0 if sentence_bytes is None else (sentence_bytes - (WORDS - 1)) // WORDS
    chance = random.Random(7)  # noqa: S311  # not a secret
    words: dict[str, None] = {}
    while len(words) < size:
        syllables = (chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(5))
        words["".join(syllables)[: chance.randint(4, 10)]] = None
    return tuple(word.ljust(letters, "_") for word in words)


def sentences(count: int, seed: int, words: int = VOCABULARY, sentence_bytes: int | None = None) -> list[str]:
    """Sentences of :data:`WORDS` words from this :func:`vocabulary`; the same for the same seed."""
    known = np.array(vocabulary(words, sentence_bytes), dtype=object)
    drawn = np.random.default_rng(seed).integers(len(known), size=(count, WORDS))
    return [" ".join(row) for row in known[drawn]]


def save_sentences(
    file: Path,
    batches: int = DIFFERENT_BATCHES,
    batch_rows: int = 10_000,
    words: int = VOCABULARY,
    sentence_bytes: int | None = None,
) -> None:
    """The sentences that the spout repeats, as lines of text for peers: all do the same work."""
    with file.open("w") as out:
        for seed in range(batches):
            out.write("\n".join(sentences(batch_rows, seed, words, sentence_bytes)) + "\n")


class BatchSpout(Spout):
    """Emits Arrow batches; message ids are integers."""

    outputs = pa.schema([("sentence", pa.string())])

    def __init__(self, meter: Meter, variant: Variant) -> None:
        self.meter, self.tracked, self.rows = meter, variant.tracked, variant.batch_rows
        self.batches = [
            pa.record_batch({"sentence": pa.array(variant.sentences(seed), pa.string())})
            for seed in range(DIFFERENT_BATCHES)
        ]

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.position, self.endless = collector, 0, cycle(self.batches)
        self.meter.follow(self)

    def next_tuple(self) -> None:
        ids = np.arange(self.position, self.position + self.rows) if self.tracked else None
        self.collector.emit_batch(next(self.endless), message_ids=ids)
        self.position += self.rows

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        self.meter.add_acked(message_ids)


class TupleSpout(Spout):
    """Emits one sentence in each call, as most spouts do."""

    outputs = ["sentence"]

    def __init__(self, meter: Meter, variant: Variant) -> None:
        self.meter, self.tracked = meter, variant.tracked
        self.sentences = [line for seed in range(DIFFERENT_BATCHES) for line in variant.sentences(seed)]

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.position, self.endless = collector, 0, cycle(self.sentences)
        self.meter.follow(self)

    def next_tuple(self) -> None:
        self.collector.emit([next(self.endless)], message_id=self.position if self.tracked else None)
        self.position += 1

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        self.meter.add_acked(message_ids)


class BasicSplit(BasicBolt):
    """Emits a tuple for each word."""

    outputs = ["word"]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


@bolt(outputs=["word"])
def generator_split(tup: Tuple) -> Iterator[list[str]]:
    """The same as a generator."""
    for word in tup["sentence"].split():
        yield [word]


class HandSplit(Bolt):
    """The same, anchored and acked by hand."""

    outputs = ["word"]

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        for word in tup["sentence"].split():
            self.collector.emit([word], anchors=tup)
        self.collector.ack(tup)


class ArrowSplit(ArrowBolt):
    """The same over whole batches."""

    outputs = pa.schema([("word", pa.string())])

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        words = pc.split_pattern(batch["sentence"], " ")
        out = pa.record_batch({"word": pc.list_flatten(words)})
        collector.emit_batch(out, parents=pc.list_parent_indices(words))


class DictionarySplit(ArrowBolt):
    """The same; words are sent in a dictionary, which has each different word of a batch once."""

    outputs = pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))])

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        words = pc.split_pattern(batch["sentence"], " ")
        out = pa.record_batch({"word": pc.list_flatten(words).dictionary_encode()})
        collector.emit_batch(out, parents=pc.list_parent_indices(words))


class CombiningSplit(ArrowBolt):
    """Each different word of a batch is one tuple with its number, as in a ``mapInArrow`` that combines.

    A tuple of many sentences is anchored to none of them: a sentence is done when it is split, and what fails
    in ``count`` does not fail it.
    """

    outputs = pa.schema([("word", pa.string()), ("number", pa.int64())])

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        counted = pc.value_counts(pc.list_flatten(pc.split_pattern(batch["sentence"], " ")))
        out = pa.record_batch({"word": counted.field("values"), "number": counted.field("counts")})
        collector.emit_batch(out, parents=None)


def counts_in(memory: str, *, columns: bool = False) -> MutableMapping[str, int]:
    """The memory of a count; ``columns``: whether it takes whole batches."""
    if memory == "dict":
        return {}
    return ColumnState(str, int) if columns and memory == "state" else KeyValueState()


class BasicCount(BasicBolt):
    """Counts one word in each call."""

    outputs = []
    remembers = ["counts"]

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts = counts_in(self.memory)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:  # emits nothing
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1


class HandCount(Bolt):
    """The same, acked by hand."""

    outputs = []
    remembers = ["counts"]

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.counts = counts_in(self.memory)

    def execute(self, tup: Tuple) -> None:
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        self.collector.ack(tup)


class ArrowCount(ArrowBolt):
    """Counts each different word of a batch once."""

    outputs = []
    remembers = ["counts"]

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts = counts_in(self.memory, columns=True)

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        if isinstance(self.counts, ColumnState):
            self.counts.add_many(batch["word"])
            return
        counted = pc.value_counts(batch["word"])
        words, more = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
        if isinstance(self.counts, KeyValueState):
            before = self.counts.get_many(words, 0)
            self.counts.update_many(words, map(add, before, more))
        else:
            for word, count in zip(words, more, strict=True):
                self.counts[word] = self.counts.get(word, 0) + count


class CombinedCount(ArrowCount):
    """Adds up numbers of words."""

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        assert isinstance(self.counts, ColumnState), "it has no other memory"
        self.counts.add_many(batch["word"], batch["number"])


class BasicGlance(BasicBolt):
    """Reads each word and remembers nothing."""

    outputs = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        len(tup["word"])


class HandGlance(Bolt):
    """The same, acked by hand."""

    outputs = []

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        len(tup["word"])
        self.collector.ack(tup)


class ArrowGlance(ArrowBolt):
    """Counts the words of a batch and forgets them."""

    outputs = []

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        pc.value_counts(batch["word"])


class PystormSplit(pystorm.Bolt):
    """The split as a class of pystorm."""

    def process(self, tup: pystorm.Tuple) -> None:
        """Emit the words."""
        for word in tup.values[0].split():
            self.emit([word])


class PystormCount(pystorm.Bolt):
    """The count as a class of pystorm."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Begin with nothing."""
        self.counts: dict[str, int] = {}

    def process(self, tup: pystorm.Tuple) -> None:
        """Emits nothing."""
        word = tup.values[0]
        self.counts[word] = self.counts.get(word, 0) + 1


def hosted(kind: type[pystorm.Bolt], *fields: str) -> HostedBolt:
    """A class of pystorm as a bolt."""
    outputs = {"default": [*fields]} if fields else {}
    setting = {
        "streams": [*outputs], "stream->outputfields": outputs, "source->stream->grouping": {},
        "stream->target->grouping": {stream: {} for stream in outputs}, "source->stream->fields": {},
    }  # fmt: skip
    return HostedBolt(Program(kind, {}, setting), outputs, None)


def children(program: str, *fields: str) -> ShellBolt:
    """A bolt that runs a program of the peer Storm, which is built first: by Storm's own ``storm.py``."""
    from benchmarks.peers import in_java, places  # noqa: PLC0415  # it is built for no other bolt

    in_java.class_path(Path(__file__).parent / "peers" / "storm")
    folder = places.FOLDER / "storm" / "classes" / "resources"
    return ShellBolt([sys.executable, program], fields, resources=folder)


def rebuilt(user_object: Any) -> Any:  # noqa: ANN401  # any spout or bolt
    """A copy whose attributes are in a dict of its own: CPython 3.11 caches no look-up of a copied object."""
    copied = copy(user_object)
    copied.__dict__ = dict(vars(user_object))
    return copied


SPOUTS: Final[Mapping[str, type[BatchSpout | TupleSpout]]] = {"batch": BatchSpout, "tuple": TupleSpout}
BOLTS: Final[Mapping[str, tuple[AnyBolt, Callable[[str], AnyBolt], AnyBolt]]] = {
    "basic": (BasicSplit(), BasicCount, BasicGlance()),
    "generator": (generator_split, BasicCount, BasicGlance()),
    "hand": (HandSplit(), HandCount, HandGlance()),
    "arrow": (ArrowSplit(), ArrowCount, ArrowGlance()),
    "dictionary": (DictionarySplit(), ArrowCount, ArrowGlance()),
    "combined": (CombiningSplit(), CombinedCount, ArrowGlance()),
    "pystorm": (hosted(PystormSplit, "word"), lambda _: hosted(PystormCount), BasicGlance()),
}
"""The split, the count, and its replacement without memory."""
CHILDREN: Final = "storm.py"
"""The same by Storm's own ``storm.py``, as child processes; the count is lost with its process."""
MEMORIES: Final = ("state", "key-value", "dict", "none")
"""A ColumnState for Arrow bolts and a KeyValueState for others, saved by bucket; a KeyValueState for both; a
dict, saved whole; nothing between micro-batches."""
PROTECTIONS: Final = ("usual", "all", "none")
"""The default: execution marks, and a watchdog for each call of ``execute``; the same with a limit of dead
letters; neither, which is not available to users."""


@dataclass(frozen=True)
class Variant:
    """The variant of a word count.

    Attributes:
        bolts: A key of :data:`BOLTS`, or :data:`CHILDREN`.
        spout: A key of :data:`SPOUTS`.
        memory: One of :data:`MEMORIES`.
        tracked: Whether it has message ids and ackers; otherwise it has neither.
        cores: How many tasks each bolt has, and partitions the query.
        batch_rows: Sentences that the spout emits at once (``batch``), or knows a sixteenth of (``tuple``).
        inbox_max_messages: How many may wait for their micro-batch; None for the default.
        master: Where Spark runs; None for the session that ``submit`` makes.
        protection: One of :data:`PROTECTIONS`.
        words: How many different words there are.
        trace_rate: The share of messages that is traced.
        tabs: How many tabs show the page meanwhile, beside a Prometheus; 0 for no page.
        sentence_bytes: The length of a sentence; None for some 47.
        interval_secs: The ``batch_interval_secs`` of the run.
        has_door: Whether operators may ask the driver: ``control``.
        exactly_once: Whether the count is exactly once: with a gate in front of it.
        real_time: Whether it runs by epochs.
    """

    bolts: str = "arrow"
    spout: str = "batch"
    memory: str = "state"
    tracked: bool = True
    cores: int = 2
    batch_rows: int = 10_000
    inbox_max_messages: int | None = None
    master: str | None = None
    protection: str = "usual"
    words: int = VOCABULARY
    trace_rate: float = Config.trace_sample_rate
    tabs: int = 0
    sentence_bytes: int | None = None
    interval_secs: float = Config.batch_interval_secs
    has_door: bool = True
    exactly_once: bool = False
    real_time: bool = False

    def sentences(self, seed: int) -> list[str]:
        """Sentences for one batch of the spout; the same for the same seed."""
        return sentences(self.batch_rows, seed, self.words, self.sentence_bytes)

    @property
    def config(self) -> Config:
        """The settings of the run."""
        inbox = self.inbox_max_messages or Config.inbox_max_messages
        ackers = None if self.tracked else 0
        usual = Config(
            acker_executors=ackers,
            inbox_max_messages=inbox,
            trace_sample_rate=self.trace_rate,
            partitions=self.cores,
            batch_interval_secs=self.interval_secs,
            control=self.has_door,
            real_time=self.real_time,
        )
        if self.protection == "none":
            return replace(usual, execute_timeout_secs=None)
        return replace(usual, dead_letter_limit_count=1000) if self.protection == "all" else usual

    def topology(self, meter: Meter) -> Topology:
        """The topology, with its default spout."""
        return self.topology_of(SPOUTS[self.spout](meter, self))

    def topology_of(self, spout: Spout) -> Topology:
        """The spout ``sentences``, then ``split``, then ``count``."""
        split: AnyBolt
        count: AnyBolt
        if self.bolts == CHILDREN:
            split, count = children("split.py", "word"), children("count.py")
        else:
            split, counting, glance = BOLTS[self.bolts]
            count = glance if self.memory == "none" else counting(self.memory)
        builder = TopologyBuilder("word-count")
        builder.set_spout("sentences", spout)
        builder.set_bolt("split", split, parallelism=self.cores).shuffle_grouping("sentences")
        counter = builder.set_bolt("count", count, self.cores, exactly_once=self.exactly_once)
        counter.fields_grouping("split", ["word"])
        return builder.create_topology()
