from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.bolt import BasicBolt
from acktree.core.data.groupings import CustomGrouping
from acktree.errors import ConfigError
from acktree.spout import Spout
from acktree.topology import Level, Topology, TopologyBuilder, host
from acktree.topology.levels import is_fusable

FUSING = ("shuffle_grouping", "local_or_shuffle_grouping", "none_grouping")
CROSSING = ("fields_grouping", "partial_key_grouping", "global_grouping", "all_grouping", "direct_grouping")


class Plain(BasicBolt):
    outputs = {"default": ["x"], "direct": ["x"]}

    def execute(self, tup, collector):
        pass


class Waiting(BasicBolt):
    outputs = ["x"]

    async def execute(self, tup, collector):
        pass


class Remembering(Plain):
    remembers = ("seen",)


class Source(Spout):
    outputs = {"default": ["x"], "direct": ["x"]}

    def next_tuple(self):
        pass


class ToAll(CustomGrouping):
    def choose_tasks(self, task_id, values):
        return []


class Drawing:
    """A builder for topologies of which only the shape matters."""

    def __init__(self):
        self.builder = TopologyBuilder("shape")

    def spout(self, name, parallelism=1):
        self.builder.set_spout(name, Source(), parallelism)
        return self

    def bolt(self, name, *inputs, parallelism=2, remembers=False):
        """A bolt with inputs written as "source" (shuffled) or "source:method"."""
        declarer = self.builder.set_bolt(name, Remembering() if remembers else Plain(), parallelism)
        for written in inputs:
            source, _, method = written.partition(":")
            extra = [["x"]] if method in ("fields_grouping", "partial_key_grouping") else []
            extra = ["direct"] if method == "direct_grouping" else extra
            extra = [ToAll()] if method == "custom_grouping" else extra
            getattr(declarer, method or "shuffle_grouping")(source, *extra)
        return self

    def levels(self, partitions=2):
        return self.builder.create_topology().levels(partitions)


def bolts_of(levels):
    return [level.bolts for level in levels]


def test_a_topology_of_spouts_alone_has_one_level():
    assert Drawing().spout("s").levels() == (Level(0, (), stateful=False),)


@pytest.mark.parametrize("grouping", FUSING)
@pytest.mark.parametrize("parallelism", [2, 3, 8])
def test_a_bolt_with_a_task_in_every_partition_is_fused_into_the_source_level(grouping, parallelism):
    levels = Drawing().spout("s").bolt("b", f"s:{grouping}", parallelism=parallelism).levels(2)
    assert levels == (Level(0, ("b",), stateful=False),)


def test_a_bolt_of_parallelism_one_is_not_fused_into_a_level_of_two_partitions():
    levels = Drawing().spout("s").bolt("b", "s", parallelism=1).levels(2)
    assert bolts_of(levels) == [(), ("b",)]


def test_on_a_single_partition_a_bolt_of_parallelism_one_is_fused():
    assert bolts_of(Drawing().spout("s").bolt("b", "s", parallelism=1).levels(1)) == [("b",)]


def test_a_bolt_of_parallelism_one_is_not_fused_behind_a_spout_of_parallelism_one_either():
    """A spout's messages are spread over all partitions, with any parallelism."""
    assert bolts_of(Drawing().spout("s", 1).bolt("b", "s", parallelism=1).levels(3)) == [(), ("b",)]


@pytest.mark.parametrize("grouping", [*CROSSING, "custom_grouping"])
def test_every_other_grouping_needs_a_shuffle_between_the_levels(grouping):
    levels = Drawing().spout("s").bolt("b", f"s:{grouping}").levels(2)
    assert levels == (Level(0, (), stateful=False), Level(1, ("b",), stateful=False))


def test_a_bolt_that_remembers_opens_its_level():
    levels = Drawing().spout("s").bolt("b", "s", remembers=True).levels(2)
    assert levels == (Level(0, (), stateful=False), Level(1, ("b",), stateful=True))


def test_a_bolt_that_remembers_is_never_fused_behind_another():
    levels = Drawing().spout("s").bolt("a", "s", remembers=True).bolt("b", "a", remembers=True).levels(2)
    assert levels[1:] == (Level(1, ("a",), stateful=True), Level(2, ("b",), stateful=True))


