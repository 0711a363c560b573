"""The event stream: the overview once a second, made once for all who read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from acktree.ui.web import ours
from acktree.ui.web.requests import error_answer
from acktree.ui.web.sources import Seen, Sources

__all__ = ["ENDLESS", "Streams"]

ENDLESS: Final = "acktree.endless"
"""The key of a request's scope whose answer has no end: it is not waited for when the server stops."""

_STREAM_SECS: Final = 1.0
_MOST_STREAMS: Final = 64
"""Each open tab reads one. The page of a tab that gets none asks instead."""


class Streams:
    """All event streams of this server."""

    def __init__(self, sources: Sources) -> None:
        """Stream the overview of these topologies."""
        self._sources = sources
        self._making = asyncio.Lock()
        self._seen: tuple[Seen, ...] | None = None
        self._event = b""
        self.open_count = 0

    def answer(self) -> Response:
        """A stream; 503 where too many are read already, so that other requests are answered in time."""
        if self.open_count >= _MOST_STREAMS:
            return error_answer(
                503, "Service Unavailable", f"{self.open_count} event streams are read already",
                fix="close some, or ask /api/acktree/v1/topologies",
            )  # fmt: skip
        return _Stream(self)

    async def events(self) -> AsyncIterator[bytes]:
        """One event a second; each reader gets the newest, so a slow one misses some and none pile up."""
        yield b"retry: 2000\n\n"
        while True:
            yield await self._newest()
            await asyncio.sleep(_STREAM_SECS)

    async def _newest(self) -> bytes:
        """The newest event. One thread asks the drivers, however many readers wait for it."""
        async with self._making:
            seen = await run_in_threadpool(self._sources.all)
            if seen is not self._seen:
                self._event = await run_in_threadpool(_event, seen)
                self._seen = seen
            return self._event


class _Stream(StreamingResponse):
    """One stream, counted while it is read. It ends when its reader goes."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams.events(), media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open_count += 1
        scope[ENDLESS] = True
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open_count -= 1


def _event(seen: tuple[Seen, ...]) -> bytes:
    name = ",".join(f"{each.snapshot.run}-{each.snapshot.batch_id}" for each in seen)
    data = json.dumps(ours.overview(seen), separators=(",", ":"))
    return f"id: {name}\nevent: snapshot\ndata: {data}\n\n".encode()
