"""The routes of Storm's REST."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from acktree.config import Config
from acktree.core.stats.counters import ACKER
from acktree.errors import MisuseError
from acktree.ui.client import DoorError
from acktree.ui.known_names import refuse_unknown
from acktree.ui.observer import user_name
from acktree.ui.web import storm, storm_components, storm_visualization
from acktree.ui.web.requests import Handlers, Json, Path, body_of, error_answer, secs_of, window_of
from acktree.ui.web.sources import Seen, Sources, UnknownTopologyError

_STORMS_OWN: Final = ("callback", "doAsUser", "user.name")
"""What clients of Storm add to the query of an order, whatever it is."""
_LEVEL: Final = ("target_level", "reset_level", "timeout", "timeout_epoch")


class StormRoutes(Handlers):
    """The answers of Storm's REST, by path."""

    def __init__(self, sources: Sources, version: str, place: tuple[str, int]) -> None:
        """Answer for a server at ``place``, its host and port."""
        super().__init__(sources)
        self._version, self._place = version, place
        self._began = time.monotonic()

    def paths(self) -> list[Path]:
        """All of them."""
        one = "/api/v1/topology/{id}"
        component = f"{one}/component/{{component}}"
        return [
            Path("/api/v1/cluster/summary", self._cluster),
            Path("/api/v1/cluster/configuration", self._configuration),
            Path("/api/v1/nimbus/summary", self._nimbus),
            Path("/api/v1/supervisor/summary", self._supervisors),
            Path("/api/v1/supervisor", self._nothing("supervisors", "workers")),
            Path("/api/v1/owner-resources", self._nothing("owners")),
            Path("/api/v1/owner-resources/{id}", self._nothing("owners", "topologies")),
            Path("/api/v1/history/summary", self._history),
            Path("/api/v1/topology/summary", self._summary),
            Path(one, self._storm_with_acker(storm.topology_page)),
            Path(f"{one}/metrics", self._storm_with_acker(storm_components.stream_metrics)),
            Path(f"{one}/visualization", self._storm_with_acker(storm_visualization.visualization)),
            Path(
                f"{one}/visualization-init",
                self._storm_with_acker(storm_visualization.visualization_init),
            ),
            Path(f"{one}/lag", self._storm(lambda seen, _: storm.lag(seen))),
            Path(f"{one}/logconfig", self._log_levels),
            Path("/api/v1/topology-workers/{id}", self._storm(lambda seen, _: storm.workers_of(seen))),
            Path(component, self._storm_component),
            Path(f"{one}/rebalance/{{secs}}", self._rebalance, is_order=True),
            Path(f"{one}/profiling/{{what:path}}", self._profiling),
            Path(f"{one}/profiling/{{what:path}}", self._profiling, is_order=True),
            Path(f"{one}/logconfig", self._set_log_levels, is_order=True, takes=_STORMS_OWN),
            _order(f"{one}/activate", self._storm_order("activate")),
            _order(f"{one}/deactivate", self._storm_order("deactivate")),
            _order(f"{one}/kill/{{secs}}", self._storm_order("kill")),
            _order(f"{one}/debug/{{action}}/{{percent}}", self._storm_debug),
            _order(f"{component}/debug/{{action}}/{{percent}}", self._storm_debug),
        ]

    def _cluster(self, _: Request) -> Response:
        seen = self.sources.running()
        return Json(storm.cluster_summary(seen, self._version, user_name(), self._uptime()))

    def _configuration(self, request: Request) -> Response:
        return Json(self.settings(request, Config().to_mapping()))

    def _nimbus(self, _: Request) -> Response:
        host, port = self._place
        return Json(storm.nimbuses(self._version, host or socket.gethostname(), port, self._uptime()))

    def _supervisors(self, _: Request) -> Response:
        return Json(storm.supervisors(self.sources.running()))

    def _history(self, _: Request) -> Response:
        return Json(storm.history(self.sources.all()))

    def _nothing(self, *names: str) -> Callable[[Request], Response]:
        def answer(_: Request) -> Response:
            return Json({name: [] for name in names} | {"schedulerDisplayResource": False})

        return answer

    def _summary(self, request: Request) -> Response:
        wants_all = request.query_params.get("all") == "true"
        seen = self.sources.all() if wants_all else self.sources.running()
        rows = [storm.topology_summary(topology) for topology in seen]
        return Json({"topologies": rows, "schedulerDisplayResource": False})

    def _storm(self, make: Callable[[Seen, str], Mapping[str, Any]]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return Json(make(self.one(request), window_of(request)))

        return answer

    def _storm_with_acker(self, make: Callable[..., Mapping[str, Any]]) -> Callable[[Request], Response]:
        """What shows ``__acker`` where it is asked for."""

        def answer(request: Request) -> Response:
            seen, window = self.one(request), window_of(request)
            wants_acker = request.query_params.get("sys") == "true" and seen.snapshot.has_acker
            return Json(make(seen, window, with_acker=wants_acker))

        return answer

    def _storm_component(self, request: Request) -> Response:
        seen, name = self.one(request), request.path_params["component"]
        is_acker = name == ACKER and seen.snapshot.has_acker
        if not is_acker and name not in seen.snapshot.graph["components"]:
            raise UnknownTopologyError(f"there is no component {name!r}")
        return Json(storm_components.component_page(seen, name, window_of(request)))

    def _storm_order(self, order: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            seen = self.one(request)
            arguments: dict[str, object] = {}
            if order == "kill":
                arguments["wait_secs"] = secs_of(request.path_params["secs"])
            self.ordered(seen, order, arguments)
            done = {"topologyOperation": order, "topologyId": seen.snapshot.id, "status": "success"}
            return Json(done)

        return answer

    def _storm_debug(self, request: Request) -> Response:
        seen, parts = self.one(request), request.path_params
        percent = secs_of(parts["percent"])
        if parts["action"] not in {"enable", "disable"}:
            raise MisuseError(f"there is no {parts['action']!r:.40}", "debug", "enable or disable")
        is_on = parts["action"] == "enable" and percent > 0
        order = {"on": is_on, "component": parts.get("component"), "percent": percent or 100}
        self.ordered(seen, "debug", order)
        done = {"topologyOperation": f"debug/{parts['action']}", "topologyId": seen.snapshot.id}
        return Json(done | {"status": "success"})

    def _rebalance(self, request: Request) -> Response:
        seen = self.one(request)
        if not (seen.is_running or seen.is_silent):
            return error_answer(
                409, "Conflict", "nobody runs the topology: this server moves no memory of a stopped one",
                fix=f"acktree rebalance {seen.snapshot.checkpoint} ...; then submit it again",
            )  # fmt: skip
        return error_answer(
            409, "Conflict", "a running topology cannot be rebalanced",
            fix=f"acktree kill {seen.snapshot.checkpoint}; acktree rebalance {seen.snapshot.checkpoint} ...",
        )  # fmt: skip

    def _profiling(self, request: Request) -> Response:
        self.one(request)  # 404 for a topology that is not known
        return error_answer(
            501, "Not Implemented", "acktree profiles no worker",
            fix="profile a Python worker from outside, such as with py-spy",
        )  # fmt: skip

    def _log_levels(self, request: Request) -> Response:
        seen = self.one(request)
        named = seen.found.door.get("log-levels")["namedLoggerLevels"] if seen.is_running else {}
        return Json({"namedLoggerLevels": named})

    async def _set_log_levels(self, request: Request) -> Response:
        """Storm's order: a logger without a target level has its old one again."""
        seen = await run_in_threadpool(self.one, request)
        body = await self.given(request, seen, "log-levels")
        refuse_unknown(body, ("namedLoggerLevels",), "the body of logconfig")
        wanted = body.get("namedLoggerLevels")
        if not isinstance(wanted, dict) or not all(isinstance(level, dict) for level in wanted.values()):
            raise DoorError(
                "the body has no namedLoggerLevels", "logconfig",
                'send {"namedLoggerLevels": {"NAME": {"target_level": "DEBUG", "timeout": 60}}}',
            )  # fmt: skip
        for name, level in wanted.items():
            refuse_unknown(level, _LEVEL, f"the level of {name!r:.60}")
        reset = [name for name, level in wanted.items() if level.get("target_level") in (None, "")]
        order = {
            "set": {
                name: {"level": level["target_level"], "secs": _timeout(level.get("timeout"))}
                for name, level in wanted.items()
                if name not in reset
            },
            "reset": reset,
        }
        if order["reset"] and seen.is_running:  # Storm ignores a logger that has no level of its own
            named = (await run_in_threadpool(seen.found.door.get, "log-levels"))["namedLoggerLevels"]
            order["reset"] = [name for name in order["reset"] if name in named]
        levels = await run_in_threadpool(self.ordered, seen, "log-levels", order)
        return Json({"namedLoggerLevels": levels["namedLoggerLevels"]})

    def _uptime(self) -> int:
        return int(time.monotonic() - self._began)


def _timeout(secs: object) -> object:
    """Storm's 0 is none."""
    return None if type(secs) is int and not secs else secs


def _order(path: str, carry_out: Callable[[Request], Response]) -> Path:
    """An order of Storm's, all of which is in its path."""

    async def answer(request: Request) -> Response:
        refuse_unknown(await body_of(request), (), "the body of an order")
        return await run_in_threadpool(carry_out, request)

    return Path(path, answer, is_order=True, takes=_STORMS_OWN)
