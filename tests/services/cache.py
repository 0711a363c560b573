"""What tests fetch once: jars and packages in the user's cache (``XDG_CACHE_HOME``)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where they are kept from run to run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acktree-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone_in_cache(name: str) -> Iterator[Path]:
    """The place of this name in the cache. Another process that wants it waits for the end of the block."""
    place = cache_folder() / name
    with (place.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
