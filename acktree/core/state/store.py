"""The interface of the state store: what is kept between micro-batches, as named blobs.

The memory of tasks and the table of held tuples are named blobs. Files of the checkpoint keep them, at a URL
Spark's state store; they are committed with the micro-batch; ``LocalCluster`` keeps them in a dict.
"""

from __future__ import annotations

from typing import Protocol


class StateStore(Protocol):
    """Named blobs of one partition; changes are committed with their micro-batch, or not at all."""

    def get(self, name: str) -> bytes | None:
        """The blob of that name, or None."""

    def put(self, name: str, blob: bytes) -> None:
        """Set a blob."""

    def delete(self, name: str) -> None:
        """Delete an existing blob."""


class MemoryStore(StateStore):
    """A :class:`StateStore` in a dict."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    def put(self, name: str, blob: bytes) -> None:
        self.blobs[name] = blob

    def delete(self, name: str) -> None:
        del self.blobs[name]


class Draft(StateStore):
    """Changes of another store that are made all together, by :meth:`commit`, or never."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._changes: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        return self._changes[name] if name in self._changes else self._store.get(name)

    def put(self, name: str, blob: bytes) -> None:
        self._changes[name] = blob

    def delete(self, name: str) -> None:
        self._changes[name] = None

    def commit(self) -> None:
        """Make the changes."""
        for name, blob in self._changes.items():
            if blob is not None:
                self._store.put(name, blob)
            elif self._store.get(name) is not None:
                self._store.delete(name)


class Below(StateStore):
    """A part of another store: adds a prefix to every name."""

    def __init__(self, store: StateStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def get(self, name: str) -> bytes | None:
        return self._store.get(self._prefix + name)

    def put(self, name: str, blob: bytes) -> None:
        self._store.put(self._prefix + name, blob)

    def delete(self, name: str) -> None:
        self._store.delete(self._prefix + name)
