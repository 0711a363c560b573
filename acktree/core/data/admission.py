"""Checks and normalises batches and schemas from outside: from files, DataFrames and user code.

Rules of this file
------------------
1. Metadata keys that begin with ``acktree`` are reserved: they mark pickled columns. They are removed from
   all data from outside, so that a reader can trust them.
2. A type that Arrow can store but not filter or take from (a view, a run-end encoding) is converted to the
   plain type of the same values. A type that cannot be taken from, or written and read again, is refused:
   that is tried with two rows, since each release of Arrow has types of which it knows half.
3. Data is copied only if its type changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from acktree.arrow_arrays import MOST_DEPTH, depth_of
from acktree.core.data.values import batch_from_bytes, batch_to_bytes, typed_column
from acktree.errors import MisuseError
from acktree.texts import error_text

_T = TypeVar("_T")

OURS: Final = b"acktree"
"""The prefix of metadata keys that are reserved for the engine."""


def admitted(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """A batch from outside without reserved metadata, and with types that can be sent.

    Called by ``emit_batch`` of spouts and bolts, and for the rows of a DataFrame.

    Args:
        batch: The batch from outside.
        where: The call, as an error names it.

    Raises:
        MisuseError: A column is malformed, or its type cannot be written and read again.
    """
    schema = batch.schema
    if is_plain(schema, where):
        return batch
    wanted = admitted_schema(schema, where)
    for at, (actual, field) in enumerate(zip(schema, wanted, strict=True)):
        if _needs_look(actual.type) or field.metadata != actual.metadata:
            batch = batch.set_column(at, field, _as(_column(batch, at, where), field, where))
    batch = batch.replace_schema_metadata(wanted.metadata)
    few = batch.slice(0, 2)
    rows = pa.array(range(few.num_rows), pa.int64())
    _tried(lambda: batch_from_bytes(batch_to_bytes(few.take(rows))), schema, where)
    return batch


def _column(batch: pa.RecordBatch, at: int, where: str) -> pa.Array:
    try:
        return batch.column(at)
    except KeyError as cause:
        raise _refused(batch.schema, cause, where) from NotImplementedError(error_text(cause))


def admitted_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """A schema from outside, such as ``outputs``, by the same rules; raises as :func:`admitted`."""
    return schema if is_plain(schema, where) else _tried(lambda: _wanted(schema), schema, where)


def _wanted(schema: pa.Schema) -> pa.Schema:
    wanted = pa.schema([_field(field) for field in schema], metadata=_foreign(schema.metadata))
    depth = max((depth_of(kind) for kind in wanted.types), default=0)
    if depth > MOST_DEPTH:
        raise ValueError(f"a type is nested {depth} deep, and Arrow reads at most {MOST_DEPTH}")
    pa.ipc.read_schema(wanted.serialize())  # an extension type runs its own code here
    return wanted


def fitted(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Convert a batch to the declared types, by the same rule as for single values.

    Args:
        batch: The batch to convert.
        schema: The declared types, with the names and order of the batch's columns.
        where: The call, as an error names it.

    Raises:
        MisuseError: A declared type cannot represent a value without loss.
    """
    columns = [_fitted(_column(batch, at, where), field, where) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fitted(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    if column.type == field.type and (field.nullable or not column.null_count):
        return column
    try:
        if (field.nullable or not column.null_count) and _is_rewriting(column.type, field.type):
            return column.cast(field.type)
        return typed_column(field, column.to_pylist())
    except MisuseError as error:
        raise MisuseError(error.what, f"{where}, {error.where}", error.fix) from error
    except Exception as cause:
        raise MisuseError(
            f"values of type {column.type} do not fit field {field.name!r}, declared as {field.type}: "
            f"{error_text(cause)}",
            f"{where}, field {field.name!r}",
            "emit values that this type can represent, or declare another type, or only the name",
        ) from cause


def _is_rewriting(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast between these types keeps all values or raises."""
    types = pa.types
    if types.is_integer(actual):
        return bool(types.is_integer(wanted))
    if types.is_timestamp(actual):
        return bool(types.is_timestamp(wanted) and actual.tz == wanted.tz)
    return any(is_one(actual) and is_one(wanted) for is_one in (_is_text, _is_bytes))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_plain(schema: pa.Schema, where: str) -> bool:
    """Whether the schema needs no change: no metadata, and no nested types or views."""
    return _tried(
        lambda: not schema.metadata and not any(f.metadata or _needs_look(f.type) for f in schema),
        schema,
        where,
    )


def _tried(call: Callable[[], _T], schema: pa.Schema, where: str) -> _T:
    """The result of a call that runs code of Arrow, or of a user's extension types.

    What a type raises is raised each time. An exception from outside comes once, and is raised as it is.

    Raises:
        MisuseError: A type of the schema cannot be used.
    """
    try:
        return call()
    except Exception:
        try:
            call()
        except Exception as cause:  # noqa: BLE001  # a cause of another type is given
            raise _refused(schema, cause, where) from NotImplementedError(error_text(cause))
        raise


def _needs_look(kind: pa.DataType) -> bool:
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(is_view or kind.num_fields or isinstance(kind, pa.BaseExtensionType | pa.DictionaryType))


def _field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type), field.nullable, _foreign(field.metadata))


def _plain(kind: pa.DataType) -> pa.DataType:  # noqa: C901, PLR0911  # a case for each kind of type
    """The type for the same values that Arrow can filter and take from."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    if types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain(kind.value_type), kind.ordered)
    return kind  # a union needs no conversion


def _as(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    try:
        column.validate()
        if isinstance(column, pa.DictionaryArray):
            _check_places(column)
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        return column if column.type == field.type else _cast(column, field.type)
    except Exception as cause:
        raise MisuseError(
            f"a column of type {column.type} cannot be sent: {error_text(cause)}",
            f"{where}, field {field.name!r}",
            f"cast it before: column.cast({field.type})",
        ) from cause


def _check_places(column: pa.DictionaryArray) -> None:
    """Whether each row has a value of the dictionary, which Arrow's quick validation does not look at."""
    ends = pc.min_max(column.indices)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and not 0 <= low <= high < len(column.dictionary):
        raise ValueError(f"rows have the values {low} to {high} of a dictionary of {len(column.dictionary)}")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    cast = column.cast(kind)
    try:
        cast.validate()
    except pa.ArrowInvalid:  # some releases of Arrow write one offset too few for a list view
        return pa.array(column.to_pylist(), kind)
    return cast


def _foreign(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    foreign: dict[Any, Any] = {
        key: value for key, value in (metadata or {}).items() if not key.startswith(OURS)
    }
    return foreign or None


def _refused(schema: pa.Schema, cause: Exception, where: str) -> MisuseError:
    """The error for types of which no value can be sent; its cause is a NotImplementedError."""
    names = ", ".join(schema.names)
    return MisuseError(
        f"columns of types that cannot be written and read again: {error_text(cause)}",
        f"{where}, fields {names:.80}",
        "cast them to plain Arrow types before: column.cast(pa.string()) and the like",
    )
