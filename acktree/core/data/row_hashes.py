"""Hashes of a batch's rows, equal in all processes: for fields groupings, and for ids of a DataFrame's rows.

A column may be native in one batch of a stream and pickled in the next. Its values have the same hashes in
both forms; otherwise a key would change its task with the other values of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import FEW, alone
from acktree.core.data.distinct import Places, of_each_row, texts_to_hash
from acktree.core.data.hashing import combine_hashes, hash_column, hash_row_of_known, hash_values
from acktree.core.data.values import batch_to_bytes, pickled_fields, unpickled_column
from acktree.core.ids import UInt64s
from acktree.errors import MisuseError
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text

_PLAIN: Final = frozenset({pa.string().id, pa.int64().id})
"""The types of keys of which few rows are hashed so, by number: a type of a user's may not be hashable."""


def hash_rows(batch: pa.RecordBatch, fields: Sequence[str]) -> UInt64s:
    """:func:`~acktree.core.data.hashing.hash_row` of these fields of each row, shape (n,).

    Args:
        fields: Names of fields that the batch has; their order counts.

    Raises:
        MisuseError: A value has no hash that is equal in all processes, or cannot be unpickled here.
    """
    return of_each_row(*hash_keys(batch, fields))


def hash_keys(batch: pa.RecordBatch, fields: Sequence[str]) -> tuple[UInt64s, Places | None]:
    """:func:`hash_rows`, once for each different key where these are known.

    Returns:
        Hashes of keys, and the place of each row's hash among them, shape (n,); None if each row has its own.
    """
    columns = [batch.schema.get_field_index(name) for name in fields]
    if columns and batch.num_rows <= FEW:
        few = _hash_few(batch, columns)
        if few is not None:
            return few, None
    if len(columns) == 1:
        values, places = texts_to_hash(_column(batch, columns[0]))
        if places is not None:
            hashed = _hash_field(batch.schema.field(columns[0]), values, is_pickled=False)
            return combine_hashes([hashed], len(values)), places
    pickled = pickled_fields(batch)
    hashes = [
        _hash_field(batch.schema.field(at), _column(batch, at), is_pickled=name in pickled)
        for at, name in zip(columns, fields, strict=True)
    ]
    return combine_hashes(hashes, batch.num_rows), None


def _hash_few(batch: pa.RecordBatch, columns: Sequence[int]) -> UInt64s | None:
    """:func:`hash_keys` row by row; None where a column is of another type, or a text is not UTF-8."""
    schema = batch.schema
    if not all(schema.field(at).type.id in _PLAIN for at in columns):
        return None
    try:
        values = [batch.column(at).to_pylist() for at in columns]
    except UnicodeDecodeError:
        return None
    return np.fromiter(map(hash_row_of_known, *values), np.uint64, batch.num_rows)


def hash_rows_anyhow(batch: pa.RecordBatch, fields: Sequence[str]) -> UInt64s:
    """:func:`hash_rows`; a row without such a hash gets one of its bytes. For ids, not for choosing tasks."""
    try:
        return hash_rows(batch, fields)
    except MisuseError:
        if batch.num_rows == 1:
            return hash_values([batch_to_bytes(alone(batch, 0))])
    middle = batch.num_rows // 2
    halves = batch.slice(0, middle), batch.slice(middle)
    return np.concatenate([hash_rows_anyhow(half, fields) for half in halves])


def _column(batch: pa.RecordBatch, at: int) -> pa.Array:
    try:
        return batch.column(at)
    except KeyError as cause:  # a type that pyarrow has no arrays of
        raise _not_hashed(batch.schema.field(at), cause, is_pickled=False) from cause


def _hash_field(field: pa.Field, column: pa.Array, *, is_pickled: bool) -> UInt64s:
    try:
        return _hash_values(field, column, is_pickled=is_pickled)
    except MisuseError:
        raise
    except BaseException as cause:
        pass_on(cause)
        raise _not_hashed(field, cause, is_pickled=is_pickled) from cause


def _not_hashed(field: pa.Field, cause: BaseException, *, is_pickled: bool) -> MisuseError:
    return MisuseError(
        f"a {'value' if is_pickled else f'value of Arrow type {field.type}'} cannot be hashed: "
        f"{error_text(cause)}",
        f"field {field.name!r}",
        "group by text, numbers or dates of Python's own types",
    )


def _hash_values(field: pa.Field, column: pa.Array, *, is_pickled: bool) -> UInt64s:
    if not is_pickled:
        return hash_column(column)
    distinct = column.dictionary_encode(null_encoding="encode")  # equal pickles are unpickled once
    hashes = hash_values(unpickled_column(field, distinct.dictionary))
    taken: UInt64s = hashes[distinct.indices.to_numpy()]
    return taken
