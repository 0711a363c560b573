"""A partition's memory in Spark's state store: named blobs, large ones stored in parts.

The JVM copies a value about six times on its way into RocksDB, and its default heap is one gigabyte. So one
blob of 150 MB would exhaust the heap and end the query. Parts keep each value small.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from acktree.core.state.store import StateStore
from acktree.spark.worker.state_channel import Channel

if TYPE_CHECKING:  # Spark calls us with one; its import costs a worker 50 ms
    from pyspark.sql.streaming.stateful_processor import MapState

PART_BYTES: Final = 4 << 20
"""A blob of more bytes is stored in parts of this size, with a marker under its own name."""
_IN_PARTS: Final = b""


class MapStateStore(StateStore):
    """Named blobs in Spark's state store; each blob is read once and cached.

    Attributes:
        channel: The channel to Spark's state. The operator checks at the end of a level whether it was lost,
            because user code may have caught the error.
    """

    def __init__(self, blobs: MapState) -> None:
        """Keep blobs in a map of ``name string`` to ``blob binary``."""
        self._blobs = blobs
        self.channel = Channel()
        self._seen: dict[str, bytes | None] = {}
        self._parts: dict[str, int] = {}

    def get(self, name: str) -> bytes | None:
        if name not in self._seen:
            with self.channel.question():
                blob = self._read(name)
                self._seen[name] = self._joined(name) if blob == _IN_PARTS else blob
        return self._seen[name]

    def put(self, name: str, blob: bytes) -> None:
        self.get(name)  # finds out whether the old blob is stored in parts
        with self.channel.question():
            self._put(name, blob)

    def _put(self, name: str, blob: bytes) -> None:
        self._seen[name] = blob
        if len(blob) <= PART_BYTES:
            self._blobs.updateValue((name,), (blob,))
            self._forget_parts(name, 0)
            return
        parts = range(0, len(blob), PART_BYTES)
        for number, start in enumerate(parts):
            self._blobs.updateValue((_part(name, number),), (blob[start : start + PART_BYTES],))
        self._blobs.updateValue((name,), (_IN_PARTS,))
        self._forget_parts(name, len(parts))

    def delete(self, name: str) -> None:
        self.get(name)
        with self.channel.question():
            self._seen[name] = None
            self._blobs.removeKey((name,))
            self._forget_parts(name, 0)

    def _read(self, name: str) -> bytes | None:
        row = self._blobs.getValue((name,))
        return None if row is None else bytes(row[0])

    def _joined(self, name: str) -> bytes:
        parts: list[bytes] = []
        for number in count():
            part = self._read(_part(name, number))
            if part is None:
                break
            parts.append(part)
        self._parts[name] = len(parts)
        return b"".join(parts)

    def _forget_parts(self, name: str, kept: int) -> None:
        for number in range(kept, self._parts.get(name, 0)):
            self._blobs.removeKey((_part(name, number),))
        self._parts[name] = kept


def _part(name: str, number: int) -> str:
    return f"{name}\0{number}"
