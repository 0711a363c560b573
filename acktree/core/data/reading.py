"""Decodes Arrow columns to Python values.

A column is decoded as a whole. A value that Python cannot represent raises an error only when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from acktree.core.data.distinct import distinct_texts
from acktree.errors import MisuseError
from acktree.texts import error_text

Column: TypeAlias = "Sequence[Any] | pa.Array"
"""The values of one field: decoded, or an Arrow array, which :func:`decoded` decodes."""


@dataclass(frozen=True)
class Unreadable:
    """A placeholder for a value that Python cannot represent: a date after the year 9999, invalid UTF-8."""

    kind: str
    reason: str

    def __repr__(self) -> str:
        return f"<{self.kind} that Python cannot hold>"

    def error(self, where: str) -> MisuseError:
        """The error to raise when the value is read."""
        return MisuseError(
            f"a value of Arrow type {self.kind} cannot be read as a Python value: {self.reason}",
            where,
            "emit a value that Python can represent, or read the column as Arrow with an ArrowBolt",
        )


class PartlyReadable(Sequence[Any]):
    """A column with values that Python cannot represent: reading one of those raises MisuseError.

    Attributes:
        cells: The values, with an :class:`Unreadable` for each that cannot be represented.
    """

    def __init__(self, cells: Sequence[Any], where: str) -> None:
        self.cells, self._where = cells, where

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401  # as a list: an index or a slice
        if isinstance(row, slice):
            return [self[position] for position in range(*row.indices(len(self)))]
        cell = self.cells[row]
        if type(cell) is Unreadable:
            raise cell.error(self._where)
        return cell


def columns_of(batch: pa.RecordBatch) -> list[Column]:
    """The columns of a batch.

    Arrow has types without a Python class, as Spark's interval of months. A column of one can be sent, and
    reading one of its values raises MisuseError.
    """
    try:
        columns: list[Column] = batch.columns
    except KeyError:
        return [_column_of(batch, at) for at in range(batch.num_columns)]
    return columns


def _column_of(batch: pa.RecordBatch, at: int) -> Column:
    try:
        column: pa.Array = batch.column(at)
    except KeyError as error:
        field = batch.schema.field(at)
        cell = Unreadable(str(field.type), f"pyarrow has no arrays of it ({error_text(error)})")
        return PartlyReadable([cell] * batch.num_rows, f"field {field.name!r}")
    return column


def decoded(column: Column, where: str = "a batch") -> Sequence[Any]:
    """Decode a column to the emitted values; about 0.04 us each.

    Args:
        column: Decoded values, which are returned as they are, or an Arrow array.
        where: The component, stream and field, as an error names them.

    Returns:
        A list, or a :class:`PartlyReadable` if Python cannot represent some value.
    """
    if isinstance(column, PartlyReadable):
        return PartlyReadable(column.cells, where)
    if not isinstance(column, pa.Array):
        has_gaps = Unreadable in map(type, column) if len(column) == 1 else False  # of a held tuple
        return PartlyReadable(column, where) if has_gaps else column
    try:
        values = _values_of(column)
    except Exception:  # noqa: BLE001  # from pyarrow, or the code of an extension type or a time zone
        return PartlyReadable([_cell(column, row) for row in range(len(column))], where)
    return values


def _values_of(column: pa.Array) -> list[Any]:
    """The values of a column. Rows with one text share one object: its hash is computed once."""
    texts, rows = distinct_texts(column)
    if rows is None:
        values: list[Any] = column.to_pylist()
        return values
    known = np.array(texts.to_pylist(), dtype=object)
    shared: list[Any] = known[rows].tolist()
    return shared


def _cell(column: pa.Array, row: int) -> Any:  # noqa: ANN401  # any emitted value
    try:
        return column.slice(row, 1).to_pylist()[0]
    except Exception as error:  # noqa: BLE001  # as above
        return Unreadable(str(column.type), error_text(error))
