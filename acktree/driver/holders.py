"""What each task of a bolt holds over micro-batches: how many tuples, for how long, and of which messages.

A task says so at the end of each micro-batch in which it ran; the newest of each task is kept. The messages
are those of its oldest open tuples alone (``tasks/bolts/oldest_held.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from acktree.core.data.frames import WireRow


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that holds an open tuple of a message.

    Attributes:
        held_secs: Since the micro-batch that brought the oldest such tuple; None if not known.
    """

    component: str
    task_id: int
    held_secs: float | None


@dataclass(frozen=True, slots=True)
class _Held:
    count: int
    oldest_ms: int | None
    oldest_open: tuple[tuple[int | None, list[int]], ...] = ()


class Holders:
    """What the tasks hold, as each said last. Any thread may call any method."""

    def __init__(self) -> None:
        """Start without tasks: none has said anything."""
        self._lock = Lock()
        self._by_task: dict[tuple[str, int], _Held] = {}

    def note(self, rows: Iterable[WireRow]) -> None:
        """Take what a micro-batch's rows of kind STATISTICS say. Those without messages are read too."""
        for row in rows:
            said = json.loads(row.head) if row.head else ()
            with self._lock:
                for component, task, count, oldest_ms, *messages in said:
                    oldest_open = messages[0] if messages else ()
                    self._by_task[component, task] = _Held(count, oldest_ms, tuple(oldest_open))

    def counts(self, now_ms: int) -> dict[tuple[str, int], tuple[int, float | None]]:
        """By (bolt, task) how many tuples it holds, and the age of the oldest in seconds."""
        with self._lock:
            by_task = dict(self._by_task)
        return {task: (holder.count, _secs(holder.oldest_ms, now_ms)) for task, holder in by_task.items()}

    def of(self, roots: frozenset[int], now_ms: int) -> dict[int, list[Holder]]:
        """By root the tasks that hold an open tuple of it, each once; as far as they have said it.

        Args:
            roots: The roots that are asked for; those that no task holds are not in the answer.
            now_ms: The time.
        """
        with self._lock:
            by_task = dict(self._by_task)
        holders: dict[int, list[Holder]] = {}
        for (component, task), holder in by_task.items():
            since_ms: dict[int, int | None] = {}
            for came_ms, held_roots in holder.oldest_open:  # the oldest first
                for root in roots.intersection(held_roots):
                    since_ms.setdefault(root, came_ms)
            for root, came_ms in since_ms.items():
                holders.setdefault(root, []).append(Holder(component, task, _secs(came_ms, now_ms)))
        return holders


def _secs(since_ms: int | None, now_ms: int) -> float | None:
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000
