"""What tests fetch once: jars and packages in the user's cache (``XDG_CACHE_HOME``)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Where they are kept from run to run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acktree-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetched(
    name: str, fetch: Callable[[Path], None], is_whole: Callable[[Path], bool] = lambda place: place.exists()
) -> Path:
    """The place of this name in the cache. Where it is not whole, one process fetches it and others wait."""
    place = cache_folder() / name
    if not is_whole(place):  # first: on a simulated host the cache is read-only, and whole
        with (place.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(place):
                fetch(place)
    return place
