"""The page's process: a server of HTTP on loopback, or with TLS and a token file beyond it."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from acktree.errors import ConfigError, ConnectorError
from acktree.logs.loggers import print_by_default
from acktree.system.forks import close_in_children, note_closed
from acktree.system.private_files import write_private
from acktree.ui.observer import own_version
from acktree.ui.web.app import application
from acktree.ui.web.connections import BACKLOG, Connection, Loop
from acktree.ui.web.guard import Guard
from acktree.ui.web.sources import Sources

_LOOK_SECS: Final = 0.2
_STOP_SECS: Final = 3.0
_LEAST_TOKEN: Final = 16
_USUAL_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Words:
    """Option names as the user wrote them, for error messages.

    Attributes:
        listen: Where it is said where to listen.
        address: What another address is given by.
    """

    listen: str = "acktree ui --listen"
    address: str = "--listen"
    token_file: str = "--token-file"  # noqa: S105  # an option's name
    certificate: str = "--tls-cert"
    key: str = "--tls-key"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``acktree ui`` or ``serve_page()`` was asked for.

    Attributes:
        port: 0: a free one.
        token_file: Where the token is; made if missing. None: a new token for this process.
        certificate, key: For TLS.
        checkpoints: Shown too, also when stopped.
        has_open_numbers: Whether numbers of Storm's REST need no token.
        words: What errors call these options.
    """

    host: str = "127.0.0.1"
    port: int = 0
    is_read_only: bool = False
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    checkpoints: tuple[str, ...] = ()
    has_open_numbers: bool = False
    words: Words = Words()


@dataclass(frozen=True, slots=True)
class Started:
    """Where the page is, and the token that it asks for."""

    url: str
    token: str


def serve(options: Options) -> Iterator[Started]:
    """Serve until a signal is raised in this thread. Yields once, when connections are accepted.

    Orders are logged: to stderr, unless the application has set up logging.

    Raises:
        ConfigError: It is to listen beyond loopback without a token file and TLS, or a file is not private.
        ConnectorError: The address is taken, or is none of this machine.
    """
    _refuse_unsafe(options)
    print_by_default(None)
    own_pid = os.getpid()
    token = secrets.token_urlsafe(32) if options.token_file is None else _token_in(Path(options.token_file))
    listening = _listen(options)
    with listening:
        host, port = listening.getsockname()[:2]
        stopping = threading.Event()
        server = uvicorn.Server(_config(options, token, host, port, stopping.is_set))
        thread = threading.Thread(target=server.run, args=([listening],), name="page", daemon=True)
        descriptor = listening.fileno()
        close_in_children(descriptor)  # of a program that serves the page itself, and whose code forks
        try:
            thread.start()
            while not server.started and thread.is_alive():
                time.sleep(_LOOK_SECS / 10)
            if thread.is_alive():
                yield Started(f"{_scheme(options)}://{_in_url(host)}:{port}", token)
            while thread.is_alive():
                thread.join(_LOOK_SECS)
            raise ConnectorError("the page's server has stopped", f"{host}:{port}", "see the log above")
        finally:
            if os.getpid() == own_pid:
                stopping.set()
                server.should_exit = True
                if thread.ident is not None:
                    thread.join(_STOP_SECS)
                note_closed(descriptor)
            else:  # a forked child: its copy of the socket is closed already, and it has no such thread
                listening.detach()


def _config(
    options: Options, token: str, host: str, port: int, is_stopping: Callable[[], bool]
) -> uvicorn.Config:
    page_secret = secrets.token_urlsafe(32)
    usual = _USUAL_PORTS[_scheme(options)]
    app = application(
        Sources(options.checkpoints), own_version(), page_secret, (host, port), is_stopping,
        is_read_only=options.is_read_only,
    )  # fmt: skip
    guarded = Guard(
        app, token, page_secret, _hosts(options.host, host, port, usual), is_read_only=options.is_read_only,
        has_open_numbers=options.has_open_numbers,
    )  # fmt: skip
    config = uvicorn.Config(
        guarded, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=1, proxy_headers=False, http=Connection, backlog=BACKLOG,
        loop=f"{Loop.__module__}:{Loop.__qualname__}",
        ssl_certfile=options.certificate, ssl_keyfile=options.key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # an ssl.SSLError too
        raise ConfigError(
            f"the certificate or its key cannot be read: {error.strerror or error}",
            f"{options.words.certificate} {options.certificate}, {options.words.key} {options.key}",
            "give a certificate and its key as PEM files that you can read",
        ) from error
    return config


def _scheme(options: Options) -> str:
    return "http" if options.certificate is None else "https"


def _hosts(asked: str, host: str, port: int, usual_port: int) -> set[str]:
    """The values of ``Host`` that name this server; browsers leave the scheme's usual port out."""
    names = {asked, host, "localhost"} if _is_loopback(host) else {asked, host, socket.getfqdn()}
    hosts = {_in_url(name) for name in names if name}
    return {f"{name}:{port}" for name in hosts} | (hosts if port == usual_port else set())


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_unsafe(options: Options) -> None:
    if _is_loopback(options.host):
        return
    if options.token_file is None or options.certificate is None or options.key is None:
        words = options.words
        raise ConfigError(
            f"{options.host!r} is reached from other machines",
            words.listen,
            f"listen on 127.0.0.1, or give {words.token_file}, {words.certificate} and {words.key}",
        )


def _token_in(file: Path) -> str:
    """The token of a private file, which is made if it is missing.

    Raises:
        ConfigError: It cannot be read or made, others can read it, or it holds no token.
    """
    try:
        return _read_token(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the token cannot be read: {error}", str(file), "name a file that you can read, or can make"
        ) from error


def _read_token(file: Path) -> str:
    if not file.exists():
        token = secrets.token_urlsafe(32)
        write_private(file, f"{token}\n".encode())
        return token
    status = file.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError("other users can read the token", str(file), f"make it yours: chmod 600 {file}")
    token = file.read_text().strip()
    if len(token) < _LEAST_TOKEN:
        raise ConfigError(
            f"the token has {len(token)} characters", str(file), f"give it at least {_LEAST_TOKEN}"
        )
    return token


def _listen(options: Options) -> socket.socket:
    try:
        return socket.create_server(
            (options.host, options.port),
            family=socket.AF_INET6 if ":" in options.host else socket.AF_INET,
            backlog=BACKLOG,
        )
    except OSError as error:
        raise ConnectorError(
            f"cannot listen: {error.strerror or error}",
            f"{options.host}:{options.port}",
            f"give another {options.words.address}",
        ) from error
