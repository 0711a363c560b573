"""Columns of Arrow read as Python values, whatever is in them.

A column is decoded whole. If Python cannot hold some value of it, only who reads that value is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from acktree.errors import MisuseError
from acktree.texts import error_text

__all__ = ["Column", "PartlyReadable", "Unreadable", "decoded"]

Column: TypeAlias = "Sequence[Any] | pa.Array"
"""The values of one field: decoded, or as Arrow holds them; :func:`decoded` makes the one of the other."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for a value that Arrow holds and Python cannot: a date after the year 9999, broken UTF-8."""

    kind: str
    reason: str

    def __repr__(self) -> str:
        return f"<{self.kind} that Python cannot hold>"

    def error(self, where: str) -> MisuseError:
        """What whoever reads it is told."""
        return MisuseError(
            f"a value of Arrow type {self.kind} cannot be read as a Python value: {self.reason}",
            where,
            "emit a value that Python has, or read the column as Arrow with an ArrowBolt",
        )


class PartlyReadable(Sequence[Any]):
    """A column some of whose values Python cannot hold: to read one of those raises MisuseError, no other.

    Attributes:
        cells: The values, and an :class:`Unreadable` for each that has none.
    """

    def __init__(self, cells: Sequence[Any], where: str) -> None:
        self.cells, self._where = cells, where

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401  # as a list: a place or a slice
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        cell = self.cells[row]
        if type(cell) is Unreadable:
            raise cell.error(self._where)
        return cell


def decoded(column: Column, where: str = "a batch") -> Sequence[Any]:
    """The values of a column as they were emitted; about 0.04 us each.

    Args:
        where: The component, stream and field, as an error names them.

    Returns:
        A list; if Python cannot hold some value, a :class:`PartlyReadable`.
    """
    if not isinstance(column, pa.Array):
        has_gaps = Unreadable in map(type, column) if len(column) == 1 else False  # a held tuple's
        return PartlyReadable(column, where) if has_gaps else column
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # noqa: BLE001  # an extension type's own code, a time zone's, pyarrow's
        return PartlyReadable([_cell(column.slice(row, 1)) for row in range(len(column))], where)
    return values


def _cell(column: pa.Array) -> Any:  # noqa: ANN401  # whatever was emitted
    try:
        return column.to_pylist()[0]
    except Exception as error:  # noqa: BLE001  # as above
        return Unreadable(str(column.type), error_text(error))
