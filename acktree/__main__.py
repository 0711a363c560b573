"""The program ``acktree``, also ``python -m acktree``: see :mod:`acktree.cli.main`."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a program that Ctrl-C has ended."""


def main() -> int:
    """Run the command that this process's arguments name; returns the exit code."""
    try:
        from acktree.cli import main as commands  # noqa: PLC0415  # takes 0.4 s, and Ctrl-C may come meanwhile

        return commands.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
