"""Kills child processes that a signal has stopped for too long: their micro-batch would never end.

A worker that SIGSTOP has stopped cannot interrupt or end itself: its watchdog is stopped with it. So its
parent looks once a second: Spark's daemon, or the process that runs a level in isolation. The message of a
worker that was killed is found by its execution mark. A worker that continues in time goes on.

Source: Storm's supervisor ends a worker without a heartbeat for ``supervisor.worker.timeout.secs``, 30.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from acktree.system.processes import STOPPED, TRACED, state_and_start

STOPPED_SECS: Final = 30.0
"""How long a child may be stopped."""
_LOOK_SECS: Final = 1.0
_STDERR: Final = 2


class StoppedChildren:
    """The children of this process that are stopped. Their exits are not waited for here."""

    def __init__(self, child: int | None = None) -> None:
        """Watch children from now on.

        Args:
            child: The process id of the only one to watch; None for all.
        """
        self._child = child
        self._seen: dict[int, tuple[float, str]] = {}
        """Process id -> when it was first seen stopped, and when it was started."""

    def kill_overdue(self) -> bool:
        """Kill each child that has been stopped for longer than ``STOPPED_SECS``; whether there was one."""
        self._note_changes()
        now = time.monotonic()
        overdue = [child for child, (since, _) in self._seen.items() if now - since > STOPPED_SECS]
        killed = [child for child in overdue if self._is_killed(child)]
        return bool(killed)

    def _note_changes(self) -> None:
        """Note who has stopped or continued since the last look. The kernel tells each change once."""
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return
        which = (os.P_ALL, 0) if self._child is None else (os.P_PID, self._child)
        with suppress(ChildProcessError):  # there is no child
            while change := os.waitid(*which, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                if change.si_code == os.CLD_STOPPED:
                    _, started = state_and_start(change.si_pid)
                    self._seen[change.si_pid] = time.monotonic(), started
                else:
                    self._seen.pop(change.si_pid, None)

    def _is_killed(self, child: int) -> bool:
        _, started = self._seen.pop(child)
        state, start = state_and_start(child)
        if start != started:  # it has ended
            return False
        if state == TRACED:  # the debugger may go and leave it stopped, of which the kernel tells nothing
            self._seen[child] = time.monotonic(), started
        if state != STOPPED:
            return False
        try:
            os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            os.kill(child, signal.SIGKILL)
        except OSError:  # it is no child any more, or another user's
            return False
        with suppress(OSError):  # user code may have closed it
            told = f"acktree: process {child} was stopped for {STOPPED_SECS:g} s: it is killed\n"
            os.write(_STDERR, told.encode())
        return True


class ChildWatch:
    """Looks after one child from a thread, while this process waits for what the child sends.

    The wait ends with the child, also if the child is stopped in the middle of it, or if processes that the
    child has forked keep its end of the connection.
    """

    def __init__(self, child: int, connection: int) -> None:
        """Begin to look.

        Args:
            child: Its process id.
            connection: The descriptor of this process' end of a socket to it. It stays open until
                :meth:`end`.
        """
        self.was_stopped = False
        """Whether the child was killed because it was stopped."""
        self._child, self._connection = child, connection
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="acktree-child-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more. No thread of it is left: this process may fork."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        stopped = StoppedChildren(self._child)
        while not self._is_over.wait(_LOOK_SECS):
            self.was_stopped = stopped.kill_overdue() or self.was_stopped
            if self._has_ended():
                with suppress(OSError), socket.socket(fileno=os.dup(self._connection)) as ours:
                    ours.shutdown(socket.SHUT_RDWR)  # what it has sent can still be read
                return

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


def stopped_in_words() -> str:
    """How a child that was stopped for too long ended, as a text for people."""
    return f"its worker was stopped for {STOPPED_SECS:g} s and killed"
