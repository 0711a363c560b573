"""An attribute of a class that is nearly a setting is refused, and an attribute of the user's own is not."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, IterableSpout, Spout, TopologyBuilder
from acktree.errors import TopologyError


class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass


class Waits(BasicBolt):
    async def execute(self, tup, collector):
        pass


class Source(Spout):
    outputs = ("n",)

    def next_tuple(self):
        pass


def made_of(base, attributes):
    return type("Mine", (base,), attributes)()


def topology_with(component):
    builder = TopologyBuilder("t")
    if isinstance(component, Spout):
        builder.set_spout("mine", component)
    else:
        builder.set_spout("numbers", IterableSpout([1], outputs=["n"]))
        builder.set_bolt("mine", component).shuffle_grouping("numbers")
    return builder.create_topology()


@pytest.mark.parametrize(
    ("base", "name", "value", "meant"),
    [
        (Waits, "max_concurency", 5, "max_concurrency"),
        (Waits, "maxConcurrency", 5, "max_concurrency"),
        (Sink, "thread", 4, "threads"),
        (Sink, "remember", ["counts"], "remembers"),
        (Sink, "output", ["word"], "outputs"),
        (Sink, "output", {"default": ["word"]}, "outputs"),
        (Sink, "tick_sec", 5.0, "tick_secs"),
        (Source, "redeliver", False, "redelivers"),
        (Source, "keep_alive_sec", 10, "keep_alive_secs"),
        (Source, "own_deadletters", True, "own_dead_letters"),
        (Source, "remember", ("position",), "remembers"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest(base, name, value, meant):
    with pytest.raises(TopologyError) as caught:
        topology_with(made_of(base, {name: value}))
    assert caught.value.what.endswith(f"(Mine) sets {name}, and has no such setting")
    assert f"did you mean {meant!r}?" in caught.value.fix


def use_it(self, tup, collector):
    return [self.output for _ in range(2)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"output": "a/file"},  # no list of fields
        {"output": None},
        {"output": ["a"], "outputs": ["word"]},  # the setting is set
        {"output": ["a"], "execute": use_it},  # a method names it
        {"output": property(lambda self: ["a"])},
        {"remember": lambda self: None},
        {"thread": 0, "remembers": ["thread"]},  # a remembered attribute with its first value
        {"thread": True},
        {"_thread": 4, "counts": ["a"], "tick_count": 3, "outside": ["a"]},
    ],
)
def test_an_attribute_of_ones_own_is_taken(attributes):
    assert topology_with(made_of(Sink, attributes)).components["mine"].kind == "bolt"


def test_a_setting_of_a_base_class_counts_as_set():
    base = type("Base", (Sink,), {"outputs": ["word"]})
    assert topology_with(made_of(base, {"output": ["a"]})).components["mine"].streams
