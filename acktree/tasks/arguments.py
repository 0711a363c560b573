"""What users give to ``emit_batch`` and ``fail_rows``: batches, row numbers, masks and message ids, checked.

Rules of this file
------------------
1. What can be meant in two ways is refused: a mask of another length, a set where the order counts, a null
   among numbers, a float for a row.
2. ``emit_batch`` takes what ``emit`` takes of the same values: what a declared type does not hold without
   loss is refused, and a text is no number.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.data.admission import admitted, fitted, is_plain
from acktree.core.data.batches import has_dictionary
from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.reading import Column, columns_of
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.ids import Int64s
from acktree.core.spouts.pending import MessageIds
from acktree.errors import MisuseError
from acktree.texts import error_text, short_repr

_PLAIN: Final = frozenset({int, str, bytes, bool, float, type(None)})
"""Exactly these types always pickle."""


def columns_of_stream(batch: object, declaration: StreamDeclaration, where: str) -> pa.RecordBatch:
    """A user's batch with exactly the columns of a stream, matched by name, in the stream's order.

    Raises:
        MisuseError: It is no batch, has other columns, or a column that cannot be encoded.
    """
    chosen = _selected(batch, declaration, where)
    return admitted(chosen, f"{where}, stream {declaration.name!r}")


def _selected(batch: object, declaration: StreamDeclaration, where: str) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        what = f"emit_batch() of a {type(batch).__name__}"
        raise MisuseError(what, where, "give a pyarrow.RecordBatch: pa.record_batch({field: array, ...})")
    fields = list(declaration.fields)
    if sorted(batch.schema.names) != sorted(fields):
        what = f"emit_batch() with columns {batch.schema.names} on stream {declaration.name!r} of {fields}"
        raise MisuseError(what, where, "name each field of the stream once")
    return batch.select(fields)


def batch_of_stream(batch: object, declaration: StreamDeclaration, where: str) -> pa.RecordBatch:
    """:func:`columns_of_stream` in the declared types. MisuseError also when some value does not fit."""
    chosen = columns_of_stream(batch, declaration, where)
    if declaration.schema is not None:
        chosen = fitted(chosen, declaration.schema, f"{where}, stream {declaration.name!r}")
    return _own(chosen)


def parts_of_stream(
    batch: object, declaration: StreamDeclaration, where: str
) -> Iterator[tuple[int, pa.RecordBatch | MisuseError]]:
    """The same, but a row that cannot be encoded, or does not fit, is reported alone; the other rows go on.

    Yields:
        The first row of each part with the part; for a row that does not go, why.

    Raises:
        MisuseError: It is no batch, or has other columns.
    """
    chosen = _selected(batch, declaration, where)
    where = f"{where}, stream {declaration.name!r}"
    try:
        is_admitted = is_plain(chosen.schema, where)
    except MisuseError as error:  # of each of its rows, not of their neighbours in the input
        yield from ((row, error) for row in range(chosen.num_rows))
        return
    if is_admitted and declaration.schema is None:
        yield 0, _own(chosen)
        return
    yield from _parts(chosen, declaration.schema, where, 0, is_admitted=is_admitted)


def _parts(
    batch: pa.RecordBatch, schema: pa.Schema | None, where: str, first: int, *, is_admitted: bool = False
) -> Iterator[tuple[int, pa.RecordBatch | MisuseError]]:
    try:
        part = batch if is_admitted else admitted(batch, where)
        yield first, _own(part if schema is None else fitted(part, schema, where))
    except MisuseError as error:
        is_of_type = isinstance(error.__cause__, NotImplementedError)  # no row goes
        if batch.num_rows <= 1 or is_of_type:
            yield from ((first + row, error) for row in range(batch.num_rows))
            return
        middle = batch.num_rows // 2
        yield from _parts(batch.slice(0, middle), schema, where, first, is_admitted=is_admitted)
        yield from _parts(batch.slice(middle), schema, where, first + middle, is_admitted=is_admitted)


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose columns over memory that is not Arrow's alone are copied: numpy's, for example.

    Columns of an input batch are not copied.
    """
    if not batch.num_rows:
        return batch
    for at, column in enumerate(columns_of(batch)):
        with suppress(pa.ArrowException, KeyError):  # raised by pyarrow for a type that it does not copy
            if _is_shared(column):
                field = batch.schema.field(at)
                batch = batch.set_column(at, field, _copy_of(batch.column(at), field))
    return batch


def _copy_of(column: pa.Array, field: pa.Field) -> pa.Array:
    alone = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
    if has_dictionary(field.type):  # joined, the copy would have the dictionary of the original
        return batch_from_bytes(batch_to_bytes(alone)).column(0)
    return pa.Table.from_batches([alone, alone.slice(0, 0)]).combine_chunks().to_batches()[0].column(0)


