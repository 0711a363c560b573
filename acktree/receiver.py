"""A receiving thread for spouts whose client blocks, or uses asyncio.

Rules of this file
------------------
1. At most ``most`` items wait; while there is no room, nothing is received.
2. An exception of ``receive``, of any class, is raised by :meth:`Receiver.get` on the spout's thread, after
   the items that came before it. Nothing is received until then. Only ``close`` ends the thread.
3. ``receive`` and coroutines run on the receiver's thread. The methods that a spout calls return at once,
   except :meth:`Receiver.call` and :meth:`Receiver.close`.

Source: ours. Storm's spouts start such threads by hand.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:  # its import is slow, and `import acktree` must stay quick
    import asyncio

T = TypeVar("T")
R = TypeVar("R")

__all__ = ["Receiver"]

_CLOSE_SECS: Final = 5.0


class Receiver(Generic[T]):
    """Receives items on a separate thread, for a spout that emits them on its own.

    ::

        def open(self, config, context, collector):
            self.receiver = Receiver(self.poll, most=1000, wake=collector.wake)

        def poll(self):                       # on the receiver's thread; may block for some seconds
            return self.client.receive_message(WaitTimeSeconds=20).get("Messages", [])

        def next_tuple(self):
            message = self.receiver.get()     # None when nothing is there
            if message is not None: ...

        def close(self):
            self.receiver.close()

    Args:
        receive: Returns the items that came, perhaps none, or None; called again and again, so it must wait
            for some when there are none. A coroutine function runs on the thread's event loop, as do the
            coroutines given to :meth:`call`.
        most: How many items may wait: ``receive`` is not called while there are as many. A single call may
            return more.
        wake: Called when items have come: ``collector.wake``.
    """

    def __init__(
        self,
        receive: Callable[[], Sequence[T] | None] | Callable[[], Awaitable[Sequence[T] | None]],
        *,
        most: int = 1000,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._receive, self._most, self._wake = receive, most, wake
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = Condition()
        self._loop = _new_loop() if inspect.iscoroutinefunction(receive) else None
        self._receiving: asyncio.Task[Any] | None = None
        self._room: asyncio.Event | None = None  # what the loop waits for while there is no room
        self._thread = Thread(target=self._run, name="acktree receiver", daemon=True)
        self._thread.start()

    def get(self) -> T | None:
        """The next item; None when there is none. Raises what ``receive`` raised, once."""
        with self._changed:
            if self._items:
                item = self._items.popleft()
                self._notify()
                return item
            error, self._error = self._error, None
            if error is not None:
                self._notify()
                raise error
        return None

    def clear(self) -> list[T]:
        """Remove and return all waiting items. For when their connection is gone."""
        with self._changed:
            items = list(self._items)
            self._items.clear()
            self._notify()
        return items

    def waiting(self) -> list[T]:
        """The waiting items, in order; they stay. For leases that have to be extended."""
        with self._changed:
            return list(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def call(self, coroutine: Coroutine[Any, Any, R], timeout_secs: float) -> R:
        """Run a coroutine on the thread's event loop, beside ``receive``, and wait for its result.

        Raises:
            TimeoutError: It took longer, and was cancelled.
            Exception: What the coroutine raises.
        """
        assert self._loop is not None, "receive is no coroutine function"
        import asyncio  # noqa: PLC0415  # see above

        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result(timeout_secs)
        except TimeoutError:
            running.cancel()
            raise

    def close(self, timeout_secs: float = _CLOSE_SECS) -> bool:
        """Stop receiving. True when the thread has ended; False when ``receive`` still blocks."""
        with self._changed:
            self._is_closed = True
            self._notify()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()

    def _run(self) -> None:
        if self._loop is None:
            while self._has_room():
                self._take()
            return
        import asyncio  # noqa: PLC0415  # see above

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type,return-value]
            runner.run(self._run_on_loop())

    async def _run_on_loop(self) -> None:
        import asyncio  # noqa: PLC0415  # see above

        while await self._has_room_later():
            self._receiving = asyncio.ensure_future(self._take_later())
            with suppress(asyncio.CancelledError):  # closed before it began
                await self._receiving

    def _take(self) -> None:
        try:
            self._put(self._receive())  # type: ignore[arg-type]  # no coroutine function
        except BaseException as error:  # noqa: BLE001  # raised by get()
            self._put_error(error)

    async def _take_later(self) -> None:
        """The same on the event loop. A SystemExit that left this coroutine would end the loop."""
        import asyncio  # noqa: PLC0415  # see above

        try:
            self._put(await self._receive())  # type: ignore[misc]  # a coroutine function
        except BaseException as error:  # noqa: BLE001  # raised by get()
            if not (self._is_closed and isinstance(error, asyncio.CancelledError)):
                self._put_error(error)

    def _put(self, given: Sequence[T] | None) -> None:
        items = _items_of(given)
        with self._changed:
            self._items.extend(items)
        if items:
            self._wake()

    def _put_error(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
        with suppress(Exception):  # a `wake` that raises is the error, or is called again with the next one
            self._wake()

    def _has_room(self) -> bool:
        """Wait until there is room. False when it is closed."""
        with self._changed:
            self._changed.wait_for(self._may_go_on)
            return not self._is_closed

    async def _has_room_later(self) -> bool:
        """The same on the event loop, without a blocked thread, which would keep the process alive."""
        import asyncio  # noqa: PLC0415  # see above

        with self._changed:
            if self._may_go_on():
                return not self._is_closed
            self._room = room = asyncio.Event()
        await room.wait()
        return not self._is_closed

    def _may_go_on(self) -> bool:
        return self._is_closed or (self._error is None and len(self._items) < self._most)

    def _notify(self) -> None:
        """Wake those that wait for room; called with the lock held, after a change."""
        self._changed.notify_all()
        if self._room is not None and self._loop is not None and self._may_go_on():
            self._loop.call_soon_threadsafe(self._room.set)
            self._room = None


def _items_of(given: object) -> list[Any]:
    """What ``receive`` returned, as a list. Raises TypeError where it cannot be one."""
    if given is None:
        return []
    if not isinstance(given, Iterable):
        if inspect.iscoroutine(given):
            given.close()  # else Python warns that nobody awaits it
        what = f"receive returned {type(given).__name__!r}, and not the items that came"
        fix = "return a list, or None where nothing came; make a function that awaits with `async def`"
        raise TypeError(f"{what}: {fix}")
    return list(given)


def _new_loop() -> asyncio.AbstractEventLoop:
    import asyncio  # noqa: PLC0415  # see above

    return asyncio.new_event_loop()
