"""Where emitted tuples wait until their frame is done, and what is said at once of those that cannot go.

An :class:`Outlet` a stream, which holds the values and anchors of all its tuples in a few lists: no object is
kept for each. When the frame is done a list becomes a column, and what an emit could not see is found out:
that a value does not fit the stream's types, or does not pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.groupings import Direct
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import encode_columns
from acktree.core.ids import Int32s
from acktree.errors import BoltError, MisuseError
from acktree.tasks.bolts.router import Emission
from acktree.tasks.plan import Plan
from acktree.texts import error_text, short_repr
from acktree.topology.model import Component


@dataclass(frozen=True)
class Unfit:
    """A tuple that was emitted and cannot travel; what it hangs on fails."""

    parent: int
    anchors: Sequence[Tuple]
    error: Exception


class TupleBuffer:
    """Tuples of one stream before they are a batch.

    The collectors write into it themselves, and all that they write has passed :meth:`checked`.

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

    def batch(self, cells: list[Any], count: int) -> pa.RecordBatch:
        """So many tuples as a batch. MisuseError when a value does not fit its type, or does not pickle.

        Whatever else is raised, by code of the values, becomes one.
        """
        width, declaration = self.width, self.declaration
        columns = [cells] if width == 1 else [cells[place::width] for place in range(width)]
        try:
            return encode_columns(declaration.fields, columns, count, declaration.schema)
        except MisuseError as error:
            where = f"component {self._component!r}, stream {declaration.name!r}, {error.where}"
            raise MisuseError(error.what, where, error.fix) from error
        except Exception as error:
            raise MisuseError(
                f"a value cannot be encoded: {error_text(error)}",
                f"component {self._component!r}, stream {declaration.name!r}",
                "emit plain values, whose own code raises nothing when they are compared or pickled",
            ) from error

    def batches(
        self, cells: list[Any], count: int, first: int = 0
    ) -> Iterator[tuple[int, int, pa.RecordBatch | MisuseError]]:
        """So many tuples in as few batches as halving finds.

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


class Outlet(TupleBuffer):
    """What a bolt emits on one stream while it works on one frame.

    Attributes:
        parents: For each tuple the row of the frame at hand that it is anchored to; -1 for none. It is
            written last: a tuple without one was not emitted.
        joins: What tuples are anchored to instead: several tuples, or one of another frame; by their number.
    """

    __slots__ = ("joins", "parents")

    def __init__(self, declaration: StreamDeclaration, component: str) -> None:
        super().__init__(declaration, component)
        self.parents: list[int] = []
        self.joins: dict[int, Sequence[Tuple]] = {}

    def write(
        self, values: Sequence[Any], parent: int, task: int | None = None, joined: Sequence[Tuple] = ()
    ) -> None:
        """Emit one tuple of checked values, or nothing if an exception comes. Usual ones are written inline.

        Args:
            parent: As in ``parents``.
            task: The task it is for, on a stream where these are named.
            joined: What it is anchored to instead of the parent.
        """
        try:
            self.cells.extend(values)
            if task is not None:
                self.tasks.append(task)
            if joined:
                self.joins[len(self.parents)] = joined
            self.parents.append(parent)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Remove what an interrupted write left. Called for every exception, also if nothing was left."""
        count = len(self.parents)
        self.joins.pop(count, None)
        del self.tasks[count:]
        del self.cells[count * self.width :]  # last: too many cells say that this was interrupted too

    @property
    def _is_whole(self) -> bool:
        count = len(self.parents)
        return len(self.cells) == count * self.width and len(self.tasks) in {0, count}

    def emissions(self, unfit: list[Unfit]) -> list[Emission]:
        """All that was written down, as one batch; as several if one cannot hold it.

        Args:
            unfit: Is given the tuples with values that do not fit the stream's types, or do not pickle.
        """
        if not self._is_whole:
            error = self._torn()
            for row, parent in enumerate(self.parents):
                unfit.append(Unfit(parent, self.joins.get(row, ()), error))
            return []
        name, count, tasks = self.declaration.name, len(self.parents), self.named_tasks()
        parents = np.fromiter(self.parents, np.int64, count)
        try:
            return [Emission(name, self.batch(self.cells, count), parents, self.joins, tasks)]
        except MisuseError:
            pass  # some tuple's fault, or too many for one batch: slow but seldom
        emissions: list[Emission] = []
        for first, end, batch in self.batches(self.cells, count):
            if isinstance(batch, MisuseError):
                unfit.append(Unfit(self.parents[first], self.joins.get(first, ()), batch))
                continue
            here = slice(first, end)
            joins = {row - first: self.joins[row] for row in range(first, end) if row in self.joins}
            named = None if tasks is None else tasks[here]
            emissions.append(Emission(name, batch, parents[here], joins, named))
        return emissions

    def _torn(self) -> BoltError:
        """The error for all that was emitted, where it is not known any more which values belong together."""
        return BoltError(
            f"an emit on stream {self.declaration.name!r} was interrupted again while it took back what an "
            "interrupted one had written: which values belong to which tuple is lost",
            f"component {self._component!r}",
            "mend the timer or signal handler that raises again and again; what was emitted from fails",
        )


