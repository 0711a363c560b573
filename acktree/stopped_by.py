"""What stops more than the user code that it is raised in: Ctrl-C, a signal, the end of a level.

What user code raises is data, whatever class it has: ``asyncio.CancelledError``, ``SystemExit``, a library's
own ``BaseException``. So whoever calls user code catches ``BaseException``, and gives it to :func:`pass_on`
first, which raises again what is no error of that code.
"""

from __future__ import annotations

import dis
import signal
from collections.abc import Iterator
from types import TracebackType
from typing import Final

__all__ = ["EndOfLevelError", "StoppedByCtrlC", "StoppedBySignal", "pass_on"]

_RAISE: Final = dis.opmap["RAISE_VARARGS"]


class EndOfLevelError(BaseException):
    """The engine cannot go on with this micro-batch: no tuple fails for it, and Spark runs the task again."""


class StoppedBySignal(SystemExit):
    """Raised in the main thread when a signal asks the process to end.

    If it is not caught, the process ends with the exit code that a shell expects, 128 + the signal's number
    (SIGTERM: 143), and prints nothing.

    Attributes:
        signal: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class StoppedByCtrlC(StoppedBySignal, KeyboardInterrupt):
    """The same for Ctrl-C (exit code 130); ``except KeyboardInterrupt`` catches it too."""


def pass_on(raised: BaseException) -> None:
    """Raise again what does not belong to the user code that it came out of: return for all else.

    It does not if it ends the level or the process, if a signal's handler raised it (Ctrl-C, a test's time
    limit), or if a coroutine is closed. An ``Exception`` of a handler belongs to the code that it interrupts.
    """
    if isinstance(raised, Exception):
        return
    if isinstance(raised, EndOfLevelError | StoppedBySignal) or _is_from_outside(raised):
        raise raised


def _is_from_outside(raised: BaseException) -> bool:
    steps = [*_steps(raised.__traceback__)]
    if isinstance(raised, KeyboardInterrupt | GeneratorExit):
        # Python itself raises them between any two opcodes; user code by a `raise`.
        return not steps or steps[-1].tb_frame.f_code.co_code[steps[-1].tb_lasti] != _RAISE
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers}
    return any(step.tb_frame.f_code in codes for step in steps)


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next
