"""``sparse visualize``: a topology as the text of a Mermaid diagram."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from acktree.streamparse import build, project
from acktree.streamparse.cli.common import add_command, add_options, resolve_options

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "visualize", "print a topology as a Mermaid diagram", main)
    add_options(parser, settings=False)


def main(args: Namespace) -> None:
    """Print a topology as a Mermaid diagram."""
    config = project.read_config()
    name, file = project.topology_file(config, args.name)
    environment, settings = project.environment_of(config, args.environment)
    kind = project.topology_in(file)
    options = resolve_options(None, settings, kind, name)
    print(build.build(kind, name, options, environment, {}).describe().mermaid())
