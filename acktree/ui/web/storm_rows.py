"""What rows of Storm's REST have in common: how it writes numbers, times and what has no meaning here."""

from __future__ import annotations

from typing import Any, Final, TypeAlias
from urllib.parse import quote

from acktree.core.stats.numbers import Numbers, ReportedError
from acktree.ui.snapshot import ALL_TIME, RUN, Snapshot

Row: TypeAlias = dict[str, Any]
SCHEDULER: Final = False
_USUAL_PERCENT: Final = 10
"""What Debug is switched on with, unless it is said."""
FIRST_PORT: Final = 6700
"""The port of the first partition, as Storm numbers workers; nobody listens there."""
_RESOURCES: Final = (
    "requestedMemOnHeap", "requestedMemOffHeap", "requestedTotalMem", "requestedCpu",
    "assignedMemOnHeap", "assignedMemOffHeap", "assignedTotalMem", "assignedCpu",
)  # fmt: skip
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


def duration(secs: float) -> str:
    """A time as Storm writes it, leading units left out.

    >>> duration(93784), duration(60), duration(0)
    ('1d 2h 3m 4s', '1m 0s', '0s')
    """
    secs_left, parts = int(secs), list[str]()
    for unit, size in _UNITS:
        if secs_left >= size or parts:
            parts.append(f"{secs_left // size}{unit}")
            secs_left %= size
    return " ".join([*parts, f"{secs_left}s"])


def decimal(value: float | None) -> str:
    """A number as Storm writes it: with three decimals, 0 for none."""
    return f"{value or 0.0:.3f}"


def debugged(snapshot: Snapshot, component: str = "") -> Row:
    """Storm's fields for Debug: of the topology, or of a component."""
    percent = snapshot.debug_percent(component)
    shown = percent or _USUAL_PERCENT
    return {"debug": percent > 0, "samplingPct": int(shown) if shown == int(shown) else shown}


def pretty(window: str) -> str:
    """A window in words."""
    if window == RUN:
        return "This run"
    return "All time" if window == ALL_TIME else duration(int(window))


def encoded(text: str) -> str:
    """A text for a path."""
    return quote(text, safe="")


def failed_of(numbers: Numbers) -> int:
    """Storm's failed: failed and timed out."""
    return numbers.failed + numbers.timed_out


def tasks_of(snapshot: Snapshot, component: str) -> int:
    """How many tasks a component has."""
    return int(snapshot.graph["components"][component]["parallelism"])


def all_tasks(snapshot: Snapshot) -> int:
    """How many tasks a topology has."""
    return sum(tasks_of(snapshot, name) for name in snapshot.graph["components"])


def partitions_of(snapshot: Snapshot) -> int:
    """How many partitions a topology has."""
    return int(snapshot.graph["partitions"])


def resources() -> Row:
    """Memory and CPU, which Spark shares out."""
    return dict.fromkeys(_RESOURCES, 0.0)


def about_error(snapshot: Snapshot, error: ReportedError | None) -> Row:
    """When and where an error was reported; nothing for None."""
    at = None if error is None else error.at_ms // 1000
    return {
        "errorTime": at,
        "errorLapsedSecs": None if at is None else max(0, snapshot.taken_ms // 1000 - at),
        "errorHost": "" if error is None else snapshot.host,
        "errorPort": None if error is None else FIRST_PORT,
        "errorWorkerLogLink": "",
    }
