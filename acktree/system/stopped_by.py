"""What stops more than the user code that it is raised in: Ctrl-C, a signal, the end of a level.

What user code raises is data, whatever class it has: ``asyncio.CancelledError``, ``SystemExit``, a library's
own ``BaseException``. So whoever calls user code catches ``BaseException``, and gives it to :func:`pass_on`
first, which raises again what is no error of that code.
"""

from __future__ import annotations

import dis
import signal
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Final

_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_RUNNERS: Final = "asyncio.runners"


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
    limit), or if a coroutine is closed; nor if it holds one of these (a group, or ``sys.exit`` on Ctrl-C).
    An ``Exception`` of a handler belongs to the code that it interrupts.
    """
    if not isinstance(raised, Exception) and _is_from_outside(raised):
        raise raised


def _is_from_outside(raised: BaseException) -> bool:
    if isinstance(raised, EndOfLevelError | StoppedBySignal):
        return True
    if isinstance(raised, BaseExceptionGroup):
        return any(map(_is_from_outside, raised.exceptions))
    steps = [*_steps(raised.__traceback__)]
    may_be_of_python = isinstance(raised, KeyboardInterrupt | GeneratorExit)
    if may_be_of_python and steps and not _is_by_user(steps[-1]):
        return True
    codes = {*map(_code_of, map(signal.getsignal, signal.valid_signals()))}
    if any(step.tb_frame.f_code in codes for step in steps):
        return True
    return isinstance(raised.__context__, KeyboardInterrupt) and _is_from_outside(raised.__context__)


def _is_by_user(step: TracebackType) -> bool:
    """Whether a ``raise`` of user code raised it. Python itself does it between any two opcodes.

    ``asyncio.run`` raises an interrupt again.
    """
    frame = step.tb_frame
    return frame.f_code.co_code[step.tb_lasti] == _RAISE and frame.f_globals.get("__name__") != _RUNNERS


def _code_of(handler: object) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    call = getattr(type(handler), "__call__", None)  # noqa: B004  # its code is asked for
    return getattr(handler, "__code__", None) or getattr(call, "__code__", None)


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next
