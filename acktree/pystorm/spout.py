"""The base classes of spouts."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

from acktree.pystorm.component import Component
from acktree.pystorm.exceptions import ComponentValueError

__all__ = ["ReliableSpout", "Spout"]


class Spout(Component):
    """A source of tuples. A tuple is tracked if it is emitted with a ``tup_id``."""

    def next_tuple(self) -> None:
        """Emit what is ready, or return. Do not block."""
        raise NotImplementedError

    def ack(self, tup_id: Any) -> None:
        """Called when every tuple of a message's tree was acked."""

    def fail(self, tup_id: Any) -> None:
        """Called when a message failed or timed out.

        A method with a second parameter that has no default, or is named ``failure``, is given the
        ``acktree.Failure`` too, if acktree hosts the spout.
        """

    def activate(self) -> None:
        """Called when tuples are wanted."""

    def deactivate(self) -> None:
        """Called when no tuples are wanted."""

    def emit(  # type: ignore[override]  # pystorm's: a spout's tuples have no anchors
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: Any = None,
        need_task_ids: bool = False,
    ) -> list[Any] | None:
        """Emit a tuple; see :meth:`Component.emit`."""
        return Component.emit(
            self, tup, tup_id=tup_id, stream=stream, direct_task=direct_task, need_task_ids=need_task_ids
        )

    def _run(self) -> None:
        message = self.read_command()
        command = message["command"]
        if command == "next":
            self.next_tuple()
        elif command == "ack":
            self.ack(message["id"])
        elif command == "fail":
            _call_fail(self, message)
        elif command == "activate":
            self.activate()
        elif command == "deactivate":
            self.deactivate()
        else:
            self.logger.error("Received invalid command from Storm: %r", message)
        self.send_message({"command": "sync"})


class ReliableSpout(Spout):
    """A spout that emits a failed message again, at once, up to ``max_fails`` times.

    Attributes:
        max_fails: How often a message may fail and be emitted again.
        failed_tuples: How often each open message failed.
        unacked_tuples: The arguments of each open message's emit, by its id.
    """

    max_fails = 3

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.failed_tuples: Counter[Any] = Counter()
        self.unacked_tuples: dict[Any, tuple[Any, ...]] = {}

    def ack(self, tup_id: Any) -> None:
        """Forget a message."""
        self.failed_tuples.pop(tup_id, None)
        if self.unacked_tuples.pop(tup_id, None) is None:
            self.logger.error("Received ack for unknown tuple ID: %r", tup_id)

    def fail(self, tup_id: Any) -> None:
        """Emit a message again; give it up when it failed more than ``max_fails`` times."""
        saved = self.unacked_tuples.get(tup_id)
        if saved is None:
            self.logger.error("Received fail for unknown tuple ID: %r", tup_id)
        elif self.failed_tuples[tup_id] < self.max_fails:
            tup, stream, direct_task, need_task_ids = saved
            self.failed_tuples[tup_id] += 1
            self.emit(tup, tup_id=tup_id, stream=stream, direct_task=direct_task, need_task_ids=need_task_ids)
        else:
            text = f"message {tup_id!r} is given up: it failed more often than max_fails = {self.max_fails}"
            self.send_message({"command": "error", "msg": text})
            self.ack(tup_id)

    def emit(  # type: ignore[override]  # as Spout's
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: Any = None,
        need_task_ids: bool = False,
    ) -> list[Any] | None:
        """Emit a message, and note how.

        Raises:
            ValueError: It has no ``tup_id``.
        """
        if tup_id is None:
            raise ComponentValueError(
                "a ReliableSpout emits a tuple without tup_id, so it could not be emitted again",
                f"component {self.component_name!r}, emit({tup!r:.60})", "write emit(values, tup_id=...)",
            )  # fmt: skip
        self.unacked_tuples[tup_id] = (tup, stream, direct_task, need_task_ids)
        return super().emit(tup, tup_id, stream, direct_task, need_task_ids)

    def send_message(self, message: Any) -> None:
        """Send a message; an emit after the first of its message says which attempt it is."""
        if isinstance(message, dict) and message.get("command") == "emit":
            failed = self.failed_tuples.get(message.get("id"), 0)
            if failed:
                message["attempt"] = failed + 1
        super().send_message(message)


def _call_fail(spout: Spout, message: dict[str, Any]) -> None:
    failure = message.get("failure")
    if failure is not None and takes_failure(spout.fail):
        spout.fail(message["id"], failure)  # type: ignore[call-arg]  # it takes one
    else:
        spout.fail(message["id"])


def takes_failure(fail: Any) -> bool:
    """Whether a spout's ``fail`` asks for the failure: its second parameter has no default, or that name.

    A program of pystorm may have a second one with a default, or ``*args``, for something of its own.
    """
    try:
        second = [*inspect.signature(fail).parameters.values()][1]
    except (IndexError, TypeError, ValueError):
        return False
    is_asked_for = second.default is second.empty or second.name == "failure"
    return is_asked_for and second.kind in {second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD}
