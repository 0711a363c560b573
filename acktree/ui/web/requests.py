"""Reads requests: the topology that one names, its window and body; and sends orders to drivers, logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.errors import ConfigError, MisuseError
from acktree.ui.client import Found
from acktree.ui.known_names import SECS, WHOLE, order_of, read_order, refuse_unknown
from acktree.ui.order_log import PAGE, Order
from acktree.ui.snapshot import ALL_TIME, WINDOWS, for_browsers
from acktree.ui.stopped import LETTER_ORDERS
from acktree.ui.web.guard import NUMBERS_ALONE
from acktree.ui.web.sources import Seen, Sources, UnknownTopologyError


class Json(JSONResponse):
    """An answer in which a browser reads every number as it is: see :func:`~acktree.ui.snapshot.exact`."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401  # as Starlette has it
        """In ASCII: no text is one that UTF-8 does not have."""
        return for_browsers(json.dumps(content, separators=(",", ":"))).encode()


class Path(NamedTuple):
    """A path, what answers it, and what it takes.

    Attributes:
        is_order: Whether it is a POST.
        takes: The names of its query; any other is refused. None: others are ignored.
    """

    path: str
    answer: Callable[[Request], Any]
    is_order: bool = False
    takes: Collection[str] | None = None

    @property
    def checked(self) -> Callable[[Request], Any]:
        """The answer, where no name of the query is unknown or given twice."""
        answer, takes, path = self.answer, self.takes, self.path
        if takes is None:
            return answer

        async def checked(request: Request) -> Response:
            names = [name for name, _ in request.query_params.multi_items()]
            refuse_unknown(names, takes, f"the query of {path}")
            if len(names) != len(set(names)):
                twice = max(names, key=names.count)
                raise ConfigError(f"{twice!r:.60} is given twice", f"the query of {path}", "give it once")
            if iscoroutinefunction(answer):
                return cast("Response", await answer(request))
            return cast("Response", await run_in_threadpool(answer, request))

        return checked


_MOST_BODY: Final = 1 << 20
_NUMBER_SETTINGS: Final = ("topology.message.timeout.secs", "topology.debug")


class Handlers:
    """What handlers of requests share."""

    def __init__(self, sources: Sources) -> None:
        """Answer about these topologies."""
        self.sources = sources

    async def given(self, request: Request, seen: Seen, order: str) -> dict[str, Any]:
        """What came with an order. MisuseError for what cannot be read, which is logged."""
        try:
            return await body_of(request)
        except MisuseError as error:
            Order(order, PAGE, seen.snapshot.topology, seen.snapshot.checkpoint).is_refused(error)
            raise

    def ordered(self, seen: Seen, order: str, given: Mapping[str, object]) -> dict[str, Any]:
        """Give an order to a topology's driver, or carry out one about a topology that nobody runs.

        Returns the answer. NobodyRunsError for an order that only a driver carries out.
        """
        line = Order(order, PAGE, seen.snapshot.topology, seen.snapshot.checkpoint, given)
        try:
            return line.carry_out(lambda: _carried_out(seen.found, order, given))
        finally:
            self.sources.forget()

    def one(self, request: Request) -> Seen:
        """The topology that a request names; without errors and settings for one without the token."""
        seen = self.sources.one(request.path_params["id"])
        if request.scope.get(NUMBERS_ALONE):
            config = self.settings(request, seen.snapshot.config)
            return replace(seen, snapshot=replace(seen.snapshot, errors=(), stopped_by=None, config=config))
        return seen

    @staticmethod
    def settings(request: Request, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that a request may see: without the token those that answers of numbers have."""
        return _numbers_of(config) if request.scope.get(NUMBERS_ALONE) else config


def error_answer(status: int, name: str, message: str, **more: object) -> Json:
    """Storm's form of an error."""
    return Json({"error": f"{status} {name}", "errorMessage": message} | more, status)


def _carried_out(target: Found, order: str, given: Mapping[str, object]) -> dict[str, Any]:
    given = read_order(order, given)
    if not target.is_running and order in LETTER_ORDERS:
        return LETTER_ORDERS[order](target, given)
    return replace(target.door, by=PAGE).order(order, given)


def _numbers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that answers of numbers contain."""
    return {name: config[name] for name in _NUMBER_SETTINGS if name in config}


def window_of(request: Request) -> str:
    """The window that is asked for. MisuseError for one that there is not."""
    window = request.query_params.get("window", ALL_TIME)
    if window not in WINDOWS:
        raise MisuseError(f"there is no window {window!r:.40}", "window=", f"one of {', '.join(WINDOWS)}")
    return window


def root_of(text: str) -> int:
    """The root id in a path."""
    with suppress(ConfigError):
        return int(WHOLE.read(text, "root", is_text=True))
    raise UnknownTopologyError(f"{text!r:.40} is no root")


def secs_of(text: str) -> float:
    """The seconds in a path. ConfigError if they are none."""
    return float(SECS.read(text, "the path", is_text=True))


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of an order; empty for no body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise HTTPException(413, "Payload Too Large")
    try:
        return order_of(body)
    except ValueError as error:
        raise MisuseError(
            f"the order cannot be read: {error}", "POST", "send a JSON object, with texts in UTF-8"
        ) from error
