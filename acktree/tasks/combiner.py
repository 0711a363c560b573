"""A combining task: adds up the deltas of a share of the messages, for the driver's acker.

From ``COMBINED_FROM`` partitions up (``tasks/plan.py``) there is a stage of such tasks after the last level.
What it adds up is in ``core/tracking/combining.py``. It runs no user code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.tracking.combining import combine
from acktree.core.tracking.deltas import Deltas
from acktree.errors import ProtocolError
from acktree.tasks.plan import Plan


def run_combiner(plan: Plan, combiner: int, rows: Iterable[WireRow]) -> Iterator[WireRow]:
    """Add up what one combining task was sent in a micro-batch.

    Args:
        plan: The plan of the topology.
        combiner: The number of the combining task, from 0.
        rows: Rows of kind DELTAS for it, in any order. A broadcast of an earlier run has no effect: its
            topology had a level in this place.

    Returns:
        One row of kind COMBINED for the driver, or none.
    """
    own_rows = [row for row in rows if row.kind != Kind.BROADCAST]
    for row in own_rows:
        if row.kind != Kind.DELTAS:
            what = f"a row of kind {row.kind} reached a combining task"
            raise ProtocolError(
                what, f"combining task {combiner}", "this is a bug in acktree: please report it"
            )
    combined = combine(plan.run_salt, [Deltas.from_bytes(row.body) for row in own_rows])
    if combined:
        yield WireRow(
            0, SINK_LEVEL, Kind.COMBINED, source=combiner, sequence=plan.combining_level,
            clock_ms=own_rows[0].clock_ms, body=combined.to_bytes(),
        )  # fmt: skip


def combined(plan: Plan, rows: Sequence[WireRow]) -> list[WireRow]:
    """The rows of all levels with the deltas added up, if the plan has combining tasks."""
    level = plan.combining_level
    out = [row for row in rows if row.level != level]
    for combiner in range(plan.combiners):
        out += run_combiner(plan, combiner, [r for r in rows if r.level == level and r.partition == combiner])
    return out
