"""The socket of the driver's door: HTTP with JSON bodies, for the driver's own user alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import SHUT_RDWR
from socketserver import ThreadingUnixStreamServer
from threading import BoundedSemaphore
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from acktree.errors import AcktreeError, ConfigError
from acktree.logs.loggers import logger
from acktree.system.forks import close_in_children, note_closed
from acktree.texts import error_text
from acktree.ui import letters
from acktree.ui.door_routes import RefusedError, Routes, json_of
from acktree.ui.known_names import order_of
from acktree.ui.order_log import BY, door_named
from acktree.ui.places import peer_user

log = logger("acktree")

_MOST_BODY: Final = 1 << 20
_MOST_REQUESTS: Final = 32
_LOOK_SECS: Final = 2.0
"""How often it is looked whether the topology stops, on systems where :meth:`DoorServer.shutdown` wakes
nobody."""
_QUIET_SECS: Final = 10.0
"""How long a connection may say nothing."""


class DoorServer(ThreadingUnixStreamServer):
    """Accepts connections of the driver's own user: a thread for each, and a limited number at once."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: Path, routes: Routes) -> None:
        self.routes = routes
        self._free = BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(str(path), _Handler)
        close_in_children(self.fileno())
        path.chmod(0o600)  # the folder is private, so nobody came before this

    def serve(self) -> None:
        """Accept connections until :meth:`shutdown`."""
        self.serve_forever(_LOOK_SECS)

    def shutdown(self) -> None:
        """End :meth:`serve`, and wait for that."""
        with suppress(OSError):  # not every system can shut down a socket that listens
            self.socket.shutdown(SHUT_RDWR)  # it wakes the thread that waits for a connection
        super().shutdown()

    def server_close(self) -> None:
        """Listen no more."""
        note_closed(self.fileno())
        super().server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002
        """Whether the peer is the driver's own user, and there is room for one more."""
        uid = peer_user(request)
        if uid is not None and uid != os.geteuid():
            log.warning("door: a connection of user %s was refused", uid)
            return False
        return self._free.acquire(timeout=1)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer one connection, then make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002
        """A peer that hangs up is no error of the driver's."""
        log.debug("door: a connection ended early")


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.0"
    timeout = _QUIET_SECS
    server: DoorServer

    def do_GET(self) -> None:  # the name that http.server calls
        """Answer a question."""
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        self._answer(lambda: self.server.routes.get(url.path, query))

    def do_POST(self) -> None:
        """Carry out an order."""
        routes, path, by = self.server.routes, urlsplit(self.path).path, door_named(self.headers.get(BY))

        def carried_out() -> bytes:
            try:
                given = self._body()
            except ValueError as error:
                refused = ConfigError(
                    f"the order cannot be read: {error}", path, "send a JSON object, with texts in UTF-8"
                )
                routes.refuse(path, refused, by)
                raise refused from error
            return routes.post(path, given, by)

        self._answer(carried_out)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base names it
        """Nothing: orders are logged where they are carried out."""

    def _answer(self, make: Callable[[], bytes]) -> None:
        status = 200
        try:
            body = make()
        except RefusedError as refused:
            status, body = refused.status, json_of(refused.said)
        except letters.LettersChangedError as changed:
            status, body = changed.status, json_of(_error_of(changed))
        except AcktreeError as error:
            status, body = 400, json_of(_error_of(error))
        except (ValueError, TypeError) as error:
            status = 400
            body = json_of({"error": f"the request cannot be read: {error}", "where": self.path, "fix": ""})
        except (ConnectionError, TimeoutError):  # the peer hung up, or said nothing for too long
            raise
        except Exception as error:
            log.exception("door: %s could not be answered", self.path)
            status = 500
            body = json_of({"error": error_text(error), "where": self.path, "fix": "see the driver's log"})
        with suppress(OSError):  # it may have hung up
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _MOST_BODY:
            raise ValueError(f"a body of {length} bytes")
        return order_of(self.rfile.read(length))


def _error_of(error: AcktreeError) -> dict[str, str]:
    return {"error": error.what, "where": error.where, "fix": error.fix}
