"""The tuple that a bolt is given.

A tuple is a place: row ``row`` of the ``rows`` it came with. Its values stand there in columns, which are
decoded when somebody first reads them; and what it still owes (its edges, the copies made from it, whether it
was acked) is kept there for all tuples of a frame together, not in the object. Two handles of one tuple are
therefore always of one mind, and a handle costs next to nothing.

Source: Storm's ``tuple/Tuple`` and ``tuple/Fields``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """What the tuples of one frame have in common, and who keeps account of them."""

    @property
    def component(self) -> str:
        """Who emitted them."""

    @property
    def stream(self) -> str:
        """The stream they came on."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of their values."""

    @property
    def columns(self) -> Mapping[str | int, Sequence[Any]]:
        """Field, or its place -> its values, a row each: the fields that were read so far."""

    @property
    def values(self) -> Sequence[tuple[Any, ...]]:
        """The values of each row."""

    def read(self, field: str) -> Sequence[Any]:
        """The values of one field, a row each; from now on they are among the columns."""

    def task_of(self, row: int) -> int:
        """The task that emitted a row."""

    def attempt_of(self, row: int) -> int:
        """Which attempt of its message a row belongs to."""

    def anchors_of(self, row: int) -> dict[int, int]:
        """Root -> edge of a row."""


class Tuple:
    """One tuple of a stream.

    ``tup["word"]``, ``tup[0]``, ``len(tup)`` and iteration give values. A tuple that was not acked yet is an
    ordinary value: keep it in an attribute that the bolt ``remembers`` and ack it in a later micro-batch.
    """

    __slots__ = ("_columns", "_row", "_rows")

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows = rows
        # Here too, because reading a value is what everybody does.
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
        """1 the first time its message is tried, 2 the next; the latest if it hangs on several messages."""
        return self._rows.attempt_of(self._row)

    @property
    def anchors(self) -> dict[int, int]:
        """Root id -> edge id: Storm's MessageId. Empty when nothing tracks this tuple."""
        return self._rows.anchors_of(self._row)

    @property
    def is_tick(self) -> bool:
        """Whether this came from the clock and not from a component."""
        return self._rows.component == "__system"

    def __getitem__(self, field: str | int | slice) -> Any:  # noqa: ANN401  # a value is whatever was emitted
        try:
            return self._columns[field][self._row]
        except (KeyError, TypeError):
            pass  # not read before, not there, or a slice
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
        """A copy is another handle of the same tuple; whether one may travel, the rows say."""
        return Tuple, (self._rows, self._row)

    def _shown(self, field: str) -> str:
        """A value as text: in a ``repr`` whatever the value's own does."""
        try:
            return repr(self[field])
        except Exception as error:  # noqa: BLE001  # user code; or a value that Python cannot hold
            return f"<{type(error).__name__}>"

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self._shown(name)}" for name in self.fields)
        return f"Tuple({self.component}:{self.stream} task {self.task_id}: {shown[:200]})"
