"""What may change between two runs on one checkpoint: the rows of the table in docs/running.md."""

from __future__ import annotations

import json
import time

import pytest

from acktree import BasicBolt, CustomGrouping, DataFrameSpout, IterableSpout, Retry, Spout, TopologyBuilder
from acktree.core.ids import MAX_SPOUT_TASK
from acktree.errors import CheckpointError
from acktree.multilang import ShellBolt
from acktree.pystorm.hosted import HostedBolt
from acktree.topology.changes import ShapeChange, changes
from acktree.topology.shape import Shape, numbered


class Queue(Spout):
    outputs = {"default": ["n", "key"], "late": ["n"]}

    def open(self, config, context, collector): ...

    def next_tuple(self): ...


class Log(Queue):
    """A spout of a log: no queue brings anything back."""

    redelivers = False


class ShortQueue(Queue):
    outputs = ["n", "key"]


class OtherQueue(Queue):
    outputs = {"default": ["key", "n"], "late": ["n"]}


class WideQueue(Queue):
    outputs = {**Queue.outputs, "third": ["x"]}


class Plain(BasicBolt):
    outputs = ["n", "key"]

    def execute(self, tup, collector): ...


class OtherPlain(Plain):
    outputs = {"default": ["key"], "more": ["x"]}


class OtherCode(Plain):
    def execute(self, tup, collector):
        collector.emit([1, 2])


class Counting(Plain):
    remembers = ["counts"]


class CountingMore(Plain):
    remembers = ["counts", "seen"]


class Anyhow(CustomGrouping):
    def choose_tasks(self, task_id, values):
        return [0]


class ByPlace(Anyhow):
    """Attributes of all kinds: what decides, what cannot be compared, and what is of one run."""

    def __init__(self, place=0, by=len):
        self.place, self.by, self.names = place, by, {"b", "a"}
        self.anything, self.code = object(), lambda value: value
        self._began = object(), time.time()


class InSlots(Anyhow):
    __slots__ = ("place", "unset")

    def __init__(self, place):
        self.place = place


class Frame(DataFrameSpout):
    """A DataFrame, of which only its fields matter here."""

    def __init__(self, fields):
        self.outputs, self.message_id = fields, None


class Drawing:
    """queue, log -> split -> count, a table of (object, parallelism, inputs) that a test changes."""

    def __init__(self):
        self.spouts = {"queue": (Queue(), 2), "log": (IterableSpout([], ["n", "key"]), 2)}
        self.bolts = {
            "split": (Plain(), 2, {"queue": "shuffle_grouping", "log": "shuffle_grouping"}),
            "count": (Counting(), 2, {"split": ["key"]}),
            "show": (Plain(), 1, {"count": "shuffle_grouping"}),
        }
        self.retry = Retry(max_attempts=5)
        self.is_tracked = True

    def topology(self):
        builder = TopologyBuilder("drawn")
        for name, (spout, parallelism) in self.spouts.items():
            builder.set_spout(name, spout, parallelism, retry=self.retry)
        for name, (bolt, parallelism, inputs) in self.bolts.items():
            declarer = builder.set_bolt(name, bolt, parallelism)
            for source, how in inputs.items():
                source, _, stream = source.partition(":")  # noqa: PLW2901  # the part that is the source
                stream = stream or "default"
                if isinstance(how, list):
                    declarer.fields_grouping(source, how, stream=stream)
                elif isinstance(how, CustomGrouping):
                    declarer.custom_grouping(source, how, stream=stream)
                else:
                    getattr(declarer, how)(source, stream=stream)
        return builder.create_topology()

    def bolt(self, name, code=None, parallelism=None, inputs=None):
        """Change one bolt, or add it."""
        was = self.bolts.get(name, (Plain(), 1, {}))
        self.bolts[name] = tuple(
            given or old for given, old in zip((code, parallelism, inputs), was, strict=True)
        )

    def spout(self, name, code=None, parallelism=None):
        """Change one spout, or add it."""
        was = self.spouts.get(name, (None, 1))
        self.spouts[name] = code or was[0], parallelism or was[1]

    def frame_spout(self, name):
        """A DataFrame as a spout, and its reader."""
        self.spout(name, Frame(["n", "key"]), 1)
        self.bolt("rows", Plain(), 1, {name: "shuffle_grouping"})


