"""Calls of ``execute`` that run at once, and what each of them asked for.

Rules of this file
------------------
1. A call changes no account and writes to no outlet. It is recorded with the call, and takes effect when all
   calls of the task have ended: emits first, then acks and fails, in the order of the rows. So what a tuple
   emits never depends on another tuple, and a second run makes the same edges whatever ends first.
2. A call that is over records nothing any more: what its threads and tasks say later is refused.
3. What is refused is refused at once, inside user code, by the same checks as in a sequential bolt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any, Final

import numpy as np

from acktree.bolt import BasicOutputCollector
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int64s
from acktree.errors import MisuseError
from acktree.tasks.bolts.collectors import (
    AckedByItself,
    Anchors,
    BasicCollector,
    HandCollector,
    TimingCollector,
)
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.outputs.outlets import Outlets
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, OPEN, InboundRows
from acktree.tasks.bolts.rows.row_names import Names
from acktree.tasks.failures import failure_of
from acktree.topology.model import Component

current_call: Final[ContextVar[Call]] = ContextVar("acktree_call")
"""The call that this code belongs to. Tasks and ``asyncio.to_thread`` inherit it."""
_current_hook: Final[ContextVar[object]] = ContextVar("acktree_hook")
"""The hook that this code belongs to, inherited likewise."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of ``execute`` for one row.

    Attributes:
        unit: The rows that it belongs to.
        row: The row.
        emits: The tuples emitted, in order: each a call of the sequential collector.
        effects: The acks, fails, resets and reports, in order.
        began: When it began, in seconds of a monotonic clock.
        spent_ms: How long it took.
        error: What it raised, or why it was given up.
        is_over: Whether it has ended or was given up.
        has_returned: Whether ``execute`` has returned or raised on its thread.
        waiting_since: Since when it waits for what the bolt remembers, in seconds as ``began``; None if not.
        waited_secs: How long it has waited for that before.
    """

    unit: Unit
    row: int
    emits: list[Callable[[], None]] = field(default_factory=list)
    effects: list[Callable[[], None]] = field(default_factory=list)
    began: float = 0.0
    spent_ms: float = 0.0
    error: BaseException | None = None
    is_over: bool = False
    has_returned: bool = False
    waiting_since: float | None = None
    waited_secs: float = 0.0

    def refuse_if_over(self, did: str) -> None:
        """MisuseError once the call has ended: what it says could not count any more."""
        if self.is_over or self.has_returned:
            raise MisuseError(
                f"{did} after execute() had ended for this tuple",
                f"{self.unit.rows.component}:{self.unit.rows.stream}",
                "await tasks and threads that use the collector before execute() returns; "
                "a call that takes longer than execute_timeout_secs has failed",
            )


@dataclass(eq=False)
class Unit:
    """Rows of one frame that are executed at once.

    Attributes:
        rows: The rows.
        names: Their names, for the execution marks.
        calls: One call for each row, in order.
    """

    rows: InboundRows
    names: Names
    calls: list[Call] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [Call(self, row) for row in range(len(self.rows.lineage))]

    @property
    def spent_ms(self) -> float:
        """How long its calls took in all."""
        return sum(call.spent_ms for call in self.calls)


class RecordingCollector(AckedByItself, BasicOutputCollector):
    """The collector of one call of a ``BasicBolt``; any thread may use it until the call is over."""

    def __init__(
        self, call: Call, through: BasicCollector, outlets: Outlets, reset: Callable[[Int64s], None]
    ) -> None:
        """Make it.

        Args:
            call: Where calls are recorded.
            through: The collector of the task, which carries them out.
            outlets: Checks what is emitted.
            reset: Called with the roots whose age begins again.
        """
        self._call, self._through, self._outlets, self._reset = call, through, outlets, reset

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        self._refuse("emitted a tuple")
        checked = self._outlets.of(stream).kept(values)
        self._call.emits.append(lambda: self._through.emit(checked, stream))

    def emit_direct(self, task_id: int, values: Sequence[Any], *, stream: str = "default") -> None:
        self._refuse("emitted a tuple")
        checked = self._outlets.direct(stream, task_id).kept(values)
        self._call.emits.append(lambda: self._through.emit_direct(task_id, checked, stream=stream))

    def reset_timeout(self) -> None:
        self._refuse("reset a timeout")
        roots = self._call.unit.rows.lineage.roots_of(np.array([self._call.row]))
        self._call.effects.append(lambda: self._reset(roots))

    def report_error(self, exception: BaseException) -> None:
        self._refuse("reported an error")
        self._call.effects.append(lambda: self._through.report_error(exception))

    def _refuse(self, did: str) -> None:
        """MisuseError once the call is over, or where another call uses its collector."""
        self._call.refuse_if_over(did)
        if current_call.get(self._call) is not self._call:
            raise MisuseError(
                f"{did} with the collector of another tuple",
                f"{self._call.unit.rows.component}:{self._call.unit.rows.stream}",
                "use the collector that execute() was given with the tuple; do not keep it in an attribute",
            )


class LentCollector(AckedByItself, BasicOutputCollector):
    """The collector of a ``BasicBolt`` in its other hooks: it is refused when the hook has ended.

    The collector of the task emits for the tuple that it was turned to last.
    """

    def __init__(self, through: BasicCollector) -> None:
        """Lend ``through``."""
        self._through: BasicCollector | None = through
        self._lock = Lock()

    def close(self) -> None:
        """The hook has ended."""
        with self._lock:
            self._through = None

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        with self._lock:
            self._lent("emitted a tuple").emit(values, stream)

    def emit_direct(self, task_id: int, values: Sequence[Any], *, stream: str = "default") -> None:
        with self._lock:
            self._lent("emitted a tuple").emit_direct(task_id, values, stream=stream)

    def reset_timeout(self) -> None:
        with self._lock:
            self._lent("reset a timeout").reset_timeout()

    def report_error(self, exception: BaseException) -> None:
        with self._lock:
            self._lent("reported an error").report_error(exception)

    def _lent(self, did: str) -> BasicCollector:
        if self._through is None:
            raise MisuseError(
                f"{did} after its hook had ended",
                "the collector of tick() or flush()",
                "await tasks and join threads that use the collector before the hook returns",
            )
        return self._through


class RecordingHandCollector(TimingCollector):
    """The collector of a ``Bolt`` whose calls run at once. In its other hooks it is the sequential one.

    Attributes:
        is_sampled: Whether the time from execute to ack is measured.
    """

    def __init__(
        self, component: Component, task: int, outlets: Outlets, outputs: Outputs, *, is_sampled: bool
    ) -> None:
        super().__init__(component, task, outlets, outputs)
        self.is_sampled = is_sampled
        self._at_hand: frozenset[InboundRows] = frozenset()
        self._decided: set[tuple[InboundRows, int]] = set()
        self._hook: object = None
        self._lock = Lock()

    def begin(self, at_hand: Iterable[InboundRows]) -> None:
        """Called before calls run over these rows."""
        self._at_hand = frozenset(at_hand)

    def end(self) -> None:
        """Called when all calls have ended, before what they recorded is carried out."""
        self._decided.clear()

    @contextmanager
    def in_hook(self) -> Iterator[None]:
        """While a hook is called: it and what inherits its context may use the collector."""
        self._hook = hook = object()
        token = _current_hook.set(hook)
        try:
            yield
        finally:
            self._hook = None
            _current_hook.reset(token)

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> None:
        call = self._call("emitted a tuple")
        if call is None:
            super().emit(values, anchors, stream)
            return
        checked = self._outlets.of(stream).kept(values)
        named = self._checked_anchors(anchors)
        call.emits.append(lambda: HandCollector.emit(self, checked, named, stream))

    def emit_direct(
        self, task_id: int, values: Sequence[Any], *, anchors: Anchors = None, stream: str = "default"
    ) -> None:
        call = self._call("emitted a tuple")
        if call is None:
            super().emit_direct(task_id, values, anchors=anchors, stream=stream)
            return
        checked = self._outlets.direct(stream, task_id).kept(values)
        named = self._checked_anchors(anchors)
        call.emits.append(
            lambda: HandCollector.emit_direct(self, task_id, checked, anchors=named, stream=stream)
        )

    def ack(self, tup: Tuple) -> None:
        call = self._call("acked a tuple")
        if call is None:
            self._ack_now(tup)
            return
        rows, row = self._decide(tup, "acked")
        took_ms = self._age_ms(rows, row)
        call.effects.append(lambda: self._record_ack(rows, row, took_ms))

    def fail(self, tup: Tuple, reason: str = "", *, exception: BaseException | None = None) -> None:
        call = self._call("failed a tuple")
        if call is None:
            super().fail(tup, reason, exception=exception)
            return
        rows, row = self._decide(tup, "failed")
        failure = failure_of(exception, self._component.id, reason)

        def carry_out() -> None:
            self._outputs.fail(rows.lineage.roots_of(np.array([row])), failure)
            rows.fate[row] = FAILED
            for observer in self._outputs.observers:
                observer.failed(rows, (row,), failure)
            if rows not in self._at_hand:
                self.elsewhere[id(rows)] = rows
                self._count_failed(tup)

        call.effects.append(carry_out)

    def reset_timeout(self, tup: Tuple) -> None:
        call = self._call("reset a timeout")
        if call is None:
            super().reset_timeout(tup)
            return
        with self._lock:
            rows, row = self._open(tup, "reset the timeout of")
        roots = rows.lineage.roots_of(np.array([row]))
        call.effects.append(lambda: self._outputs.reset(self._component.id, roots))

    def report_error(self, exception: BaseException) -> None:
        call = self._call("reported an error")
        if call is None:
            super().report_error(exception)
            return
        call.effects.append(lambda: HandCollector.report_error(self, exception))

    def _call(self, did: str) -> Call | None:
        """The call that this code belongs to; None for a hook. MisuseError if it belongs to neither."""
        call = current_call.get(None)
        if call is None:
            if self._hook is not None and _current_hook.get(None) is self._hook:
                return None
            raise MisuseError(
                f"{did} from a thread that does not belong to a tuple, or after its hook had ended",
                f"component {self._component.id!r}, task {self._task}",
                "start it with asyncio.to_thread(), or run it in contextvars.copy_context()",
            )
        call.refuse_if_over(did)
        return call

    def _checked_anchors(self, anchors: Anchors) -> Anchors:
        """The anchors, after checking that all are open."""
        if anchors is None:
            return None
        several: Iterable[Tuple] = [anchors] if isinstance(anchors, Tuple) else list(anchors)
        with self._lock:
            for anchor in several:
                self._open(anchor, "emitted anchored to")
        return anchors if isinstance(anchors, Tuple) else several

    def _decide(self, tup: Tuple, doing: str) -> tuple[InboundRows, int]:
        """Note that a tuple is acked or failed: a second time is refused from now on."""
        with self._lock:
            rows, row = self._open(tup, doing)
            self._decided.add((rows, row))
        return rows, row

    def _open(self, tup: Tuple, doing: str) -> tuple[InboundRows, int]:
        rows, row = super()._open(tup, doing)
        if (rows, row) in self._decided:
            self._refuse_done(tup, doing, "acked or failed")
        return rows, row

    def _record_ack(self, rows: InboundRows, row: int, took_ms: float | None) -> None:
        """Carry out an ack. A tuple that has failed meanwhile stays failed."""
        if rows.fate[row] != OPEN:
            return
        rows.fate[row] = ACKED
        self.elsewhere[id(rows)] = rows
        if took_ms is not None:
            self.took[rows].append(took_ms)

    def _ack_now(self, tup: Tuple) -> None:
        rows, row = self._open(tup, "acked")
        self._record_ack(rows, row, self._age_ms(rows, row))

    def _age_ms(self, rows: InboundRows, row: int) -> float | None:
        """How long it is since a tuple was first executed; None if that is not measured."""
        began = rows.began.get(row)
        if began is not None:
            return (perf_counter() - began) * 1000
        if self.is_sampled and rows.came_ms >= 0:
            return float(max(0, self._outputs.clock_ms - rows.came_ms))
        return None
