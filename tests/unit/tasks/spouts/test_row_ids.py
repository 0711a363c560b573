"""The id by which an Acknowledger gets a row, where Python has no value for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from acktree import TopologyError
from acktree.spark.query.dataframe import refuse_nested_ids
from acktree.tasks.spouts.dataframe import _ids_in
from acktree.tasks.spouts.retries import Redriven


def texts(*values: bytes) -> pa.Array:
    """A column of text, also of bytes that are no text."""
    plain = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), plain.buffers())


LATE = pa.array([3_000_000, 3_000_001, 1], pa.int32()).cast(pa.date32())
MOMENTS = pa.array([2**62, 2**62 + 1, 1], pa.int64())
COLUMNS = [
    texts(b"\xff", b"\xfe", b"a"),
    texts(b"\xff", b"\xfe", b"a").dictionary_encode(),
    LATE,
    MOMENTS.cast(pa.timestamp("us")),
    MOMENTS.cast(pa.timestamp("us", "UTC")),
    MOMENTS.cast(pa.timestamp("us", "Mars/Phobos")),
    pa.StructArray.from_arrays([texts(b"\xff", b"\xfe", b"a")], ["x"]),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda each: str(each.type)[:30])
def test_each_id_is_a_value_of_its_own_and_never_an_object_of_the_engine(column: pa.Array) -> None:
    ids = _ids_in(pa.record_batch([column], ["id"]))
    assert not [each for each in ids if isinstance(each, Redriven)]
    assert len({repr(each) for each in ids}) == 3
    assert [repr(each) for each in ids] == [
        repr(_ids_in(pa.record_batch([column[n : n + 1]], ["id"]))[0]) for n in range(3)
    ]


def test_text_that_is_not_utf_8_is_delivered_as_its_bytes() -> None:
    both = pa.record_batch([texts(b"\xff", b"a"), pa.array([1, 2])], ["text", "number"])
    assert _ids_in(both) == [(b"\xff", 1), ("a", 2)]


def test_an_id_that_is_not_hashable_is_refused_before_anything_runs() -> None:
    parts = StructType([StructField("id", IntegerType())])
    schema = StructType([StructField("plain", StringType()), StructField("parts", parts)])
    schema.add("many", ArrayType(IntegerType()))
    refuse_nested_ids("rows", schema, ["plain"])
    for name in ("many", "parts"):
        with pytest.raises(TopologyError, match="not hashable") as refused:
            refuse_nested_ids("rows", schema, ["plain", name])
        assert name in str(refused.value)
