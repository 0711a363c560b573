"""``acktree flux``: runs and checks topologies in YAML files of Storm's Flux.

Source: Storm's ``Flux``.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any, Final

from acktree.cli import run
from acktree.cli.answers import Commands, new_command
from acktree.cli.targets import YAML, add_target

_ABOUT: Final = "a YAML file of Flux"
_WITHOUT_EFFECT: Final = ("--local", "--remote", "--resource", "--no-detail", "--no-splash")
_REFUSED: Final = {
    "--inactive": "start it, and then: acktree deactivate NAME",
    "--sleep": "give the time in seconds: --timeout SECS",
    "--zookeeper": "leave it out: there is no ZooKeeper",
}


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    about = "topologies in YAML files of Storm's Flux"
    family = commands.add_parser("flux", help=about, description=f"{about[:1].upper()}{about[1:]}.")
    of_flux = family.add_subparsers(required=True, metavar="COMMAND", dest="command")
    others = run.add_commands(of_flux, "FILE", _ABOUT, _yaml_file)
    check = new_command(
        of_flux, "check", "validate and describe a file; start nothing", run.dry_run, names=False
    )
    add_target(check, "FILE", _ABOUT, _yaml_file)
    for parser in (*others, check):
        _add_options_of_storm(parser)


def _yaml_file(name: str) -> str:
    if not name.endswith(YAML):
        raise ArgumentTypeError(f"the name of {name!r} does not end with {' or '.join(YAML)}")
    return name


def _add_options_of_storm(parser: ArgumentParser) -> None:
    for option in _WITHOUT_EFFECT:
        parser.add_argument(option, action="store_true", help="of Storm; without effect")
    for option, fix in _REFUSED.items():
        count = 0 if option == "--inactive" else 1
        parser.add_argument(option, action=_Refused, nargs=count, help=f"of Storm; refused: {fix}")


class _Refused(Action):
    """An option of Storm's command that is refused."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        del namespace, values
        parser.error(f"{option} is refused: {_REFUSED[str(option)]}")
