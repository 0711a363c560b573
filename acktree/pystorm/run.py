"""``python -m acktree.pystorm.run [-s SERIALIZER] module.Class``: one component as a child process.

It is what streamparse's ``streamparse_run`` is. Storm passes all that follows the command as one argument, so
a single argument is split at blanks.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from acktree import ConfigError, errors
from acktree.pystorm.bodies import refuse_bodies_that_do_not_run
from acktree.pystorm.component import _SERIALIZERS

__all__ = ["main", "run_component"]


def run_component(resources: str) -> None:
    """Make the component that the arguments of this process name, and run it.

    Args:
        resources: A folder below the working folder, where modules are looked for first, if it has them.
    """
    arguments = sys.argv[1:]
    if len(arguments) == 1:
        arguments = arguments[0].split()
    parser = argparse.ArgumentParser(description="Run a component of a topology as a child process.")
    parser.add_argument("target", metavar="module.Class", help="the class of the component")
    parser.add_argument(
        "-s", "--serializer", choices=sorted(_SERIALIZERS), default="json", help="of messages"
    )
    given = parser.parse_args(arguments)
    kind = _class_of(given.target, resources)
    if isinstance(kind, type):
        refuse_bodies_that_do_not_run(kind, in_child=True)
    kind(serializer=given.serializer).run()


def _class_of(target: str, resources: str) -> Any:
    module, _, name = target.rpartition(".")
    top = module.partition(".")[0]
    folders = [Path(), Path(resources)]
    has_it = (folders[1] / top).exists() or (folders[1] / f"{top}.py").exists()
    sys.path[:0] = [str(folder.absolute()) for folder in (reversed(folders) if has_it else folders[:1])]
    imported = importlib.import_module(module)
    if not hasattr(imported, name):
        raise ConfigError(f"module {module!r} has no {name!r}", target, errors.nearest(name, vars(imported)))
    return getattr(imported, name)


def main() -> None:
    """Run the component that the arguments name."""
    run_component("resources")


if __name__ == "__main__":
    main()
