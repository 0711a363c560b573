"""Worker hooks in one process: started before its first bolt, shut down when it ends in order.

A forked child starts hooks of its own: it must not use its parent's connections. What it inherited is kept
alive there, since a finaliser in the child could close a socket that both processes share.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final

from acktree.config import Config
from acktree.core.data.hooks import WorkerContext, WorkerHook
from acktree.errors import HookError
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text

_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
"""What Spark ends its Python workers with, when it does not kill them."""


class WorkerHooks:
    """The worker hooks of one run, in this process."""

    def __init__(self, pickled: bytes, config: Config, topology: str) -> None:
        """Start nothing yet.

        Args:
            pickled: The hooks.
            config: What they are started with.
            topology: The topology's name.
        """
        self._pickled, self._config, self._topology = pickled, config, topology
        self._pid = -1
        self._started: list[WorkerHook] = []
        self._resources: dict[str, Any] = {}
        self._inherited: list[object] = []

    @property
    def resources(self) -> Mapping[str, Any]:
        """What hooks have set in this process, by name."""
        return self._resources if self._pid == os.getpid() else {}

    def begin(self) -> list[HookError]:
        """Start the hooks, at the first call in this process. Returns what they raised."""
        if self._pid == os.getpid():
            return []
        self._inherited.append((self._started, self._resources))
        self._pid, self._started, self._resources = os.getpid(), [], {}
        try:
            hooks: tuple[WorkerHook, ...] = pickle.loads(self._pickled)
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            return [self._hook_error("the worker hooks", "be unpickled here", error)]
        raised: list[HookError] = []
        context = WorkerContext(self._topology, self._resources)
        for hook in hooks:
            try:
                hook.start(self._config, context)
            except BaseException as error:  # noqa: BLE001  # user code
                pass_on(error)
                raised.append(self._hook_error(f"worker hook {type(hook).__name__}", "start", error))
            else:
                self._started.append(hook)
        return raised

    def end(self) -> list[HookError]:
        """Shut down what was started in this process, the last one first. Returns what they raised."""
        if self._pid != os.getpid():
            return []
        hooks, self._started, self._pid = self._started, [], -1
        raised: list[HookError] = []
        for hook in reversed(hooks):
            try:
                hook.shutdown()
            except BaseException as error:  # noqa: BLE001  # user code
                pass_on(error)
                raised.append(self._hook_error(f"worker hook {type(hook).__name__}", "shut down", error))
        return raised

    def end_with_process(self) -> None:
        """Shut down when a signal ends this process, unless user code handles that signal.

        Spark's worker resets the handlers when a Spark task begins, so this is called when one is done.
        """
        if not self._started or current_thread() is not main_thread():
            return
        for number in _ENDINGS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end_now)

    def _end_now(self, number: int, _: FrameType | None) -> None:
        """The handler of a signal."""
        self.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _hook_error(self, who: str, doing: str, error: BaseException) -> HookError:
        reported = HookError(
            f"{who} could not {doing}: {error_text(error)}",
            f"topology {self._topology!r}, process {os.getpid()}",
            "correct what the exception says; the other hooks and the bolts go on",
        )
        reported.__cause__ = error
        return reported
