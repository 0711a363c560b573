"""What commands share: their options, and how settings are put together."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from acktree.streamparse.project import options_of

__all__ = ["add_command", "add_options", "refused", "resolve_options", "value_of"]

_REFUSED: Final = 2


class _Option(argparse.Action):
    """Collects settings in one dict: ``-o key=value``, and options that stand for a key."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002  # of the contract
    ) -> None:
        key, equals, text = str(values).partition("=")
        if not equals:
            parser.error(f"{values!r} is no setting: write key=value")
        namespace.options = {**(namespace.options or {}), key: value_of(text)}


def value_of(text: str) -> Any:
    """The value of an option: a number, true, false, null, a list, or else a text.

    >>> value_of("1"), value_of("true"), value_of("[a, b]"), value_of("a b")
    (1, True, ['a', 'b'], 'a b')
    """
    try:
        return json.loads(text)
    except ValueError:
        if text.startswith("[") and text.endswith("]"):
            return [value_of(part.strip()) for part in text[1:-1].split(",") if part.strip()]
        return {"yes": True, "no": False, "True": True, "False": False}.get(text, text)


def add_command(
    subparsers: Any,
    name: str,
    about: str,
    main: Callable[[Namespace], object],
) -> ArgumentParser:
    """Add a command, with the options that all have."""
    parser: ArgumentParser = subparsers.add_parser(
        name, help=about, description=f"{about[:1].upper()}{about[1:]}."
    )
    parser.set_defaults(func=main)
    return parser


def add_options(parser: ArgumentParser, *, settings: bool = True) -> None:
    """Add what names a topology, and its settings."""
    parser.add_argument("-n", "--name", help="the topology; the only one unless given")
    parser.add_argument(
        "-e", "--environment", help="the environment of config.json; the only one unless given"
    )
    if not settings:
        return
    parser.add_argument("--config", type=argparse.FileType("r"), help="another file than config.json")
    add: Any = parser.add_argument
    add("-o", "--option", dest="options", action=_Option, metavar="KEY=VALUE", help="a setting of Storm")
    for short, long, key in (
        ("-a", "--ackers", "topology.acker.executors"),
        ("-w", "--workers", "topology.workers"),
    ):
        add(short, long, dest="options", action=_Option, type=f"{key}={{}}".format, help=f"the setting {key}")
    add(
        "-d", "--debug", dest="options", action=_Option, type="topology.debug={}".format, nargs="?",
        const="true", help="the setting topology.debug",
    )  # fmt: skip


def resolve_options(
    cli_options: Mapping[str, Any] | None,
    env_config: Mapping[str, Any],
    topology_class: Any,
    topology_name: str,
    local_only: bool = False,  # noqa: ARG001  # streamparse's signature; there is no Nimbus to ask
) -> dict[str, Any]:
    """The settings of a topology: the command line wins over the topology, and that over the environment."""
    options = options_of(cli_options, env_config, topology_class, topology_name)
    options.setdefault("storm.workers.list", [])
    for key in ("topology.acker.executors", "topology.workers"):
        if options.get(key) is None:
            options[key] = 1
    options["sudo_user"] = options.get("sudo_user") or "root"
    return options


def refused(name: str, why: str, fix: str) -> tuple[Callable[[Namespace], NoReturn], Callable[[Any], None]]:
    """A command that has no meaning here: it says why, and ends with exit code 2.

    Returns:
        Its ``main`` and its ``subparser_hook``.
    """

    def main(args: Namespace) -> NoReturn:  # noqa: ARG001  # as every command
        print(f"sparse {name}: {why}\n  fix:   {fix}", file=sys.stderr)
        raise SystemExit(_REFUSED)

    def subparser_hook(subparsers: Any) -> None:
        add_command(subparsers, name, f"refused: {why}", main)

    return main, subparser_hook