def test_stateful_bolts_may_share_a_level_if_none_reads_the_other():
    drawing = Drawing().spout("s").bolt("a", "s:fields_grouping", remembers=True)
    levels = drawing.bolt("b", "s", remembers=True).bolt("c", "s:all_grouping").levels(2)
    assert levels == (Level(0, (), stateful=False), Level(1, ("a", "b", "c"), stateful=True))


def test_a_stateless_bolt_may_be_fused_with_a_stateful_producer():
    levels = Drawing().spout("s").bolt("a", "s", remembers=True).bolt("b", "a").levels(2)
    assert levels == (Level(0, (), stateful=False), Level(1, ("a", "b"), stateful=True))


def test_a_chain_of_shuffles_is_one_level_in_the_order_of_its_feeding():
    levels = Drawing().spout("s").bolt("z", "s").bolt("m", "z").bolt("a", "m").levels(2)
    assert bolts_of(levels) == [("z", "m", "a")]


def test_a_single_task_behind_a_single_task_is_fused_where_both_are_hosted_together():
    # ids in order: a is task 1, b is task 2, s is task 3; then with c between them, 1 and 3.
    apart = Drawing().spout("s").bolt("a", "s", parallelism=1).bolt("b", "a", parallelism=1)
    assert bolts_of(apart.levels(2)) == [(), ("a",), ("b",)]
    together = Drawing().spout("s").bolt("a", "s", parallelism=1).bolt("c", "a", parallelism=1)
    together.bolt("b", "s:global_grouping", parallelism=1)
    assert bolts_of(together.levels(2)) == [(), ("a", "b", "c")]


def test_the_level_of_a_bolt_follows_from_its_highest_input():
    drawing = Drawing().spout("s").bolt("a", "s:fields_grouping").bolt("b", "s", "a")
    assert bolts_of(drawing.levels(2)) == [(), ("a", "b")]


def test_an_input_from_the_same_level_by_a_crossing_grouping_lifts_the_bolt_one_further():
    drawing = (
        Drawing().spout("s").bolt("a", "s:fields_grouping").bolt("b", "s:fields_grouping", "a:all_grouping")
    )
    assert bolts_of(drawing.levels(2)) == [(), ("a",), ("b",)]


def test_a_diamond_meets_above_both_of_its_sides():
    drawing = Drawing().spout("s").bolt("left", "s").bolt("right", "s:fields_grouping")
    drawing.bolt("join", "left", "right", remembers=True).bolt("sink", "join:global_grouping", parallelism=1)
    assert bolts_of(drawing.levels(2)) == [("left",), ("right",), ("join",), ("sink",)]


@pytest.mark.parametrize("partitions", [0, -1])
def test_no_partitions_are_refused(partitions):
    with pytest.raises(ConfigError, match="at least 1"):
        Drawing().spout("s").levels(partitions)


# --- laws, for any topology


@st.composite
def topologies(draw) -> Topology:
    drawing, known = Drawing(), []
    for number in range(draw(st.integers(1, 3))):
        # Drawn names, so that the order of ids and the order of feeding have nothing to do with each other.
        known.append(f"{draw(st.sampled_from('azm'))}{number}")
        drawing.spout(known[-1], draw(st.integers(1, 3)))
    for number in range(draw(st.integers(0, 7))):
        sources = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        methods = [draw(st.sampled_from([*FUSING, *CROSSING, "custom_grouping"])) for _ in sources]
        name = f"{draw(st.sampled_from('azm'))}b{number}"
        drawing.bolt(
            name,
            *(f"{source}:{method}" for source, method in zip(sources, methods, strict=True)),
            parallelism=draw(st.integers(1, 6)),
            remembers=draw(st.booleans()),
        )
        known.append(name)
    return drawing.builder.create_topology()


def level_of(topology, levels):
    placed = {spout.id: 0 for spout in topology.spouts}
    placed.update({bolt: level.index for level in levels for bolt in level.bolts})
    return placed


