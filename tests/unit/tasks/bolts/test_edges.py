"""Trap: equal edge ids XOR to zero, and an unfinished tree looks done."""

from __future__ import annotations

from functools import reduce
from itertools import count
from operator import xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Bolt, Config, CustomGrouping
from acktree.core.data.values import decode_rows
from acktree.core.ids import channel_id, edge_ids
from acktree.core.tracking.lineage import Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.tasks.bolts.outputs.router import charge
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn
from tests.scenarios.bolts import Does, Holds
from tests.unit.tasks.bolts.bolt_harness import Calls, bench, in_a_row, looking


class TwiceToOne(CustomGrouping):
    """Names its first task twice."""

    def prepare(self, context, stream, target_task_ids):
        self.task = target_task_ids[0]

    def choose_tasks(self, task_id, values):
        return [self.task, self.task]


def build(builder):
    """source -> hold -> b (a task named twice) -> c (every task) -> d: each depth emits again."""
    builder.set_bolt("hold", Holds()).global_grouping("source")
    builder.set_bolt("b", Does()).custom_grouping("hold", TwiceToOne())
    builder.set_bolt("c", Does(), parallelism=2).all_grouping("b")
    builder.set_bolt("d", Does()).global_grouping("c")


emits = st.sampled_from(["emit", "emit", "emit twice anchored"])
leaves = st.lists(st.just("ack"), max_size=1)
inner = st.recursive(
    leaves, lambda deeper: st.lists(st.tuples(emits, deeper), min_size=1, max_size=2), max_leaves=4
)
outer = st.lists(
    st.tuples(st.sampled_from(["emit", "emit joined", "emit held", "emit twice anchored"]), inner)
    | st.sampled_from(["hold", "hold", "ack held"]),
    max_size=5,
)


@settings(max_examples=drawn(60))
@given(st.lists(st.lists(outer, min_size=1, max_size=3), min_size=1, max_size=3))
def test_trap_equal_edge_ids_no_two_copies_carry_one_edge_of_a_message(batches):
    """A held tuple that emits again later, a task named twice, an anchor named twice, children of a join."""
    feeder, ids = FeederSpout(["program"]), count(1)
    with looking() as seen, LocalCluster() as cluster:
        cluster.submit(in_a_row(feeder, build=build), config=Config(enable_message_timeouts=False))
        for programs in batches:
            for program in programs:
                feeder.feed([program], message_id=next(ids))
            cluster.advance()
    assert len(set(seen.pairs)) == len(seen.pairs)
    assert all(edge != 0 for _, edge in seen.pairs)


@given(st.lists(st.lists(st.integers(-1, 3), max_size=6), min_size=1, max_size=5), st.booleans())
def test_trap_equal_edge_ids_every_copy_takes_a_step_of_its_parent(emissions, in_bundles):
    """Copies in any order of parents, through one channel again and again: all edges differ, none is lost."""
    lineage = Sparse.of_anchors([{1: 10}, {1: 10, 2: 10}, {2: 30}, {3: 40}], {})
    rows, channel = InboundRows("a", "s", 1, ("f",), lineage), channel_id("a", "s", 0)
    edges, expected = [], np.zeros(4, dtype=np.int64)
    for given_parents in emissions:
        parents = np.array(given_parents, dtype=np.int64)
        if in_bundles:
            parents = np.unique(parents[parents >= 0])
            made = rows.edges_below(parents, [(channel, len(parents), len(given_parents))])
        else:
            made = charge(rows, parents, channel)
        assert all((edge == 0) == (parent < 0) for edge, parent in zip(made, parents, strict=True))
        edges += [int(edge) for edge in made if edge]
        for edge, parent in zip(made, parents, strict=True):
            if parent >= 0:
                expected[parent] ^= edge
    assert len(set(edges)) == len(edges)
    assert rows.ack_values.tolist() == expected.tolist()


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True).map(sorted), min_size=1, max_size=4))
def test_edges_for_all_channels_at_once_are_those_for_one_channel_after_the_other(given_parents):
    def account():
        lineage = Runs.of_rows(np.array([1, 1, 2, 3]), np.array([10, 20, 30, 40]))
        return InboundRows("a", "s", 1, ("f",), lineage)

    pieces = [
        (channel_id("a", "s", number), len(parents), 2 * len(parents) + number)
        for number, parents in enumerate(given_parents)
    ]
    together, apart = account(), account()
    made = together.edges_below(np.concatenate(given_parents), pieces)
    alone = [
        apart.edges_below(np.array(parents), [piece])
        for parents, piece in zip(given_parents, pieces, strict=True)
    ]
    assert made.tolist() == np.concatenate(alone).tolist()
    assert together.ack_values.tolist() == apart.ack_values.tolist()
    assert together.ordinal == apart.ordinal == sum(copies for _, _, copies in pieces)


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("words", [["a"], list("abcdefghijklmnopqrstuvwxyz"), ["b", "a"] * 4])
def test_every_copy_carries_an_edge_of_its_own_and_its_siblings_add_up_to_one_number(words, partitions):
    def build(builder):
        split = Calls(lambda bolt, tup, collector: [collector.emit([word]) for word in tup["value"]] and None)
        builder.set_bolt("split", split).global_grouping("source")
        count = Calls(lambda bolt, tup, collector: None)
        builder.set_bolt("count", count, parallelism=5).fields_grouping("split", ["value"])

    with looking() as seen, bench(build=build, config=Config(partitions=partitions)) as running:
        running.feed(([words], "x"))
        ((_, parent),) = seen.pairs[:1]
        arrived, bundles = {}, []
        for frame in (frame for frame in seen.frames if frame.component == "split"):
            tasks = np.broadcast_to(frame.tasks, len(frame.lineage)).tolist()
            hosts = {running.running.plan.host(task) for task in tasks}
            assert len(hosts) == 1
            for row, (task, (word,)) in enumerate(zip(tasks, decode_rows(frame.values), strict=True)):
                assert task % partitions in hosts
                (edge,) = frame.lineage.anchors(row).values()
                arrived[edge] = (word, task)
            bundles.append((hosts.pop(), reduce(xor, arrived_in(frame))))
        # A partition's words are named by one number: it follows from the parent, the place and the channel.
        before = 0
        for host, sum_ in sorted(bundles):
            channel = np.array([channel_id("split", "default", host)])
            assert sum_ == int(edge_ids(np.array([parent]).view(np.uint64), channel, np.array([before]))[0])
            before += sum(1 for _, task in arrived.values() if task % partitions == host)
        assert len(arrived) == len(words)
        assert running.acked == ["x"]