def between(first, second, waiting=(), partitions=2):
    """The changes between two drawings, as a checkpoint sees them."""
    before = Shape.of(first.topology(), partitions, is_tracked=first.is_tracked)
    before = Shape.from_json(json.loads(json.dumps(before.to_json())))
    now = Shape.of(numbered(second.topology(), before), partitions, is_tracked=second.is_tracked)
    return changes(before, now, waiting)


def drop(drawing, name):
    drawing.spouts.pop(name, None)
    drawing.bolts.pop(name, None)
    for _, _, inputs in drawing.bolts.values():
        if inputs.pop(name, None) and not inputs:
            inputs["log"] = "shuffle_grouping"


GOES_ON = [
    # (row of the table, what to do to the drawing, spouts with messages in the inbox)
    ("code of a bolt or spout", lambda d: d.bolt("split", OtherCode()), {"queue", "log"}),
    ("what a `Retry` says", lambda d: setattr(d, "retry", Retry(max_attempts=2)), {"queue", "log"}),
    ("stream of a spout added", lambda d: d.spout("queue", WideQueue()), {"queue"}),
    ("stream of a spout removed, or its fields", lambda d: d.spout("queue", OtherQueue()), {"log"}),
    ("stream of a spout removed, or its fields", lambda d: d.spout("queue", ShortQueue()), {"log"}),
    ("stream of a bolt added, removed, or its fields", lambda d: d.bolt("show", OtherPlain()), {"queue"}),
    ("what a bolt without memory reads, and how", lambda d: d.bolt("show", inputs={"split": ["n"]}), {"log"}),
    (
        "what a bolt without memory reads, and how",
        lambda d: d.bolt("show", None, 3, {"log": "all_grouping"}),
        (),
    ),
    (
        "an input of a bolt with memory added or removed",
        lambda d: d.bolt("count", inputs={"split": ["key"], "queue:late": "all_grouping"}),
        {"queue"},
    ),
    (
        "an input of a bolt with memory added or removed",
        lambda d: d.bolt("count", inputs={"queue": ["key"]}),
        {"queue"},
    ),
    ("bolt without memory added", lambda d: d.bolt("audit", inputs={"split": ["n"]}), {"queue", "log"}),
    (
        "bolt without memory added",  # in front of the one with memory, which goes up a level
        lambda d: (
            d.bolt("clean", Plain(), 3, {"split": ["n"]}),
            d.bolt("count", inputs={"clean": ["key"]}),
        ),
        {"queue", "log"},
    ),
    ("bolt without memory removed", lambda d: drop(d, "show"), {"queue", "log"}),
    (
        "bolt with memory added, on a level where others remember",
        lambda d: d.bolt("sum", Counting(), 2, {"split": ["n"]}),
        {"queue"},
    ),
    ("parallelism of a bolt without memory", lambda d: d.bolt("split", parallelism=5), {"queue", "log"}),
    ("parallelism of a bolt without memory", lambda d: d.bolt("split", parallelism=1), {"queue", "log"}),
    ("parallelism of a queue's spout", lambda d: d.spout("queue", parallelism=3), {"queue"}),
    ("parallelism of a queue's spout", lambda d: d.spout("queue", parallelism=1), {"log"}),
    ("attributes in `remembers`", lambda d: d.bolt("count", CountingMore()), {"queue"}),
    ("spout added", lambda d: d.spout("aqueue", Queue(), 2), {"queue", "log"}),
    ("spout removed", lambda d: drop(d, "queue"), {"log"}),
    ("`redelivers` switched", lambda d: d.spout("queue", Log()), {"log"}),
    ("`Retry` given or taken away", lambda d: setattr(d, "retry", None), {"queue"}),
]

