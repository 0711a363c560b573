"""The routes of the page, of metrics, and of our own REST."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from acktree.core.stats.counters import ACKER
from acktree.errors import AcktreeError
from acktree.traces.events import FOLDER, read_events
from acktree.ui import history, letters, tracing
from acktree.ui.client import NobodyRunsError
from acktree.ui.known_names import MOST_ORDERS, ORDERS, QUESTIONS, limit_of
from acktree.ui.snapshot import for_browsers
from acktree.ui.stopped import history_of, letters_of, redrives_ordered, traces_of
from acktree.ui.web import metrics, ours
from acktree.ui.web.guard import COOKIE
from acktree.ui.web.requests import Handlers, Json, Path, error_answer, root_of, window_of
from acktree.ui.web.sources import Sources, UnknownTopologyError
from acktree.ui.web.streams import Streams

_FILES: Final = {
    "app.js": "text/javascript; charset=utf-8",
    "components.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "orders.js": "text/javascript; charset=utf-8",
    "traces.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_STORMS_ORDERS: Final = ("log-levels",)
"""Orders that have a route of Storm's alone."""
_STATIC: Final = files("acktree.ui.web") / "static"


class OwnRoutes(Handlers):
    """The page's files, metrics, and the answers of our own REST, by path."""

    def __init__(
        self, sources: Sources, version: str, page_secret: str, is_stopping: Callable[[], bool], *,
        is_read_only: bool,
    ) -> None:  # fmt: skip
        """See :func:`acktree.ui.web.app.application`."""
        super().__init__(sources)
        self._is_stopping = is_stopping
        self._version, self._page_secret, self._is_read_only = version, page_secret, is_read_only
        self._streams = Streams(sources)

    def paths(self) -> list[Path]:
        """All of them."""
        prefix = "/api/acktree/v1"
        one = f"{prefix}/topologies/{{id}}"
        return [
            Path("/", self._page),
            Path("/static/{name}", self._file),
            Path("/metrics", self._metrics),
            Path(f"{prefix}/healthz", self._health),
            Path(f"{prefix}/readyz", self._readiness),
            Path(f"{prefix}/page", self._about, takes=()),
            Path(f"{prefix}/snapshot", self._snapshot, takes=("topology",)),
            Path(f"{prefix}/stream", self._stream, takes=("topology",)),
            Path(f"{prefix}/topologies", self._overview, takes=()),
            Path(one, self._topology, takes=()),
            Path(f"{one}/components/{{component}}", self._component, takes=("window",)),
            Path(f"{one}/open", self._open, takes=QUESTIONS["open"]),
            Path(f"{one}/history", self._history, takes=QUESTIONS["history"]),
            Path(f"{one}/errors", self._errors, takes=()),
            Path(f"{one}/audit", self._audit, takes=QUESTIONS["audit"]),
            Path(f"{one}/dead-letters", self._letters, takes=QUESTIONS["dead-letters"]),
            Path(f"{one}/dead-letters/{{letter:int}}", self._letter, takes=QUESTIONS["dead-letter"]),
            Path(f"{one}/traces", self._traces, takes=QUESTIONS["traces"]),
            Path(f"{one}/traces/{{root}}", self._trace, takes=QUESTIONS["trace-of"]),
            Path(f"{one}/events", self._logged, takes=QUESTIONS["events"]),
            *(
                Path(f"{one}/{order}", self._order(order), is_order=True, takes=())
                for order in ORDERS
                if order not in _STORMS_ORDERS
            ),
        ]

    def _page(self, request: Request) -> Response:
        answer = Response((_STATIC / "index.html").read_bytes(), media_type="text/html; charset=utf-8")
        has_tls = request.scope["scheme"] == "https"  # of this server's own connection
        answer.set_cookie(COOKIE, self._page_secret, httponly=True, samesite="strict", secure=has_tls)
        return answer

    def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            raise HTTPException(404, "Not Found")
        return Response((_STATIC / name).read_bytes(), headers={"Content-Type": _FILES[name]})

    def _about(self, _: Request) -> Response:
        return Json({"version": self._version, "read_only": self._is_read_only})

    def _health(self, _: Request) -> Response:
        """Say that this server runs. It asks no driver: one that hangs is no reason to restart the page."""
        return Json({"ok": True})

    def _readiness(self, _: Request) -> Response:
        """Whether this server has topologies to show, or knows that there are none, and does not stop.

        It asks drivers until it was answered once, and never again: one that hangs later is no reason to send
        readers elsewhere.
        """
        try:
            has_looked = self.sources.has_looked()
        except AcktreeError as error:
            return _not_ready(error.what, where=error.where, fix=error.fix)
        if self._is_stopping():
            return _not_ready("the page stops")
        if not has_looked:
            return _not_ready("the topologies are being looked at for the first time")
        return Json({"ok": True})

    def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = metrics.exposed(self.sources.running(), self._version, accept)
        return Response(body, headers={"Content-Type": content_type})

    def _snapshot(self, request: Request) -> Response:
        named = request.query_params.get("topology")
        seen = self.sources.all() if named is None else [self.sources.one(named)]
        parts = ",".join(each.snapshot.to_json().decode() for each in seen)
        return Response(for_browsers(f'{{"snapshots":[{parts}]}}'), media_type="application/json")

    def _overview(self, _: Request) -> Response:
        return Response(for_browsers(ours.overview(self.sources.all())), media_type="application/json")

    def _topology(self, request: Request) -> Response:
        return Json(ours.topology(self.one(request)))

    def _component(self, request: Request) -> Response:
        seen, name = self.one(request), request.path_params["component"]
        if name == ACKER and seen.snapshot.has_acker:
            return Json(ours.acker(seen, window_of(request)))
        if name not in seen.snapshot.graph["components"]:
            raise UnknownTopologyError(f"there is no component {name!r}")
        return Json(ours.component(seen, name, window_of(request)))

    def _open(self, request: Request) -> Response:
        limit = request.query_params.get("limit", "20")
        return Json(self.one(request).found.door.get("open", {"limit": limit}))

    def _errors(self, request: Request) -> Response:
        seen = self.one(request)
        return Json({"errors": ours.topology(seen)["errors"]})

    def _audit(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        limit_of(query, MOST_ORDERS, MOST_ORDERS)  # a wrong one is refused where nobody runs it too
        return Json(seen.found.door.get("audit", query) if seen.is_running else {"orders": []})

    def _history(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        if seen.is_running:
            with suppress(NobodyRunsError):  # it has just stopped
                return Json(seen.found.door.get("history", query))
        with history_of(seen.found) as store:
            return Json(history.page(store, query))

    def _letters(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        if seen.is_running:
            return Json(seen.found.door.get("dead-letters", query))
        with letters_of(seen.found) as store:
            page = letters.page(store, query)
        return Json(page | {"ordered": redrives_ordered(seen.found)})

    def _letter(self, request: Request) -> Response:
        seen, number = self.one(request), request.path_params["letter"]
        if seen.is_running:
            return Json(seen.found.door.get(f"dead-letters/{number}"))
        with letters_of(seen.found) as store:
            return Json(letters.whole(store, number))

    def _logged(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        if seen.is_running:
            return Json(seen.found.door.get("events", query))
        folder = (seen.found.folder or FilePath()) / FOLDER
        return Json(tracing.events(partial(read_events, folder), query))

    def _traces(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        if seen.is_running:
            return Json(seen.found.door.get("traces", query))
        with closing(traces_of(seen.found)) as traces:
            return Json(tracing.page(traces, query))

    def _trace(self, request: Request) -> Response:
        seen, query = self.one(request), dict(request.query_params)
        root = root_of(request.path_params["root"])
        if seen.is_running:
            return Json(seen.found.door.get(f"traces/{root}", query))
        with closing(traces_of(seen.found)) as traces:
            tree = tracing.tree_of(traces, root, query)
        if tree is None:
            raise UnknownTopologyError(f"there is no trace of root {root}")
        return Json(tree)

    def _order(self, order: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            seen = await run_in_threadpool(self.one, request)
            given = await self.given(request, seen, order)
            return Json(await run_in_threadpool(self.ordered, seen, order, given))

        return answer

    async def _stream(self, request: Request) -> Response:
        return self._streams.answer(request.query_params.get("topology"))


def _not_ready(why: str, **more: str) -> Response:
    return error_answer(503, "Service Unavailable", why, **more)
