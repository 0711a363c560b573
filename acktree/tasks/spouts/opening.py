"""Opens the spout of a task: gives it what it remembered, and calls ``open`` until its queue answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from time import monotonic

from acktree.config import Config
from acktree.core import durable
from acktree.core.data.context import TaskContext, TaskServices
from acktree.errors import ConnectorError, MisuseError, SpoutError
from acktree.spout import Spout
from acktree.tasks.own_metrics import task_services
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.spout_calls import Hooks
from acktree.tasks.spouts.task_hooks import SpoutHooks
from acktree.texts import short_repr

ContextOf = Callable[[TaskServices], TaskContext]


class Opening:
    """Calls the ``open`` of one spout.

    Attributes:
        services: What the context of the last call offers to the spout: its metrics and hooks.
    """

    def __init__(
        self, spout: Spout, context_of: ContextOf, *, hooks: Hooks, task_hooks: SpoutHooks, reporter: Reporter
    ) -> None:
        """Nothing is called yet.

        Args:
            spout: The task's own copy of the spout.
            context_of: Returns the task's context with what it offers to the spout.
            hooks: Pause after what may pass.
            task_hooks: Begin with the context.
            reporter: Reports what was overwritten.
        """
        self.services = task_services()
        self._spout, self._context_of = spout, context_of
        self._hooks, self._task_hooks, self._reporter = hooks, task_hooks, reporter
        self._remembered: Mapping[str, object] = {}
        """By attribute: what was set before ``open``, until that has returned."""

    def remember(self, position: bytes) -> None:
        """Set what the spout remembered with its last message of an earlier run."""
        self._remembered = durable.loads(position)
        for name, value in self._remembered.items():
            setattr(self._spout, name, value)

    def open(self, config: Config, collector: SpoutCollector, open_ids: tuple[object, ...]) -> bool:
        """Call ``open``. False if the queue is away and ``open`` is to be called again.

        Args:
            config: The configuration.
            collector: Takes what the spout emits.
            open_ids: The ids of messages that an earlier run left open.

        Raises:
            Exception: What the spout raises, but for a ConnectorError that may pass.
        """
        services = self.services = task_services()
        context = replace(self._context_of(services), open_message_ids=open_ids)
        self._task_hooks.begin(context, services)
        try:
            self._hooks.calling.now = "open", monotonic()
            self._spout.open(config, context, collector)
        except ConnectorError as error:
            self._task_hooks.end()  # `open` is called again, and adds its hooks again
            if not error.can_retry:
                raise
            self._hooks.failed(error)
            return False
        finally:
            self._hooks.calling.now = None
            services.close()
        _check_keep_alive(self._spout.keep_alive_secs)
        self._note_missing()
        self._note_overwritten()
        self._hooks.succeeded()
        return True

    def _note_missing(self) -> None:
        """Report remembered attributes that are not there: their names may be misspelt."""
        kind = type(self._spout)
        if hasattr(kind, "__getattr__"):  # any name may be there
            return
        for name in self._spout.remembers:
            if name not in vars(self._spout) and not hasattr(kind, name):  # a property is not called
                self._reporter.error(
                    MisuseError(
                        f"the spout remembers {name!r} and has no such attribute: None is saved",
                        f"class {kind.__name__}, remembers, after open()",
                        "spell it as the attribute is, or set it in open(): without it a restart begins anew",
                    )
                )

    def _note_overwritten(self) -> None:
        """Tell the host which remembered attributes ``open`` has set to another value."""
        for name, value in self._remembered.items():
            if value is not None and not _is_equal(getattr(self._spout, name, None), value):
                self._reporter.note_overwritten(name)
        self._remembered = {}


def _check_keep_alive(secs: object) -> None:
    """``set_spout`` has looked at it, and ``open`` may set it."""
    if secs is None:
        return
    if isinstance(secs, bool) or not isinstance(secs, Real) or not 0 < float(secs) < math.inf:
        raise MisuseError(
            f"open() set keep_alive_secs to {short_repr(secs)}",
            "the spout's open()",
            "give it seconds, more than 0; None for never",
        )


def opening_error(component: str, task: int, error: BaseException) -> SpoutError:
    """The error that stops the topology where ``open`` raised this."""
    return SpoutError(
        f"spout {component!r} could not be opened: {type(error).__name__}: {error}",
        f"task {task}, open()",
        "correct what the exception says and submit again; nothing was emitted",
    )


def _is_equal(now: object, before: object) -> bool:
    """Whether a value is the one before, or equal to it; true where that cannot be told."""
    if now is before:
        return True
    with suppress(Exception, SystemExit):  # user code; and arrays, which compare their elements
        if now == before:
            return True
    try:
        return durable.dumps(now) == durable.dumps(before)
    except (Exception, SystemExit):  # noqa: BLE001  # the next hand-over says that it cannot be saved
        return True
