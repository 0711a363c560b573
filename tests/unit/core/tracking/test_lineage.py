"""Both forms of lineage say what a list of dicts says: root -> edge for each row, and attempts of roots."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import edge_ids, fold, root_ids
from acktree.core.tracking.attempts import NAMED
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.core.tracking.lineage_runs import Runs, siblings
from acktree.core.tracking.lineages import concat_lineages, lineage_from_bytes

ids = st.integers(-(1 << 63), (1 << 63) - 1)
few_roots = st.sampled_from([3, -3, 4, 1 << 62, -(1 << 63)])


def int64s(values):
    return np.array(values, dtype=np.int64)


@st.composite
def attempts_of_roots(draw):
    """The attempt of each root; often all are first attempts, as in life."""
    return draw(st.just({}) | st.dictionaries(few_roots, st.integers(1, 5)))


@st.composite
def lineages(draw, tries, form=None):
    """A lineage, and the rows it speaks of as a list of dicts."""
    if form is None:
        form = draw(st.sampled_from([Runs, Sparse]))
    if form is Sparse:
        rows = draw(st.lists(st.dictionaries(few_roots, ids, max_size=3), max_size=6))
        return Sparse.of_anchors(rows, tries), rows
    if draw(st.booleans()):
        return draw(bundled(tries))
    pairs = draw(st.lists(st.tuples(few_roots, ids), max_size=8))
    if draw(st.booleans()):
        pairs.sort(key=lambda pair: pair[0])  # children are in the order of their parents: long runs
    attempts = np.array([tries.get(root, 1) for root, _ in pairs], dtype=np.int32)
    lineage = Runs.of_rows(
        int64s([root for root, _ in pairs]), int64s([edge for _, edge in pairs]), attempts if tries else None
    )
    return lineage, [{root: edge} for root, edge in pairs]


@st.composite
def bundled(draw, tries):
    """Siblings of whom only the sums are known, and what is derived from these."""
    roots = draw(st.lists(few_roots, max_size=5))
    roots = [root for at, root in enumerate(roots) if not at or roots[at - 1] != root]
    sums = draw(st.lists(ids, min_size=len(roots), max_size=len(roots)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=len(roots), max_size=len(roots)))
    starts, attempts = (
        np.cumsum([0, *lengths]),
        np.array([tries.get(root, 1) for root in roots], dtype=np.int32),
    )
    lineage = Runs(int64s(roots), starts, sums=int64s(sums), attempts=attempts if tries else None)
    edges = siblings(int64s(sums), starts).tolist() if roots else []
    return lineage, [
        {root: edge} for root, edge in zip(np.repeat(roots, lengths).tolist(), edges, strict=True)
    ]


@st.composite
def some_rows(draw, rows, *, unique=False):
    """Numbers of rows, in any order, some of them twice; or ascending and each once."""
    if not rows:
        return int64s([])
    picked = draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    return int64s(sorted(set(picked)) if unique else picked)


def sums(roots, deltas):
    """XOR by root, the slow way."""
    assert len(roots) == len(deltas)
    summed = {}
    for root, delta in zip(roots.tolist(), deltas.tolist(), strict=True):
        summed[root] = summed.get(root, 0) ^ delta
    return summed


def check(lineage, rows, tries, data):
    """Every question has the answer that the list of dicts gives."""
    assert isinstance(lineage, Lineage)
    assert len(lineage) == len(rows)
    assert [lineage.anchors(row) for row in range(len(rows))] == rows
    assert lineage.is_tracked().tolist() == [bool(row) for row in rows]
    attempts = lineage.attempts()
    assert attempts.dtype == np.int32
    assert attempts.tolist() == [max((tries.get(root, 1) for root in row), default=1) for row in rows]
    for at, row in enumerate(rows):
        found = lineage.root_attempts(at)
        assert found.keys() in (row.keys(), set())
        assert {root: found.get(root, 1) for root in row} == {root: tries.get(root, 1) for root in row}
    folds = lineage.folds()
    assert folds.dtype == np.uint64
    expected = [fold(int64s(list(row)), int64s(list(row.values()))) if row else 0 for row in rows]
    assert folds.tolist() == expected
    picked = data.draw(some_rows(rows))
    roots = lineage.roots_of(picked)
    assert roots.dtype == np.int64
    assert roots.tolist() == sorted({root for row in picked.tolist() for root in rows[row]})
    created = int64s(data.draw(st.lists(ids, min_size=len(rows), max_size=len(rows))))
    acked = data.draw(st.none() | some_rows(rows, unique=True))
    naive = {}
    for row in range(len(rows)) if acked is None else acked.tolist():
        for root, edge in rows[row].items():
            naive[root] = naive.get(root, 0) ^ edge ^ int(created[row])
    assert sums(*lineage.acks(acked, created)) == naive


def well_formed(lineage):
    """Dtypes and shapes that the wire and ``reduceat`` rely on."""
    if isinstance(lineage, Runs):
        lineage = Runs(  # questions asked of a copy leave this one as it is
            lineage.roots, lineage.starts,
            edges=lineage._edges, sums=lineage._sums, attempts=lineage.run_attempts,
        )  # fmt: skip
        assert len(lineage.sums) == len(lineage.roots)
        assert lineage.roots.dtype == lineage.starts.dtype == lineage.edges.dtype == np.int64
        assert lineage.starts[0] == 0
        assert lineage.starts[-1] == len(lineage.edges)
        assert len(lineage.starts) == len(lineage.roots) + 1
        assert (np.diff(lineage.starts) > 0).all()  # an empty run would break reduceat
        assert all(a != b for a, b in pairwise(lineage.roots.tolist()))
        attempts = lineage.run_attempts
    else:
        assert lineage.offsets.dtype == lineage.roots.dtype == lineage.edges.dtype == np.int64
        assert len(lineage.roots) == len(lineage.edges) == lineage.offsets[-1]
        attempts = lineage.pair_attempts
    assert attempts is None or (attempts.dtype == np.int32 and len(attempts) == len(lineage.roots))


@given(st.data())
def test_a_lineage_equals_a_list_of_dicts_after_any_operations(data):
    tries = data.draw(attempts_of_roots())
    lineage, rows = data.draw(lineages(tries))
    for step in data.draw(st.lists(st.sampled_from(["take", "children", "bytes", "sparse"]), max_size=4)):
        if step == "take":
            picked = data.draw(some_rows(rows))
            lineage, rows = lineage.take(picked), [rows[row] for row in picked.tolist()]
        elif step == "children":
            parents = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=8))
            edges = data.draw(st.lists(ids, min_size=len(parents), max_size=len(parents)))
            lineage = lineage.children(int64s(parents), int64s(edges))
            made = zip(parents, edges, strict=True)
            rows = [dict.fromkeys(rows[parent], edge) if parent >= 0 else {} for parent, edge in made]
        elif step == "bytes":
            lineage = lineage_from_bytes(lineage.to_bytes())
        else:
            lineage = lineage.sparse()
        well_formed(lineage)
    check(lineage, rows, tries, data)


@given(st.data())
def test_both_forms_agree(data):
    tries = data.draw(attempts_of_roots())
    runs, rows = data.draw(lineages(tries, Runs))
    check(runs, rows, tries, data)
    check(runs.sparse(), rows, tries, data)


@given(st.data())
def test_runs_stay_runs_as_long_as_every_row_has_one_root(data):
    tries = data.draw(attempts_of_roots())
    lineage, rows = data.draw(lineages(tries, Runs))
    picked = data.draw(some_rows(rows))
    edges = int64s(data.draw(st.lists(ids, min_size=len(picked), max_size=len(picked))))
    for kept in (lineage.take(picked), lineage.children(picked, edges)):
        assert isinstance(kept, Runs)
        assert isinstance(lineage_from_bytes(kept.to_bytes()), Runs)


@given(st.data())
def test_an_edge_created_and_acked_leaves_nothing_in_the_sum(data):
    # Why a sum is zero when a tree is done: parents bring their children's edges, children take them away.
    tries = data.draw(attempts_of_roots())
    parents, rows = data.draw(lineages(tries))
    of = (
        [data.draw(st.integers(0, len(rows) - 1)) for _ in range(data.draw(st.integers(0, 9)))]
        if rows
        else []
    )
    ordinals = [of[:at].count(parent) for at, parent in enumerate(of)]
    edges = edge_ids(parents.folds()[int64s(of)], np.array([9], dtype=np.uint64), int64s(ordinals))
    children = parents.children(int64s(of), edges)
    created = np.zeros(len(rows), dtype=np.int64)
    np.bitwise_xor.at(created, int64s(of), edges)
    nothing = np.zeros(len(of), dtype=np.int64)
    before = sums(*parents.acks(None, np.zeros(len(rows), dtype=np.int64)))
    found = zip(parents.acks(None, created), children.acks(None, nothing), strict=True)
    after = sums(*map(np.concatenate, found))
    assert after == before


@given(st.data())
def test_the_edges_of_siblings_are_all_different_and_add_up_to_their_sum(data):
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    not_zero = ids.filter(bool)  # a sum is an edge, or an XOR of edges, and no edge is zero
    sums = data.draw(st.lists(not_zero, min_size=len(lengths), max_size=len(lengths), unique=True))
    starts = np.cumsum([0, *lengths])
    edges = siblings(int64s(sums), starts)
    assert np.bitwise_xor.reduceat(edges, starts[:-1]).tolist() == sums
    assert len(set(edges.tolist())) == len(edges)
    for length, sum_, start in zip(lengths, sums, starts.tolist(), strict=False):
        assert length > 1 or edges[start] == sum_  # one child alone: its edge is the sum


@given(st.data())
def test_a_part_of_some_siblings_acked_leaves_a_sum_that_the_rest_clears(data):
    tries = data.draw(attempts_of_roots())
    lineage, rows = data.draw(bundled(tries))
    first = data.draw(some_rows(rows, unique=True))
    rest = np.setdiff1d(np.arange(len(rows)), first)
    acks = [lineage.acks(which, None) for which in (first, rest)]
    whole = sums(*Runs(lineage.roots, lineage.starts, sums=lineage.sums).acks(None, None))
    found = sums(*map(np.concatenate, zip(*acks, strict=True)))
    assert {root: found.get(root, 0) for root in whole} == whole


@given(st.data())
def test_bundles_of_several_frames_are_divided_into_those_of_each(data):
    tries = data.draw(attempts_of_roots())
    lineage, rows = data.draw(lineages(tries, Runs))
    frames = [data.draw(some_rows(rows, unique=True)) for _ in range(3)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return
    own = [int64s(data.draw(st.lists(ids, min_size=len(each), max_size=len(each)))) for each in frames]
    firsts = [
        np.cumsum([0, *data.draw(st.lists(st.integers(1, 3), min_size=len(each), max_size=len(each)))])
        for each in frames
    ]
    ends = np.cumsum([first[-1] for first in firsts])
    shifted = [first[:-1] + shift for first, shift in zip(firsts, [0, *ends], strict=False)]
    whole = lineage.bundles(
        np.concatenate(frames),
        np.concatenate([*shifted, ends[-1:]]),
        np.concatenate(own),
        np.cumsum([len(each) for each in frames])[:-1],
    )
    pieces = list(whole.pieces(ends[:-1]))
    alone = [lineage.bundles(*each) for each in zip(frames, firsts, own, strict=True)]
    assert [piece.to_bytes() for piece in pieces] == [each.to_bytes() for each in alone]
    assert whole.edges.tolist() == np.concatenate([each.edges for each in alone]).tolist()


@given(st.data())
def test_bundles_below_rows_are_their_children(data):
    tries = data.draw(attempts_of_roots())
    lineage, rows = data.draw(lineages(tries, Runs))
    parents = data.draw(some_rows(rows, unique=True))
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=len(parents), max_size=len(parents)))
    own = data.draw(st.lists(ids, min_size=len(parents), max_size=len(parents)))
    firsts = np.cumsum([0, *lengths])
    made = lineage.bundles(parents, firsts, int64s(own))
    well_formed(made)
    assert len(made) == sum(lengths)
    children = [
        rows[parent] for parent, length in zip(parents.tolist(), lengths, strict=True) for _ in range(length)
    ]
    assert [set(made.anchors(row)) for row in range(len(made))] == [set(child) for child in children]
    expected = {}
    for parent, sum_ in zip(parents.tolist(), own, strict=True):
        (root,) = rows[parent]
        expected[root] = expected.get(root, 0) ^ sum_
    assert sums(*made.acks(None, None)) == expected
    check(made, [made.anchors(row) for row in range(len(made))], tries, data)


@given(st.data())
def test_several_lineages_as_one_say_what_each_said_one_after_the_other(data):
    tries = data.draw(attempts_of_roots())
    form = data.draw(st.sampled_from([None, Runs]))
    several = data.draw(st.lists(lineages(tries, form) | bundled(tries), min_size=1, max_size=4))
    together = concat_lineages([lineage for lineage, _ in several])
    rows = [row for _, part in several for row in part]
    check(together, rows, tries, data)
    check(lineage_from_bytes(together.to_bytes()), rows, tries, data)
    if all(isinstance(lineage, Runs) and not lineage.has_edges for lineage, _ in several):
        assert not together.has_edges  # no single edge was derived


def test_neighbours_of_one_root_are_one_run_and_one_delta():
    lineage = Runs.of_rows(int64s([5, 5, 7, 5]), int64s([1, 2, 4, 8]))
    assert lineage.roots.tolist() == [5, 7, 5]
    assert lineage.starts.tolist() == [0, 2, 3, 4]
    roots, deltas = lineage.acks(None, int64s([16, 0, 0, 0]))
    assert (roots.tolist(), deltas.tolist()) == ([5, 7, 5], [1 ^ 2 ^ 16, 4, 8])


def test_acking_some_rows_leaves_the_others_owing():
    lineage = Runs.of_rows(int64s([5, 5, 7]), int64s([1, 2, 4]))
    assert sums(*lineage.acks(int64s([1]), int64s([32, 64, 128]))) == {5: 2 ^ 64}
    assert sums(*lineage.acks(int64s([]), int64s([32, 64, 128]))) == {}


def test_an_unanchored_child_hangs_on_nothing():
    children = Runs.of_rows(int64s([5]), int64s([1])).children(int64s([0, -1]), int64s([10, 11]))
    assert [children.anchors(row) for row in range(2)] == [{5: 10}, {}]
    assert children.is_tracked().tolist() == [True, False]
    again = children.children(int64s([1, -1, 0]), int64s([20, 21, 22]))
    assert [again.anchors(row) for row in range(3)] == [{}, {}, {5: 22}]


def test_an_untracked_frame_owes_nothing():
    lineage = Sparse.untracked(3)
    assert len(lineage) == 3
    assert not lineage.is_tracked().any()
    assert lineage.folds().tolist() == [0, 0, 0]
    assert lineage.attempts().tolist() == [1, 1, 1]
    assert len(lineage.acks(None, np.ones(3, dtype=np.int64))[0]) == 0


def test_storms_worked_example_of_a_join():
    # Section 6 of Storm's rules: a{r1: x}, b{r1: y, r2: z}; one copy anchored to both.
    x, y, z, e1, e2 = (int(root_ids(0, 0, int64s([at]))[0]) for at in range(5))
    frame = Sparse.of_anchors([{1: x}, {1: y, 2: z}, {1: e1 ^ e2, 2: e2}], {})
    assert sums(*frame.acks(None, int64s([e1, e2, 0]))) == {1: x ^ y, 2: z}


def test_two_roots_with_one_shared_child_both_get_its_ack():
    child = Sparse.of_anchors([{8: 5, 9: 6}], {9: 4})
    assert child.roots_of(int64s([0])).tolist() == [8, 9]
    assert sums(*child.acks(None, int64s([0]))) == {8: 5, 9: 6}
    assert child.attempts().tolist() == [4]


def test_a_first_attempt_costs_no_bytes_and_a_later_one_survives_the_wire():
    first = Runs.of_rows(int64s([1, 2]), int64s([3, 4]))
    assert first.sparse().pair_attempts is None
    assert first.take(int64s([0])).run_attempts is None
    assert Sparse.of_anchors([{1: 2}], {1: 1}).pair_attempts is None
    later = Runs.of_rows(int64s([1, 2]), int64s([3, 4]), np.array([1, 7], dtype=np.int32))
    assert lineage_from_bytes(later.to_bytes()).attempts().tolist() == [1, 7]


@pytest.mark.parametrize("form", [Runs, Sparse])
def test_the_attempt_of_a_message_that_is_to_be_traced_is_its_number(form):
    marked = np.array([NAMED | 1, NAMED | 7, 2], dtype=np.int32)
    lineage = Runs.of_rows(int64s([1, 2, 3]), int64s([3, 4, 5]), marked)
    if form is Sparse:
        lineage = lineage.sparse()
    assert lineage.attempts().tolist() == [1, 7, 2]
    assert lineage_from_bytes(lineage.to_bytes()).attempts().tolist() == [1, 7, 2]


@pytest.mark.parametrize("lineage", [Sparse.untracked(0), Runs.of_rows(int64s([]), int64s([]))])
def test_a_frame_of_no_rows_is_a_frame(lineage):
    for same in (
        lineage,
        lineage.take(int64s([])),
        lineage.children(int64s([]), int64s([])),
        lineage.sparse(),
    ):
        well_formed(same)
        assert len(lineage_from_bytes(same.to_bytes())) == 0
        assert reduce(xor, same.acks(None, int64s([]))[1].tolist(), 0) == 0
    assert lineage.children(int64s([-1]), int64s([5])).is_tracked().tolist() == [False]