REFUSED = [
    # (row of the table, what to do, spouts with messages, what is named, the way out)
    (
        "stream of a spout removed, or its fields",
        lambda d: d.spout("queue", OtherQueue()), {"queue"},
        "stream 'default' of spout 'queue' has the fields ['key', 'n'] and had ['n', 'key']", "kill() it",
    ),
    (
        "grouping of a bolt with memory",
        lambda d: d.bolt("count", inputs={"split": ["n"]}), (),
        "bolt 'count' reads 'split' by fields grouping on ['n'], and read 'split' by fields grouping on ['ke",
        "reset-state CHECKPOINT --component count",
    ),
    (
        "grouping of a bolt with memory",
        lambda d: d.bolt("count", inputs={"split": Anyhow()}), (),
        "bolt 'count' reads 'split' by custom grouping", "reset-state CHECKPOINT --component count",
    ),
    (
        "bolt with memory added, on a level where none remembers",
        lambda d: d.bolt("sum", Counting(), 2, {"count": ["n"]}), (),
        "2 levels have memory now, and 1 had", "`python -m acktree rebalance CHECKPOINT`",
    ),
    (
        "bolt with memory moved to another level of those that remember",
        lambda d: (
            d.bolt("first", Counting(), 2, {"split": ["n"]}),
            d.bolt("count", inputs={"first": ["key"]}),
        ),
        (), "bolt 'count' is on stateful level 1 now, and was on 0",
        "`python -m acktree rebalance CHECKPOINT`",
    ),
    (
        "bolt with memory removed",
        lambda d: drop(d, "count"), (), "bolt 'count' is gone", "reset-state CHECKPOINT --component count",
    ),
    (
        "parallelism of a bolt with memory",
        lambda d: d.bolt("count", parallelism=3), (), "bolt 'count' has parallelism 3 now, and had 2",
        "rebalance CHECKPOINT --component count --parallelism 3 --by-key ATTRIBUTE[=MODULE:NAME]",
    ),
    (
        "parallelism of a queue's spout",
        lambda d: d.spout("queue", parallelism=1), {"queue"},
        "spout 'queue' has parallelism 1 now, and had 2", "kill() it",
    ),
    (
        "parallelism of a spout that remembers its position",
        lambda d: d.spout("log", parallelism=3), (), "spout 'log' has parallelism 3 now, and had 2",
        "new checkpoint",
    ),
    (
        "a bolt remembers nothing any more",
        lambda d: d.bolt("count", Plain()), (),
        "bolt 'count' remembers nothing now, and remembered ['counts']",
        "reset-state CHECKPOINT --component count",
    ),
    (
        "spout removed",
        lambda d: drop(d, "queue"), {"queue"}, "spout 'queue' is gone", "kill() it",
    ),
    (
        "`Retry` given or taken away",
        lambda d: setattr(d, "retry", None), {"log"}, "spout 'log' has no Retry now, and had one",
        "kill() it",
    ),
    (
        "`redelivers` switched",
        lambda d: d.spout("queue", Log()), {"queue"}, "spout 'queue' redelivers=False now, and had True",
        "kill() it",
    ),
    (
        "spout becomes bolt, or bolt spout",
        lambda d: (drop(d, "queue"), d.bolt("queue", Plain(), 1, {"log": "shuffle_grouping"})), (),
        "'queue' is a bolt and was a spout", "another id",
    ),
    (
        "`DataFrameSpout` added, removed, or its fields",
        lambda d: d.frame_spout("frame"), (), "spout 'frame' is new", "new checkpoint",
    ),
    (
        "tracking switched off",
        lambda d: setattr(d, "is_tracked", False), (), "messages are not tracked any more",
        "leave acker_executors unchanged",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("row", "change", "waiting"), GOES_ON, ids=[row for row, *_ in GOES_ON])
def test_this_change_is_allowed(row, change, waiting):
    drawing = Drawing()
    change(drawing)
    found = between(Drawing(), drawing, waiting)
    assert [change for change in found if change.refused] == []


@pytest.mark.parametrize(
    ("row", "change", "waiting", "what", "way"), REFUSED, ids=[row for row, *_ in REFUSED]
)
def test_this_is_refused_by_name_and_with_a_way_out(row, change, waiting, what, way):
    drawing = Drawing()
    change(drawing)
    (refused,) = [found for found in between(Drawing(), drawing, waiting) if found.refused]
    assert refused.what.startswith(what)
    assert way in refused.way


@pytest.mark.parametrize("host", [HostedBolt, ShellBolt])
def test_no_memory_of_a_component_of_streamparse_or_a_child_can_be_moved_by_key(host):
    class Hosting(Plain):
        remembers = host.remembers

    first, second = Drawing(), Drawing()
    first.bolt("count", Hosting())
    second.bolt("count", Hosting(), 3)
    (refused,) = [found for found in between(first, second) if found.refused]
    assert refused.what == "bolt 'count' has parallelism 3 now, and had 2"
    assert refused.way == (
        "set parallelism=2; or stop, and give its memory up: "
        "`python -m acktree reset-state CHECKPOINT --component count`"
    )


def test_the_same_topology_declared_in_any_order_has_no_changes():
    again = Drawing()
    again.bolts = dict(reversed(again.bolts.items()))
    assert between(Drawing(), again, {"queue", "log"}) == []


def test_with_one_task_every_grouping_leads_to_what_it_remembers():
    first, second = Drawing(), Drawing()
    first.bolt("count", parallelism=1)
    second.bolt("count", None, 1, {"split": "global_grouping"})
    assert between(first, second) == [ShapeChange("bolt 'count' reads other streams, or by other groupings")]


def test_shuffle_local_and_none_are_one_grouping_to_memory():
    first, second = Drawing(), Drawing()
    first.bolt("count", inputs={"split": "shuffle_grouping"})
    second.bolt("count", inputs={"split": "none_grouping"})
    assert between(first, second) == []


def test_without_a_spout_of_positions_tracking_may_be_switched_either_way():
    first, second = Drawing(), Drawing()
    for drawing in (first, second):
        drawing.spout("log", Queue())
    second.is_tracked = False
    assert [change.refused for change in between(first, second)] == [None]
    assert [change.refused for change in between(second, first)] == [None]


def test_the_places_of_memory_are_free_once_it_was_moved_out_of_sparks_state():
    before = Shape.of(Drawing().topology(), 2, is_tracked=True)
    drawing = Drawing()
    drawing.bolt("sum", Counting(), 2, {"count": ["n"]})
    now = Shape.of(numbered(drawing.topology(), before), 2, is_tracked=True)
    unbound = Shape(before.parts, None, before.is_tracked, before.tasks_given)
    assert not any(change.refused for change in changes(unbound, now, ()))


def test_every_change_of_a_dataframe_is_refused():
    framed, gone, other, queue = Drawing(), Drawing(), Drawing(), Drawing()
    for drawing in (framed, other):
        drawing.frame_spout("frame")
    other.spouts["frame"] = Frame(["key", "n"]), 1
    queue.spout("frame", Queue())
    queue.bolt("rows", Plain(), 1, {"frame": "shuffle_grouping"})
    for drawing in (gone, other, queue):
        refused = [change for change in between(framed, drawing) if change.refused]
        assert [change.way for change in refused] == ["give the changed topology a new checkpoint"]
    assert between(framed, framed) == []


def test_a_component_keeps_its_task_ids_and_no_id_is_reused():
    drawing = Drawing()
    first = Shape.of(drawing.topology(), 2, is_tracked=True)
    drawing.bolt("aaa", inputs={"split": ["n"]})  # would come first in the alphabet
    drawing.bolt("split", parallelism=3)
    drop(drawing, "show")
    second = numbered(drawing.topology(), first)
    assert {name: part.tasks for name, part in first.parts.items()} == {
        "count": (1, 2), "log": (3, 4), "queue": (5, 6), "show": (7,), "split": (8, 9),
    }  # fmt: skip
    assert second.tasks == {
        "aaa": (10,), "count": (1, 2), "log": (3, 4), "queue": (5, 6), "split": (8, 9, 11),
    }  # fmt: skip
    shape = Shape.of(second, 2, is_tracked=True, before=first)
    drop(drawing, "aaa")
    drawing.bolt("split", parallelism=1)
    third = Shape.of(numbered(drawing.topology(), shape), 2, is_tracked=True, before=shape)
    drawing.bolt("show", inputs={"split": "shuffle_grouping"})
    assert numbered(drawing.topology(), third).tasks["show"] == (12,)  # not 7, 10 or 11 again


def test_a_spout_is_refused_a_task_id_that_no_root_can_name():
    drawing = Drawing()
    before = Shape.of(drawing.topology(), 2, is_tracked=True)
    used = Shape(before.parts, before.state, before.is_tracked, MAX_SPOUT_TASK)
    drawing.bolt("more", inputs={"split": "shuffle_grouping"})
    numbered(drawing.topology(), used)
    drawing.spout("queue", parallelism=3)
    with pytest.raises(CheckpointError, match="none is reused"):
        numbered(drawing.topology(), used)


def custom_between(before, now, *, parallelism=2, is_old_release=False):
    first, second = Drawing(), Drawing()
    first.bolt("count", None, parallelism, {"split": before})
    second.bolt("count", None, parallelism, {"split": now})
    shape = json.loads(json.dumps(Shape.of(first.topology(), 2, is_tracked=True).to_json()))
    for read in shape["parts"]["count"]["inputs"] if is_old_release else ():
        del read["custom"], read["parameters"]
    return changes(Shape.from_json(shape), Shape.of(second.topology(), 2, is_tracked=True), ())


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (
            Anyhow(),
            ByPlace(),
            "by custom grouping tests.unit.topology.test_changes.ByPlace, and read 'split' by",
        ),
        (ByPlace(1), ByPlace(2), "and read 'split' by one with other values of ['place']"),
        (ByPlace(by=len), ByPlace(by=max), "other values of ['by']"),
        (InSlots("a"), InSlots("b"), "other values of ['place']"),
        (ByPlace(), InSlots(0), "by custom grouping"),
    ],
)
def test_another_custom_grouping_of_a_bolt_with_memory_is_refused(before, now, named):
    (change,) = custom_between(before, now)
    assert named in change.what
    assert "would not be where their tuples go" in change.refused
    (allowed,) = custom_between(before, now, parallelism=1)  # there is one task to go to
    assert allowed.refused is None


