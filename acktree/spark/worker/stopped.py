"""Kills child processes that a signal has stopped for too long: their micro-batch would never end.

A worker that is stopped (by SIGSTOP, or by SIGTTIN of a terminal) cannot interrupt or end itself: its
watchdog is stopped with it. So its parent looks: Spark's daemon once a second, and the process that runs a
level in isolation. A worker that is killed is one that was lost, and its message is found by its mark. One
that continues in time goes on.

Source: Storm's supervisor ends a worker without a heartbeat for ``supervisor.worker.timeout.secs``, 30.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

STOPPED_SECS: Final = 30.0
"""How long a child may be stopped."""
_STDERR: Final = 2


def stopped_in_words() -> str:
    """How such a process ended, as a text for people."""
    return f"its worker was stopped for {STOPPED_SECS:g} s and killed"


class StoppedChildren:
    """The children of this process that are stopped. Their exits are not waited for here."""

    def __init__(self, child: int | None = None) -> None:
        """Watch children from now on.

        Args:
            child: The process id of the only one to watch; None for all.
        """
        self._which = (os.P_ALL, 0) if child is None else (os.P_PID, child)
        self._since: dict[int, float] = {}
        """Process id -> when it was first seen stopped."""

    def kill_overdue(self) -> bool:
        """Kill each child that has been stopped for longer than ``STOPPED_SECS``; whether there was one."""
        self._note_changes()
        now = time.monotonic()
        overdue = [child for child, since in self._since.items() if now - since > STOPPED_SECS]
        return sum(self._is_killed(child) for child in overdue) > 0

    def _note_changes(self) -> None:
        """Note who has stopped or continued since the last look. The kernel tells each change once."""
        with suppress(ChildProcessError):  # there is no child
            while change := os.waitid(*self._which, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                if change.si_code == os.CLD_STOPPED:
                    self._since[change.si_pid] = time.monotonic()
                else:
                    self._since.pop(change.si_pid, None)

    def _is_killed(self, child: int) -> bool:
        del self._since[child]
        try:
            os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # it has ended: the number may be another's
            return False
        os.kill(child, signal.SIGKILL)
        with suppress(OSError):  # user code may have closed it
            os.write(
                _STDERR, b"acktree: process %d was stopped for %g s: it is killed\n" % (child, STOPPED_SECS)
            )
        return True
