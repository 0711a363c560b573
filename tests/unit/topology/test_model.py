from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from acktree.bolt import BasicBolt
from acktree.core.spouts.retry import Retry
from acktree.iterable_spout import IterableSpout
from acktree.topology import TopologyBuilder


class Pass(BasicBolt):
    outputs = {"default": ["x"], "late": ["x"]}  # as users write it

    def execute(self, tup, collector):
        pass


class Count(Pass):
    remembers = ("counts",)
    tick_secs = 5

    def tick(self, tup, collector):
        pass


def drawn(order):
    """One topology, written in any order."""
    builder = TopologyBuilder("words")
    calls = {
        "lines": lambda: builder.set_spout("lines", LINES, 2, retry=Retry(5)),
        "more": lambda: builder.set_spout("more", LINES),
        "split": lambda: (
            builder.set_bolt("split", PASS, 2).shuffle_grouping("lines").shuffle_grouping("more")
        ),
        "count": lambda: (
            builder.set_bolt("count", COUNT, 2).set_execute_timeout_secs(2.5).fields_grouping("split", ["x"])
        ),
        "audit": lambda: (
            builder.set_bolt("audit", PASS, 2).all_grouping("split", "late").none_grouping("split")
        ),
    }
    for name in order:
        calls[name]()
    return builder.create_topology()


LINES, PASS, COUNT = IterableSpout([], outputs=["x"]), Pass(), Count()
ORDER = ["lines", "more", "split", "count", "audit"]


def test_the_order_in_which_a_topology_was_written_changes_nothing():
    one, other = drawn(ORDER), drawn(ORDER[::-1])
    assert one == other
    assert one.levels(2) == other.levels(2)
    assert one.describe() == other.describe()
    assert str(one.describe()) == str(other.describe())


def test_spouts_are_sorted_by_id_and_bolts_come_after_those_that_they_read():
    topology = drawn(ORDER)
    assert [spout.id for spout in topology.spouts] == ["lines", "more"]
    assert [bolt.id for bolt in topology.bolts] == ["split", "audit", "count"]


def test_the_readers_of_a_stream_are_found_by_component_and_stream():
    topology = drawn(ORDER)
    assert [edge.subscriber for edge in topology.subscribers("split", "default")] == ["audit", "count"]
    assert [edge.subscriber for edge in topology.subscribers("split", "late")] == ["audit"]
    assert topology.subscribers("count", "default") == ()
    assert topology.subscribers("nobody", "default") == ()


def test_every_task_belongs_to_one_component():
    topology = drawn(ORDER)
    owners = [topology.component_of(task).id for task in range(1, 10)]
    assert owners == ["audit", "audit", "count", "count", "lines", "lines", "more", "split", "split"]
    with pytest.raises(KeyError):
        topology.component_of(10)


def test_a_topology_is_frozen_and_can_be_pickled():
    topology = drawn(ORDER)
    assert topology.bolts  # fills what is worked out on demand; it travels or is worked out again
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.name = "other"
    again = pickle.loads(pickle.dumps(topology))
    assert again.describe() == topology.describe()


def test_a_description_shows_the_levels_as_a_person_reads_them():
    assert (
        str(drawn(ORDER).describe())
        == """\
topology words on 2 partitions
  level 0: source
    spout lines (IterableSpout), tasks 5-6, remembers position, retries up to 5 attempts
      -> default(x)
    spout more (IterableSpout), task 7, remembers position
      -> default(x)
    bolt split (Pass), tasks 8-9
      <- lines by shuffle
      <- more by shuffle
      -> default(x)
      -> late(x)
  level 1: remembers
    bolt audit (Pass), tasks 1-2
      <- split:late by all
      <- split by none
      -> default(x)
      -> late(x)
    bolt count (Count), tasks 3-4, remembers counts, ticks every 5 s, executes for at most 2.5 s
      <- split by fields x
      -> default(x)
      -> late(x)"""
    )


def test_a_description_is_plain_data():
    data = drawn(ORDER).describe(3).data
    assert json.loads(json.dumps(data)) == data
    assert data["partitions"] == 3
    assert data["components"]["count"] == {
        "kind": "bolt",
        "class": "Count",
        "parallelism": 2,
        "task_ids": [3, 4],
        "streams": {"default": ["x"], "late": ["x"]},
        "remembers": ["counts"],
        "tick_secs": 5,
        "execute_timeout_secs": 2.5,
        "at_once": 1,
        "message_timeout_secs": None,
        "retry": None,
        "retry_attempts": None,
        "retry_pauses_secs": None,
        "retry_max_age_secs": None,
    }
    late = {"source": "split", "stream": "late", "subscriber": "audit", "grouping": "all"}
    assert late in data["subscriptions"]


def test_the_drawing_has_a_box_for_each_level_and_thick_arrows_between_them():
    assert (
        drawn(ORDER).describe().mermaid()
        == """\
flowchart LR
  subgraph level0["level 0: source"]
    c2(["lines<br/>2 tasks"])
    c3(["more<br/>1 task"])
    c4["split<br/>2 tasks"]
  end
  subgraph level1["level 1: remembers"]
    c0["audit<br/>2 tasks"]
    c1["count<br/>2 tasks"]
  end
  c4 ==>|"late: all"| c0
  c4 ==>|"none"| c0
  c4 ==>|"fields x"| c1
  c2 -->|"shuffle"| c4
  c3 -->|"shuffle"| c4"""
    )


def test_a_name_cannot_break_out_of_the_drawing():
    builder = TopologyBuilder("words")
    builder.set_spout('a"]; end <b>', LINES)
    drawing = builder.create_topology().describe().mermaid()
    assert 'a#quot;]; end #lt;b#gt;<br/>1 task"' in drawing
