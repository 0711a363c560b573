"""The different values of a column, and which of them each row has: work on a value is then done once.

A column in a dictionary has them. Another one is encoded if it is long and a sample of it repeats values: of
few different values that takes less than to hash or decode each, of very many it takes more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.ids import Int64s

__all__ = ["SAMPLED", "distinct", "distinct_texts"]

SAMPLED: Final = 1024
"""How many rows are sampled."""
_LONG: Final = 8
"""A column of fewer samples than this is taken as it is."""
_REPEATED: Final = 32
"""One in this number of sampled rows must repeat another: so it is with some 16,000 different values."""


def distinct(column: pa.Array) -> tuple[pa.Array, Int64s | None]:
    """The values that a column has, and the place of each row's value among them, shape (n,).

    Args:
        column: Of any type that Arrow can encode as a dictionary, or a dictionary.

    Returns:
        The values, more than once where a dictionary has them so, perhaps with some that no row has. The
        column itself and None if it has nulls, is short, or repeats too few of its values.
    """
    if isinstance(column, pa.DictionaryArray):
        if column.indices.null_count or len(column.dictionary) > len(column):
            return column, None
        return column.dictionary, column.indices.to_numpy()
    if column.null_count or len(column) < _LONG * SAMPLED:
        return column, None
    sample = column.take(pa.array(np.arange(0, len(column), len(column) // SAMPLED)))
    if len(sample) - len(sample.unique()) < len(sample) // _REPEATED:
        return column, None
    encoded = column.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()


def distinct_texts(column: pa.Array) -> tuple[pa.Array, Int64s | None]:
    """:func:`distinct` of texts, plain or in a dictionary; any other column itself and None."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return distinct(column) if is_text else (column, None)
