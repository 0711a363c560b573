"""What became of the rows of one bolt task: emits are routed, acks and failures reported, all of it counted.

Rules of this file
------------------
1. What was emitted over rows is routed before any of them is reported as acked: what a row adds to the sum of
   its message includes the edges of what it emitted.
2. A failure is reported at once, and wins over an ack of the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.stats.counters import What
from acktree.core.tracking.lineage_runs import Runs
from acktree.errors import AcktreeError, BoltError, MisuseError, ProtocolError
from acktree.logs.log_lines import Place, standing
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.outputs.emission import Emission, pieces_of
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.outputs.outlets import Unfit
from acktree.tasks.bolts.outputs.router import Router
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, InboundRows, account_of
from acktree.tasks.failures import failure_of
from acktree.texts import error_text
from acktree.topology.model import Component


class RowResults:
    """Reports what became of rows of one bolt task.

    Attributes:
        observers: See what becomes of the rows.
        place: Where user code of the task logs.
        has_raised: Whether user code of the task has raised.
    """

    def __init__(self, component: Component, task: int, outputs: Outputs) -> None:
        """Report to the outputs of a level."""
        self.observers = [*outputs.observers]
        self.place = Place(outputs.plan.topology.name, component.id, task, outputs.batch_id)
        self.has_raised = False
        self._component, self._task, self._outputs = component, task, outputs
        self._router = Router(component, task, outputs, self.observers)

    def route(self, emissions: Iterable[Emission], unfit: list[Unfit], rows: InboundRows) -> list[Unfit]:
        """Route what was emitted over these rows, before any of them is reported as acked.

        Args:
            unfit: What cannot be encoded.

        Returns:
            All that could not be sent; what it was anchored to has failed.
        """
        for emission in (piece for each in emissions for piece in pieces_of(each)):
            for emitted, error in self._router.route(emission, rows).items():
                anchors = emission.joins.get(emitted, ())
                unfit.append(Unfit(int(emission.parents[emitted]), anchors, error))
        for refused in unfit:
            self._refuse(refused, rows)
        return unfit

    def _refuse(self, unfit: Unfit, rows: InboundRows) -> None:
        """An emitted tuple cannot be sent: what it is anchored to fails."""
        for anchor in unfit.anchors:
            anchored, row = account_of(anchor)
            if anchored is not rows and anchored.fate[row] != FAILED and not anchor.is_tick:
                self.count(anchored, "failed", 1)
            self.fail(anchored, np.array([row]), unfit.error)
        if unfit.parent >= 0:
            self.fail(rows, np.array([unfit.parent]), unfit.error)
        self.error(unfit.error)

    def report_acked(self, rows: InboundRows) -> None:
        """Report to the acker which rows were acked since the last report."""
        for observer in self.observers:
            observer.acked(rows)
        acked = rows.fate.count(ACKED)
        if acked and rows.component != "__system":
            self.count(rows, "acked", acked)
        deltas = rows.newly_acked()
        if deltas is not None:
            # Each row of runs has one root; of others a delta is a row and a root.
            count = acked if isinstance(rows.lineage, Runs) else len(deltas[0])
            self._outputs.ack(*deltas, self._component.id, count)

    def fail(
        self,
        rows: InboundRows,
        which: Int64s,
        error: BaseException | None,
        reason: str = "",
        *,
        in_hook: bool = False,
    ) -> None:
        """Fail rows, all for one reason, whatever was reported of them before.

        Args:
            in_hook: Whether ``prepare`` or ``flush`` raised the error.
        """
        failure, failed = failure_of(error, self._component.id, reason, in_hook=in_hook), which.tolist()
        for row in failed:
            rows.fate[row] = FAILED
        for observer in self.observers:
            observer.failed(rows, failed, failure)
        self._outputs.fail(rows.lineage.roots_of(which), failure)

    def raised(self, rows: InboundRows, which: Int64s, error: BaseException) -> None:
        """User code raised over these rows: they fail, and the error is reported."""
        self.has_raised = True
        if type(error) is MisuseError and len(which) == 1:
            error = _naming_tuple(error, rows, int(which[0]))
        self.fail(rows, which, error)
        self.error(error)

    def raised_in(self, hook: str, call: Callable[[], None]) -> BaseException | None:
        """What a hook raised in which no tuple is executed; it is reported with the hook's name."""
        self._outputs.monitor.enter(self._component, hook)
        with standing(self.place):
            error = self.raised_by(call)
        self._outputs.monitor.end()
        if error is None or isinstance(error, AcktreeError):  # ours name the place already
            reported = error
        else:
            reported = BoltError(
                f"bolt {self._component.id!r} raised in {hook}(): {error_text(error)}",
                f"task {self._task}",
                "correct what the exception says; the topology goes on, and the hook is called again",
            )
            reported.__cause__ = error
        if reported is not None:
            self.error(reported)
        return error

    def raised_by(self, call: Callable[[], None]) -> BaseException | None:
        """What a call of user code raised; not reported.

        Raises:
            ProtocolError: The error is ours.
        """
        try:
            call()
        except ProtocolError:
            raise
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            self.has_raised = True
            return error
        return None

    def error(self, error: BaseException) -> None:
        """Report an error of the task."""
        self._outputs.error(self._component.id, self._task, failure_of(error, self._component.id))

    def count(self, rows: InboundRows, what: What, n: int) -> None:
        """Count tuples of the stream that rows came on."""
        source = f"{rows.component}:{rows.stream}"
        self._outputs.counters.add(self._component.id, self._task, source, what, n)

    def count_executed(self, rows: InboundRows, spent_ms: float) -> None:
        """Count rows that were executed, and the time that they took together."""
        count, source = len(rows.lineage), f"{rows.component}:{rows.stream}"
        self.count(rows, "executed", count)
        counters = self._outputs.counters
        counters.add_latency(
            self._component.id, self._task, stream=source, latency="execute_ms", total_ms=spent_ms,
            samples=count,
        )  # fmt: skip

    def count_processed(self, rows: InboundRows, total_ms: float, acked: int) -> None:
        """Count tuples of a stream that were processed, and the time that they took together."""
        if rows.component != "__system":
            source = f"{rows.component}:{rows.stream}"
            counters = self._outputs.counters
            counters.add_latency(
                self._component.id, self._task, stream=source, latency="process_ms", total_ms=total_ms,
                samples=acked,
            )  # fmt: skip


def _naming_tuple(error: MisuseError, rows: InboundRows, row: int) -> MisuseError:
    """The same error with the tuple that was executed, unless it names that already.

    Named here and not where it is raised: only this costs nothing for tuples without an error. It is another
    object, since user code may raise one object for several tuples.
    """
    tup = repr(rows.handle(row))
    if tup in str(error):
        return error
    named = MisuseError(error.what, ", ".join(filter(None, (f"executing {tup}", error.where))), error.fix)
    vars(named).update(vars(error))
    named.__traceback__, named.__cause__ = error.__traceback__, error.__cause__
    named.__context__, named.__suppress_context__ = error.__context__, error.__suppress_context__
    return named
