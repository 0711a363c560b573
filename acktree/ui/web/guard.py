"""Who is answered: checks of each request, before any route sees it.

Rules of this file
------------------
1. ``Host`` names this server. A page of another site can make a browser send requests here under a name of
   its own (DNS rebinding); those are refused.
2. Everything needs the token: other users of the machine reach loopback too. It comes as ``Authorization:
   Bearer``, or as the password of Basic. The cookie, which a browser also sends to other ports of this host,
   opens the empty page and its files alone, which hold no data.
3. An order is a POST with a header that no form can send, from no other site.
4. Each answer forbids scripts, frames and forms that are not the page's own.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "acktree_page"
NUMBERS_ALONE: Final = "acktree.numbers_alone"
"""True in the scope of a request that came without the token: its answer holds no text of an error."""
TRUSTED: Final = "acktree.trusted"
"""In the scope of a request that came with the token, or with the cookie for the empty page."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache, no-store",
}
_SAME_SITE: Final = ("same-origin", "none")
_SHELL: Final = ("/", "/static/")
_NUMBERS: Final = (
    "/api/v1/cluster/", "/api/v1/history/summary", "/api/v1/nimbus/summary", "/api/v1/owner-resources",
    "/api/v1/supervisor", "/api/v1/topology/", "/api/v1/topology-workers/",
)  # fmt: skip
"""How the paths of numbers begin: counts, names, places and times of topologies, and of what runs them."""
_NO_NUMBERS: Final = ("component", "logconfig")
"""Parts of such paths whose answers are errors, or levels of loggers."""


class Guard:
    """Refuses a request, or passes it on; adds headers to every answer.

    Args:
        app: What answers.
        token: The token.
        page_secret: The value of the cookie.
        hosts: The values of ``Host`` that name this server.
        is_read_only: Whether every order is refused.
        has_open_numbers: Whether numbers of Storm's REST need no token.
    """

    def __init__(
        self, app: ASGIApp, token: str, page_secret: str, hosts: Collection[str], *, is_read_only: bool,
        has_open_numbers: bool,
    ) -> None:  # fmt: skip
        self._app, self._token, self._page_secret = app, token, page_secret
        self._hosts = frozenset(host.lower() for host in hosts)
        self._is_read_only, self._has_open_numbers = is_read_only, has_open_numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        scope[NUMBERS_ALONE] = False
        refused = self._refusal(scope)
        await (self._app if refused is None else refused)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """The answer to a request that is not passed on; None for one that is."""
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if headers.get("host", "").lower() not in self._hosts:
            return _refused(403, "this server is not the Host that the request names")
        has_bearer = self._has_token(headers)
        if has_bearer is None and not self._is_open(scope, headers, path, method):
            answer = _refused(401, "a token is needed: Authorization: Bearer TOKEN")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if not scope[NUMBERS_ALONE]:
            scope[TRUSTED] = True
        if method in ("GET", "HEAD"):
            return None
        return self._refusal_of_order(headers, method, has_bearer=bool(has_bearer))

    def _refusal_of_order(self, headers: Headers, method: str, *, has_bearer: bool) -> JSONResponse | None:
        if method != "POST":
            return _refused(405, f"{method} is not served")
        if self._is_read_only:
            return _refused(403, "this page is read-only (--read-only)")
        if not self._is_own_site(headers):
            return _refused(403, "an order from another site")
        if not has_bearer and "x-acktree" not in headers:
            return _refused(403, "an order needs the header X-Acktree, or the token as Bearer")
        return None

    def _has_token(self, headers: Headers) -> bool | None:
        """True for the token as Bearer, False for it as a password, None for neither."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(credentials.strip(), self._token):
            return True
        if scheme.lower() == "basic":
            try:
                password = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return None
            if _equal(password, self._token):
                return False
        return None

    def _is_open(self, scope: Scope, headers: Headers, path: str, method: str) -> bool:
        """Whether a request without the token is answered: for the page without data, or open numbers."""
        if method not in ("GET", "HEAD"):
            return False
        if path == _SHELL[0] or path.startswith(_SHELL[1]):
            token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            return _equal(token, self._token) or _equal(_cookie(headers), self._page_secret)
        if self._has_open_numbers and path.startswith(_NUMBERS):
            scope[NUMBERS_ALONE] = True
            return not any(part in _NO_NUMBERS for part in path.split("/"))
        return False

    def _is_own_site(self, headers: Headers) -> bool:
        if headers.get("sec-fetch-site", "none") not in _SAME_SITE:
            return False
        origin = headers.get("origin")
        return origin is None or origin.lower().partition("://")[2] in self._hosts


def _cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _equal(token: str, wanted: str) -> bool:
    return secrets.compare_digest(token.encode("utf-8", "replace"), wanted.encode())


def _refused(status: int, what: str) -> JSONResponse:
    """An answer after which the connection is closed: nothing else is asked on it for nothing."""
    said = {"error": f"{status} {_NAMES[status]}", "errorMessage": what}
    return JSONResponse(said, status, {"Connection": "close"})


_NAMES: Final = {401: "Unauthorized", 403: "Forbidden", 405: "Method Not Allowed"}
