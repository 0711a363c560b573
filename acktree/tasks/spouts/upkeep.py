"""What keeps a spout task in touch with its queue: when ``keep_alive`` is due, and pauses after errors.

Times are arguments, in milliseconds of the clock that the caller has: the driver's, or ``LocalCluster``'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Final

import numpy as np

from acktree.core.spouts.open_messages import OpenMessages
from acktree.core.spouts.pending import MessageIds, one_by_one
from acktree.core.stats.numbers import Lag, Outage
from acktree.errors import AcktreeError, MisuseError
from acktree.texts import MOST_REASON, bounded, error_text, printable, short_repr

FIRST_PAUSE_MS: Final = 100
"""After the first ``ConnectorError`` that may pass; twice as long after each further one."""
LONGEST_PAUSE_MS: Final = 30_000
_ANY_MOMENT: Final = (1 << 63) - 1


class Pulse:
    """When something that happens at a fixed interval is due; a clock that was set back makes it due."""

    def __init__(self) -> None:
        """Not started: nothing is due."""
        self._last_ms: int | None = None

    def start(self, now_ms: int) -> None:
        """Count from now."""
        self._last_ms = now_ms

    def due_ms(self, secs: float | None) -> int | None:
        """When it is due; None when it never is.

        Args:
            secs: How often it is to happen; None: never.
        """
        if secs is None or self._last_ms is None:
            return None
        return self._last_ms + max(1, int(secs * 1000))

    def is_due(self, secs: float | None, now_ms: int) -> bool:
        """Whether it is due."""
        due_ms = self.due_ms(secs)
        if due_ms is None or self._last_ms is None:
            return False
        return now_ms >= due_ms or now_ms < self._last_ms


class Pauses:
    """Pauses between tries of a call that raised a ``ConnectorError`` which may pass.

    Attributes:
        is_on: Whether the last try raised.
        outage: What is away and since when; None while the last try did not raise. Any thread may read it.
    """

    def __init__(self) -> None:
        """Nothing raised yet."""
        self.is_on = False
        self.outage: Outage | None = None
        self._pause_ms = self._again_ms = 0

    def begin(self, now_ms: int, error: BaseException) -> bool:
        """A try raised. True if it was the first in a row, which is the one to report."""
        is_first = not self.is_on
        self.is_on = True
        self.outage = outage_of(error, now_ms, self.outage)
        self._pause_ms = min(2 * self._pause_ms or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        self._again_ms = now_ms + self._pause_ms
        return is_first

    def end(self) -> None:
        """A try succeeded."""
        self.is_on, self.outage = False, None
        self._pause_ms = self._again_ms = 0

    def is_over(self, now_ms: int) -> bool:
        """Whether it may be tried now; a clock that was set back makes no pause longer."""
        return not 0 < self._again_ms - now_ms <= self._pause_ms

    def due_ms(self) -> int | None:
        """When it may be tried again; None when nothing raised."""
        return self._again_ms if self.is_on else None


def outage_of(error: BaseException, now_ms: int, before: Outage | None) -> Outage:
    """The outage that an error is part of: a new one, or the one before with one more try."""
    reason, fix = error_text(error), ""
    if isinstance(error, AcktreeError):
        place = error.where and f" ({error.where})"
        reason, fix = f"{type(error).__name__}: {error.what}{place}", error.fix
    since_ms, tries = (now_ms, 0) if before is None else (before.since_ms, before.tries)
    return Outage(printable(bounded(reason, MOST_REASON)), printable(fix), since_ms, tries + 1)


@dataclass(frozen=True)
class OpenNow(OpenMessages):
    """The open messages of a task at one moment.

    Attributes:
        open_count: How many.
        oldest_ms: When the oldest was first emitted; None when none is open.
        now_ms: The moment.
        emitted_by: The ids of those that were first emitted at a moment or before it, in parts.
    """

    open_count: int
    oldest_ms: int | None
    now_ms: int
    emitted_by: Callable[[int], Iterable[MessageIds]]

    @property
    def count(self) -> int:
        return self.open_count

    @property
    def oldest_secs(self) -> float | None:
        return None if self.oldest_ms is None else max(0, self.now_ms - self.oldest_ms) / 1000

    def older_than(self, secs: float) -> Sequence[object]:
        moment_ms = self.now_ms - round(secs * 1000) if secs > 0 else _ANY_MOMENT
        return list(one_by_one(self.emitted_by(moment_ms)))

    def lowest_of_oldest(self) -> int | None:
        """The lowest id among the oldest messages; None when none is open. For ids that are numbers."""
        parts = () if self.oldest_ms is None else self.emitted_by(self.oldest_ms)
        return min((int(np.min(np.asarray(ids))) for ids in parts if len(ids)), default=None)


_MOST_LAG: Final = 1 << 63
_MOST_NAME: Final = 200
_MOST_PARTITIONS: Final = 10_000
"""Of more partitions the sum alone is shown: each is in every snapshot."""


def checked_lag(lag: object, where: str) -> Lag | None:
    """What a spout's ``lag`` returned; None where it is not known.

    Raises:
        MisuseError: It is neither a number from 0 on, nor a mapping to such numbers, nor None.
    """
    if lag is None:
        return None
    if isinstance(lag, Mapping):
        by_partition: Counter[str] = Counter()
        for name, value in lag.items():
            by_partition[bounded(printable(str(name)), _MOST_NAME)] += _checked(value, where)
        is_shown = len(by_partition) <= _MOST_PARTITIONS
        return Lag(sum(by_partition.values()), dict(by_partition) if is_shown else {})
    return Lag(_checked(lag, where))


def _checked(lag: object, where: str) -> int:
    if isinstance(lag, bool) or not isinstance(lag, Integral) or not 0 <= int(lag) < _MOST_LAG:
        raise MisuseError(
            f"lag() returned {short_repr(lag)}, which is no number of messages",
            where,
            "return a whole number from 0 on, such numbers by partition, or None where it is not known",
        )
    return int(lag)
