"""The values of tuples for display, as JSON has them.

Nothing is unpickled for a preview: a pickled value is shown by its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from acktree.core.data.reading import Column, PartlyReadable, Unreadable, columns_of, decoded
from acktree.core.data.values import pickled_fields
from acktree.core.ids import Int64s
from acktree.texts import bounded, short_repr

_MOST_FIELDS: Final = 20
_MOST_TEXT: Final = 80
_EXACT_BITS: Final = 53
_EXACT: Final = 1 << _EXACT_BITS
"""Larger integers are shown as text: JSON's readers in browsers round them."""


def previews(
    values: pa.RecordBatch, rows: Int64s | Sequence[int], most_text: int = _MOST_TEXT
) -> Iterator[list[object]]:
    """The values of some rows for display, as JSON has them; long texts are shortened.

    Pickled values are shown by their size.
    """
    for row in zip(*preview_columns(values, rows, most_text), strict=True):
        yield list(row)


def preview_columns(
    values: pa.RecordBatch, rows: Int64s | Sequence[int], most_text: int = _MOST_TEXT
) -> list[list[Any]]:
    """The same by field, one list each. A list for each row would start Python's garbage collector often."""
    if not len(rows):
        return [[] for _ in values.schema.names[:_MOST_FIELDS]]
    taken, hidden = values.take(pa.array(rows, pa.int64())), pickled_fields(values)
    return [
        _plain_values(column, most_text)
        or [_shown(value, most_text, is_hidden=name in hidden) for value in _python_values(column)]
        for name, column in zip(values.schema.names[:_MOST_FIELDS], columns_of(taken), strict=False)
    ]


def _plain_values(column: Column, most_text: int) -> list[Any] | None:
    """The values of a column that are all shown as they are; None if each has to be looked at."""
    if not isinstance(column, pa.Array):
        return None
    if pa.types.is_string(column.type):
        try:
            texts: list[str | None] = column.to_pylist()
        except Exception:  # noqa: BLE001  # a text that is not UTF-8
            return None
        return texts if max(len(text or "") for text in texts) <= most_text else None
    if pa.types.is_integer(column.type) and column.type.bit_width < _EXACT_BITS:
        return column.to_pylist()  # type: ignore[no-any-return]
    return None


def _python_values(column: Column) -> Sequence[Any]:
    """The values of a column; a text in the place of each that Python cannot represent."""
    values = decoded(column)
    if not isinstance(values, PartlyReadable):
        return values
    return [
        f"<{cell.kind}, not representable>" if isinstance(cell, Unreadable) else cell for cell in values.cells
    ]


def _shown(value: Any, most_text: int, *, is_hidden: bool) -> object:  # noqa: ANN401  # any value that Arrow has
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < _EXACT):
        return value
    if is_hidden:
        return f"<pickled, {len(value)} bytes>"
    if isinstance(value, str):
        return bounded(value, most_text).encode("utf-8", "replace").decode()
    if isinstance(value, float) and isfinite(value):
        return value
    return short_repr(value)
