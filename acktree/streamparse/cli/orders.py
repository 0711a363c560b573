"""Runs a command of ``acktree`` for a command of ``sparse``, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from acktree import ConfigError
from acktree.streamparse import project

__all__ = ["checkpoint_here", "code_of_acktree", "run_acktree", "topology_here"]


def code_of_acktree(*arguments: str) -> int:
    """Run ``acktree``; returns its exit code."""
    command = [sys.executable, "-m", "acktree", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603  # our own command


def run_acktree(*arguments: str) -> NoReturn:
    """Run ``acktree``, and end with its exit code."""
    raise SystemExit(code_of_acktree(*arguments))


def topology_here(args: Namespace) -> str:
    """The topology that ``-n`` names, or the only one of the project.

    Its checkpoint where one is below this folder, or is that of the environment: other projects may have
    topologies with the same name. Else its name.
    """
    name, places = _name_of(args), [Path.cwd(), *_of_environment(args)]
    return _of_places(_known(), name, places) or name


def checkpoint_here(args: Namespace) -> str:
    """The checkpoint of the environment; else of that topology, or of the only one that has its name.

    Empty where there is none. Topologies that are stopped are found, too.
    """
    for own in _of_environment(args):
        return str(own)
    name, known = _name_of(args), _known("--all")
    return _of_places(known, name, [Path.cwd()]) or _of_places(known, name, [Path("/")]) or ""


def _name_of(args: Namespace) -> str:
    return str(args.name or project.topology_file(project.read_config(), None)[0])


def _of_environment(args: Namespace) -> list[Path]:
    """The checkpoint of the environment, if it has one."""
    with suppress(ConfigError):  # there is no config.json, or no environment is named
        checkpoint = project.environment_of(project.read_config(), args.environment)[1].get("checkpoint")
        return [Path(checkpoint)] if checkpoint else []
    return []


def _known(*options: str) -> list[dict[str, Any]]:
    """The topologies of this user on this machine, as ``acktree list`` has them."""
    command = [sys.executable, "-m", "acktree", "list", "--json", *options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603  # our own command
    return [] if done.returncode else list(json.loads(done.stdout)["topologies"])


def _of_places(known: Iterable[Mapping[str, Any]], name: str, places: Iterable[Path]) -> str | None:
    """The checkpoint of the only topology of this name below some folders; of several the one that runs."""
    folders = [place.resolve() for place in places]
    mine = [
        each
        for each in known
        if each["topology"] == name
        and any(Path(each["checkpoint"]).resolve().is_relative_to(folder) for folder in folders)
    ]
    chosen = [each for each in mine if each["uptime_secs"] is not None] or mine
    return str(chosen[0]["checkpoint"]) if len(chosen) == 1 else None
