"""Turns: in a bolt with threads, one call at a time has what the bolt remembers.

A call takes its turn when it first touches a remembered attribute, and keeps it until it ends. So a value
that it reads, changes and writes is changed by no other call meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition, Lock
from time import perf_counter
from typing import Any

from acktree.errors import MisuseError
from acktree.tasks.bolts.concurrent.calls import Call, current_call


class Turns:
    """Who may touch the remembered attributes of one bolt.

    Attributes:
        owner: The call whose turn it is.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_free = Condition(self._lock)
        self._is_executing = False
        self.owner: Call | None = None

    def watch(self, bolt: object, names: Iterable[str]) -> None:
        """From now on each access to these attributes of ``bolt`` takes a turn."""
        kind: Any = type(bolt)
        body: dict[str, Any] = {"__slots__": (), "__module__": kind.__module__}
        bolt.__class__ = type(kind.__name__, (kind,), body | {name: self._attribute(name) for name in names})

    def begin(self) -> None:
        """Called before calls run."""
        self._is_executing = True

    def end(self) -> None:
        """Called when all calls have ended."""
        self._is_executing = False

    def take(self, name: str) -> None:
        """Wait until it is the turn of the call that this code belongs to.

        Raises:
            MisuseError: This thread belongs to no call, or its call is over.
        """
        call = current_call.get(None)
        if call is None:
            if self._is_executing:
                raise MisuseError(
                    f"the remembered attribute {name!r} was touched by a thread that belongs to no tuple",
                    "a bolt with threads",
                    "touch it in execute() itself, or run the thread in contextvars.copy_context()",
                )
            return
        if self.owner is call:
            return
        with self._lock:
            call.refuse_if_over(f"touched the remembered attribute {name!r}")
            while self.owner is not None and self.owner is not call:
                call.waiting_since = since = perf_counter()
                self._is_free.wait()
                call.waiting_since = None
                call.waited_secs += perf_counter() - since
                call.refuse_if_over(f"touched the remembered attribute {name!r}")
            self.owner = call

    def give_back(self, call: Call) -> None:
        """End the turn of a call, if it has it."""
        with self._lock:
            if self.owner is call:
                self.owner = None
                self._is_free.notify_all()  # all: one that was given up meanwhile does not take it

    def leave_behind(self, call: Call, interrupt: Callable[[], None]) -> bool:
        """Interrupt the thread of a call that is over, unless it has the turn. Returns whether it has not.

        A thread that waits for its turn is not interrupted: it is refused when the turn comes. An exception
        at that moment would leave the turn with nobody to end it.
        """
        with self._lock:
            if self.owner is call:
                return False
            if call.waiting_since is None:
                interrupt()
        return True

    def _attribute(self, name: str) -> property:
        def read(bolt: object) -> Any:  # noqa: ANN401  # what the user remembers
            self.take(name)
            try:
                return bolt.__dict__[name]
            except KeyError:
                raise AttributeError(name) from None

        def write(bolt: object, value: object) -> None:
            self.take(name)
            bolt.__dict__[name] = value

        return property(read, write)
