"""A field by which many repeated texts are grouped leaves a level as a dictionary, and no bolt notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, ColumnState, Config, TopologyBuilder
from acktree.core.data.codes import coded
from acktree.core.data.distinct import codes_of
from acktree.core.data.frames import SMALL
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.bolts.bolt_harness import looking

PARTITIONS = 2
WORDS = [f"word {number % 100}" for number in range(3 * PARTITIONS * SMALL)]
SEEN: list[object] = []


class Split(ArrowBolt):
    outputs = pa.schema([pa.field("word", pa.string(), metadata={"of": "the user"}), ("place", pa.int64())])

    def execute_batch(self, batch, collector):
        places = pa.array(range(len(WORDS)), pa.int64())
        values = pa.RecordBatch.from_arrays([pa.array(WORDS), places], schema=self.outputs)
        collector.emit_batch(values, parents=pa.array([0] * len(WORDS)))


class CountBatches(ArrowBolt):
    outputs = []
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = ColumnState(str, int)

    def execute_batch(self, batch, collector):
        SEEN.append((batch.schema, codes_of(batch["word"]).type))
        self.counts.add_many(batch["word"])
        for word, count in self.counts.items():
            SEEN.append((word, count))


class CountTuples(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        SEEN.append((tup["word"], type(tup["word"]), tup["place"]))


def run(bolt: ArrowBolt | BasicBolt, group: Callable[..., object]):
    SEEN.clear()
    builder = TopologyBuilder("words")
    feeder = FeederSpout(["sentence"])
    builder.set_spout("feeder", feeder)
    builder.set_bolt("split", Split()).shuffle_grouping("feeder")
    group(builder.set_bolt("count", bolt, parallelism=2))
    config = Config(partitions=PARTITIONS)
    with looking() as seen, LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=config)
        feeder.feed(["all of them"], message_id=1)
        cluster.advance()
        assert feeder.acked == [1]
    return [frame.values.schema.field("word") for frame in seen.frames if frame.component == "split"]


@pytest.fixture(params=["fields", "partial key"])
def group(request: pytest.FixtureRequest) -> Callable[..., object]:
    if request.param == "fields":
        return lambda bolt: bolt.fields_grouping("split", ["word"])
    return lambda bolt: bolt.partial_key_grouping("split", ["word"])


def test_an_arrow_bolt_gets_the_declared_type(group):
    sent = run(CountBatches(), group)
    assert sent
    assert {field.type for field in sent} == {pa.dictionary(pa.int32(), pa.string())}
    batches = [seen for seen in SEEN if isinstance(seen[0], pa.Schema)]
    for schema, codes in batches:
        assert schema.equals(Split.outputs, check_metadata=True)
        assert codes == pa.dictionary(pa.int32(), pa.string()), "so a state looks each text up once"
    counts = Counter()
    for word, count in (seen for seen in SEEN if isinstance(seen[0], str)):
        counts[word] = counts[word] + count
    assert counts == Counter(WORDS)


def test_a_bolt_that_is_called_for_each_tuple_gets_texts_in_order(group):
    sent = run(CountTuples(), group)
    assert {field.type for field in sent} == {pa.dictionary(pa.int32(), pa.string())}
    assert sorted(SEEN, key=lambda seen: seen[2]) == [(word, str, place) for place, word in enumerate(WORDS)]


def test_a_frame_that_may_be_joined_with_others_is_plain(monkeypatch):
    """So how many tuples an ArrowBolt gets at once, and what fails together, goes by their size as ever."""
    frequent = [f"word {number // 7 % 2}" for number in range(8 * SMALL)]
    words = [*frequent, *(f"rare {number}" for number in range(40)), *frequent]
    monkeypatch.setattr(f"{__name__}.WORDS", words)
    builder, feeder = TopologyBuilder("words"), FeederSpout(["sentence"])
    builder.set_spout("feeder", feeder)
    builder.set_bolt("split", Split()).shuffle_grouping("feeder")
    builder.set_bolt("count", CountTuples(), parallelism=7).fields_grouping("split", ["word"])
    with looking() as seen, LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=Config(partitions=7))
        monkeypatch.setattr(
            "acktree.tasks.bolts.outputs.router.coded", lambda batch, *_: coded(batch, ["word"], 1, 1)
        )
        feeder.feed(["all of them"], message_id=1)
        cluster.advance()
    sizes = {
        len(frame): frame.values.schema.field("word").type
        for frame in seen.frames
        if frame.component == "split"
    }
    assert min(sizes) <= SMALL < max(sizes)
    for size, kind in sizes.items():
        assert pa.types.is_dictionary(kind) == (size > SMALL)


def test_other_fields_and_groupings_stay_as_they_are():
    for group in (
        lambda bolt: bolt.fields_grouping("split", ["place"]),
        lambda bolt: bolt.global_grouping("split"),
        lambda bolt: bolt.all_grouping("split"),
    ):
        assert {field.type for field in run(CountTuples(), group)} == {pa.string()}


def test_a_batch_is_coded_at_this_number_of_rows():
    words = pa.record_batch({"word": pa.array(WORDS[: PARTITIONS * SMALL])})
    assert pa.types.is_dictionary(coded(words, ["word"], PARTITIONS, SMALL).schema.types[0])
    assert pa.types.is_string(coded(words.slice(1), ["word"], PARTITIONS, SMALL).schema.types[0])
