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

__all__ = ["code_of_acktree", "run_acktree", "topology_here"]


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
    name = str(args.name or project.topology_file(project.read_config(), None)[0])
    checkpoint = None
    with suppress(ConfigError):  # there is no config.json, or no environment is named
        checkpoint = project.environment_of(project.read_config(), args.environment)[1].get("checkpoint")
    command = [sys.executable, "-m", "acktree", "list", "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603  # our own command
    if done.returncode:
        return name
    places = [Path.cwd(), *([Path(checkpoint)] if checkpoint else [])]
    return _of_places(json.loads(done.stdout)["topologies"], name, places) or name


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
