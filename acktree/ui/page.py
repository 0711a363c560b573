"""The page in the user's own process: for a container with one process, and for notebooks.

The page's libraries are imported when a page is asked for. A driver without one needs none of them.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from acktree.errors import ConfigError, ending_at_caller, installing

if TYPE_CHECKING:
    from types import TracebackType

    from acktree.ui.web.serve import Started

_LIBRARIES: Final = frozenset({"prometheus_client", "starlette", "uvicorn"})
_LAST_PORT: Final = 65535
_open: Final[set[Page]] = set()
"""A page stays although nobody keeps what :func:`serve_page` returned."""
_closing: Final = Lock()
"""Held while a page is closed."""


class Page:
    """A page that this process serves, until :meth:`close`, the end of a ``with`` block, or its own end.

    Attributes:
        url: Where it is.
        token: What every request needs. Give it to nobody.
    """

    def __init__(self, serving: Iterator[Started]) -> None:
        """Made by ``serve_page``."""
        self._serving = serving
        started = next(serving)
        self.url, self.token = started.url, started.token
        _open.add(self)

    def __repr__(self) -> str:
        # A notebook is given away with what it shows, so the token is not in it.
        return f"Page({self.url!r})"

    @property
    def address(self) -> str:
        """The address for a browser, with the token in it."""
        return f"{self.url}/?token={self.token}"

    def close(self) -> None:
        """Answer no more. A second call does nothing."""
        with _closing:
            _open.discard(self)
            self._serving.close()  # type: ignore[attr-defined]  # it is a generator

    def __enter__(self) -> Self:
        """Return the page."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


@atexit.register
def _close_all() -> None:
    """Close the pages that were left open, while their threads can still end."""
    for page in list(_open):
        page.close()


@ending_at_caller
def serve_page(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    read_only: bool = False,
    token_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    checkpoints: Sequence[str] = (),
    open_numbers: bool = False,
) -> Page:
    """Serve the page, REST and metrics from this process, as ``acktree ui`` does in one of its own.

    It shows all topologies of this user on this machine, those of this process among them. While it answers
    it takes time from spouts, which run in this process; ``acktree ui`` beside the program does not.

    Args:
        host: Where it listens. Beyond loopback ``token_file``, ``tls_cert`` and ``tls_key`` are needed.
        port: 0: a free one.
        read_only: Refuse every order.
        token_file: Where the token is; made if missing. None: a new token.
        tls_cert: The file of the certificate.
        tls_key: The file of its key.
        checkpoints: Shown too, also when stopped.
        open_numbers: Whether numbers of Storm's REST need no token.

    Raises:
        ConfigError: There is no such port, it is to listen beyond loopback without a token file and TLS, a
            file is not private, or ``acktree[ui]`` is not installed.
        ConnectorError: The address is taken, or is none of this machine.
    """
    if isinstance(checkpoints, str):
        raise ConfigError(
            "checkpoints is one text, and must be a list of them",
            "serve_page(checkpoints=...)",
            f"write checkpoints=[{checkpoints!r}]",
        )
    if port not in range(_LAST_PORT + 1):
        fix = f"give 0 to {_LAST_PORT}; 0 is a free one"
        raise ConfigError(f"{port!r:.40} is no port", "serve_page(port=...)", fix)
    try:
        from acktree.ui.web.serve import Options, Words, serve  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        raise ConfigError(
            f"{error.name} is not installed, and the page needs it",
            "serve_page()",
            installing("ui"),
        ) from error
    options = Options(
        host=host, port=port, is_read_only=read_only, token_file=token_file, certificate=tls_cert,
        key=tls_key, checkpoints=tuple(map(str, checkpoints)), has_open_numbers=open_numbers,
        words=Words("serve_page(host=...)", "host or port", "token_file", "tls_cert", "tls_key"),
    )  # fmt: skip
    return Page(serve(options))
