"""The identity of a micro-batch, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The identity and the clock of a micro-batch.

    Attributes:
        batch_id: Its number: Spark's ``batchId``, plus an offset if the checkpoint's query was started anew.
        clock_ms: Its clock, in milliseconds since 1970. Spark logs it, so a second run gets the same value.
        is_first: Whether it is the first micro-batch of a driver.
    """

    batch_id: int
    clock_ms: int
    is_first: bool = False
