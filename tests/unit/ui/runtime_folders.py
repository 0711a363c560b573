"""Runtime folders of a test's own: it sees no topology of anybody else."""

from __future__ import annotations

from pathlib import Path

import pytest


def used(folder: Path, patched: pytest.MonkeyPatch) -> Path:
    """Use a folder for sockets and states until the patch ends; returns where the sockets are."""
    patched.setenv("XDG_RUNTIME_DIR", str(folder))
    patched.setenv("XDG_STATE_HOME", str(folder / "state"))
    return folder / "acktree"
