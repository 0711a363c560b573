"""Components, drawings with them, and how the text of a refusal is read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from acktree.bolt import ArrowBolt, BasicBolt, Bolt
from acktree.core.data.groupings import CustomGrouping
from acktree.errors import TopologyError
from acktree.spout import Spout
from acktree.topology import TopologyBuilder


class Lines(Spout):
    outputs = {"default": ["line"], "errors": ["line", "reason"]}  # as users write it

    def next_tuple(self):
        pass


class Split(BasicBolt):
    outputs = ("word", "length")

    def execute(self, tup, collector):
        pass


class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass


class Join(Bolt):
    outputs = ("pair",)

    def execute(self, tup):
        pass


class Fast(ArrowBolt):
    outputs = pa.schema([("word", pa.string())])

    def execute_batch(self, batch, collector):
        pass


class ByLength(CustomGrouping):
    def choose_tasks(self, task_id, values):
        return []


def lines(parallelism=1):
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Lines(), parallelism)
    return builder


def with_bolt(user_object, *args, **kwargs):
    builder = lines()
    builder.set_bolt("split", user_object, *args, **kwargs).shuffle_grouping("lines")
    return builder


def with_spout(user_object, *args, **kwargs):
    builder = TopologyBuilder("words")
    builder.set_spout("lines", user_object, *args, **kwargs)
    return builder


def changed(base, **attributes):
    """An instance of a class like the one given, with other attributes."""
    return type(base.__name__, (base,), attributes)()


def refused(builder, *says):
    """The text of the refusal: three lines, with everything in it that is said here."""
    with pytest.raises(TopologyError) as caught:
        builder.create_topology()
    text = str(caught.value)
    assert len(text.splitlines()) == 3, text
    assert max(map(len, text.splitlines())) < 320, text
    for part in says:
        assert part in text, text
    return text
