"""Where the time of the last micro-batches went that Spark counts as one phase, ``addBatch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_WHOLE: Final = "addBatch"
_KEPT: Final = 2
"""Spark tells of a micro-batch when it is over, and by then the results of the next one may be here."""


class BatchTimes:
    """The times of the parts of micro-batches. The sink's thread adds them, any thread may read."""

    def __init__(self) -> None:
        """No micro-batch is known."""
        self._now: dict[str, int] = {}
        self._kept: dict[int, Mapping[str, float]] = {}

    def add(self, us: Mapping[str, int]) -> None:
        """Add the microseconds that parts of the micro-batch took which runs now."""
        for part, took in us.items():
            self._now[part] = self._now.get(part, 0) + took

    def keep(self, spark_batch_id: int) -> None:
        """The results of a micro-batch are complete."""
        parts = {part: took / 1000 for part, took in self._now.items() if took}
        newest = sorted({**self._kept, spark_batch_id: parts}.items())[-_KEPT:]
        self._kept, self._now = dict(newest), {}  # a new dict: a reader may have the old one

    def with_parts(self, spark_batch_id: int, phases: Mapping[str, int]) -> Mapping[str, float]:
        """Add its parts to the phases that Spark told of a micro-batch.

        Args:
            spark_batch_id: Spark's number of it.
            phases: The milliseconds by phase. A report without ``addBatch`` is of no micro-batch, and gets no
                parts.
        """
        parts = self._kept.get(spark_batch_id, {}) if _WHOLE in phases else {}
        return {**phases, **parts}
