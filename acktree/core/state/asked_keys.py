"""The keys that a call of a ``ColumnState`` is given; each different one is looked up once, where known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.distinct import Places, of_each_row

_Values = TypeVar("_Values", bound=npt.NDArray[Any])


@dataclass(frozen=True)
class AskedKeys:
    """n keys.

    Attributes:
        keys: Each of them is asked for; without nulls. Some may be equal.
        places: The place of each given key among them, shape (n,); None if they are what was given.
    """

    keys: pa.Array
    places: Places | None = None

    def __len__(self) -> int:
        """How many keys were given."""
        return len(self.keys if self.places is None else self.places)

    def of_each(self, of_keys: _Values) -> _Values:
        """The results for all given keys, shape (n,), from the results for ``keys``."""
        return of_each_row(of_keys, self.places)
