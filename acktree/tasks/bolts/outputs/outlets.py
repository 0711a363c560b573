"""Where emitted tuples wait until their frame is done, and what is said at once of those that cannot go.

An :class:`Outlet` a stream, which holds the values and anchors of all its tuples in a few lists: no object is
kept for each. When the frame is done a list becomes a column, and what an emit could not see is found out:
that a value does not fit the stream's types, or does not pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.tuples import Tuple
from acktree.errors import BoltError, MisuseError
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.plan import Plan
from acktree.tasks.streams import Streams, TupleBuffer
from acktree.topology.model import Component


@dataclass(frozen=True)
class Unfit:
    """A tuple that was emitted and cannot be encoded; what it is anchored to fails."""

    parent: int
    anchors: Sequence[Tuple]
    error: BaseException


class Outlet(TupleBuffer):
    """What a bolt emits on one stream while it works on one frame.

    Attributes:
        parents: For each tuple the row of the current frame that it is anchored to; -1 for none. It is
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
            self.cells.extend(self.frozen(values))
            if task is not None:
                self.tasks.append(task)
            if joined:
                self.joins[len(self.parents)] = joined
            self.parents.append(parent)
        except BaseException:
            self.take_back()
            raise

    def kept(self, values: Sequence[Any]) -> Sequence[Any]:
        """Values to be emitted later, as they are now. MisuseError as :meth:`checked`."""
        return self.frozen(self.checked(values))

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
            "correct the timer or signal handler that raises again and again; what was emitted from fails",
        )


class Outlets(Streams):
    """The streams of one bolt, as its collector writes to them."""

    def __init__(self, component: Component, plan: Plan) -> None:
        super().__init__(component, plan)
        self._open: dict[str, Outlet] = {}
        self._direct: dict[str, Outlet] = {}
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
                "do it in execute(), tick() or flush(); cleanup() is for letting go of connections and files",
            )

    def of(self, stream: str) -> Outlet:
        """Where ``emit`` on a stream goes. MisuseError when it is not declared, or is read directly."""
        outlet = self._open.get(stream)
        if outlet is None:
            self.refuse_if_closed("emitted a tuple")
            outlet = self._open[stream] = Outlet(self.chosen_by_groupings(stream), self._component.id)
        return outlet

    def direct(self, stream: str, task: int) -> Outlet:
        """Where ``emit_direct`` goes. MisuseError when the task is not of a direct-grouped subscriber."""
        self.refuse_if_closed("emitted a tuple")
        declaration = self.chosen_by_emitter(stream, task)
        outlet = self._direct.get(stream)
        if outlet is None:
            outlet = self._direct[stream] = Outlet(declaration, self._component.id)
        return outlet

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """All that was emitted since last taken, stream by stream; and what of it cannot be encoded."""
        used = (*self._open.values(), *self._direct.values())
        self._open.clear()
        self._direct.clear()
        unfit: list[Unfit] = []
        return [emission for outlet in used for emission in outlet.emissions(unfit)], unfit
