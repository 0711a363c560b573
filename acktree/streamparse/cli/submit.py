"""``sparse submit``: run a topology in a process of its own, as ``acktree submit`` does."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from acktree import ConfigError
from acktree.streamparse import project
from acktree.streamparse.cli.common import add_command, add_options, resolve_options
from acktree.streamparse.cli.orders import code_of_acktree

__all__ = ["main", "subparser_hook"]

_NO_EFFECT: Final = (
    ("-f", "--force", 0), ("-i", "--inactive", 0), ("-u", "--uber_jar", 0), ("", "--overwrite_virtualenv", 0),
    ("-j", "--local_jar_path", None), ("-R", "--remote_jar_path", None), ("-r", "--requirements", "*"),
    ("", "--wait", None), ("", "--timeout", None), ("", "--pool_size", None), ("", "--user", None),
)  # fmt: skip
"""Options about jars, virtualenvs, Nimbus and ssh, and how many values they take."""


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "submit", "run a topology in a process of its own", main)
    add_options(parser)
    parser.add_argument(
        "--checkpoint", metavar="C", help="where its memory is; or the environment's key checkpoint"
    )
    parser.add_argument("-N", "--override_name", metavar="NAME", help="the name under which it runs")
    for short, long, count in _NO_EFFECT:
        names, about = [name for name in (short, long) if name], "no effect here"
        if count == 0:
            parser.add_argument(*names, action="store_true", help=about)
        else:
            parser.add_argument(*names, nargs=count, help=about)


def main(args: Namespace) -> None:
    """Run a topology in a process of its own."""
    for _, long, _ in _NO_EFFECT:
        if getattr(args, long.lstrip("-")):
            print(f"{long} has no effect here: there are no jars, virtualenvs or ssh", file=sys.stderr)
    config = project.read_config(args.config)
    name, file = project.topology_file(config, args.name)
    environment, settings = project.environment_of(config, args.environment)
    checkpoint = args.checkpoint or settings.get("checkpoint")
    if not checkpoint:
        raise ConfigError(
            "there is no checkpoint", f"config.json, envs, {environment}",
            'name a folder: --checkpoint C, or the key "checkpoint" of the environment',
        )  # fmt: skip
    kind = project.topology_in(file)
    about = (name, environment, settings, resolve_options(args.options, settings, kind, name))
    _call_hook("pre_submit", *about)
    options = [f"-o{key}={json.dumps(value)}" for key, value in (args.options or {}).items()]
    names = ["--name", args.override_name] if args.override_name else []
    code = code_of_acktree(
        "submit", str(file), "--checkpoint", checkpoint, "-e", environment, *names, *options
    )
    if code:
        raise SystemExit(code)
    _call_hook("post_submit", *about)


def _call_hook(hook: str, *arguments: Any) -> None:
    """Call the function of this name of the project's ``fabfile.py`` and ``tasks.py``."""
    sys.path.insert(0, "")
    for module in ("fabfile", "tasks"):
        if Path(f"{module}.py").is_file():
            function = getattr(importlib.import_module(module), hook, None)
            if function is not None:
                function(*arguments)
