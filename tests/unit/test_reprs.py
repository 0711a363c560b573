"""What a person sees at a prompt: one line of a screen for each public object, and help() with meanings."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc

import pytest

import acktree
from acktree import ColumnState, Config, IterableSpout, KeyValueState, Retry, TopologyBuilder, bolt
from acktree.testing import FeederSpout, LocalCluster, complete_topology

LONG = "x" * 300
SCREEN = 120


@bolt(outputs=["n"])
def double(tup):
    if tup["n"] == LONG:
        raise ValueError(LONG)
    yield [tup["n"]]


def objects():
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("t" * 30)
    spout = builder.set_spout("s" * 30, feeder, retry=Retry(2))
    declarer = builder.set_bolt("b" * 30, double, 3).shuffle_grouping("s" * 30)
    topology = builder.create_topology()
    cluster = LocalCluster()
    running = cluster.submit(topology)
    feeder.feed([LONG], message_id=LONG)
    feeder.feed(["short"], message_id=1)
    cluster.advance(100)
    stats = running.stats()
    numbers = stats["s" * 30]
    return [
        builder, spout, declarer, topology, *topology.components.values(), cluster, running, stats, numbers,
        numbers.total, *numbers.tasks.values(), *stats.errors, running.dead_letters, *running.dead_letters,
        feeder.failed[0][1], Config(), Config(debug=True), Retry(2), feeder, double, KeyValueState(),
        ColumnState(str, int), IterableSpout([LONG] * 100, outputs=["n"]), running.describe(),
        numbers.complete_ms, complete_topology(topology, {"s" * 30: [[LONG]]}), *topology.levels(2),
    ]  # fmt: skip


def test_each_public_object_is_one_line_of_a_screen():
    for each in objects():
        shown = repr(each)
        assert len(shown) <= SCREEN, shown
        assert "\n" not in shown
        assert " object at 0x" not in shown


def test_a_config_shows_what_differs_from_the_defaults():
    assert repr(Config(debug=True)) == "Config(debug=True)"
    assert eval(repr(Config(message_timeout_secs=5))) == Config(message_timeout_secs=5)


@pytest.mark.parametrize("kind", [Config, Retry])
def test_help_has_the_meaning_of_each_setting(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for setting in dataclasses.fields(kind):
        assert f"{setting.name}: " in inspect.getdoc(kind)
        assert f"{setting.name}: " in text


def test_the_version_is_there():
    assert acktree.__version__.count(".") == 2
