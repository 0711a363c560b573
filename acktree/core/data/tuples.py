"""The tuple that a bolt receives.

A ``Tuple`` is a reference to row ``row`` of its frame's ``rows``. The rows hold the values in columns, which
are decoded at the first access, and the tracking state (edges, copies made from it, whether it was acked) of
all tuples of the frame. Two ``Tuple`` objects for one row therefore always have the same state, and creating
one is cheap.

Source: Storm's ``tuple/Tuple`` and ``tuple/Fields``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The values and the tracking state of the tuples of one frame."""

    @property
    def component(self) -> str:
        """The component that emitted them."""

    @property
    def stream(self) -> str:
        """The stream they came on."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of their values."""

    @property
    def columns(self) -> Mapping[str | int, Sequence[Any]]:
        """Field name, or its index -> its values, one per row; only the fields that were read so far."""

    @property
    def values(self) -> Sequence[tuple[Any, ...]]:
        """The values of each row."""

    def read(self, field: str) -> Sequence[Any]:
        """The values of one field, one per row; adds them to ``columns``."""

    def task_of(self, row: int) -> int:
        """The task that emitted a row."""

    def attempt_of(self, row: int) -> int:
        """The attempt of its message that a row belongs to."""

    def anchors_of(self, row: int) -> dict[int, int]:
        """Root -> edge of a row."""


class Tuple:
    """One tuple of a stream.

    ``tup["word"]``, ``tup[0]``, ``len(tup)`` and iteration give values. A tuple that is not acked yet can be
    stored in an attribute that the bolt ``remembers``, and acked in a later micro-batch.
    """

    __slots__ = ("_columns", "_row", "_rows")

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows = rows
        # A direct reference, because reading a value is the most frequent operation.
        self._columns: Mapping[Any, Sequence[Any]] = rows.columns
        self._row = row

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in the order of ``fields``."""
        return self._rows.values[self._row]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the values."""
        return self._rows.fields

    @property
    def stream(self) -> str:
        """The stream it came on; ``__tick`` for a tick."""
        return self._rows.stream

    @property
    def component(self) -> str:
        """The component that emitted it; ``__system`` for a tick."""
        return self._rows.component

    @property
    def task_id(self) -> int:
        """The task that emitted it; -1 for a tick."""
        return self._rows.task_of(self._row)

    @property
    def attempt(self) -> int:
        """The attempt of its message, from 1; the highest if it is anchored to several messages."""
        return self._rows.attempt_of(self._row)

    @property
    def anchors(self) -> dict[int, int]:
        """Root id -> edge id: Storm's MessageId. Empty when this tuple is untracked."""
        return self._rows.anchors_of(self._row)

    @property
    def is_tick(self) -> bool:
        """Whether this is a tick tuple, which no component emitted."""
        return self._rows.component == "__system"

    def __getitem__(self, field: str | int | slice) -> Any:  # noqa: ANN401  # any emitted value
        try:
            return self._columns[field][self._row]
        except (KeyError, TypeError):
            pass  # not read before, unknown, or a slice
        if isinstance(field, slice):
            return self.values[field]
        name = field if isinstance(field, str) else self.fields[field]
        if name not in self.fields:
            raise KeyError(f"no field {name!r} in {self!r}; it has {', '.join(self.fields)}")
        return self._rows.read(name)[self._row]

    def __contains__(self, field: object) -> bool:
        return field in self._rows.fields

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self._rows.fields)

    def as_dict(self) -> dict[str, Any]:
        """Field -> value."""
        return {field: self[field] for field in self.fields}

    def __reduce__(self) -> tuple[type[Tuple], tuple[Rows, int]]:
        """Copy or pickle a reference to the same tuple; the rows decide whether they can be pickled."""
        return Tuple, (self._rows, self._row)

    def _shown(self, field: str) -> str:
        """The ``repr`` of a value, or the type of the exception that it raises."""
        try:
            return repr(self[field])
        except (Exception, SystemExit) as error:  # noqa: BLE001  # user code; or a value that Python cannot represent
            return f"<{type(error).__name__}>"

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self._shown(name)}" for name in self.fields)
        return f"Tuple({self.component}:{self.stream} task {self.task_id}: {shown[:200]})"
