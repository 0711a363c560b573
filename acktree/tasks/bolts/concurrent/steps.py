"""Where coroutines of user code are called, one step at a time, with the execution mark of their row.

This module calls user code and no other code outside of acktree: the watchdog interrupts user code here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol


class Marks(Protocol):
    """Sets the execution mark of a coroutine's row around each of its steps."""

    def resume(self) -> bool:
        """Called before a step. False: the coroutine was given up, and is not marked any more."""

    def pause(self) -> None:
        """Called after a step, unless it ends the process."""


class MarkedSteps(Coroutine[Any, Any, None]):
    """A coroutine whose every step is marked: if a step ends or blocks the process, its row is known."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], marks: Marks) -> None:
        self._coroutine, self._marks = coroutine, marks

    def send(self, value: object) -> Any:  # noqa: ANN401  # what the coroutine awaits
        return self._step(self._coroutine.send, value)

    def throw(
        self,
        kind: Any,  # noqa: ANN401  # as of a coroutine
        value: BaseException | object = None,
        traceback: TracebackType | None = None,  # noqa: ARG002  # Python 3.12 deprecates three arguments
    ) -> Any:  # noqa: ANN401
        raised = value if isinstance(value, BaseException) else kind
        return self._step(self._coroutine.throw, raised)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def _step(self, step: Callable[[Any], Any], given: object) -> Any:  # noqa: ANN401
        marks = self._marks
        if not marks.resume():
            return step(given)
        try:
            awaited_value = step(given)
        except (KeyboardInterrupt, SystemExit):
            raise  # the mark stays: this ends the process
        except BaseException:
            marks.pause()
            raise
        marks.pause()
        return awaited_value


async def awaited(execute: Callable[..., Awaitable[None]], *given: object) -> None:
    """Await ``execute`` of a bolt."""
    await execute(*given)


async def call_hook(hook: Callable[..., object], *given: object) -> None:
    """Call another hook of an asynchronous bolt on the loop, and await it if it is asynchronous."""
    returned = hook(*given)
    if inspect.isawaitable(returned):
        await returned
