"""The driver's door: a Unix socket on which this user's other processes ask, and give orders.

It writes ``control.json`` and ``snapshot.json`` into the checkpoint.

It speaks HTTP with JSON bodies. Answers are made of values that are already there; orders are methods of the
running topology, called on the door's own threads.

Rules of this file
------------------
1. Nobody but the driver's own user is answered: the folder is 0700, the socket 0600, and the peer's user is
   checked where the system tells it.
2. A GET changes nothing. An order is a POST with a JSON object.
3. Nothing that arrives is unpickled, and no path of a request names a file.
4. A door that cannot be opened is logged; the topology runs without it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from acktree.driver.handle import SubmittedTopology
from acktree.driver.run import Run
from acktree.errors import AcktreeError, ConfigError
from acktree.forks import close_in_children, note_closed
from acktree.log_levels import FILE as LOG_LEVELS
from acktree.logs import logger
from acktree.private_files import Disk
from acktree.tasks.spouts.open_listing import OpenMessage
from acktree.texts import error_text, short_repr
from acktree.ui import letters, tracing
from acktree.ui.log_levels import LogLevels
from acktree.ui.observer import Observer
from acktree.ui.places import (
    POINTER,
    SNAPSHOT,
    Entry,
    key_of,
    peer_user,
    read_entry,
    runtime_folder,
    socket_path,
    write_entry,
)
from acktree.ui.snapshot import Snapshot

__all__ = ["Door"]

log = logger("acktree")

_MOST_BODY: Final = 1 << 20
_MOST_REQUESTS: Final = 32
_QUIET_SECS: Final = 10.0
"""How long a connection may say nothing."""
_MOST_OPEN: Final = 1000
_LOOK_SECS: Final = 0.1
"""How often it is looked whether the topology stops, which waits for that."""


class Door:
    """The door of one run: made with the run, opened when the run begins, closed by its supervisor.

    Args:
        disk: What files of the checkpoint are written by; None where it is at a URL, which gets none.
        version: The version of acktree.
    """

    def __init__(self, disk: Disk | None, version: str) -> None:
        self._disk, self._version = disk, version
        self._began_ms = time.time_ns() // 1_000_000
        self._observer: Observer | None = None
        self._levels = LogLevels(None if disk is None else self._write_levels)
        self._desk: _Desk | None = None
        self._server: _Server | None = None
        self._socket: Path | None = None
        self._folder: Path | None = None
        self._is_serving = self._is_closing = False

    def open(
        self, running: SubmittedTopology, run: Run, batch_ms: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        """Begin to answer. An error is logged, and the topology runs without a door.

        Args:
            running: Takes the orders.
            run: What is watched.
            batch_ms: Gives where the time of the last micro-batch went, in milliseconds by phase.
        """
        self._folder = run.checkpoint.folder if self._disk is not None else None
        try:
            self._observer = Observer(run, self._began_ms, self._version, batch_ms, self._keep)
            self._observer.begin()
            self._levels.begin()
            self._desk = _Desk(running, run, self._observer, self._levels)
            self._listen(run, self._desk)
        except Exception as error:  # noqa: BLE001  # no more threads, for example: the topology runs all the same
            log.warning("topology=%s has no door for operators: %s", run.name, error)
            if self._server is not None and not self._is_serving:
                self._server.server_close()

    def close(self, stopped_by: BaseException | None) -> None:
        """Keep the last snapshot, then answer no more. Never raises."""
        self._is_closing = True
        self._levels.close()
        if self._observer is not None:
            self._observer.close(stopped_by)
        if self._server is not None:
            if self._is_serving:
                self._server.shutdown()
            self._server.server_close()
        if self._socket is not None:
            _remove(self._socket)

    def _listen(self, run: Run, desk: _Desk) -> None:
        place = str(run.checkpoint.place)
        folder, key = runtime_folder(), key_of(place)
        before = read_entry(folder / f"{key}.json")
        if before is not None and before.checkpoint == place:
            _remove(Path(before.socket))  # of a driver that died: this one holds the checkpoint's lock
        path = socket_path(folder, key)
        path.unlink(missing_ok=True)
        self._server = _Server(path, desk)
        self._socket = path
        serve = partial(self._server.serve_forever, _LOOK_SECS)
        Thread(target=serve, name=f"door {run.name}", daemon=True).start()
        self._is_serving = True
        entry = Entry(run.name, desk.id, place, str(path), os.getpid(), socket.gethostname(), self._began_ms)
        write_entry(entry, folder / f"{key}.json", Disk())
        if self._folder is not None and self._disk is not None:
            write_entry(entry, self._folder / POINTER, self._disk)

    def _listen_again(self, desk: _Desk) -> None:
        """Make the socket anew where it was deleted: logout empties a user's runtime folder."""
        old, path = self._server, self._socket
        if old is None or path is None:
            return
        try:
            if self._is_closing or path.exists():
                return
            log.warning("topology=%s the socket %s is gone; another one is made", desk.run.name, path)
            self._listen(desk.run, desk)
        except (OSError, AcktreeError) as error:
            log.warning("topology=%s has no door for operators: %s", desk.run.name, error)
        if self._server is not old:
            old.shutdown()
            old.server_close()

    def _write_levels(self, levels: bytes) -> None:
        """Let workers read the levels of loggers. There is no file until some are set."""
        if self._folder is None or self._disk is None:
            return
        file = self._folder / LOG_LEVELS
        if levels == b"{}" and not self._disk.exists(file):
            return
        new = self._folder / f"new-{LOG_LEVELS}"
        self._disk.write(new, levels)
        self._disk.rename(new, file)

    def _keep(self, snapshot: Snapshot) -> None:
        """See that the socket is there, and write the last snapshot into the checkpoint."""
        if self._desk is not None:
            self._listen_again(self._desk)
        if self._folder is not None and self._disk is not None:
            new = self._folder / f"new-{SNAPSHOT}"
            self._disk.write(new, snapshot.to_json())
            self._disk.rename(new, self._folder / SNAPSHOT)


