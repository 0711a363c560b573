"""A trace as text: what is folded, and what is drawn apart."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from acktree.traces.trace import Trace, TracedMessage, TracedTuple, folded

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
