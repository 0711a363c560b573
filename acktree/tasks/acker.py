"""``__acker``: the component that tracks which edges of every message are still open.

Timeouts and open roots are judged in ``core/tracking/ledger.py``.

It runs in the driver, in the query's sink. Levels sum acks by message before they send them, so the acker
reads a few bytes for each message. Most messages are opened and finished in one micro-batch and never enter
the ledger. A stage of its own in the query would cost more than the acker's work: see ``docs/decisions``.

Source: Storm's ``daemon/Acker``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from acktree.core.data.frames import Kind, WireRow
from acktree.core.tracking.combining import Combined, settle
from acktree.core.tracking.deltas import Deltas, concat_deltas
from acktree.core.tracking.ledger import Ledger
from acktree.core.tracking.sequence_sums import close
from acktree.core.tracking.sparse_sums import spread
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.tasks.plan import Plan


class Acker:
    """The acker of a topology. It holds the open roots, and returns what each micro-batch changed."""

    def __init__(self, plan: Plan, ledger: Ledger | None = None) -> None:
        """Start with nothing open, or with the ledger of an earlier driver."""
        self._salt = plan.run_salt
        self.ledger = ledger if ledger is not None else Ledger(plan.timeout_ms, timeout_of=plan.timeout_of)
        self.rows_left = Judged(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
        """Rows of DataFrames that the last micro-batch opened and left open."""
        self._first_sequences: Mapping[int, int] = {}

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run: what spout tasks opened before a sequence is brought back by their queues.

        It is dropped without a verdict, also where a micro-batch that was interrupted opens it once more.
        """
        self._first_sequences = first_sequences
        self.ledger.forget_before(self._salt, first_sequences)

    def judge(self, rows: Iterable[WireRow], clock_ms: int, *, is_first: bool = False) -> Verdicts:
        """Judge one micro-batch.

        Args:
            rows: Its rows of kinds DELTAS and COMBINED, in any order.
            clock_ms: Its clock.
            is_first: Whether it is the first of a run.

        Returns:
            The verdicts, and with them what changed in the ledger.
        """
        # Of several failures the first is reported; in a second run of the micro-batch it must be the same.
        ordered = sorted(rows, key=lambda row: (row.sequence, row.source))
        combined = [
            self._known(Combined.from_bytes(row.body)) for row in ordered if row.kind == Kind.COMBINED
        ]
        scattered_parts = [Deltas.from_bytes(row.body) for row in ordered if row.kind == Kind.DELTAS]
        deltas = concat_deltas([*scattered_parts, *(one.rest for one in combined)])
        opened = [run for run in deltas.opened if run.first >= self._first_sequences.get(run.task, 0)]
        spread_sums, roots, sums = spread(self._salt, deltas.sparse_sums)
        closing = close(
            self._salt, (*deltas.sequence_sums, *spread_sums), opened, deltas.fail_roots,
            ack_roots=np.concatenate((deltas.ack_roots, roots)),
            ack_sums=np.concatenate((deltas.ack_sums, sums)),
        )  # fmt: skip
        for owner, roots in (rows for one in combined for rows in one.done_rows):
            self.ledger.refuse(roots, owner)
        settled = settle(self._salt, combined, deltas.fail_roots)
        scattered = replace(
            deltas,
            init_roots=np.concatenate((deltas.init_roots, closing.open_roots, settled.open_roots)),
            init_sums=np.concatenate((deltas.init_sums, closing.open_sums, settled.open_sums)),
            init_owners=np.concatenate((deltas.init_owners, closing.open_owners, settled.open_owners)),
            ack_roots=closing.old_roots,
            ack_sums=closing.old_sums,
        )
        judged = self.ledger.judge(scattered, clock_ms, is_first=is_first)
        is_row = judged.left_open.owners < 0  # see tasks/spouts/verdict_batch.py
        self.rows_left = Judged(judged.left_open.roots[is_row], judged.left_open.owners[is_row])
        done = [*closing.done, *settled.done]
        return judged.together_with(done, settled.done_rows, settled.done_owners)

    def _known(self, combined: Combined) -> Combined:
        """Without messages of an earlier run that their queue delivers again: see :meth:`forget_before`."""
        return (
            combined.without_before(self._salt, self._first_sequences) if self._first_sequences else combined
        )
