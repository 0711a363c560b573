"""The facts of traced messages in columns: as bytes, some of them, and their bounds, beside naive models."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from acktree.core.tracking.trace_facts import TraceFacts
from acktree.tasks.observers import tracer
from acktree.traces import packs
from acktree.traces.packs import Messages, packed, tuples_of, unpacked
from tests.unit.traces.facts import body_of

roots = st.integers(1, 4)
edges = st.integers(10, 40)
links = st.lists(
    st.tuples(roots, edges, st.lists(edges, max_size=3), st.sampled_from("ab"), st.integers(1, 2),
              st.just("default"), st.sampled_from("bc"), st.integers(1, 2), st.lists(st.text(max_size=3))),
    max_size=8, unique_by=lambda each: each[:2],
)  # fmt: skip
executions = st.lists(
    st.tuples(roots, edges, st.sampled_from("bc"), st.integers(1, 2), st.integers(0, 99),
              st.one_of(st.none(), st.floats(0, 9)), st.integers(1, 3),
              st.sampled_from(["open", "acked", "failed", "held"]), st.text(max_size=3)),
    max_size=8, unique_by=lambda each: each[:2],
)  # fmt: skip
more = st.lists(
    st.tuples(roots, st.sampled_from("bc"), st.integers(1, 9)), max_size=3, unique_by=lambda m: m[:2]
)
told = st.tuples(links, executions, more)


def seen(parts) -> tuple[object, ...]:
    """All facts as plain values, in order."""
    found = []
    for part in parts:
        parents = part.parents_of_links()
        for at, (root, edge, place, _) in enumerate(part.links.tolist()):
            found.append((root, edge, parents[at], *part.places[place], part.shown[at]))
        for at, (root, edge, began, took, bolt, fate) in enumerate(part.executions.tolist()):
            found.append(
                (
                    root,
                    edge,
                    began,
                    None if np.isnan(took) else took,
                    *part.bolts[bolt],
                    fate,
                    part.reasons.get(at, ""),
                )
            )
        found += part.more
    return found


@given(st.lists(told, max_size=3))
def test_packs_keep_all_facts(each):
    parts = [TraceFacts.of_bytes(body_of(*one)) for one in each]
    again = unpacked(packed(parts))
    assert seen(again) == seen(parts)
    assert len(seen(again)) == sum(len(facts) for one in each for facts in one)


@given(told, st.sets(roots))
def test_some_messages_of_the_facts_are_these_facts_of_these_messages(one, kept):
    facts = TraceFacts.of_bytes(body_of(*one))
    left = facts.only(np.array([*kept], np.int64))
    assert seen([left]) == [each for each in seen([facts]) if each[0] in kept]
    assert set(left.roots.tolist()) <= kept


@given(told, st.integers(0, 200))
def test_facts_that_are_cut_off_are_an_error_or_have_less_at_the_end(one, size):
    body = body_of(*one)
    try:
        found = seen([TraceFacts.of_bytes(body[:size])])
    except ValueError:
        return
    assert found == seen([TraceFacts.of_bytes(body)])


@given(st.lists(told, min_size=1, max_size=3), st.dictionaries(roots, st.integers(0, 4)), st.integers(1, 5))
def test_a_message_has_at_most_so_many_tuples_and_all_others_are_counted(each, earlier, most):
    done = [fact[:2] for one in each for fact in one[1]]
    assume(len({*done}) == len(done))  # a task is done with a tuple once
    parts = [TraceFacts.of_bytes(body_of(*one)) for one in each]
    messages = Messages.of(parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packs, "MOST_TUPLES", most)
        bounded = messages.bounded(parts, set(messages.roots.tolist()), earlier)
    for root in messages.roots.tolist():
        before, counted = tuples_of(root, [(1, packed(parts))])
        after, counted_now = tuples_of(root, [(1, packed(bounded))])
        must = {
            row["edge"].item() for part in parts for row in part.executions
            if row["root"] == root and (row["fate"] == 2 or np.isnan(row["took_ms"]))
        }  # fmt: skip
        kept = {one["edge"] for one in after}
        room = max(0, most - earlier.get(root, 0))
        assert kept <= {one["edge"] for one in before}
        assert must <= kept
        assert len(kept - must) <= room
        assert len(kept) >= min(len(before), room)
        executed = Counter(
            part.bolts[row["bolt"]].component for part in parts for row in part.executions
            if row["root"] == root and row["edge"].item() not in kept
        )  # fmt: skip
        assert counted_now == counted + executed


@given(st.lists(st.lists(roots, min_size=1, max_size=6), max_size=6), st.integers(1, 4), st.integers(1, 12))
def test_a_level_records_the_first_tuples_of_each_message_and_so_many_of_all(frames, most, most_of_all):
    seen_of, kept_of_all, quota = Counter(), 0, tracer.Quota()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tracer, "MOST_TUPLES", most)
        patched.setattr(tracer, "MOST_FACTS", most_of_all)
        for frame in frames:
            wanted = []
            for root in frame:
                fits = seen_of[root] < most and kept_of_all < most_of_all
                seen_of[root] += 1
                kept_of_all += fits
                wanted.append(fits)
            kept = quota.kept(np.array(frame, np.int64))
            assert ([True] * len(frame) if kept is None else kept.tolist()) == wanted
