"""The routes: Storm's REST, ours, metrics, and the page's files."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from acktree.config import Config
from acktree.errors import AcktreeError, MisuseError
from acktree.logs import logger
from acktree.traces.events import FOLDER, read_events
from acktree.ui import letters, tracing
from acktree.ui.client import DoorError, NobodyRunsError
from acktree.ui.observer import user_name
from acktree.ui.snapshot import ALL_TIME, RECENT, STORM_WINDOWS
from acktree.ui.stopped import letters_of, traces_of
from acktree.ui.web import metrics, ours, storm, storm_components
from acktree.ui.web.guard import COOKIE, NUMBERS_ALONE
from acktree.ui.web.sources import Seen, Sources, UnknownTopologyError

__all__ = ["application"]

log = logger("acktree")

_MOST_BODY: Final = 1 << 20
_STREAM_SECS: Final = 1.0
_NUMBER_SETTINGS: Final = ("topology.message.timeout.secs", "topology.debug")
_FILES: Final = {
    "app.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "traces.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_STATIC: Final = files("acktree.ui.web") / "static"


def application(
    sources: Sources, version: str, page_secret: str, place: tuple[str, int], *, is_read_only: bool
) -> Starlette:
    """The application without its guard.

    Args:
        sources: The topologies.
        version: The version of acktree.
        page_secret: The value of the page's cookie.
        place: Host and port of this server.
        is_read_only: Whether the page offers orders.
    """
    handlers = _Handlers(sources, version, page_secret, place, is_read_only=is_read_only)
    routes = [
        Route(path, handler, methods=["POST" if is_order else "GET"])
        for path, handler, is_order in handlers.routes()
    ]
    known: Mapping[Any, Any] = {
        UnknownTopologyError: _on_unknown,
        NobodyRunsError: _on_refused,
        DoorError: _on_refused,
        AcktreeError: _on_refused,
        TimeoutError: _on_timeout,
        HTTPException: _on_http,
    }
    return Starlette(routes=routes, exception_handlers=known)


def _error(status: int, name: str, message: str, **more: object) -> JSONResponse:
    """Storm's form of an error."""
    return JSONResponse({"error": f"{status} {name}", "errorMessage": message} | more, status)


def _on_unknown(_: Request, error: Exception) -> Response:
    return _error(404, "Not Found", str(error))


def _on_http(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error(status, str(getattr(error, "detail", "")), str(getattr(error, "detail", "")))


def _on_timeout(_: Request, error: Exception) -> Response:
    return _error(504, "Gateway Timeout", str(error))


def _on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AcktreeError), "it is called for these alone"
    status = 409
    if isinstance(error, DoorError):
        status = error.status
    elif not isinstance(error, NobodyRunsError | letters.CountChangedError):
        status = 400
    return _error(status, "Refused", error.what, where=error.where, fix=error.fix)


