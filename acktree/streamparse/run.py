"""``streamparse_run``: one component as a child process. See ``acktree.pystorm.run``."""

from __future__ import annotations

from acktree.pystorm.run import run_component

__all__ = ["RESOURCES_PATH", "main"]

RESOURCES_PATH = "resources"
"""A folder below the working folder, where modules are looked for first, if it has them."""


def main() -> None:
    """Run the component that the arguments of this process name."""
    run_component(RESOURCES_PATH)


if __name__ == "__main__":
    main()
