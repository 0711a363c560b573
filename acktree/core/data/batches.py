"""Joins batches, and takes single rows out of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.data.distinct import used
from acktree.core.data.reading import columns_of
from acktree.core.ids import Int64s
from acktree.errors import MisuseError
from acktree.texts import error_text

_UNKNOWN: Final = (KeyError, IndexError)
"""Raised for a part of a type that pyarrow has no arrays of, or with an index beyond its dictionary."""

FEW: Final = 32
"""Up to this number of rows, rows are taken and hashed one by one. In an epoch of one message the
instructions of Arrow and numpy for whole columns are not in the processor's cache: they take three times as
long."""
_PLAIN: Final = frozenset(
    kind.id for kind in (pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.binary())
)
"""The types of columns of which few rows are taken so, by number: a type of a user's may not be hashable."""


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema into one.

    Raises:
        MisuseError: One batch cannot hold them: a column has more than 2 GiB, or a dictionary has more
            distinct values than its index type allows. The batches are unchanged.
    """
    try:
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
    except Exception as cause:
        raise _too_much(batches, error_text(cause)) from cause
    if len(whole) != 1:
        raise _too_much(batches, f"it takes {len(whole)} batches")
    return whole[0]


def taken(batch: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    """Some of the rows, in this order."""
    schema = batch.schema
    if 0 < len(rows) <= FEW and schema.names and all(kind.id in _PLAIN for kind in schema.types):
        places = rows.tolist()
        columns = [pa.concat_arrays([column.slice(at, 1) for at in places]) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    chosen: pa.RecordBatch = batch.take(pa.array(rows))
    return chosen


def alone(batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
    """Copy one row into a batch of its own, which shares no buffer or dictionary with the other rows.

    For data that is kept longer than the batch or read by others: dead letters, parked rows, exports.
    """
    taken: pa.RecordBatch = batch.take(pa.array([row]))
    for at, field in enumerate(batch.schema):
        if has_dictionary(field.type):
            with suppress(*_UNKNOWN):
                taken = taken.set_column(at, field, _own_dictionaries(taken.column(at)))
    return taken


def with_short_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same values; a dictionary of more values than the batch has rows keeps only those that are used.

    A batch is written with its whole dictionaries: one of a few rows would cost as much as all rows did. An
    ordered dictionary stays, since its order is part of its values. So does one that Arrow could not join
    with another one afterwards: with a null among its values, or of nested values.
    """
    short = batch
    for at, column in enumerate(columns_of(batch)):
        if isinstance(column, pa.DictionaryArray):
            with suppress(*_UNKNOWN):
                if _can_be_shorter(column):
                    short = short.set_column(at, batch.schema.field(at), _own_dictionary(column))
    return short


def _can_be_shorter(column: pa.DictionaryArray) -> bool:
    return (
        len(column.dictionary) > len(column)
        and not column.type.ordered
        and not column.dictionary.null_count
        and not pa.types.is_nested(column.type.value_type)
    )


def _own_dictionaries(column: pa.Array) -> pa.Array:  # noqa: PLR0911  # a case for each kind of type
    """The same values; each dictionary, also a nested one, keeps only the values that are used."""
    kind = column.type
    if not has_dictionary(kind):
        return column
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _own_dictionaries(column.storage))
    if isinstance(column, pa.DictionaryArray):
        return _own_dictionary(column)
    if isinstance(column, pa.StructArray):
        parts = [_own_dictionaries(column.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if isinstance(column, pa.MapArray):
        keys, items = _own_dictionaries(column.keys), _own_dictionaries(column.items)
        return pa.MapArray.from_arrays(column.offsets, keys, items, kind, mask=_mask_of(column))
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        values = _own_dictionaries(column.values)
        return type(column).from_arrays(column.offsets, values, kind, mask=_mask_of(column))
    if isinstance(column, pa.FixedSizeListArray):
        values = _own_dictionaries(column.values)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=column.is_null())
    return _own_union(column)


def _own_union(column: pa.UnionArray) -> pa.UnionArray:
    kind = column.type
    parts = [_own_dictionaries(column.field(at)) for at in range(kind.num_fields)]
    names = [kind.field(at).name for at in range(kind.num_fields)]
    if kind.mode == "sparse":
        return pa.UnionArray.from_sparse(column.type_codes, parts, names, kind.type_codes)
    return pa.UnionArray.from_dense(column.type_codes, column.offsets, parts, names, kind.type_codes)


def _own_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    values, places = used(column.dictionary, column.indices.drop_null())
    if len(values) == len(column.dictionary):
        values = values.take(pa.array(np.arange(len(values))))  # a copy: these are views of the batch's bytes
    is_null = column.indices.is_null().to_numpy(zero_copy_only=False)
    indices = np.zeros(len(column), dtype=np.int64)
    indices[~is_null] = places
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, column.type.index_type, mask=is_null),
        _own_dictionaries(values),
        ordered=column.type.ordered,
    )


def _mask_of(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type is a dictionary, or has one in it."""
    if isinstance(kind, pa.DictionaryType):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return has_dictionary(kind.storage_type)
    return any(has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


def _too_much(batches: Sequence[pa.RecordBatch], reason: str) -> MisuseError:
    return MisuseError(
        f"{len(batches)} batches do not fit into one: {reason}",
        f"columns {batches[0].schema.names}",
        "declare a larger type: pa.large_string(), or a dictionary with a wider index type",
    )