def arrived_in(frame):
    """The edges of a frame's tuples."""
    return [edge for row in range(len(frame.lineage)) for edge in frame.lineage.anchors(row).values()]


def test_an_anchor_named_twice_counts_once():
    programs = [[("emit", []), "ack"], [("emit twice anchored", []), "ack"]]
    pairs = []
    for program in programs:
        with looking() as seen, bench(Does(), Does(), outputs=("program",)) as running:
            running.feed(([program], 1))
            pairs.append(seen.pairs)
    assert len(pairs[0]) == 2
    assert pairs[0] == pairs[1]


def test_a_held_tuple_goes_on_counting_where_it_was():
    with looking() as seen, bench(Holds(), Does(), outputs=("program",)) as running:
        running.feed(([["hold", ("emit", ["ack"])]], 1))
        for later in (2, 3):
            running.feed(([[("emit held", ["ack"]), "ack"]], later))
        held_root = seen.pairs[0][0]
        assert len({edge for root, edge in seen.pairs if root == held_root}) == 4
        running.feed(([["ack held", "ack"]], 4))
        assert sorted(running.acked) == [1, 2, 3, 4]


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_second_run_names_the_same_edges(partitions):
    runs = []
    for _ in range(2):
        with (
            looking() as seen,
            bench(
                build=build, outputs=("program",), config=Config(partitions=partitions, run_salt=9)
            ) as running,
        ):
            running.feed(([["hold", ("emit", [("emit", [("emit", ["ack"]), "ack"]), "ack"])]], 1))
            running.feed(([[("emit joined", [("emit", ["ack"]), "ack"]), "ack held", "ack"]], 2))
            runs.append((seen.pairs, running.acked))
    assert runs[0] == runs[1]
    assert sorted(runs[0][1]) == [1, 2]


class OneLoose(Bolt):
    """Emits two tuples for each bolt task, anchored but for one of them."""

    outputs = ["task"]

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        for task in range(4):
            for number in range(2):
                self.collector.emit([task], anchors=[] if (task, number) == (3, 1) else [tup])
        self.collector.ack(tup)


def test_a_tuple_without_an_anchor_keeps_those_for_other_partitions_in_bundles():
    def build(builder):
        builder.set_bolt("split", OneLoose()).global_grouping("source")
        count = Calls(lambda bolt, tup, collector: None)
        builder.set_bolt("count", count, parallelism=4).fields_grouping("split", ["task"])

    with looking() as seen, bench(build=build, config=Config(partitions=4)) as running:
        running.feed(([1], "x"), ([2], "y"))
        frames = [frame.lineage for frame in seen.frames if frame.component == "split"]
    kinds = [isinstance(lineage, Runs) and not lineage.has_edges for lineage in frames]
    assert len(kinds) > 1
    assert kinds.count(False) == 1
