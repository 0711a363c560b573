"""How long a spout task waits when it has nothing to do.

Source: Storm's ``WaitStrategyProgressive`` and ``WaitStrategyPark``.
"""

from __future__ import annotations

from typing import Final

from acktree.config import Config
from acktree.tasks.spouts.task import NotAsked

_REST_CALLS: Final = 100
"""After this many waits of one length the next wait is twice as long: a hundredth of the rest."""
_MOST_DOUBLINGS: Final = 30
"""The largest number of such doublings: even a wait of a nanosecond grows to the longest one."""
_LONGEST_DOUBLED_SECS: Final = 0.5
"""No wait is doubled beyond this."""
_SHORTEST_WAIT_SECS: Final = 1e-6
"""Requests the shortest wait of the machine, usually about 50 microseconds."""
_NOT_ASKED_SECS: Final = 0.05
"""The wait of a spout that may not emit; verdicts and free room end it earlier."""
_LONGEST_NOT_ASKED_SECS: Final = 1.0
"""That wait is doubled up to this, such as for the rows of a DataFrame, which Spark reads itself."""
_NOT_ASKED_CALLS: Final = 20
"""After this many waits of a spout that may not emit the next one is twice as long."""


def idle_secs(config: Config, idle_calls: int) -> float:
    """How long a spout task waits after ``idle_calls`` calls in a row that emitted nothing; 0 for no wait.

    The last wait of ``progressive`` is doubled while the spout stays idle, up to half a second.
    Otherwise an idle spout would be called a thousand times a second and use a few percent of a core.
    ``collector.wake()`` ends a wait.

    Source: Storm's ``WaitStrategyProgressive`` and ``WaitStrategyPark``.
    """
    if config.spout_wait_strategy == "park":
        return config.spout_wait_park_microsec / 1e6
    at_once = config.spout_wait_progressive_level1_count
    if idle_calls <= at_once:
        return 0.0
    rested = idle_calls - at_once - config.spout_wait_progressive_level2_count
    if rested <= 0:
        return _SHORTEST_WAIT_SECS
    secs = config.spout_wait_progressive_level3_sleep_millis / 1000
    doubled = secs * (1 << min(_MOST_DOUBLINGS, rested // _REST_CALLS))
    return max(secs, min(doubled, _LONGEST_DOUBLED_SECS))


def not_asked_secs(why: NotAsked | None, idle_calls: int) -> float:
    """How long a spout task that may not emit waits, if nothing ends the wait.

    Args:
        why: Why it may not; None if it never will again.
        idle_calls: How often it has waited without a change.
    """
    if why == "inbox_full":
        return _NOT_ASKED_SECS  # the source and other tasks make room, and tell nobody
    doublings = min(_MOST_DOUBLINGS, idle_calls // _NOT_ASKED_CALLS)
    return min(_NOT_ASKED_SECS * (1 << doublings), _LONGEST_NOT_ASKED_SECS)
