"""Trident's states: maps and single values in a database, updated by batches with numbers.

A ``MapState`` holds values by key. By the number of the micro-batch beside each value it knows an update that
is made again. ``SqlMap`` needs ``acktree[sql]``, ``RedisMap`` needs ``acktree[redis]``.

| mode | stored | a batch that comes again |
| --- | --- | --- |
| ``"plain"`` | value | counts twice |
| ``"transactional"`` | number and value | counts once, if it holds the same tuples |
| ``"opaque"`` | number, value, and the value before | counts once; it may hold other tuples |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from acktree.states.map_state import MapBacking, MapState, MemoryMap, Mode, RefusedKeysError, SnapshotState

if TYPE_CHECKING:
    from acktree.states.redis_map import RedisMap
    from acktree.states.sql_map import SqlMap

_LAZY: Final = {"RedisMap": "acktree.states.redis_map", "SqlMap": "acktree.states.sql_map"}
"""Names that are imported when they are asked for: each needs an extra."""

__all__ = [
    "MapBacking",
    "MapState",
    "MemoryMap",
    "Mode",
    "RedisMap",
    "RefusedKeysError",
    "SnapshotState",
    "SqlMap",
]


def __getattr__(name: str) -> object:
    """Fetch a backing that needs a database's client, when it is asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
