"""One micro-batch, as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MicroBatch"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What identifies a micro-batch to everything that works for it.

    Attributes:
        batch_id: Its number: Spark's ``batchId``, counted on where a checkpoint's query was begun anew.
        clock_ms: Its clock, in milliseconds since 1970. Spark logs it; a second run gets the same one.
        is_first: Whether a run of the driver begins with it.
    """

    batch_id: int
    clock_ms: int
    is_first: bool = False
