"""What names a message, a column or a row of a batch: what could be meant in two ways is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.test_values_from_outside import (
    Emits,
    OddKey,
    Reads,
    run,
)


@pytest.mark.parametrize("message_id", [lambda: 0, OddKey(1, 2)], ids=["lambda", "odd"])
def test_an_id_that_the_inbox_cannot_keep_is_refused_at_its_emit(message_id):
    feeder = FeederSpout(["x"], redelivers=False)
    feeder.feed([1], message_id=1)
    if isinstance(message_id, OddKey):
        message_id.names = (n for n in range(3))
    feeder.feed([2], message_id=message_id)
    feeder.feed([3], message_id=(3, "c"))
    errors, _ = run(feeder, Reads())
    assert feeder.acked == [1, (3, "c")]
    (error,) = errors
    assert "does not survive pickle" in error.reason


def test_ids_of_a_batch_must_survive_pickle_too():
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=[1, lambda: 0])
    spout.redelivers = False
    run(spout, Reads())
    assert "does not survive pickle" in str(spout.raised[0])
    assert spout.acked == []


BAD_IDS = {
    "a set": {1, 2},
    "a mapping": {1: 1, 2: 2},
    "a text": "ab",
    "None among them": [1, None],
    "a null among them": pa.array([1, None]),
    "floats": np.array([1.0, float("nan")]),
    "truths": np.array([True, False]),
    "two dimensions": np.array([[1], [2]]),
    "too few": [1],
    "an iterator": iter([1, 2]),
}


@pytest.mark.parametrize("ids", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_message_ids_that_can_be_meant_in_two_ways_are_refused(ids):
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=ids)
    run(spout, Reads())
    assert len(spout.raised) == 1
    assert "message id" in str(spout.raised[0])
    assert (spout.acked, spout.failed) == ([], {})


@pytest.mark.parametrize(
    "ids", [[1, 2], np.array([1, 2]), pa.array([1, 2]), pa.array(["a", "b"]), np.array(["a", "b"])]
)
def test_message_ids_in_other_forms_are_delivered_as_they_are(ids):
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=ids)
    run(spout, Reads())
    assert spout.acked == (ids if isinstance(ids, list) else np.asarray(ids).tolist())


def test_columns_are_matched_by_name_and_a_name_may_have_a_dot():
    spout = Emits(pa.record_batch({"n": [1], "a.b": ["x"]}), outputs=["a.b", "n"])

    class Sees(BasicBolt):
        def execute(self, tup, collector):
            assert (tup["a.b"], tup["n"], tup[0]) == ("x", 1, "x")

    run(spout, Sees(), fields=["a.b"])
    assert spout.acked == [0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "7"),
        (pa.int64(), 1.5),
        (pa.string(), 7),
        (pa.string(), b"7"),
        (pa.bool_(), "true"),
        (pa.int8(), 300),
        (pa.float64(), "1.5"),
    ],
    ids=str,
)
def test_a_batch_is_refused_where_emit_refuses(kind, value):
    spout = Emits(pa.record_batch({"x": [value]}), outputs=pa.schema([("x", kind)]))
    run(spout, Reads())
    assert "field 'x'" in str(spout.raised[0])
    feeder = FeederSpout(pa.schema([("x", kind)]))
    feeder.feed([value], message_id=1)
    errors, _ = run(feeder, Reads())
    assert len(errors) == 1
    assert feeder.acked == spout.acked == []


# ---- rows that fail ---------------------------------------------------------------------------------------


class FailsRows(ArrowBolt):
    def __init__(self, make):
        self.make = make

    def execute_batch(self, batch, collector):
        collector.fail_rows(self.make(batch), "bad")


MASKS = {
    "an Arrow mask": lambda batch: pa.compute.is_null(batch["x"]),
    "a chunked mask": lambda batch: pa.chunked_array([pa.compute.is_null(batch["x"])]),
    "a numpy mask": lambda batch: np.array([False, False, True, True, False]),
    "a list of truths": lambda batch: [False, False, True, True, False],
    "numpy truths in a list": lambda batch: list(np.array([False, False, True, True, False])),
    "numbers": lambda batch: [2, 3],
    "numpy numbers": lambda batch: np.array([2, 3], dtype=np.uint8),
    "numpy numbers in a list": lambda batch: list(np.array([2, 3])),
    "a range": lambda batch: range(2, 4),
    "a set": lambda batch: {2, 3},
    "Arrow numbers": lambda batch: pa.array([2, 3], pa.uint64()),
}


@pytest.mark.parametrize("make", MASKS.values(), ids=MASKS.keys())
def test_fail_rows_takes_a_mask_or_numbers(make):
    feeder = FeederSpout(["x"])
    for number, value in enumerate([10, 11, None, None, 14]):
        feeder.feed([value], message_id=number)
    run(feeder, FailsRows(make))
    assert feeder.acked == [0, 1, 4]
    assert [(each, failure.reason) for each, failure in feeder.failed] == [(2, "bad"), (3, "bad")]


NO_ROWS = {
    "floats": [0.9, 1.9],
    "numpy floats": np.array([0.0, 1.0]),
    "a short mask": [True, False],
    "a long mask": np.array([True] * 6),
    "a null in a mask": pa.array([True, None, False, False, False]),
    "a null among numbers": pa.array([0, None]),
    "truths among numbers": [True, 2],
    "beyond": [5],
    "before": [-1],
    "a text": "01",
    "texts": ["0", "1"],
    "one number": 3,
    "two dimensions": np.array([[0, 1]]),
    "a mapping": {0: "x"},
}


@pytest.mark.parametrize("rows", NO_ROWS.values(), ids=NO_ROWS.keys())
def test_fail_rows_refuses_rows_that_it_cannot_identify(rows):
    feeder = FeederSpout(["x"])
    for number in range(5):
        feeder.feed([number], message_id=number)
    errors, _ = run(feeder, FailsRows(lambda batch: rows))
    assert feeder.acked == []
    assert all("fail_rows(" in failure.reason for _, failure in feeder.failed)
    assert len(errors) == 1
