"""The different values of a column, and which of them each row has: work on a value is then done once.

A column in a dictionary has them, and so has one that was decoded from a dictionary, as long as that is
noted. Another one is encoded if it is long and a sample of it repeats values: of few different values that
takes less than to hash or decode each, of very many it takes more.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.integer[Any]]
"""The place of each row's value, shape (n,), of any type of integers."""

_Values = TypeVar("_Values", bound=npt.NDArray[Any])

_SAMPLED: Final = 1024
"""At least this number of rows is sampled."""
_LONG: Final = 8
"""A column of fewer rows than this many samples is not encoded."""
_REPEATED: Final = 64
"""One in this number of sampled rows must be a value that occurs again: so it is with some 32,000 different
values. One frequent value among others that all differ does not count."""
_FEW: Final = 8
"""A dictionary has few texts if it has this many rows for each of them."""
_Memory = tuple[object, ...]
_CODES: Final[dict[_Memory, tuple[ref[pa.RecordBatch], pa.DictionaryArray]]] = {}
"""By the memory of a column: its batch, and the column as a dictionary."""


def note_codes(batch: pa.RecordBatch, at: int, codes: pa.DictionaryArray) -> None:
    """Note that ``codes`` are a column of a batch as a dictionary, for as long as the batch is there.

    Meanwhile the column's memory belongs to no other column, and Arrow's arrays are never changed. A signal
    may interrupt what is called at the batch's end: then its codes stay until the next are noted.
    """
    for ended, (noted, _) in _CODES.copy().items():  # a batch of another thread may end meanwhile
        if noted() is None:
            _CODES.pop(ended, None)
    memory = _memory_of(batch.column(at))
    _CODES[memory] = ref(batch, lambda _: _CODES.pop(memory, None)), codes


def codes_of(column: pa.Array) -> pa.Array:
    """A column as a dictionary, if that is noted; else the column itself."""
    noted = _CODES.get(_memory_of(column)) if _CODES else None
    if noted is None:
        return column
    batch, codes = noted
    return codes if batch() is not None and codes.type.value_type == column.type else column


def _memory_of(column: pa.Array) -> _Memory:
    where = (None if buffer is None else buffer.address for buffer in column.buffers())
    return column.offset, len(column), *where


def distinct(column: pa.Array) -> tuple[pa.Array, Places | None]:
    """The values that the rows of a column have, and the place of each row's value among them.

    Args:
        column: Of any type that Arrow can encode as a dictionary, or a dictionary.

    Returns:
        The values, more than once where a dictionary has them so. The column itself and None if a row is
        null, if it is a dictionary of more values than rows, or if it is short or repeats too few values.
    """
    codes = codes_of(column)
    if isinstance(codes, pa.DictionaryArray):
        if codes.indices.null_count or len(codes.dictionary) > len(codes):
            return column, None
        return used(codes.dictionary, codes.indices)
    if column.null_count or len(column) < _LONG * _SAMPLED or not _is_repeating(column):
        return column, None
    encoded = column.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()


def distinct_texts(column: pa.Array) -> tuple[pa.Array, Places | None]:
    """:func:`distinct` of texts, plain or in a dictionary; any other column itself and None."""
    return distinct(column) if _is_text(column.type) else (column, None)


def texts_to_hash(column: pa.Array) -> tuple[pa.Array, Places | None]:
    """:func:`distinct_texts`, with texts that no row has where to hash them takes less than to find them."""
    if not _is_text(column.type):
        return column, None
    codes = codes_of(column)
    if not isinstance(codes, pa.DictionaryArray) or _FEW * len(codes.dictionary) > len(codes):
        return distinct(codes)
    if codes.indices.null_count:
        return column, None
    return codes.dictionary, codes.indices.to_numpy().astype(np.int64, copy=False)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is a plain one of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text(kind: pa.DataType) -> bool:
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def of_each_row(of_distinct: _Values, places: Places | None) -> _Values:
    """The results for all rows, shape (n,), from the results for the distinct values.

    Args:
        of_distinct: The result for each distinct value.
        places: The place of each row's value, shape (n,); None if each row has its own.
    """
    return of_distinct if places is None else of_distinct.take(places)  # type: ignore[return-value]


def used(values: pa.Array, indices: pa.Array) -> tuple[pa.Array, Places]:
    """Values without those that no row has, and the place of each row's value among what is left.

    After a grouping most values of a dictionary may be those of other tasks.

    Args:
        values: Of a dictionary.
        indices: The place of each row's value among them, without nulls.
    """
    places = indices.to_numpy().astype(np.int64, copy=False)
    if len(values) > len(places):  # to sort a few rows takes less than to look at every value
        kept, places = np.unique(places, return_inverse=True)
        return values.take(pa.array(kept)), places
    is_used = np.bincount(places, minlength=len(values)) > 0
    if is_used.all():
        return values, places
    return values.take(pa.array(np.flatnonzero(is_used))), (np.cumsum(is_used) - 1)[places]


def _is_repeating(column: pa.Array) -> bool:
    """Whether rows that are taken evenly from a column repeat enough values, or have few values at all."""
    rows = np.arange(0, len(column), max(1, len(column) // _SAMPLED))
    counts = column.take(pa.array(rows)).value_counts().field("counts").to_numpy()
    again = int(np.count_nonzero(counts > 1))
    return again > 0 and (again >= len(rows) // _REPEATED or len(counts) <= 2 * again)
