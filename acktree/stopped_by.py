"""What Ctrl-C and SIGTERM raise in the main thread: see :mod:`acktree.driver.signals`."""

from __future__ import annotations

import signal

__all__ = ["StoppedByCtrlC", "StoppedBySignal"]


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
