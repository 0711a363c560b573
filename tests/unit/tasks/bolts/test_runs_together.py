"""A spout that emits a handful at a time: few chunks, and in them every message with its id, in order."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.tasks.spouts.runs import SMALL_BYTES, SMALL_ROWS, MessageRun, runs_together


def run_of(values, ids, kind, *, stream="default", tasks=None):
    """A run of rows; ids as an array, as a list, or none at all."""
    is_tracked = kind != "untracked"
    named = np.array(ids, dtype=np.int64) if kind == "array" else list(ids) if is_tracked else ()
    return MessageRun(
        stream, is_tracked, pa.record_batch({"value": pa.array(values, pa.int64())}), named, tasks
    )


@st.composite
def runs(draw):
    made, at = [], 0
    for size in draw(st.lists(st.integers(1, 4), max_size=12)):
        kind, stream = draw(st.sampled_from(["array", "list", "untracked"])), draw(st.sampled_from("ab"))
        tasks = draw(st.sampled_from([None, None, np.ones(size, dtype=np.int32)]))
        made.append(
            run_of(range(at, at + size), range(100 + at, 100 + at + size), kind, stream=stream, tasks=tasks)
        )
        at += size
    return made


def messages_of(several):
    """Each message: its stream, its value, its id, and whether it is for a task of the spout's choice."""
    for run in several:
        ids = list(run.message_ids) if run.is_tracked else [None] * len(run)
        for value, message_id in zip(run.values["value"].to_pylist(), ids, strict=True):
            yield run.stream, value, message_id, run.tasks is not None


@given(runs())
def test_the_messages_are_the_same_and_in_the_same_order(several):
    few = list(runs_together(several))
    assert list(messages_of(few)) == list(messages_of(several))
    alike = groupby(
        (run.stream, run.is_tracked, id(run) if run.tasks is not None else None) for run in several
    )
    assert len(few) == len([*alike])


def test_ids_that_came_as_arrays_stay_one_and_others_are_the_objects_that_were_given():
    arrays = [run_of([1], [5], "array"), run_of([2, 3], [6, 7], "array")]
    (run,) = runs_together(arrays)
    assert isinstance(run.message_ids, np.ndarray)
    (run,) = runs_together([*arrays, run_of([4], ["id"], "list")])
    assert run.message_ids == [5, 6, 7, "id"]
    assert [type(message_id) for message_id in run.message_ids] == [int, int, int, str]


@pytest.mark.parametrize(("rows", "chunks"), [(SMALL_ROWS, 1), (SMALL_ROWS + 1, 3)])
def test_a_large_run_is_not_copied_to_be_with_others(rows, chunks):
    several = [run_of(np.arange(count), np.arange(count), "array") for count in (3, rows, 3)]
    assert len([*runs_together(several)]) == chunks


def test_nor_are_few_rows_of_many_bytes():
    large = MessageRun("a", False, pa.record_batch({"value": [b"x" * SMALL_BYTES]}), (), None)  # noqa: FBT003  # untracked
    assert [*runs_together([large, large])] == [large, large]


def test_tuples_of_other_types_stay_apart():
    other = MessageRun("default", True, pa.record_batch({"value": ["a"]}), np.array([1]), None)  # noqa: FBT003  # tracked
    assert len([*runs_together([run_of([1], [1], "array"), other])]) == 2
