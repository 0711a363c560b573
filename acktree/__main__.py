"""``python -m acktree``: see :mod:`acktree.cli.main`."""

from __future__ import annotations

import sys

from acktree.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
