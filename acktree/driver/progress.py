"""The progress of a run after its last micro-batch: written by the sink, read by the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        last: The last micro-batch whose sink has run, and its last inbox number; -1 before the first. One
            value, so that a reader on another thread sees both change together.
        clock_ms: The clock of that micro-batch.
        open_count: The number of open roots at the acker.
        next_deadline_ms: When the acker needs a micro-batch for a timeout; None for never.
    """

    last: tuple[int, int] = (-1, -1)
    clock_ms: int = 0
    open_count: int = 0
    next_deadline_ms: int | None = None

    @property
    def batch_id(self) -> int:
        """The last micro-batch whose sink has run; -1 before the first."""
        return self.last[0]

    def wants_a_beat(self, now_ms: int) -> bool:
        """Whether the acker's deadline has passed, or the clock was set back."""
        deadline_ms = self.next_deadline_ms  # the sink may change it meanwhile
        return deadline_ms is not None and (deadline_ms <= now_ms or now_ms < self.clock_ms)
