"""Connections of the page's server: those without the token keep nobody out who has it.

Rules of this file
------------------
1. Every user of the machine can connect, so nothing counts all connections and refuses the next one.
2. A connection is trusted once a request with the token has come on it. Of the others there are at most
   :data:`_MOST_UNTRUSTED`: a new one closes the oldest. A reader sends its token at once, so it is never the
   oldest for long.
3. A connection on which no complete request head comes in :data:`_HEAD_SECS` is closed, trusted or not: a
   request that is sent a byte at a time is none.
4. Who is not trusted takes its answer in :data:`_ANSWER_SECS`, or is closed.
5. Who takes nothing of an answer for :data:`_STUCK_SECS` is closed, trusted or not. Until then at most one
   event and twice :data:`_MOST_BUFFERED` wait for it: an answer is not written on while its reader is behind.
   The kernel shows what was taken in steps of some 40 kB, so a slower reader than that is closed too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from acktree.system.processes import most_files
from acktree.ui.web.guard import TRUSTED
from acktree.ui.web.streams import ENDLESS

_MOST_UNTRUSTED: Final = min(256, most_files() // 4)
"""Far fewer than this process may have open: who has the token, and drivers, find room."""
BACKLOG: Final = max(1, _MOST_UNTRUSTED // 2)
"""How many connections the system lets wait, and the server accepts at once: fewer than may stay."""
_HEAD_SECS: Final = 10.0
"""Longer than a connection is kept alive for its next request."""
_ANSWER_SECS: Final = 30.0
_MOST_BUFFERED: Final = 65_536
"""Bytes that asyncio takes before an answer waits; with TLS twice, before and after they are encrypted."""
_STUCK_SECS: Final = 60.0
"""A browser's tab that sleeps for longer asks for its stream again when it wakes."""


_UNLOGGED: Final = logging.getLogger("uvicorn.error.requests")
_UNLOGGED.setLevel(logging.ERROR)


class Connection(H11Protocol):
    """One connection: uvicorn's, with a time for each request head, and room for who has the token."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self.began = self.loop.time()
        self.logger = _UNLOGGED  # uvicorn logs each request that is none, and every user can send one
        self._is_trusted = False
        self._is_answering = False
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether a request with the token has come on it."""
        scope: Any = self.scope  # None before the first request
        self._is_trusted = self._is_trusted or (scope is not None and TRUSTED in scope)
        return self._is_trusted

    @property
    def may_be_closed(self) -> bool:
        """Whether it is open, and nobody with the token."""
        return not (self.transport.is_closing() or self.is_trusted)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for a request; where too many without the token wait already, close the oldest."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_MOST_BUFFERED)
        # In a large buffer of the kernel nothing moves for minutes while a slow reader takes its bytes.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BUFFERED)
        self._wait(_HEAD_SECS)
        untrusted = [each for each in self.connections if isinstance(each, Connection) and each.may_be_closed]
        if len(untrusted) > _MOST_UNTRUSTED:
            min(untrusted, key=lambda each: each.began).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._wait(None)
        self._stop_looking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. Only a complete request head ends the wait for one."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """The reader is behind: nothing more is written until it has taken most of what waits."""
        super().pause_writing()
        self._look_for_progress(None)

    def resume_writing(self) -> None:
        """The reader has caught up."""
        self._stop_looking()
        super().resume_writing()

    def shutdown(self) -> None:
        """The server stops: close the connection after its answer, and at once if that has no end."""
        super().shutdown()
        scope: Any = self.scope  # None before the first request
        if scope is not None and ENDLESS in scope and self._is_answering:
            self.transport.close()

    def on_response_complete(self) -> None:
        """An answer was sent: wait for the next request, or for the answer to one that came meanwhile."""
        self._is_trusted = self.is_trusted  # of the request that was answered
        self._is_answering = False
        super().on_response_complete()
        self._wait(_HEAD_SECS)
        self._watch()

    def _look_for_progress(self, before: int | None) -> None:
        """Close the connection if its reader has taken nothing since the last look."""
        waiting = self._waiting_bytes()
        if before is not None and waiting >= before:
            self.transport.abort()
            return
        self._stuck = self.loop.call_later(_STUCK_SECS, self._look_for_progress, waiting)

    def _waiting_bytes(self) -> int:
        """The bytes that the reader has not taken, those that TLS has encrypted among them."""
        below = getattr(
            getattr(self.transport, "_ssl_protocol", None), "_transport", None
        )  # as asyncio has it
        encrypted = 0 if below is None else below.get_write_buffer_size()
        return int(self.transport.get_write_buffer_size() + encrypted)

    def _stop_looking(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _watch(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and not self._is_answering:
            self._wait(_ANSWER_SECS)
        self._is_answering = is_answering

    def _wait(self, secs: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if secs is None else self.loop.call_later(secs, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        if not self.is_trusted:
            self.transport.abort()
        elif not self._is_answering:  # an event stream is answered for hours
            self.transport.close()  # after what its reader has not taken yet


class Loop(asyncio.SelectorEventLoop):
    """asyncio's, with as short a time for a handshake of TLS as for a request head."""

    async def create_server(self, *args: Any, **given: Any) -> asyncio.Server:  # noqa: ANN401
        """See asyncio; uvicorn passes no times for TLS on."""
        if given.get("ssl") is not None:
            given |= {"ssl_handshake_timeout": _HEAD_SECS, "ssl_shutdown_timeout": _HEAD_SECS}
        return await super().create_server(*args, **given)