class _RefusedError(Exception):
    """An answer that is not 200.

    Attributes:
        status: Of HTTP.
        said: What the answer holds.
    """

    def __init__(self, status: int, what: str, where: str, fix: str) -> None:
        super().__init__(what)
        self.status, self.said = status, {"error": what, "where": where, "fix": fix}


class _Desk:
    """What is asked for and ordered, by method and path."""

    def __init__(self, running: SubmittedTopology, run: Run, observer: Observer, levels: LogLevels) -> None:
        self._running, self.run, self._observer, self._levels = running, run, observer, levels

    @property
    def id(self) -> str:
        """The topology's id in this run."""
        return self._observer.id

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The answer to a question."""
        if path == "/v1/snapshot":
            return self._observer.latest(float(query.get("most_age_secs", 1.0)))
        if path == "/v1/open":
            most = max(1, min(_MOST_OPEN, int(query.get("limit", 20))))
            return _json({"open": [_open_message(each) for each in self.run.oldest_open(most)]})
        if path == "/v1/log-levels":
            return _json(self._levels.shown())
        if path == "/v1/events" or path.startswith("/v1/traces"):
            return _json(self._recorded(path, query))
        if path == "/v1/dead-letters":
            return _json(letters.page(self.run.dead_letters, query))
        if found := re.fullmatch(r"/v1/dead-letters/(\d{1,18})", path):
            return _json(letters.whole(self.run.dead_letters, int(found[1])))
        raise _unknown(path)

    def _recorded(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Traces and logged tuples."""
        if path == "/v1/events":
            return tracing.events(self._running.events, query)
        traces = self._running.traces
        if path == "/v1/traces":
            return tracing.page(traces, query)
        named = re.fullmatch(r"/v1/traces/(-?\d{1,19})", path)
        if named is None:
            raise _unknown(path)
        root = int(named[1])
        found = tracing.slice_of(traces, root, query) if "edge" in query else tracing.whole(traces, root)
        if found is None:
            raise _RefusedError(
                404, f"there is no trace of root {root}", f"topology {self.run.name!r}",
                "ask for traces without a root: those are stored",
            )  # fmt: skip
        return found

    def post(self, path: str, given: Mapping[str, Any]) -> bytes:
        """Carry out an order; returns what came of it."""
        log.info("topology=%s order=%s given=%s", self.run.name, path.removeprefix("/v1/"), given)
        try:
            return _json(self._order(path, given))
        finally:
            self._observer.forget()

    def _order(self, path: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        match path:
            case "/v1/activate":
                self._refuse_if_killed()
                self._running.activate()
            case "/v1/deactivate":
                self._running.deactivate()
            case "/v1/kill":
                wait_secs = given.get("wait_secs")
                secs = None if wait_secs is None else max(0.0, float(wait_secs))
                self.run.kill_waits.set()
                Thread(target=self._running.kill, args=(secs,), name="kill", daemon=True).start()
                shown = self._running.message_timeout_secs if secs is None else secs
                return {"done": True, "wait_secs": shown}
            case "/v1/log-levels":
                return self._levels.change(given)
            case "/v1/debug":
                component = given.get("component")
                self._running.debug(
                    on=given.get("on") is not False,
                    component=None if component is None else str(component),
                    percent=float(given.get("percent") or 10),
                )
            case "/v1/trace":
                if given.get("rate") is None:
                    raise ConfigError("the order has no rate", "trace", 'name it: {"rate": 0.01}')
                self._running.traces.rate = float(given["rate"])
                return {"done": True, "rate": self._running.traces.rate}
            case "/v1/dead-letters/redrive":
                return letters.redrive(self.run.dead_letters, given)
            case "/v1/dead-letters/purge":
                return letters.purge(self.run.dead_letters, given)
            case _:
                raise _unknown(path)
        return {"done": True}

    def _refuse_if_killed(self) -> None:
        if self.run.kill_waits.is_set():
            raise _RefusedError(
                409, "the topology is being killed", f"topology {self.run.name!r}",
                "wait for its end and submit it again",
            )  # fmt: skip


class _Server(ThreadingUnixStreamServer):
    """Accepts connections of the driver's own user: a thread for each, and a limited number at once."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: Path, desk: _Desk) -> None:
        self.desk = desk
        self._free = BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(str(path), _Handler)
        close_in_children(self.fileno())
        path.chmod(0o600)  # the folder is private, so nobody came before this

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
    server: _Server

    def do_GET(self) -> None:  # the name that http.server calls
        """Answer a question."""
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        self._answer(lambda: self.server.desk.get(url.path, query))

    def do_POST(self) -> None:
        """Carry out an order."""
        self._answer(lambda: self.server.desk.post(urlsplit(self.path).path, self._body()))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base names it
        """Nothing: orders are logged where they are carried out."""

    def _answer(self, make: Callable[[], bytes]) -> None:
        status = 200
        try:
            body = make()
        except _RefusedError as refused:
            status, body = refused.status, _json(refused.said)
        except letters.CountChangedError as changed:
            status, body = 409, _json(_said(changed))
        except AcktreeError as error:
            status, body = 400, _json(_said(error))
        except (ValueError, TypeError) as error:
            status = 400
            body = _json({"error": f"the request cannot be read: {error}", "where": self.path, "fix": ""})
        except (ConnectionError, TimeoutError):  # the peer hung up, or said nothing for too long
            raise
        except Exception as error:
            log.exception("door: %s could not be answered", self.path)
            status = 500
            body = _json({"error": error_text(error), "where": self.path, "fix": "see the driver's log"})
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
        try:
            given = json.loads(self.rfile.read(length) or b"{}")
        except RecursionError as error:
            raise ValueError("its JSON is nested too deep") from error
        if not isinstance(given, dict):
            raise TypeError("an order is a JSON object")
        return given


def _remove(path: Path) -> None:
    """Delete a socket, and the folder that was made for it alone."""
    with suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
            if path.name == "s":
                path.parent.rmdir()


def _open_message(message: OpenMessage) -> dict[str, Any]:
    age_secs = max(0.0, time.time() - message.first_emitted_ms / 1000)
    return {
        "spout": message.spout,
        "task_id": message.task_id,
        "message_id": short_repr(message.message_id),
        "root": None if message.root is None else str(message.root),
        "attempt": message.attempt,
        "age_secs": round(age_secs, 3),
        "state": message.state,
    }


def _unknown(path: str) -> _RefusedError:
    return _RefusedError(
        404, f"the door has no {path}", "the driver's socket", "is its acktree an older one?"
    )


def _said(error: AcktreeError) -> dict[str, str]:
    return {"error": error.what, "where": error.where, "fix": error.fix}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
