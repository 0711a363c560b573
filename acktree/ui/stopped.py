"""A topology without its driver: letters, orders about them, traces, history, whether its lock is held."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, Final

from acktree.checkpoint import disk_errors
from acktree.checkpoint.facts import redrives_ordered_in
from acktree.checkpoint.folder import Checkpoint
from acktree.dead_letters.store import IN_MEMORY as LETTERS_IN_MEMORY
from acktree.dead_letters.store import DeadLetters
from acktree.errors import AcktreeError, CheckpointError, ConfigError
from acktree.traces.traces import Traces
from acktree.ui import letters
from acktree.ui.client import Found, nobody_runs
from acktree.ui.history_store import FILE, IN_MEMORY, HistoryStore


def traces_of(target: Found) -> Traces:
    """The traces of a topology, read without its driver. Close them.

    Raises:
        ConfigError: Its checkpoint is at a URL, where they are kept in the driver's memory.
        CheckpointError: The file cannot be read.
    """
    if target.folder is None:
        raise ConfigError(
            "its checkpoint is at a URL, so its traces were in the memory of its driver",
            target.checkpoint,
            "ask while it runs",
        )
    return Traces.of_checkpoint(target.folder)


@contextmanager
def history_of(target: Found) -> Iterator[HistoryStore]:
    """The history of a topology, read without its driver; closed at the end of the block.

    Empty where there is none: at a URL it was in the driver's memory.

    Raises:
        CheckpointError: The file cannot be read.
    """
    file = None if target.folder is None else target.folder / FILE
    try:
        is_there = file is not None and file.exists()
        store = HistoryStore(file if file and is_there else IN_MEMORY, read_only=is_there)
    except (OSError, sqlite3.Error) as error:
        raise CheckpointError(
            f"the history cannot be read: {error}", str(file), "see that the file and its folder can be read"
        ) from error
    with closing(store):
        yield store


@contextmanager
def letters_of(target: Found, url: str | None = None) -> Iterator[DeadLetters]:
    """The store of a topology's dead letters, opened without its driver; closed at the end of the block.

    Args:
        target: The topology.
        url: The store, where it is not in the checkpoint.

    Raises:
        ConfigError: It is not in the checkpoint, and no URL was given.
    """
    if url is not None:
        with DeadLetters(url, topology=target.topology, create=False) as store:
            yield store
        return
    snapshot = target.snapshot()
    elsewhere = snapshot.config.get("acktree.dead.letters.url") if snapshot else None
    if elsewhere is not None or target.folder is None:
        raise ConfigError(
            f"its dead letters are in {elsewhere or 'a database of yours'}",
            target.checkpoint,
            "name it: --store URL",
        )
    file = target.folder / "dead_letters.sqlite"
    with DeadLetters(file if file.exists() else LETTERS_IN_MEMORY) as store:
        yield store


def order_redrive(target: Found, ids: list[int]) -> dict[str, Any]:
    """Let the next run of a topology send letters again. Durable when this returns.

    Raises:
        NobodyRunsError: Its checkpoint is at a URL: only its driver gives such an order.
        CheckpointError: A driver has the checkpoint, or no topology was run on it.
    """
    if target.folder is None:
        raise nobody_runs(target.entry)
    with disk_errors.explaining(target.folder), closing(Checkpoint(target.folder)) as held:
        held.order_redrive(ids, time.time_ns() // 1_000_000)
    return {"done": True, "redriven": 0, "ordered": len(ids)}


def redrives_ordered(target: Found) -> int:
    """How many letters the next run sends again; 0 while one runs.

    An order is kept until the next run sees that its letter is settled, or is not there any more.
    """
    ordered = {} if target.is_running or target.folder is None else redrives_ordered_in(target.folder)
    if not ordered:
        return 0
    try:
        with letters_of(target) as store:
            known = [(each.settled_ms, ordered[each.id]) for each in store.find(ids=ordered) if each.id]
            return sum(settled_ms is None or settled_ms < at_ms for settled_ms, at_ms in known)
    except AcktreeError:  # they are in a database, which is not asked
        return len(ordered)


def _redrive(target: Found, given: Mapping[str, Any]) -> dict[str, Any]:
    with letters_of(target) as store:
        ids = letters.ordered(store, given)
    return order_redrive(target, ids)


def _purge(target: Found, given: Mapping[str, Any]) -> dict[str, Any]:
    with letters_of(target) as store:
        return letters.purge(store, given)


LETTER_ORDERS: Final[Mapping[str, Callable[[Found, Mapping[str, Any]], dict[str, Any]]]] = MappingProxyType(
    {"dead-letters/redrive": _redrive, "dead-letters/purge": _purge}
)
"""What is carried out of a topology that nobody runs, by order."""
