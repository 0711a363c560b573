"""``acktree ui``: serves the web page, REST and metrics for this user's topologies."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import Final

from acktree.cli.answers import Answer, Commands, UsageError, new_command
from acktree.errors import ConfigError, installing

_MOST_PORT: Final = 65_535


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = new_command(
        commands, "ui", "the web page, REST and metrics of your topologies", _ui, names=False, waits=False
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="[HOST:]PORT",
        help="where (default: a free port of 127.0.0.1); beyond loopback --token-file and TLS are asked for",
    )  # fmt: skip
    parser.add_argument("--read-only", action="store_true", help="refuse every order")
    parser.add_argument(
        "--token-file", metavar="FILE", help="the token, in a file that only you can read; made if missing"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="the certificate, where it listens beyond loopback"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="C",
        help="a checkpoint to show, also when stopped",
    )
    parser.add_argument(
        "--open-numbers", action="store_true",
        help="serve the numbers of Storm's REST without a token, for tools that cannot send one; no errors, "
        "no values, no orders",
    )  # fmt: skip


def _ui(arguments: Namespace) -> Iterable[Answer]:
    try:
        from acktree.ui.web.serve import Options, serve  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise ConfigError(
            f"{error.name} is not installed, and the page needs it", "acktree ui", installing("ui")
        ) from error
    host, _, port = arguments.listen.rpartition(":")
    if not port.isdecimal() or int(port) > _MOST_PORT:
        raise UsageError(f"{arguments.listen!r} is no address", "--listen", "write HOST:PORT, or PORT")
    options = Options(
        host=host.strip("[]") or "127.0.0.1", port=int(port), is_read_only=arguments.read_only,
        token_file=arguments.token_file, certificate=arguments.tls_cert, key=arguments.tls_key,
        checkpoints=tuple(arguments.checkpoint), has_open_numbers=arguments.open_numbers,
    )  # fmt: skip
    for started in serve(options):
        shown = f"{started.url}/?token={started.token}"
        yield Answer(
            {"url": started.url, "token": started.token},
            f"the page: {shown}\nCtrl-C stops it. The token is in that address: give it to nobody.",
        )