class _Handlers:
    """The answers, by path."""

    def __init__(
        self, sources: Sources, version: str, page_secret: str, place: tuple[str, int], *, is_read_only: bool
    ) -> None:
        self._sources, self._version, self._page_secret = sources, version, page_secret
        self._place, self._is_read_only = place, is_read_only
        self._began = time.monotonic()

    def routes(self) -> list[tuple[str, Callable[[Request], Any], bool]]:
        """Path, answer, and whether it is an order."""
        one, mine = "/api/v1/topology/{id}", "/api/acktree/v1"
        component = f"{one}/component/{{component}}"
        return [
            ("/", self._page, False),
            ("/static/{name}", self._file, False),
            ("/metrics", self._metrics, False),
            ("/api/v1/cluster/summary", self._cluster, False),
            ("/api/v1/cluster/configuration", self._configuration, False),
            ("/api/v1/nimbus/summary", self._nimbus, False),
            ("/api/v1/supervisor/summary", self._supervisors, False),
            ("/api/v1/supervisor", self._nothing("supervisors", "workers"), False),
            ("/api/v1/owner-resources", self._nothing("owners"), False),
            ("/api/v1/owner-resources/{id}", self._nothing("owners", "topologies"), False),
            ("/api/v1/history/summary", self._history, False),
            ("/api/v1/topology/summary", self._summary, False),
            (one, self._storm(storm.topology_page), False),
            (f"{one}/metrics", self._storm(storm_components.stream_metrics), False),
            (f"{one}/visualization", self._storm(storm_components.visualization), False),
            (
                f"{one}/visualization-init",
                self._storm(lambda s, _: storm_components.visualization_init(s.snapshot)),
                False,
            ),
            (f"{one}/lag", self._storm(lambda seen, _: storm.lag(seen)), False),
            (f"{one}/logconfig", self._log_levels, False),
            ("/api/v1/topology-workers/{id}", self._storm(lambda seen, _: storm.workers_of(seen)), False),
            (component, self._storm_component, False),
            (f"{one}/activate", self._storm_order("activate"), True),
            (f"{one}/deactivate", self._storm_order("deactivate"), True),
            (f"{one}/kill/{{secs}}", self._storm_order("kill"), True),
            (f"{one}/rebalance/{{secs}}", self._rebalance, True),
            (f"{one}/logconfig", self._set_log_levels, True),
            (f"{one}/debug/{{action}}/{{percent}}", self._storm_debug, True),
            (f"{component}/debug/{{action}}/{{percent}}", self._storm_debug, True),
            (f"{mine}/healthz", self._health, False),
            (f"{mine}/readyz", self._health, False),
            (f"{mine}/page", self._about, False),
            (f"{mine}/snapshot", self._snapshot, False),
            (f"{mine}/stream", self._stream, False),
            (f"{mine}/topologies", self._overview, False),
            (f"{mine}/topologies/{{id}}", self._topology, False),
            (f"{mine}/topologies/{{id}}/components/{{component}}", self._component, False),
            (f"{mine}/topologies/{{id}}/open", self._open, False),
            (f"{mine}/topologies/{{id}}/errors", self._errors, False),
            (f"{mine}/topologies/{{id}}/dead-letters", self._letters, False),
            (f"{mine}/topologies/{{id}}/dead-letters/redrive", self._order("dead-letters/redrive"), True),
            (f"{mine}/topologies/{{id}}/dead-letters/purge", self._order("dead-letters/purge"), True),
            (f"{mine}/topologies/{{id}}/dead-letters/{{letter:int}}", self._letter, False),
            (f"{mine}/topologies/{{id}}/traces", self._traces, False),
            (f"{mine}/topologies/{{id}}/traces/{{root}}", self._trace, False),
            (f"{mine}/topologies/{{id}}/trace", self._order("trace"), True),
            (f"{mine}/topologies/{{id}}/debug", self._order("debug"), True),
            (f"{mine}/topologies/{{id}}/events", self._logged, False),
            (f"{mine}/topologies/{{id}}/activate", self._order("activate"), True),
            (f"{mine}/topologies/{{id}}/deactivate", self._order("deactivate"), True),
            (f"{mine}/topologies/{{id}}/kill", self._order("kill"), True),
        ]

    # ---- the page -----------------------------------------------------------------------------------------

    def _page(self, _: Request) -> Response:
        answer = Response((_STATIC / "index.html").read_bytes(), media_type="text/html; charset=utf-8")
        answer.set_cookie(COOKIE, self._page_secret, httponly=True, samesite="strict")
        return answer

    def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            raise HTTPException(404, "Not Found")
        return Response((_STATIC / name).read_bytes(), headers={"Content-Type": _FILES[name]})

    def _about(self, _: Request) -> Response:
        return JSONResponse({"version": self._version, "read_only": self._is_read_only})

    def _health(self, _: Request) -> Response:
        return JSONResponse({"ok": True})

    def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = metrics.exposed(self._sources.running(), self._version, accept)
        return Response(body, headers={"Content-Type": content_type})

    # ---- Storm's ------------------------------------------------------------------------------------------

    def _cluster(self, _: Request) -> Response:
        seen = self._sources.running()
        return JSONResponse(storm.cluster_summary(seen, self._version, user_name(), self._uptime()))

    def _configuration(self, _: Request) -> Response:
        return JSONResponse(Config().to_mapping())

    def _nimbus(self, _: Request) -> Response:
        host, port = self._place
        return JSONResponse(storm.nimbuses(self._version, host or socket.gethostname(), port, self._uptime()))

    def _supervisors(self, _: Request) -> Response:
        return JSONResponse(storm.supervisors(self._sources.running()))

    def _history(self, _: Request) -> Response:
        return JSONResponse(storm.history(self._sources.all()))

    def _nothing(self, *names: str) -> Callable[[Request], Response]:
        def answer(_: Request) -> Response:
            return JSONResponse({name: [] for name in names} | {"schedulerDisplayResource": False})

        return answer

    def _summary(self, request: Request) -> Response:
        wants_all = request.query_params.get("all") == "true"
        seen = self._sources.all() if wants_all else self._sources.running()
        rows = [storm.topology_summary(each) for each in seen]
        return JSONResponse({"topologies": rows, "schedulerDisplayResource": False})

    def _storm(self, make: Callable[[Seen, str], Mapping[str, Any]]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return JSONResponse(make(self._one(request), _window(request)))

        return answer

    def _storm_component(self, request: Request) -> Response:
        seen, name = self._one(request), request.path_params["component"]
        if name not in seen.snapshot.graph["components"]:
            raise UnknownTopologyError(f"there is no component {name!r}")
        return JSONResponse(storm_components.component_page(seen, name, _window(request)))

    def _storm_order(self, order: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            seen = self._one(request)
            given: dict[str, object] = {}
            if order == "kill":
                given["wait_secs"] = _secs(request.path_params["secs"])
            self._ordered(seen, order, given)
            done = {"topologyOperation": order, "topologyId": seen.snapshot.id, "status": "success"}
            return JSONResponse(done)

        return answer

    def _storm_debug(self, request: Request) -> Response:
        seen, parts = self._one(request), request.path_params
        percent = _secs(parts["percent"])
        if parts["action"] not in {"enable", "disable"}:
            raise MisuseError(f"there is no {parts['action']!r:.40}", "debug", "enable or disable")
        is_on = parts["action"] == "enable" and percent > 0
        order = {"on": is_on, "component": parts.get("component"), "percent": percent or 100}
        self._ordered(seen, "debug", order)
        done = {"topologyOperation": f"debug/{parts['action']}", "topologyId": seen.snapshot.id}
        return JSONResponse(done | {"status": "success"})

    def _rebalance(self, request: Request) -> Response:
        seen = self._one(request)
        return _error(
            409, "Conflict", "a running topology cannot be rebalanced",
            fix=f"acktree kill {seen.snapshot.checkpoint}; acktree rebalance {seen.snapshot.checkpoint} ...",
        )  # fmt: skip

    def _log_levels(self, request: Request) -> Response:
        seen = self._one(request)
        named = seen.found.door.get("log-levels")["namedLoggerLevels"] if seen.is_running else {}
        return JSONResponse({"namedLoggerLevels": named})

    async def _set_log_levels(self, request: Request) -> Response:
        """Storm's order: a logger without a target level has its old one again."""
        given = (await _body(request)).get("namedLoggerLevels")
        if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
            raise DoorError(
                "the body has no namedLoggerLevels", "logconfig",
                'send {"namedLoggerLevels": {"NAME": {"target_level": "DEBUG", "timeout": 60}}}',
            )  # fmt: skip
        order = {
            "set": {
                name: {"level": each["target_level"], "secs": each.get("timeout") or None}
                for name, each in given.items()
                if each.get("target_level")
            },
            "reset": [name for name, each in given.items() if not each.get("target_level")],
        }
        seen = await run_in_threadpool(self._one, request)
        told = await run_in_threadpool(self._ordered, seen, "log-levels", order)
        return JSONResponse({"namedLoggerLevels": told["namedLoggerLevels"]})

    # ---- ours ---------------------------------------------------------------------------------------------

    def _snapshot(self, request: Request) -> Response:
        named = request.query_params.get("topology")
        seen = self._sources.all() if named is None else [self._sources.one(named)]
        parts = b",".join(each.snapshot.to_json() for each in seen)
        return Response(b'{"snapshots":[' + parts + b"]}", media_type="application/json")

    def _overview(self, _: Request) -> Response:
        return JSONResponse(ours.overview(self._sources.all()))

    def _topology(self, request: Request) -> Response:
        return JSONResponse(ours.topology(self._one(request)))

    def _component(self, request: Request) -> Response:
        seen, name = self._one(request), request.path_params["component"]
        if name not in seen.snapshot.graph["components"]:
            raise UnknownTopologyError(f"there is no component {name!r}")
        return JSONResponse(ours.component(seen, name, _window(request)))

    def _open(self, request: Request) -> Response:
        seen = self._one(request)
        return JSONResponse(seen.found.door.get("open", {"limit": request.query_params.get("limit", "20")}))

    def _errors(self, request: Request) -> Response:
        seen = self._one(request)
        return JSONResponse({"errors": ours.topology(seen)["errors"]})

    def _letters(self, request: Request) -> Response:
        seen, query = self._one(request), dict(request.query_params)
        if seen.is_running:
            return JSONResponse(seen.found.door.get("dead-letters", query))
        with letters_of(seen.found) as store:
            return JSONResponse(letters.page(store, query))

    def _letter(self, request: Request) -> Response:
        seen, number = self._one(request), request.path_params["letter"]
        if seen.is_running:
            return JSONResponse(seen.found.door.get(f"dead-letters/{number}"))
        with letters_of(seen.found) as store:
            return JSONResponse(letters.whole(store, number))

    def _logged(self, request: Request) -> Response:
        seen, query = self._one(request), dict(request.query_params)
        if seen.is_running:
            return JSONResponse(seen.found.door.get("events", query))
        folder = (seen.found.folder or Path()) / FOLDER
        return JSONResponse(tracing.events(partial(read_events, folder), query))

    def _traces(self, request: Request) -> Response:
        seen, query = self._one(request), dict(request.query_params)
        if seen.is_running:
            return JSONResponse(seen.found.door.get("traces", query))
        with closing(traces_of(seen.found)) as traces:
            return JSONResponse(tracing.page(traces, query))

    def _trace(self, request: Request) -> Response:
        seen, query = self._one(request), dict(request.query_params)
        root = _root(request.path_params["root"])
        if seen.is_running:
            return JSONResponse(seen.found.door.get(f"traces/{root}", query))
        with closing(traces_of(seen.found)) as traces:
            found = tracing.slice_of(traces, root, query) if "edge" in query else tracing.whole(traces, root)
        if found is None:
            raise UnknownTopologyError(f"there is no trace of root {root}")
        return JSONResponse(found)

    def _order(self, order: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            given = await _body(request)
            seen = await run_in_threadpool(self._one, request)
            return JSONResponse(await run_in_threadpool(self._ordered, seen, order, given))

        return answer

    async def _stream(self, request: Request) -> Response:
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        """One event a second; each reader gets the newest, so a slow one misses some and none pile up."""
        yield b"retry: 2000\n\n"
        while not await request.is_disconnected():
            seen = await run_in_threadpool(self._sources.all)
            name = ",".join(f"{each.snapshot.run}-{each.snapshot.batch_id}" for each in seen)
            data = json.dumps(ours.overview(seen), separators=(",", ":"))
            yield f"id: {name}\nevent: snapshot\ndata: {data}\n\n".encode()
            await asyncio.sleep(_STREAM_SECS)

    def _ordered(self, seen: Seen, order: str, given: Mapping[str, object]) -> dict[str, Any]:
        log.info("page: order=%s topology=%s given=%s", order, seen.snapshot.id, given)
        try:
            return seen.found.door.order(order, given)
        finally:
            self._sources.forget()

    def _one(self, request: Request) -> Seen:
        """The topology that a request names; without errors and settings for one without the token."""
        seen = self._sources.one(request.path_params["id"])
        if request.scope.get(NUMBERS_ALONE):
            shown = replace(
                seen.snapshot, errors=(), stopped_by=None, config=_numbers_of(seen.snapshot.config)
            )
            return replace(seen, snapshot=shown)
        return seen

    def _uptime(self) -> int:
        return int(time.monotonic() - self._began)


def _numbers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that answers of numbers contain."""
    return {name: config[name] for name in _NUMBER_SETTINGS if name in config}


def _window(request: Request) -> str:
    """The window that is asked for. MisuseError for one that there is not."""
    window = request.query_params.get("window", ALL_TIME)
    if window not in (*STORM_WINDOWS, RECENT):
        raise MisuseError(
            f"there is no window {window!r:.40}", "window=", f"one of {', '.join(STORM_WINDOWS)}"
        )
    return window


def _root(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    raise UnknownTopologyError(f"{text!r:.40} is no root")


def _secs(text: str) -> float:
    with suppress(ValueError):
        secs = float(text)
        if 0 <= secs < 1e9:  # noqa: PLR2004  # and neither infinite nor no number
            return secs
    raise MisuseError(f"{text!r:.40} is no number of seconds", "kill", "give seconds, 0 or more")


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of an order; empty for no body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise HTTPException(413, "Payload Too Large")
    try:
        given = json.loads(body or b"{}")
    except ValueError as error:
        raise MisuseError(f"the body is no JSON: {error}", "POST", "send a JSON object") from error
    if not isinstance(given, dict):
        raise MisuseError("the body is no JSON object", "POST", "send a JSON object")
    return given
