"""The folder in which peers are built and installed: made on demand, and ignored by git."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

FOLDER: Final = Path(__file__).parent.parent / ".peers"
MISSING: Final = 3
"""The exit code of a peer that cannot run on this machine."""


def refuse(what: str, fix: str) -> NoReturn:
    """Print why the peer cannot run here, and exit."""
    print(f"{what}\n  fix:   {fix}", file=sys.stderr)
    sys.exit(MISSING)


def run(command: Sequence[str], why: str) -> None:
    """Run a command that prepares a peer; its output goes to stderr."""
    print(f"{why}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603  # a fixed command
    except OSError as error:
        refuse(f"{why} failed: {error}", "see the line above")
    if done.returncode:
        refuse(f"{why} failed with exit code {done.returncode}", "see what it said above")


def python_with(name: str, *packages: str) -> Path:
    """The interpreter of a virtual environment that has these packages, made the first time.

    Args:
        name: The name of the environment's folder.
        packages: As pip takes them, with versions.
    """
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        why = f"the first run makes {folder}"
        run([sys.executable, "-m", "venv", str(folder)], why)
        run([str(python), "-m", "pip", "install", "--quiet", *packages], why)
        ready.write_text(wanted)
    return python
