"""Traps: a task runs in two partitions; after a shuffle there is no order, and a re-run gives another sum."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count, permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, Bolt, Config, Spout
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.values import encode_rows
from acktree.core.ids import root_ids
from acktree.core.state.store import MemoryStore
from acktree.core.stats.counters import Counters
from acktree.core.tracking.verdicts import Failure
from acktree.errors import ProtocolError
from acktree.tasks.acker import Acker
from acktree.tasks.bolts.level import run_level
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from acktree.topology.levels import host
from tests.drawn import drawn
from tests.generated.at_random import topology
from tests.generated.running import build, run_locally
from tests.generated.strategies import topologies
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench, in_a_row, looking, run_twice


@settings(max_examples=drawn(40))
@given(topologies(), st.integers(1, 4))
def test_trap_two_partitions_a_task_runs_in_exactly_one_and_gets_all_that_is_for_it(drawn, partitions):
    with looking() as seen:
        outcome = run_locally(drawn, Config(partitions=partitions))
    for task, where in Counter(task for task, _ in seen.hosts).items():
        assert where == 1, f"task {task} ran in {where} partitions"
    assert all(partition == host(task, partitions) for task, partition in seen.hosts)
    sent = sum(n for (_, what), n in outcome.counts.items() if what == "transferred")
    executed = sum(n for (_, what), n in outcome.counts.items() if what == "executed")
    assert sent == executed == sum(len(frame.lineage) for frame in seen.frames)


@given(topologies(), st.integers(1, 4))
def test_a_remembering_bolt_is_never_fused_behind_what_it_reads(drawn, partitions):
    plan = Plan.of(build(drawn)[0], Config(), partitions, 0)
    for bolt in plan.topology.bolts:
        if bolt.remembers:
            assert all(plan.level_of[edge.source] < plan.level_of[bolt.id] for edge in bolt.inputs)
        for level in plan.levels:
            assert (bolt.id in level.bolts) == (plan.level_of[bolt.id] == level.index)


@pytest.mark.parametrize("seed", range(12))
def test_trap_no_order_after_a_shuffle_a_re_run_in_another_order_gives_the_same_rows(seed):
    """Every level and acker of a drawn topology runs twice, its rows shuffled; all must be equal."""
    with run_twice(Random(seed)) as counted:
        run_locally(topology(seed), Config(partitions=1 + seed % 3))
    assert max(counted) > 2


class Numbers(Spout):
    """Emits numbers, in bursts, tracked and untracked in turn."""

    outputs = {"default": ["n"], "other": ["n"]}

    def __init__(self):
        self.n = 0

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        for _ in range(7 if self.n < 70 else 0):
            self.collector.emit([self.n], message_id=self.n if self.n % 3 else None)
            self.n += 1


class NotesOrder(Bolt):
    """Notes in which order the tuples of each sender came, over all micro-batches."""

    outputs = ["task", "sender", "n"]
    remembers = ["seen"]

    def prepare(self, config, context, collector):
        self.collector, self.task, self.seen = collector, context.task_id, 0

    def execute(self, tup):
        self.collector.emit([self.task, tup.task_id, tup["n"]])
        self.collector.ack(tup)


class CountsUp(BasicBolt):
    """Emits 0, 1, 2, ... for whatever it gets in a micro-batch."""

    outputs = ["n"]

    def prepare(self, config, context):
        self.numbers = count()

    def execute(self, tup, collector):
        collector.emit([next(self.numbers)])


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_tuples_of_one_stream_from_one_task_to_another_come_in_the_order_they_were_emitted(partitions):
    def build(builder):
        builder.set_bolt("far", NotesOrder(), parallelism=2).fields_grouping("source", ["n"])
        builder.set_bolt("near", NotesOrder(), parallelism=2).shuffle_grouping("source")
        builder.set_bolt("relay", CountsUp(), parallelism=3).shuffle_grouping("source")
        builder.set_bolt("fused", CountsUp(), parallelism=6).none_grouping("relay")
        builder.set_bolt("notes", NotesOrder(), parallelism=2).fields_grouping("fused", ["n"])

    config = Config(partitions=partitions)
    with run_twice(Random(partitions)), bench(build=build, feeder=Numbers(), config=config) as running:
        running.cluster.advance()
        for name in ("far", "near", "notes"):
            seen = running.running.tuples(name)
            assert len(seen) == 70
            for pair in {(task, sender) for task, sender, _ in seen}:
                mine = [n for task, sender, n in seen if (task, sender) == pair]
                assert mine == sorted(mine)


def test_the_tracked_and_the_untracked_of_one_stream_keep_their_order():
    def execute(bolt, tup, collector):
        collector.emit([tup["value"]])
        if tup["value"] in {1, 2, 3}:
            raise ValueError(tup["value"])

    with bench(Calls(execute)) as running:
        running.feed(([0], "a"), ([1], None), ([2], "c"), ([3], None), ([4], None), ([5], "f"))
        assert running.tuples("b0") == [0, 1, 2, 3, 4, 5]
        assert sorted(running.acked) == ["a", "f"]
        assert [*running.failures] == ["c"]


def test_of_several_failures_the_same_one_is_reported_in_whichever_order_they_arrive():
    plan = Plan.of(in_a_row(Numbers(), Calls(print)), Config(), 3, 0)
    roots = root_ids(0, 1, np.arange(1))
    rows = []
    for partition, why in enumerate(["this", "that", "those"]):
        outputs = Outputs(plan, partition, 0, 0)
        if partition == 2:
            outputs.open(1, 0, np.array([7]))
        outputs.fail(roots, failure_of(ValueError(why), "b0"))
        rows += [row for row in outputs.wire_rows() if row.kind == Kind.DELTAS]
    judged = [Acker(plan).judge(order, 0) for order in permutations(rows)]
    assert len({verdicts.to_bytes() for verdicts in judged}) == 1
    (reason,) = judged[0].reasons
    assert Failure.from_bytes(reason).reason == "ValueError: this"  # of the first partition
    assert judged[0].others.tolist() == [2]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_shuffle_spreads_messages_evenly_even_if_they_come_one_by_one(is_tracked):
    def build(builder):
        builder.set_bolt("b", NotesOrder(), parallelism=4).shuffle_grouping("source")

    with bench(build=build, outputs=("n",)) as running:
        for number in range(200):
            running.feed(([number], number if is_tracked else None))
        counts = Counter(task for task, _, _ in running.running.tuples("b"))
        assert len(counts) == 4
        assert min(counts.values()) > 25


def test_tuples_that_hang_on_nothing_are_spread_although_each_micro_batch_has_one():
    def build(builder):
        class Ticks(Calls):
            tick_secs = 1

            def tick(self, tup, collector):
                collector.emit(["tock"])

        builder.set_bolt("ticks", Ticks(lambda bolt, tup, collector: None)).global_grouping("source")
        builder.set_bolt("b", TellsItsTask(), parallelism=4).shuffle_grouping("ticks")

    with bench(build=build) as running:
        running.cluster.advance(200)
        counts = Counter(running.tuples("b"))
        assert len(counts) == 4
        assert min(counts.values()) > 25


def test_tuples_that_hang_on_nothing_are_spread_although_each_frame_has_one():
    def build(builder):
        relay = Calls(lambda bolt, tup, collector: tup["value"])
        builder.set_bolt("relay", relay, parallelism=60).fields_grouping("source", ["value"])
        loose = CallsByHand(lambda bolt, tup: bolt.collector.emit([tup["value"]]))
        builder.set_bolt("loose", loose).global_grouping("relay")
        builder.set_bolt("b", TellsItsTask(), parallelism=4).shuffle_grouping("loose")

    with bench(build=build) as running:
        running.feed(*range(200))
        counts = Counter(running.tuples("b"))
        assert sum(counts.values()) == 200
        assert min(counts.values()) > 25
        assert len(counts) == 4


class TellsItsTask(Calls):
    def __init__(self):
        super().__init__(lambda bolt, tup, collector: bolt.task)

    def prepare(self, config, context):
        self.task = context.task_id


def test_a_remembering_bolt_is_not_fused_even_where_any_of_its_tasks_would_do():
    def build(builder):
        builder.set_bolt("stateless", Calls(print), parallelism=3).shuffle_grouping("source")
        builder.set_bolt("remembers", NotesOrder(), parallelism=3).shuffle_grouping("stateless", "default")

    plan = Plan.of(in_a_row(Numbers(), build=build), Config(), 3, 0)
    assert [level.bolts for level in plan.levels] == [("stateless",), ("remembers",)]


def test_equal_keys_meet_at_one_task_on_however_many_partitions():
    def build(builder):
        builder.set_bolt("b", NotesOrder(), parallelism=5).fields_grouping("source", ["n"])

    places = []
    for partitions in (1, 2, 3):
        with bench(build=build, outputs=("n",), config=Config(partitions=partitions)) as running:
            running.feed(*(([n % 10], n) for n in range(50)))
            places.append({(n, task) for task, _, n in running.running.tuples("b")})
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == 10


def test_a_row_that_does_not_belong_to_a_level_stops_loudly():
    plan = Plan.of(in_a_row(Numbers(), Calls(print)), Config(), 1, 0)
    for kind in (Kind.DELTAS, Kind.CHUNK):  # a chunk, and nothing to read it with
        row = WireRow(0, 0, kind, 1, 0, 0, json.dumps(("0", 0, 1)).encode(), b"")
        with pytest.raises(ProtocolError, match="reached level 0"):
            list(run_level(plan, 0, 0, [row]))


def test_a_tick_of_an_earlier_run_for_a_bolt_that_has_none_now_has_no_effect():
    plan = Plan.of(in_a_row(Numbers(), Calls(print)), Config(), 1, 0)
    tick = Broadcast({"b0": 1.0, "a bolt that is gone": 1.0}).row(0, 0)
    with looking() as seen:
        list(run_level(plan, plan.level_of["b0"], 0, [tick], MemoryStore()))
    assert not seen.hosts, "no task of it runs"


@pytest.mark.parametrize(("redelivers", "is_tracked"), [(True, True), (True, False), (False, True)])
def test_of_an_earlier_run_level_0_leaves_out_what_a_queue_delivers_again_and_nothing_else(
    redelivers, is_tracked
):
    spout = FeederSpout(["n"], redelivers=redelivers)
    plan = Plan.of(in_a_row(spout, Calls(lambda bolt, tup, collector: None)), Config(), 1, 0, 100)
    (source,) = plan.topology.tasks["source"]
    firsts = {"earlier": 97, "this run's": 100}
    chunks = {
        name: Chunk("source", source, "default", is_tracked, first, 0, encode_rows(["n"], [[1], [2], [3]]))
        for name, first in firsts.items()
    }
    rows = [
        WireRow(0, 0, Kind.CHUNK, source, at, 0, json.dumps((name, 0, 3)).encode(), b"")
        for at, name in enumerate(chunks)
    ]
    counters = Counters()
    judged = list(run_level(plan, 0, 0, rows, read_chunk=chunks.__getitem__))
    judged += run_level(plan, 1, 0, [row for row in judged if row.level == 1], MemoryStore())
    for row in judged:
        if row.kind == Kind.STATISTICS:
            counters.merge(Counters.from_bytes(row.body))
    is_left_out = redelivers and is_tracked
    assert counters.total("executed", component="b0") == (3 if is_left_out else 6)


def test_a_level_without_rows_says_nothing():
    plan = Plan.of(in_a_row(Numbers(), Calls(print)), Config(), 1, 0)
    assert list(run_level(plan, 0, 0, [])) == []


def test_what_was_emitted_directly_to_a_task_that_is_no_more_fails_and_is_never_an_ack():
    class Direct(Numbers):
        outputs = {"default": ["n"], "direct": ["n"]}

    def build(builder):
        builder.set_bolt("b", NotesOrder(), parallelism=2).direct_grouping("source", "direct")

    plan = Plan.of(in_a_row(Direct(), build=build), Config(), 1, 0)
    (source,), (first, _) = plan.topology.tasks["source"], plan.topology.tasks["b"]
    values, targets = encode_rows(["n"], [[1], [2]]), np.array([first, 99], dtype=np.int32)
    chunk = Chunk("source", source, "direct", True, 0, 0, values, tasks=targets)  # noqa: FBT003
    row = WireRow(0, 0, Kind.CHUNK, source, 0, 0, json.dumps(("a chunk", 0, 2)).encode(), b"")
    rows = list(run_level(plan, 0, 0, [row], read_chunk=lambda name: chunk))
    at_b = [row for row in rows if row.level == 1]
    rows += run_level(plan, 1, 0, at_b, MemoryStore())
    verdicts = Acker(plan).judge([row for row in rows if row.kind == Kind.DELTAS], 0)
    assert [(task, done.tolist()) for task, done in verdicts.done] == [(source, [0])]
    assert verdicts.failed.roots.tolist() == root_ids(0, source, np.arange(1, 2)).tolist()
    assert "emitted directly to task 99" in Failure.from_bytes(verdicts.reasons[0]).reason