class Outlets:
    """The streams of one component, as its collector writes to them; and who may be sent to directly."""

    def __init__(self, component: Component, plan: Plan) -> None:
        self._component, self._plan = component, plan
        self._open: dict[str, Outlet] = {}
        self._direct: dict[str, Outlet] = {}
        self._readers: dict[str, frozenset[int]] = {}
        self._is_closed = False

    def close(self) -> None:
        """From now on nothing can be emitted: the memory was saved, and ``cleanup`` is called next."""
        self._is_closed = True
        self._open.clear()
        self._direct.clear()

    def refuse_if_closed(self, did: str) -> None:
        """MisuseError once this is closed: what user code did could not count any more."""
        if self._is_closed:
            raise MisuseError(
                f"{did} in cleanup(), when the task's micro-batch is over",
                f"component {self._component.id!r}, cleanup()",
                "do it in execute() or tick(); cleanup() is for letting go of connections and files",
            )

    def of(self, stream: str) -> Outlet:
        """Where ``emit`` on a stream goes. MisuseError when it is not declared, or is read directly."""
        outlet = self._open.get(stream)
        if outlet is None:
            self.refuse_if_closed("emitted a tuple")
            declaration = self.declaration(stream)
            for subscription in self._plan.topology.subscribers(self._component.id, stream):
                if isinstance(subscription.grouping, Direct):
                    what = f"emit() on stream {stream!r}, read by {subscription.subscriber!r} directly"
                    fix = "name the task: emit_direct(task_id, values, stream=...)"
                    raise MisuseError(what, f"component {self._component.id!r}", fix)
            outlet = self._open[stream] = Outlet(declaration, self._component.id)
        return outlet

    def direct(self, stream: str, task: int) -> Outlet:
        """Where ``emit_direct`` goes. MisuseError when the task is not of a direct-grouped subscriber."""
        outlet = self._direct.get(stream)
        if outlet is None:
            self.refuse_if_closed("emitted a tuple")
            outlet = self._direct[stream] = Outlet(self.declaration(stream), self._component.id)
        if stream not in self._readers:
            self._readers[stream] = self._direct_readers(stream)
        if task in self._readers[stream] and not isinstance(task, bool | float):  # 1.0 and True equal task 1
            return outlet
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

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """All that was emitted since last taken, stream by stream; and what of it cannot travel."""
        used = (*self._open.values(), *self._direct.values())
        self._open.clear()
        self._direct.clear()
        unfit: list[Unfit] = []
        return [emission for outlet in used for emission in outlet.emissions(unfit)], unfit

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


def _is_row(values: object) -> bool:
    """Whether this can be the values of a tuple: a text or a mapping is taken for a slip."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
