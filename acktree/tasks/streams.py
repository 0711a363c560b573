"""The streams that a component emits on, as its collector checks them; shared by bolts and spouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.groupings import Direct
from acktree.core.data.values import copied, encode_columns, frozen, size_of
from acktree.core.ids import Int32s
from acktree.errors import MisuseError
from acktree.system.stopped_by import pass_on
from acktree.tasks.plan import Plan
from acktree.texts import error_text, short_repr
from acktree.topology.model import Component


class TupleBuffer:
    """Tuples of one stream before they are a batch.

    The collectors write into it themselves, and all that they write has passed :meth:`checked`, and
    :meth:`frozen` if it can change.

    Attributes:
        width: How many values a tuple has.
        cells: The values, one tuple's after the other's: no object is kept for each tuple, and a slice of
            this list is a column.
        tasks: The task that each tuple is for, on a stream where these are named; else empty.
    """

    __slots__ = ("_component", "cells", "declaration", "tasks", "width")

    def __init__(self, declaration: StreamDeclaration, component: str) -> None:
        self.declaration = declaration
        self._component = component
        self.width = len(declaration.fields)
        self.cells: list[Any] = []
        self.tasks: list[int] = []

    def checked(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values of a tuple. MisuseError when they are not as many as the stream has fields."""
        kind = type(values)
        # Nearly always a list, and to ask an ABC about it would take longer than all the rest.
        if kind is list or kind is tuple or _is_row(values):
            row = tuple(values)
            if len(row) == self.width:
                return row
        raise MisuseError(
            f"emitted {short_repr(values)} on stream {self.declaration.name!r}, "
            f"which has the fields {list(self.declaration.fields)}",
            f"component {self._component!r}",
            f"emit a list of {self.width} values, in the order of the fields",
        )

    def frozen(self, values: Sequence[Any]) -> list[Any]:
        """Checked values as they are now: those that can change are copied, or pickled. It never raises."""
        declaration = self.declaration
        if declaration.schema is None:
            return frozen(declaration.fields, values)
        return [*map(copied, values)]

    def batch(self, cells: list[Any], count: int) -> pa.RecordBatch:
        """Tuples as a batch. MisuseError when a value does not fit its type, or does not pickle.

        Whatever else is raised, by code of the values, becomes one.
        """
        width, declaration = self.width, self.declaration
        columns = [cells] if width == 1 else [cells[column::width] for column in range(width)]
        try:
            return encode_columns(declaration.fields, columns, count, declaration.schema)
        except BaseException as error:
            pass_on(error)
            raise self._misuse(error) from error

    def size_of(self, values: Sequence[Any]) -> int:
        """About how many bytes a tuple takes in a batch. Raises as :meth:`batch`."""
        if self.declaration.schema is not None:
            return int(self.batch([*values], 1).nbytes)
        try:
            return size_of(self.declaration.fields, values)
        except BaseException as error:
            pass_on(error)
            raise self._misuse(error) from error

    def _misuse(self, error: BaseException) -> MisuseError:
        where = f"component {self._component!r}, stream {self.declaration.name!r}"
        if isinstance(error, MisuseError):
            return MisuseError(error.what, f"{where}, {error.where}", error.fix)
        return MisuseError(
            f"a value cannot be encoded: {error_text(error)}",
            where,
            "emit plain values, whose own code raises nothing when they are compared or pickled",
        )

    def batches(
        self, cells: list[Any], count: int, first: int = 0
    ) -> Iterator[tuple[int, int, pa.RecordBatch | MisuseError]]:
        """Tuples in as few batches as halving finds.

        Yields:
            First tuple, the one after the last, and their batch; of a tuple that does not go even alone, why.
        """
        try:
            yield first, first + count, self.batch(cells, count)
        except MisuseError as error:
            if count <= 1:
                yield first, first + 1, error
                return
            middle = count // 2
            at = middle * self.width
            yield from self.batches(cells[:at], middle, first)
            yield from self.batches(cells[at:], count - middle, first + middle)

    def named_tasks(self) -> Int32s | None:
        """The task of each tuple; None when groupings choose."""
        return np.array(self.tasks, dtype=np.int32) if self.tasks else None


class Streams:
    """The streams of one component, and who may be sent to directly."""

    def __init__(self, component: Component, plan: Plan) -> None:
        self._component, self._plan = component, plan
        self._readers: dict[str, frozenset[int]] = {}

    def declaration(self, stream: str) -> StreamDeclaration:
        """A stream of the component's ``outputs``. MisuseError when it is none."""
        declaration = self._component.streams.get(stream)
        if declaration is None:
            known = ", ".join(map(repr, self._component.streams)) or "none"
            raise MisuseError(
                f"emitted on stream {stream!r}, which is not declared (declared: {known})",
                f"component {self._component.id!r}",
                f'add it to the outputs of {self._component.id!r}: outputs = {{"{stream}": [fields]}}',
            )
        return declaration

    def chosen_by_groupings(self, stream: str) -> StreamDeclaration:
        """A stream for ``emit``. MisuseError when it is not declared, or is read directly."""
        declaration = self.declaration(stream)
        for subscription in self._plan.topology.subscribers(self._component.id, stream):
            if isinstance(subscription.grouping, Direct):
                what = f"emit() on stream {stream!r}, read by {subscription.subscriber!r} directly"
                fix = "name the task: emit_direct(task_id, values, stream=...)"
                raise MisuseError(what, f"component {self._component.id!r}", fix)
        return declaration

    def chosen_by_emitter(self, stream: str, task: int) -> StreamDeclaration:
        """A stream for ``emit_direct``. MisuseError when the task does not read it by direct grouping."""
        if stream not in self._readers:
            self._readers[stream] = self._direct_readers(stream)
        if task in self._readers[stream] and not isinstance(task, bool | float):  # 1.0 and True equal task 1
            return self.declaration(stream)
        raise MisuseError(
            f"emit_direct() to task {task!r}, which does not read stream {stream!r} by direct grouping",
            f"component {self._component.id!r}",
            f"set_bolt(...).direct_grouping({self._component.id!r}, stream={stream!r}) on the receiver, "
            "and one of context.task_ids(receiver)",
        )

    def _direct_readers(self, stream: str) -> frozenset[int]:
        topology = self._plan.topology
        return frozenset(
            task
            for subscription in topology.subscribers(self._component.id, stream)
            if isinstance(subscription.grouping, Direct)
            for task in topology.components[subscription.subscriber].task_ids
        )


def _is_row(values: object) -> bool:
    """Whether this can be the values of a tuple: a text or a mapping is taken for a slip."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