partition_counts = st.integers(1, 5)


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_every_bolt_is_on_exactly_one_level_and_every_level_but_the_first_has_one(topology, partitions):
    levels = topology.levels(partitions)
    placed = [bolt for level in levels for bolt in level.bolts]
    assert sorted(placed) == sorted(bolt.id for bolt in topology.bolts)
    assert [level.index for level in levels] == list(range(len(levels)))
    assert all(level.bolts for level in levels[1:])


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_a_subscription_stays_on_its_level_only_if_it_is_fusable_and_otherwise_leads_to_a_higher_one(
    topology, partitions
):
    placed = level_of(topology, topology.levels(partitions))
    for edge in topology.subscriptions:
        source, target = topology.components[edge.source], topology.components[edge.subscriber]
        if placed[edge.source] == placed[edge.subscriber]:
            assert is_fusable(edge, source, target, partitions)
        else:
            assert placed[edge.source] < placed[edge.subscriber]


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_no_tuple_changes_its_partition_within_a_level(topology, partitions):
    """Wherever a tuple is emitted, a task that may be chosen for it is hosted."""
    placed = level_of(topology, topology.levels(partitions))
    for edge in topology.subscriptions:
        if placed[edge.source] != placed[edge.subscriber]:
            continue
        source = topology.components[edge.source]
        emitted_in = {host(task, partitions) for task in source.task_ids}
        if source.kind == "spout":
            emitted_in = set(range(partitions))
        readers = topology.components[edge.subscriber].task_ids
        for partition in emitted_in:
            assert [task for task in readers if host(task, partitions) == partition]


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_a_bolt_that_remembers_never_reads_from_its_own_level(topology, partitions):
    levels = topology.levels(partitions)
    placed = level_of(topology, levels)
    for bolt in topology.bolts:
        if bolt.remembers:
            assert all(placed[edge.source] < placed[bolt.id] for edge in bolt.inputs)
            assert levels[placed[bolt.id]].stateful
    assert not levels[0].stateful


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_within_a_level_who_feeds_another_runs_first(topology, partitions):
    for level in topology.levels(partitions):
        for edge in topology.subscriptions:
            if edge.source in level.bolts and edge.subscriber in level.bolts:
                assert level.bolts.index(edge.source) < level.bolts.index(edge.subscriber)


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_no_bolt_could_be_on_a_lower_level(topology, partitions):
    placed = level_of(topology, topology.levels(partitions))
    for bolt in topology.bolts:
        lowest = max(
            placed[edge.source] + (not is_fusable(edge, topology.components[edge.source], bolt, partitions))
            for edge in bolt.inputs
        )
        assert placed[bolt.id] == lowest


@pytest.mark.slow
@given(topologies(), partition_counts)
def test_every_task_is_hosted_by_exactly_one_partition(topology, partitions):
    for task in (task for tasks in topology.tasks.values() for task in tasks):
        assert [p for p in range(partitions) if host(task, partitions) == p] == [host(task, partitions)]
        assert 0 <= host(task, partitions) < partitions


@pytest.mark.slow
@given(topologies())
def test_the_tasks_of_a_component_are_spread_as_evenly_as_can_be(topology):
    for partitions in (1, 2, 3):
        for tasks in topology.tasks.values():
            hosted = [sum(host(task, partitions) == p for task in tasks) for p in range(partitions)]
            assert max(hosted) - min(hosted) <= 1


@pytest.mark.parametrize(("parallelism", "level"), [(1, 1), (2, 0), (5, 0)])
def test_a_concurrent_bolt_leaves_its_producers_level_where_more_of_its_tasks_would_then_work(
    parallelism, level
):
    drawn = Drawing().spout("source").bolt("first", "source", parallelism=parallelism)
    drawn.builder.set_bolt("waits", Waiting(), 4).shuffle_grouping("first")
    drawn.builder.set_bolt("plain", Plain(), 4).shuffle_grouping("first")
    levels = {bolt: each.index for each in drawn.levels() for bolt in each.bolts}
    assert levels["waits"] - levels["first"] == level
    assert levels["plain"] == levels["first"]