@pytest.mark.parametrize("make", [Anyhow, ByPlace, lambda: InSlots((1, {"a": 2.5}))])
def test_a_custom_grouping_that_is_made_again_is_the_same(make):
    assert custom_between(make(), make()) == []


def test_what_an_earlier_acktree_did_not_store_of_a_custom_grouping_is_not_compared():
    assert custom_between(Anyhow(), ByPlace(), is_old_release=True) == []
    (change,) = custom_between(["key"], ByPlace(), is_old_release=True)
    assert change.refused


def test_a_gate_with_tuples_is_neither_removed_nor_is_its_reader_changed():
    def shape(parallelism=2, *, exactly_once=True, how="shuffle_grouping"):
        builder = TopologyBuilder("gated")
        builder.set_spout("log", Log())
        bolt = builder.set_bolt("writes", Plain(), parallelism, exactly_once=exactly_once)
        getattr(bolt, how)("log")
        return Shape.of(builder.create_topology(), 2, is_tracked=True)

    def refused(now, waiting):
        return [found.what for found in changes(shape(), now, waiting) if found.refused]

    gate = "__gate/writes/log/default"
    others = shape(3), shape(how="global_grouping")
    assert refused(shape(exactly_once=False), {gate})[0] == f"gate {gate!r} is gone"
    assert all("another parallelism or grouping" in refused(other, {gate})[0] for other in others)
    for now in (*others, shape(exactly_once=False)):
        assert refused(now, {"log"}) == []
    assert refused(shape(), {gate}) == []
