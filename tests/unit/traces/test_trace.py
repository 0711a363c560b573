"""A trace as text: what is folded, and what is drawn apart."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from acktree.traces.trace import Trace, TracedMessage, TracedTuple, fates_of, folded, in_order

ROOT = 1
MESSAGE = TracedMessage(
    ROOT, "source", 1, "default", "'a'", 1, None, 1000, ["a"], "ACKED", 1005, None, None, None, 1
)
SIBLING = TracedTuple(2, [ROOT], "check", 4, "source", 1, "default", 1, 1001, 0.5, 1, "acked", 1, "", ["a"])


def trace_of(*siblings):
    return Trace(MESSAGE, [replace(each, edge=2 + at) for at, each in enumerate(siblings)])


def test_alike_siblings_of_other_tasks_are_not_folded_into_one():
    trace = trace_of(*[replace(SIBLING, task_id=task) for task in (4, 5, 4, 5, 4)])
    assert sorted((each.first.task_id, each.count) for each in folded(trace, ROOT)) == [(4, 3), (5, 2)]
    text = str(trace)
    assert "check task 4 ('a') acked 0.5 ms x 3" in text
    assert "check task 5 ('a') acked 0.5 ms x 2" in text


tasks = st.sampled_from([4, 5, None])
kinds = st.builds(
    lambda component, task, stream, fate, reason: replace(
        SIBLING, component=component, task_id=task, stream=stream, fate=fate, reason=reason
    ),
    st.sampled_from("ab"), tasks, st.sampled_from(["default", "other"]), st.sampled_from(["acked", "failed"]),
    st.sampled_from(["", "why"]),
)  # fmt: skip


@given(st.lists(kinds, max_size=20))
def test_siblings_fold_if_and_only_if_all_that_is_drawn_of_them_is_alike(siblings):
    trace = trace_of(*siblings)
    found = folded(trace, ROOT)
    assert sum(each.count for each in found) == len(siblings)
    drawn_of = [
        (each.first.component, each.first.task_id, each.first.stream, each.first.fate, each.first.reason)
        for each in found
    ]
    assert len(set(drawn_of)) == len(drawn_of)
    counts = dict.fromkeys(drawn_of, 0)
    for each in siblings:
        counts[each.component, each.task_id, each.stream, each.fate, each.reason] += 1
    assert counts == dict(zip(drawn_of, (each.count for each in found), strict=True))


def test_a_sibling_with_children_stands_for_itself():
    first, second, child = (replace(SIBLING, edge=edge) for edge in (2, 3, 4))
    trace = Trace(MESSAGE, [first, second, replace(child, parents=[2])])
    assert sorted(each.count for each in folded(trace, ROOT)) == [1, 1]


EDGES = st.integers(ROOT, 12)


@given(st.dictionaries(EDGES, st.tuples(st.lists(EDGES, max_size=3), st.integers(1000, 1002)), max_size=12))
def test_parents_come_before_their_children_level_by_level_and_cycles_last(given_tuples):
    tuples = [
        replace(SIBLING, edge=edge, parents=parents, began_ms=began_ms)
        for edge, (parents, began_ms) in given_tuples.items()
    ]
    assert in_order(ROOT, tuples) == naively_in_order(tuples)


def naively_in_order(tuples):
    """Each level is what has all of its parents in the levels before, looked for in all that is left."""
    left = sorted(tuples, key=lambda each: (each.edge != ROOT, each.began_ms, each.edge))
    ordered = [each for each in left if each.edge == ROOT]
    left = [each for each in left if each.edge != ROOT]
    known = {each.edge for each in left}
    while left:
        missing = known - {each.edge for each in ordered}
        level = [each for each in left if not missing & set(each.parents)] or left
        ordered += level
        left = [each for each in left if each not in level]
    return ordered


def test_lines_deep_below_the_message_say_their_depth_and_grow_no_wider():
    deep = 300
    chain = [replace(SIBLING, edge=2 + n, parents=[1 + n], fate="open") for n in range(deep)]
    trace = Trace(replace(MESSAGE, verdict="TIMED_OUT"), chain)
    lines = [line for line in str(trace).splitlines() if "check task" in line and "not acked" not in line]
    assert len(lines) == deep
    assert max(map(len, lines)) < 150
    assert "depth 299: check task 4" in lines[-1]
    assert "depth 199" in trace._repr_html_()


def test_the_fates_below_a_tuple_are_its_own_and_those_of_its_subtree():
    first, second, child, last = (replace(SIBLING, edge=edge) for edge in (2, 3, 4, 5))
    trace = Trace(
        MESSAGE,
        [first, second, replace(child, parents=[2, 3]), replace(last, parents=[4], fate="held")],
    )
    assert {edge: set(fates) for edge, fates in fates_of(trace).items()} == {
        2: {"acked", "held"}, 3: {"acked", "held"}, 4: {"acked", "held"}, 5: {"held"},
    }  # fmt: skip
