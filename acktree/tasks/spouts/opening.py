"""Opens the spout of a task: gives it what it remembered, and calls ``open`` until its queue answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from acktree.core import durable
from acktree.errors import ConnectorError, SpoutError
from acktree.tasks.own_metrics import task_services
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.parts import SpoutParts

__all__ = ["Opening", "opening_error"]


class Opening:
    """Calls the ``open`` of one spout.

    Attributes:
        services: What the context of the last call offers to the spout: its metrics and hooks.
    """

    def __init__(self, parts: SpoutParts, collector: SpoutCollector, limit: int | None) -> None:
        """Nothing is called yet.

        Args:
            limit: How many messages of the task may be open; None: any number.
        """
        self.services = task_services()
        self._parts, self._collector, self._limit = parts, collector, limit
        self._remembered: Mapping[str, object] = {}
        """By attribute: what was set before ``open``, until that has returned."""

    def remember(self, position: bytes) -> None:
        """Set what the spout remembered with its last message of an earlier run."""
        self._remembered = durable.loads(position)
        for name, value in self._remembered.items():
            setattr(self._parts.spout, name, value)

    def open(self, open_ids: tuple[object, ...]) -> bool:
        """Call ``open``. False if the queue is away and ``open`` is to be called again.

        Args:
            open_ids: The ids of messages that an earlier run left open.

        Raises:
            Exception: What the spout raises, but for a ConnectorError that may pass.
        """
        parts = self._parts
        services = self.services = task_services()
        context = parts.plan.context(parts.component, parts.task, parts.clock, services)
        context = replace(context, open_message_ids=open_ids, max_spout_pending=self._limit)
        parts.task_hooks.begin(context, services)
        try:
            parts.spout.open(parts.plan.config, context, self._collector)
        except ConnectorError as error:
            parts.task_hooks.end()  # `open` is called again, and adds its hooks again
            if not error.can_retry:
                raise
            parts.hooks.failed(error)
            return False
        finally:
            services.close()
        self._note_overwritten()
        parts.hooks.succeeded()
        return True

    def _note_overwritten(self) -> None:
        """Tell the host which remembered attributes ``open`` has set to another value."""
        for name, value in self._remembered.items():
            if value is not None and not _is_equal(getattr(self._parts.spout, name, None), value):
                self._parts.host.note_overwritten(self._parts.component.id, name)
        self._remembered = {}


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