def _is_shared(column: Column) -> bool:
    """Whether user code may change it. What Arrow has read is part of a larger buffer that is read-only.

    A buffer over numpy's memory is a whole one, and read-only where the view is: as a DataFrame of pandas 3.
    """
    if not isinstance(column, pa.Array):
        return False
    if isinstance(column, pa.DictionaryArray) and _is_shared(column.dictionary):
        return True
    buffers = [buffer for buffer in column.buffers() if buffer is not None]
    if any(buffer.parent is None for buffer in buffers):
        return True
    while buffers:
        if any(buffer.is_mutable for buffer in buffers):
            return True
        buffers = [buffer.parent for buffer in buffers if buffer.parent is not None]
    return False


def parents_of(parents: object, count: int, row_count: int, where: str) -> Int64s:
    """The input row of each of ``count`` emitted rows, shape (count,); -1 for all where None is given.

    Raises:
        MisuseError: They are no integers, not as many, or name rows that the current batch does not have.
    """
    if parents is None:
        return np.full(count, -1, dtype=np.int64)
    if isinstance(parents, pa.Array | pa.ChunkedArray):
        rows = np.asarray(parents.to_numpy() if not parents.null_count else parents.to_pylist())
    elif isinstance(parents, list | tuple) and bool in {*map(type, parents)}:
        rows = np.zeros(0, dtype=np.bool_)
    else:
        rows = np.asarray(parents)
    is_index = rows.shape == (count,) and (not count or rows.dtype.kind in "iu")
    if not is_index or (count and not (rows.min() >= 0 and rows.max() < row_count)):
        raise MisuseError(
            f"emit_batch() of {count} rows with parents {short_repr(parents)}",
            where,
            f"for each emitted row the input row that it was made from, 0 to {row_count - 1}",
        )
    return rows.astype(np.int64)


def rows_named(rows: object, row_count: int, where: str) -> list[int]:
    """The rows that ``fail_rows`` is given as integers or as a boolean mask of the batch's length.

    Raises:
        MisuseError: It is neither, has a null, or names rows that the batch does not have.
    """
    listed = _cells_of(rows)
    kinds = None if listed is None else {*map(type, listed)}
    if kinds == {bool} and listed is not None and len(listed) == row_count:
        return [row for row, is_bad in enumerate(listed) if is_bad]
    if listed is None or (kinds and kinds != {int}) or any(not 0 <= row < row_count for row in listed):
        raise MisuseError(
            f"fail_rows({short_repr(rows if listed is None else listed)}) of a batch with {row_count} rows",
            where,
            f"rows of the batch that execute_batch() was handed, 0 to {row_count - 1}; "
            f"or a mask of {row_count} booleans without nulls",
        )
    return listed


def _cells_of(rows: object) -> list[Any] | None:
    """What names rows, as a list of Python's own values; None for what names none, or is ambiguous."""
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        cells: list[Any] = rows.to_pylist()
        return cells
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        return None
    if isinstance(rows, np.ndarray) or hasattr(rows, "__array__"):
        array = np.asarray(rows)
        empty: list[Any] = []
        return (array.tolist() if array.size else empty) if array.ndim == 1 else None
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in rows]


def ids_of(message_ids: object, count: int, where: str) -> MessageIds:
    """The message ids of a batch of ``count`` rows: a list, or a numpy array if they are integers.

    Raises:
        MisuseError: They are not as many, have no order, or there is a None among them.
    """
    if isinstance(message_ids, pa.Array | pa.ChunkedArray):
        is_whole = pa.types.is_integer(message_ids.type) and not message_ids.null_count
        message_ids = message_ids.to_numpy() if is_whole else message_ids.to_pylist()
    fix = "give a list with one id for each row, or an array of integers"
    if isinstance(message_ids, np.ndarray):
        if message_ids.ndim != 1 or message_ids.dtype.kind not in "iuOUS":
            shape = f"{message_ids.dtype} of shape {message_ids.shape}"
            raise MisuseError(f"emit_batch() with message ids as an array of {shape}", where, fix)
        ids: MessageIds = message_ids.copy() if message_ids.dtype.kind in "iu" else message_ids.tolist()
    elif isinstance(message_ids, str | bytes) or not isinstance(message_ids, Sequence):  # a set has no order
        what = f"emit_batch() with message ids in a {type(message_ids).__name__}"
        raise MisuseError(what, where, fix)
    else:
        ids = [*message_ids]
    if len(ids) != count:
        raise MisuseError(f"emit_batch() of {count} rows with {len(ids)} message ids", where, fix)
    if not isinstance(ids, np.ndarray) and any(message_id is None for message_id in ids):
        raise MisuseError(
            "emit_batch() with None among the message ids",
            where,
            "emit the rows without an id in a batch of their own, with message_ids=None",
        )
    return ids


def refuse_unpicklable(message_ids: MessageIds, where: str) -> None:
    """For a spout whose messages only the inbox has: a restart reads the ids there.

    Raises:
        MisuseError: Some id does not pickle, or cannot be unpickled.
    """
    if isinstance(message_ids, np.ndarray) or {*map(type, message_ids)} <= _PLAIN:
        return
    for message_id in message_ids:
        try:
            pickle.loads(pickle.dumps(message_id))
        except Exception as cause:
            raise MisuseError(
                f"the message id {short_repr(message_id)} does not survive pickle: {error_text(cause)}",
                where,
                "with redelivers = False the inbox keeps the ids: use text, numbers or tuples of them",
            ) from cause
