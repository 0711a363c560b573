"""The guarantee, law by law: when a tree is done or failed, and that nothing else can make it so."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.tracking.ledgers import ACKED, FAILED, TIMED_OUT, Acker, T, trees


@pytest.mark.slow
@given(trees(), st.data())
def test_a_tree_is_done_after_its_last_delta_and_never_before(tree, data):
    acker = Acker()
    root = tree[0][1]
    arrival = [tree[0], *data.draw(st.permutations(tree[1:]))]
    verdicts = [acker.hears(message) for message in arrival]
    assert verdicts == [{}] * (len(tree) - 1) + [{root: ACKED}]


@given(trees(), st.data())
def test_how_a_tree_is_cut_into_micro_batches_cannot_matter(tree, data):
    acker = Acker()
    acks = data.draw(st.permutations(tree[1:]))
    cuts = sorted({0, len(acks), *data.draw(st.lists(st.integers(0, len(acks))))})
    batches = [acks[a:b] for a, b in pairwise(cuts)]
    batches[0] = data.draw(st.permutations([tree[0], *batches[0]]))
    verdicts = [acker.hears(*batch) for batch in batches]
    assert verdicts == [{}] * (len(batches) - 1) + [{tree[0][1]: ACKED}]


@given(trees(), st.data())
def test_a_lost_delta_is_never_an_ack(tree, data):
    acker = Acker()
    lost = data.draw(st.integers(1, len(tree) - 1))
    assert acker.hears(*tree[:lost], *tree[lost + 1 :]) == {}
    assert acker.hears(now_ms=T) == {}
    assert acker.hears(now_ms=2 * T + T // 8) == {tree[0][1]: TIMED_OUT}


@given(trees(), st.data())
def test_a_delta_applied_twice_is_never_an_ack(tree, data):
    acker = Acker()
    doubled = data.draw(st.sampled_from(tree[1:]))
    assert acker.hears(*data.draw(st.permutations([*tree, doubled]))) == {}


@given(trees(), st.data())
def test_one_failed_tuple_fails_the_tree(tree, data):
    acker = Acker()
    root = tree[0][1]
    failed = data.draw(st.integers(1, len(tree) - 1))
    messages = [*tree[:failed], ("fail", root, b"why"), *tree[failed + 1 :]]
    assert acker.hears(*data.draw(st.permutations(messages))) == {root: FAILED}


@pytest.mark.slow
@given(st.lists(trees(), min_size=2, max_size=4, unique_by=lambda tree: tree[0][1]), st.data())
def test_trees_that_travel_together_do_not_touch_each_other(forest, data):
    acker = Acker()
    kept = forest[0]
    late = kept.pop()
    messages = data.draw(st.permutations([message for tree in forest for message in tree]))
    assert acker.hears(*messages) == {tree[0][1]: ACKED for tree in forest[1:]}
    assert acker.hears(late) == {kept[0][1]: ACKED}
