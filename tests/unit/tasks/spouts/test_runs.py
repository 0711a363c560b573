"""Runs of messages: whatever is cut, chosen or put together, each row keeps all that is its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from acktree.tasks.spouts.runs import MessageRun, runs_together

ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3), st.none() | st.sampled_from(["p", "q"])), max_size=12
)
"""Of each message: its value and id, its attempt, and its traceparent."""


def run_of(rows, *, is_array=False):
    values = [value for value, _, _ in rows]
    attempts = np.array([attempt for _, attempt, _ in rows], dtype=np.int32)
    return MessageRun(
        stream="s",
        is_tracked=True,
        values=pa.record_batch({"v": pa.array(values, pa.int64())}),
        message_ids=np.array(values) if is_array else values,
        tasks=None,
        attempts=attempts if (attempts > 1).any() else None,
        parents={row: parent for row, (_, _, parent) in enumerate(rows) if parent is not None},
    )


def rows_of(run):
    attempts = [1] * len(run) if run.attempts is None else run.attempts.tolist()
    assert [*run.message_ids] == run.values["v"].to_pylist()
    assert run.parents.keys() <= {*range(len(run))}
    return [(value, attempts[row], run.parents.get(row)) for row, value in enumerate(run.message_ids)]


@given(ROWS, st.integers(1, 5), st.booleans())
def test_pieces_have_the_rows_of_the_whole(rows, most, is_array):
    pieces = [*run_of(rows, is_array=is_array).cut(most)]
    assert [row for piece in pieces for row in rows_of(piece)] == rows
    assert all(len(piece) <= most for piece in pieces)


@given(ROWS, st.data(), st.booleans())
def test_the_rows_of_a_mask_stay_as_they_are(rows, data, is_array):
    which = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    chosen = run_of(rows, is_array=is_array).those(np.array(which, dtype=np.bool_))
    assert rows_of(chosen) == [row for row, is_chosen in zip(rows, which, strict=True) if is_chosen]


@given(st.lists(ROWS, max_size=5))
def test_runs_put_together_have_the_rows_of_all(several):
    together = runs_together([run_of(rows) for rows in several])
    assert [row for run in together for row in rows_of(run)] == [row for rows in several for row in rows]
