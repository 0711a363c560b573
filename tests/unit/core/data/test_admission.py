"""Data from outside: plain types, no reserved metadata, refused where it cannot be written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from acktree.arrow_arrays import MOST_DEPTH, depth_of
from acktree.core.data.admission import admitted, admitted_schema, fitted
from acktree.core.data.fields import declare_streams
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.errors import MisuseError, TopologyError

WHERE = "spout 'source'"
KINDS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "string_view": (pa.string_view(), pa.string()),
    "binary_view": (pa.binary_view(), pa.binary()),
    "run_end_encoded": (pa.run_end_encoded(pa.int32(), pa.string_view()), pa.string()),
    "list_view": (pa.list_view(pa.int64()), pa.list_(pa.int64())),
    "large_list_view": (pa.large_list_view(pa.int64()), pa.large_list(pa.int64())),
    "fixed_size_list": (pa.list_(pa.string_view(), 2), pa.list_(pa.string(), 2)),
    "map": (pa.map_(pa.string(), pa.string_view()), pa.map_(pa.string(), pa.string())),
    "struct": (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.string())),
    "union": (
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.dense_union([pa.field("a", pa.int64())]),
    ),
}


class Unreadable(pa.ExtensionType):
    """A type whose own code raises when its schema is read again."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "acktree-tests.unreadable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Unreadable:
        raise ValueError("it cannot be read again")


@pytest.fixture
def unreadable():
    pa.register_extension_type(Unreadable())
    yield Unreadable()
    pa.unregister_extension_type("acktree-tests.unreadable")


@pytest.mark.parametrize(("given", "plain"), KINDS.values(), ids=KINDS)
def test_views_and_run_ends_become_the_plain_type_of_the_same_values(given, plain):
    assert admitted_schema(pa.schema([("x", given)]), WHERE).field("x").type == plain


def test_reserved_metadata_is_removed_and_other_metadata_is_kept():
    field = pa.field("x", pa.int64(), metadata={b"acktree": b"pickle", b"mine": b"1"})
    schema = admitted_schema(pa.schema([field], metadata={b"acktree.target": b"7"}), WHERE)
    assert schema.metadata is None
    assert schema.field("x").metadata == {b"mine": b"1"}


def test_a_plain_batch_is_returned_as_it_is():
    batch = pa.record_batch({"x": [1, 2]})
    assert admitted(batch, WHERE) is batch


def test_a_type_that_cannot_be_read_again_is_refused_and_the_columns_are_named(unreadable):
    schema = pa.schema([("x", unreadable)])
    with pytest.raises(MisuseError, match="it cannot be read again"):
        admitted_schema(schema, WHERE)
    with pytest.raises(TopologyError, match="bolt 'count' declares columns of types"):
        declare_streams(schema, "bolt 'count'")


def test_a_null_in_a_column_that_has_none_by_its_schema_is_refused():
    field = pa.field("x", pa.int64(), nullable=False, metadata={b"acktree": b"pickle"})
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=pa.schema([field]))
    assert admitted(batch, WHERE).schema.field("x").metadata is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.int32(), pa.int64()),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.string(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
    ],
    ids=str,
)
def test_types_that_hold_the_same_values_are_converted(given, wanted):
    batch = pa.record_batch({"x": pa.array([], given)})
    assert fitted(batch, pa.schema([("x", wanted)]), WHERE).schema.field("x").type == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [(pa.array(["7"]), pa.int64()), (pa.array([300]), pa.int8()), (pa.array([1.5]), pa.int64())],
    ids=["a text", "a number that is too large", "a fraction"],
)
def test_a_value_that_the_declared_type_cannot_represent_is_refused(values, wanted):
    with pytest.raises(MisuseError, match="'x'"):
        fitted(pa.record_batch({"x": values}), pa.schema([("x", wanted)]), WHERE)


DEEPER = {
    "list": pa.list_,
    "fixed list": lambda kind: pa.list_(kind, 1),
    "map": lambda kind: pa.map_(pa.int8(), kind),
    "struct": lambda kind: pa.struct([("a", pa.int8()), ("b", kind)]),
    "mixed": lambda kind: pa.struct({"a": pa.large_list(pa.map_(pa.int8(), kind))}),
}


@pytest.mark.parametrize("deeper", DEEPER.values(), ids=DEEPER)
def test_what_is_admitted_can_be_read_however_deep_it_is(deeper):
    kind = pa.dictionary(pa.int32(), pa.string())
    for _ in range(130):
        kind = deeper(kind)
        batch = pa.record_batch({"plain": [1], "deep": pa.nulls(1, kind)})
        if depth_of(kind) > MOST_DEPTH:
            with pytest.raises(MisuseError, match="a type is nested"):
                admitted(batch, "here")
        else:
            assert batch_from_bytes(batch_to_bytes(admitted(batch, "here"))) == batch


@pytest.mark.parametrize("place", [-1, 2, 2**31 - 1])
def test_a_row_without_a_value_in_its_dictionary_is_refused_by_name(place):
    places = pa.array([0, None, place], pa.int32())
    column = pa.DictionaryArray.from_arrays(places, pa.array(["a", "b"]), safe=False)
    with pytest.raises(MisuseError, match="a dictionary of 2") as refused:
        admitted(pa.record_batch({"word": column}), "emit_batch")
    assert "'word'" in str(refused.value)


@pytest.mark.parametrize("places", [[], [None, None], [0, None, 1]])
def test_a_dictionary_that_has_the_value_of_each_row_is_admitted(places):
    column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(["a", "b"]))
    batch = pa.record_batch({"word": column})
    assert admitted(batch, "emit_batch").equals(batch)
