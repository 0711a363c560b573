"""What can be read of a topology without its driver: its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.errors import ConfigError
from acktree.ui.client import Found

__all__ = ["letters_of"]


@contextmanager
def letters_of(found: Found, url: str | None = None) -> Iterator[DeadLetters]:
    """The store of a topology's dead letters, opened without its driver; closed at the end of the block.

    Args:
        found: The topology.
        url: The store, where it is not in the checkpoint.

    Raises:
        ConfigError: It is not in the checkpoint, and no URL was given.
    """
    snapshot = found.last_snapshot()
    name = found.entry.topology if found.entry else snapshot.topology if snapshot else None
    if url is not None:
        with DeadLetters(url, topology=name) as store:
            yield store
        return
    elsewhere = snapshot.config.get("acktree.dead.letters.url") if snapshot else None
    if elsewhere is not None or found.folder is None:
        raise ConfigError(
            f"its dead letters are in {elsewhere or 'a database of yours'}",
            found.checkpoint,
            "name it: --store URL",
        )
    file = found.folder / "dead_letters.sqlite"
    with DeadLetters(file if file.exists() else IN_MEMORY) as store:
        yield store
