"""Where the time of micro-batches went, by Spark's own account of each: its phases, in milliseconds.

For display only: what Spark does not tell is left out, and nothing here raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WHOLE: Final = "triggerExecution"
_NAMES: Final = {"latestOffset": "admission", "commitOffsets": "commit"}
_MOST_IDLE: Final = 16
"""The most reports that are skipped: Spark adds one every ten seconds while a query has nothing to do."""


class Phases:
    """The phases of a query's micro-batches. The sink asks, before and after the query has started."""

    def __init__(self) -> None:
        """No phase is known before :meth:`begin`."""
        self._query: Any = None

    def begin(self, query: StreamingQuery) -> None:
        """Ask this query from now on."""
        self._query = query._jsq  # noqa: SLF001  # Python's own objects ask the JVM for each of their parts

    def of_batch(self, spark_batch_id: int) -> Mapping[str, int]:
        """The milliseconds of each phase of a micro-batch that is over; empty if they are not known."""
        query = self._query
        with suppress(Exception):  # the JVM may be ending
            if query is None or spark_batch_id < 0:
                return {}
            last = _told(query.lastProgress())
            if _is_of(last, spark_batch_id):
                return _shown(last)
            recent = query.recentProgress()
            for at in range(len(recent) - 2, max(-1, len(recent) - 2 - _MOST_IDLE), -1):
                progress = _told(recent[at])
                if _is_of(progress, spark_batch_id):
                    return _shown(progress)
        return {}


def last_phases(progress: Any) -> tuple[int, Mapping[str, int]]:  # noqa: ANN401  # a Java object
    """Spark's number of a micro-batch and its phases by Spark's names, of what Spark tells of it."""
    parsed = _told(progress)
    return int(parsed["batchId"]), {str(phase): int(ms) for phase, ms in parsed["durationMs"].items()}


def _told(progress: Any) -> Mapping[str, Any]:  # noqa: ANN401
    parsed: Mapping[str, Any] = json.loads(progress.json())
    return parsed


def _is_of(progress: Mapping[str, Any], spark_batch_id: int) -> bool:
    return bool(progress["batchId"] == spark_batch_id and "addBatch" in progress["durationMs"])


def _shown(progress: Mapping[str, Any]) -> Mapping[str, int]:
    """Without the whole, which is the sum of the others."""
    phases = ((phase, int(ms)) for phase, ms in progress["durationMs"].items() if phase != _WHOLE)
    return {_NAMES.get(phase, phase): max(0, ms) for phase, ms in phases}
