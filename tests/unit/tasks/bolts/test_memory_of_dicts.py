"""A dict of plain values is pickled in a shorter way, with the same result."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest

from acktree import BasicBolt, Config, KeyValueState, TopologyBuilder
from acktree.core.state.store import MemoryStore
from acktree.tasks.bolts.memory import TaskMemory
from acktree.testing import FeederSpout, LocalCluster


class OwnText(str):
    """Not exactly a str, so it may hold what a str does not."""

    __slots__ = ()


def of_a_class_that_only_travels_by_value():
    class OwnDict(dict):
        """Plain pickle does not find it."""

    return OwnDict(a=1)


LOOK_ALIKES = [
    {"int": 1, "float": 0.5, "bool": True, "text": "ä", "bytes": b"b", "none": None, "complex": 2j},
    {1: "a", 2.5: "b", None: "c", b"d": "d", "e": "e"},
    {},
    Counter("aab"),
    OrderedDict(b=1, a=2),
    defaultdict(int, a=1),
    of_a_class_that_only_travels_by_value(),
    {"a": OwnText("b")},
    {OwnText("a"): "b"},
    {"a": {"b": [1]}},
]


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_a_dict_comes_back_as_what_it_was_types_and_order_and_all(value):
    store = MemoryStore()
    for turn in range(2):
        remembering = SimpleNamespace(
            table=copy.deepcopy(value) if turn == 0 else None, state=KeyValueState()
        )
        memory = TaskMemory(["table", "state"], store, None)
        memory.restore(remembering)
        if turn == 0:
            remembering.state.update(value)
            memory.save(remembering)
    table, state = remembering.table, dict(remembering.state)
    assert type(table) is type(value)
    assert list(table.items()) == list(value.items())
    for found in (table, state):
        assert {repr(key): type(key) for key in found} == {repr(key): type(key) for key in value}
        assert {key: type(found[key]) for key in found} == {key: type(value[key]) for key in value}


class Counts(BasicBolt):
    outputs = ["count"]
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        self.counts[tup["key"]] = self.counts.get(tup["key"], 0) + 1
        collector.emit([self.counts[tup["key"]]])


@pytest.mark.parametrize("wrap", [lambda nan: nan, lambda nan: (1, nan)], ids=["alone", "in a tuple"])
def test_nan_of_any_type_go_to_one_task_and_are_counted_together(wrap):
    feeder, builder = FeederSpout(["key"]), TopologyBuilder("prices")
    builder.set_spout("prices", feeder)
    builder.set_bolt("counts", Counts(), parallelism=3).fields_grouping("prices", ["key"])
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=Config(partitions=2))
        for nan in (float("nan"), Decimal("nan"), np.float32("nan"), -float("nan"), float("nan")):
            feeder.feed([wrap(nan)], message_id=0)
            cluster.advance(1)
        assert cluster.tuples("counts") == [[1], [2], [3], [4], [5]]
