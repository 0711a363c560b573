"""The page's application: all routes, and what an error is answered with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from acktree.errors import AcktreeError
from acktree.ui import letters
from acktree.ui.client import DoorError, NobodyRunsError
from acktree.ui.web.own_routes import OwnRoutes
from acktree.ui.web.requests import error_answer
from acktree.ui.web.sources import Sources, UnknownTopologyError
from acktree.ui.web.storm_routes import StormRoutes

_SLASH: Final = re.compile("%2f", re.IGNORECASE)
_SLASH_INSIDE: Final = "\ufdd0"
"""A noncharacter, which no name contains: it is not printable."""


def application(
    sources: Sources, version: str, page_secret: str, place: tuple[str, int],
    is_stopping: Callable[[], bool], *, is_read_only: bool,
) -> Starlette:  # fmt: skip
    """The application without its guard.

    Args:
        sources: The topologies.
        version: The version of acktree.
        page_secret: The value of the page's cookie.
        place: Host and port of this server.
        is_stopping: Whether this server stops.
        is_read_only: Whether the page offers orders.
    """
    paths = [
        *StormRoutes(sources, version, place).paths(),
        *OwnRoutes(sources, version, page_secret, is_stopping, is_read_only=is_read_only).paths(),
    ]
    routes = [_Route(each.path, each.checked, methods=["POST" if each.is_order else "GET"]) for each in paths]
    known: Mapping[Any, Any] = {
        UnknownTopologyError: _on_unknown,
        NobodyRunsError: _on_refused,
        DoorError: _on_refused,
        AcktreeError: _on_refused,
        TimeoutError: _on_timeout,
        HTTPException: _on_http,
    }
    return Starlette(routes=routes, exception_handlers=known)


class _Route(Route):
    """A route whose parameters may hold a slash, sent as ``%2F``.

    Starlette decodes a path before it splits it, so a topology called "a/b" had no path.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path as it was sent, then decode its parameters."""
        sent = str(scope.get("raw_path", b""), "ascii", "replace")
        path, slashes = _SLASH.subn(_SLASH_INSIDE, sent)
        if not slashes:
            return super().matches(scope)
        match, child = super().matches({**scope, "path": unquote(path)})
        params = {
            name: value.replace(_SLASH_INSIDE, "/") if isinstance(value, str) else value
            for name, value in child.get("path_params", {}).items()
        }
        return match, {**child, "path_params": params}


def _on_unknown(_: Request, error: Exception) -> Response:
    return error_answer(404, "Not Found", str(error))


def _on_http(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return error_answer(status, str(getattr(error, "detail", "")), str(getattr(error, "detail", "")))


def _on_timeout(_: Request, error: Exception) -> Response:
    return error_answer(504, "Gateway Timeout", str(error))


def _on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, AcktreeError), "it is called for these alone"
    status = 409
    if isinstance(error, DoorError | letters.LettersChangedError):
        status = error.status
    elif not isinstance(error, NobodyRunsError):
        status = 400
    return error_answer(status, "Refused", error.what, where=error.where, fix=error.fix)
