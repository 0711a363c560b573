"""The event stream: the newest numbers once a second, made once for all who read them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from acktree.errors import AcktreeError, MisuseError
from acktree.ui.snapshot import for_browsers
from acktree.ui.web import ours
from acktree.ui.web.requests import error_answer
from acktree.ui.web.sources import Seen, Sources, UnknownTopologyError, door_of

ENDLESS: Final = "acktree.endless"
"""The key of a request's scope whose answer has no end: it is not waited for when the server stops."""

_STREAM_SECS: Final = 1.0
_OLDEST: Final = 8
"""How many open messages a view of a topology lists."""
_MOST_STREAMS: Final = 64
"""Each open tab reads one. The page of a tab that gets none asks instead."""


class Streams:
    """All event streams of this server. All are written to at the same moment of each second.

    A stream that names a topology has its whole answer too, as an event before the overview: a tab that shows
    it asks for nothing else.

    Each event is the whole newest state. So a reader that comes again has missed nothing, and the id that it
    sends (``Last-Event-ID``) is not read. One that takes nothing is closed: see ``connections.py``.
    """

    def __init__(self, sources: Sources) -> None:
        """Stream the overview of these topologies."""
        self._sources = sources
        self._making = asyncio.Lock()
        self._made: tuple[tuple[Seen, ...], dict[str | None, bytes]] = ((), {})
        self._named: Counter[str | None] = Counter()

    def answer(self, named: str | None) -> Response:
        """A stream; 503 where too many are read already, so that other requests are answered in time.

        Args:
            named: The id or name of the topology that its reader shows.
        """
        if (many := self._named.total()) >= _MOST_STREAMS:
            return error_answer(
                503, "Service Unavailable", f"{many} event streams are read already",
                fix="close some, or ask /api/acktree/v1/topologies",
            )  # fmt: skip
        return _Stream(self._events(named), self._named, named)

    async def _events(self, named: str | None) -> AsyncIterator[bytes]:
        """The newest once a second: a slow reader misses some, and none pile up.

        It is asked for the next when its reader has taken most of the last.
        """
        yield b"retry: 2000\n\n"
        while True:
            yield await self._newest(named)
            await asyncio.sleep(_STREAM_SECS - asyncio.get_running_loop().time() % _STREAM_SECS)

    async def _newest(self, named: str | None) -> bytes:
        """The newest events for a reader. One thread makes those of all, however many wait for it."""
        async with self._making:
            seen, events = self._made
            if named not in events or not self._sources.is_newest(seen):
                self._made = seen, events = await run_in_threadpool(self._make, {named, *self._named})
            return events[named]

    def _make(self, named: Iterable[str | None]) -> tuple[tuple[Seen, ...], dict[str | None, bytes]]:
        seen = self._sources.all()
        overview = _overview(seen)
        return seen, {each: self._topology(each) + overview for each in named}

    def _topology(self, named: str | None) -> bytes:
        """The event of a topology, with its oldest open messages; none where the name names none."""
        if named is None:
            return b""
        try:
            seen = self._sources.one(named)
        except (UnknownTopologyError, MisuseError):
            return b""
        shown = ours.topology(seen) | {"oldest": _oldest(seen)}
        return _event("topology", json.dumps(shown, separators=(",", ":")))


class _Stream(StreamingResponse):
    """One stream, counted while it is read. It ends when its reader goes."""

    def __init__(self, events: AsyncIterator[bytes], readers: Counter[str | None], named: str | None) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._readers, self._named = readers, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._readers[self._named] += 1
        scope[ENDLESS] = True
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._readers[self._named] -= 1
            self._readers += Counter()  # without those that nobody reads


def _oldest(seen: Seen) -> list[dict[str, Any]]:
    """The oldest open messages; none of a driver that does not answer."""
    if not seen.is_running:
        return []
    try:
        return list(door_of(seen.found).get("open", {"limit": _OLDEST})["open"])
    except (AcktreeError, TimeoutError):
        return []


def _overview(seen: tuple[Seen, ...]) -> bytes:
    name = ",".join(f"{each.snapshot.run}-{each.snapshot.batch_id}" for each in seen)
    return f"id: {name}\n".encode() + _event("snapshot", ours.overview(seen))


def _event(kind: str, text: str) -> bytes:
    return f"event: {kind}\ndata: {for_browsers(text)}\n\n".encode()
