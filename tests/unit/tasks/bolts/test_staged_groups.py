"""What a gate is told of emitted tuples: groups that hang on the same roots, as each tuple by itself says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.tracking.lineage import Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.bolts.outputs.router import groups_of
from acktree.tasks.bolts.rows.frame_rows import InboundRows

roots_of_rows = st.lists(st.lists(st.integers(0, 4), max_size=2, unique=True), min_size=1, max_size=5)


def account(rows):
    if all(len(roots) == 1 for roots in rows):
        roots = np.array([roots[0] for roots in rows], dtype=np.int64)
        lineage = Runs.of_rows(roots, np.arange(1, len(rows) + 1))
    else:
        lineage = Sparse.of_anchors([dict.fromkeys(roots, 1) for roots in rows], {})
    return InboundRows("words", "default", 3, ("word",), lineage)


@given(
    roots_of_rows | st.lists(st.integers(0, 2).map(lambda root: [root]), min_size=1, max_size=6), st.data()
)
def test_groups_have_the_roots_that_each_tuple_hangs_on(rows, data):
    some_row = st.integers(0, len(rows) - 1)
    parents = data.draw(st.lists(st.just(-1) | some_row, min_size=1, max_size=8))
    anchors = data.draw(
        st.dictionaries(
            st.integers(0, len(parents) - 1), st.lists(some_row, min_size=1, max_size=3), max_size=3
        )
    )
    given_, other = account(rows), account(rows)
    joins = {
        row: [(given_, other)[place % 2].handle(at) for place, at in enumerate(ats)]
        for row, ats in anchors.items()
    }
    expected = [
        sorted({root for at in anchors.get(row, [parent] if parent >= 0 else []) for root in rows[at]})
        for row, parent in enumerate(parents)
    ]
    batch = pa.record_batch({"word": [""] * len(parents)})
    emission = Emission("default", batch, np.array(parents, dtype=np.int64), joins)
    counts, degrees, roots = groups_of(emission, given_)
    ends = np.cumsum(degrees).tolist()
    found = [
        sorted(roots[end - degree : end].tolist())
        for count, degree, end in zip(counts.tolist(), degrees.tolist(), ends, strict=True)
        for _ in range(count)
    ]
    assert found == expected


def test_children_of_tuples_of_one_message_are_one_group():
    batch = pa.record_batch({"word": [""] * 6})
    emission = Emission("default", batch, np.array([0, 0, 1, 2, 2, 3]), {})
    counts, degrees, roots = groups_of(emission, account([[7], [7], [7], [8]]))
    assert (counts.tolist(), degrees.tolist(), roots.tolist()) == ([5, 1], [1, 1], [7, 8])
