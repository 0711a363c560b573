"""The different values of a column, and which of them each row has: work on a value is then done once.

A column in a dictionary has them. Another one is encoded if it is long and a sample of it repeats values.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from acktree.core.ids import Int64s

__all__ = ["SAMPLED", "distinct"]

SAMPLED: Final = 1 << 13
"""The rows that are sampled; a column of less than twice as many is taken as it is."""


def distinct(column: pa.Array) -> tuple[pa.Array, Int64s | None]:
    """The values that a column has, and the place of each row's value among them, shape (n,).

    Args:
        column: Of any type that Arrow can encode as a dictionary, or a dictionary.

    Returns:
        The values, more than once where a dictionary has them so, perhaps with some that no row has. The
        column itself and None if it has nulls, is short, or repeats too few of its values.
    """
    if isinstance(column, pa.DictionaryArray):
        if column.null_count or len(column.dictionary) > len(column):
            return column, None
        return column.dictionary, column.indices.to_numpy()
    if column.null_count or len(column) <= 2 * SAMPLED:
        return column, None
    if len(column.slice(0, SAMPLED).unique()) >= SAMPLED // 2:
        return column, None
    encoded = column.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()
