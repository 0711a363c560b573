"""``__acker``: the component that tracks which edges of every message are still open.

Timeouts and open roots are judged in ``core/tracking/ledger.py``.

It runs in the driver, in the query's sink. Levels sum acks by message before they send them, so the acker
reads a few bytes for each message. Most messages are opened and finished in one micro-batch and never enter
the ledger. A stage of its own in the query would cost more than the acker's work: see ``docs/decisions``.

Source: Storm's ``daemon/Acker``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acktree.core.data.frames import Kind, WireRow
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.tracking.combining import Combined, settle
from acktree.core.tracking.deltas import Deltas, concat_deltas
from acktree.core.tracking.ledger import Judged, Judgement, Ledger
from acktree.core.tracking.sequence_sums import close
from acktree.core.tracking.sparse_sums import spread
from acktree.tasks.plan import Plan


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What the acker decided in one micro-batch.

    Attributes:
        done: Messages opened in this micro-batch and fully processed: (spout task, sequences ascending).
        acked: Roots that were opened before, or have no sequence, and are fully processed now.
        failed: Roots with a failed tuple.
        failures: Index into ``reasons`` of each failed root's first failure, shape (n,).
        others: How many further failures each failed root had, shape (n,).
        timed_out: Roots that were neither acked nor failed within the message timeout.
        reasons: Encoded failures.
        open_count: Roots still open.
        next_deadline_ms: When the acker needs a micro-batch for a timeout; None for never.
        late_count: Roots with an ack or fail after their verdict, or never opened. For statistics:
            the journal does not have it.
    """

    done: Sequence[tuple[int, Int64s]]
    acked: Judged
    failed: Judged
    failures: Int64s
    others: Int64s
    timed_out: Judged
    reasons: tuple[bytes, ...]
    open_count: int
    next_deadline_ms: int | None
    late_count: int = 0

    @classmethod
    def of(
        cls, done: Sequence[tuple[int, Int64s]], judged: Judgement, reasons: tuple[bytes, ...]
    ) -> Verdicts:
        """The verdicts of a judgement, with only the reasons that are used."""
        used, failures = np.unique(judged.failures, return_inverse=True)
        return cls(
            done, judged.acked, judged.failed, failures, judged.others, timed_out=judged.timed_out,
            reasons=tuple(reasons[index] for index in used), open_count=judged.open_count,
            next_deadline_ms=judged.next_deadline_ms, late_count=judged.late_count,
        )  # fmt: skip

    def __bool__(self) -> bool:
        judged = (self.acked, self.failed, self.timed_out)
        return bool(self.done) or any(len(which.roots) for which in judged)

    def to_bytes(self) -> bytes:
        """For the journal; :meth:`from_bytes` reads it."""
        head = json.dumps((self.open_count, self.next_deadline_ms, [task for task, _ in self.done])).encode()
        return pack(
            head, *(_runs_of(sequences) for _, sequences in self.done),
            self.acked.roots, self.acked.owners, self.failed.roots, self.failed.owners, self.failures,
            self.others, self.timed_out.roots, self.timed_out.owners, *self.reasons,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Verdicts:
        """Read what :meth:`to_bytes` wrote."""
        head, *parts = unpack(blob)
        open_count, next_deadline_ms, tasks = json.loads(bytes(head))
        runs, parts = parts[: len(tasks)], parts[len(tasks) :]
        acked, a_owners, failed, f_owners, failures, others, late, l_owners, *reasons = parts
        return cls(
            [(task, _sequences_in(int64s(part))) for task, part in zip(tasks, runs, strict=True)],
            Judged(int64s(acked), int32s(a_owners)), failed=Judged(int64s(failed), int32s(f_owners)),
            failures=int64s(failures), others=int64s(others),
            timed_out=Judged(int64s(late), int32s(l_owners)), reasons=tuple(map(bytes, reasons)),
            open_count=open_count, next_deadline_ms=next_deadline_ms,
        )  # fmt: skip


def _runs_of(sequences: Int64s) -> Int64s:
    """Ascending sequences as first, end, first, end, ...: nearly always one run of thousands."""
    cuts = np.flatnonzero(np.diff(sequences) != 1)
    firsts, lasts = np.r_[sequences[:1], sequences[cuts + 1]], np.r_[sequences[cuts], sequences[-1:]]
    return np.stack((firsts, lasts + 1), axis=1).ravel()


def _sequences_in(runs: Int64s) -> Int64s:
    each = [np.arange(first, end) for first, end in runs.reshape(-1, 2).tolist()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *each])


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

    def judge(
        self, rows: Iterable[WireRow], clock_ms: int, *, is_first: bool = False
    ) -> tuple[Verdicts, bytes]:
        """Judge one micro-batch.

        Args:
            rows: Its rows of kinds DELTAS and COMBINED, in any order.
            clock_ms: Its clock.
            is_first: Whether it is the first of a run.

        Returns:
            The verdicts, and what changed in the ledger: see :meth:`Ledger.replay`.
        """
        # Of several failures the first is reported; in a second run of the micro-batch it must be the same.
        ordered = sorted(rows, key=lambda row: (row.sequence, row.source))
        combined = [
            self._known(Combined.from_bytes(row.body)) for row in ordered if row.kind == Kind.COMBINED
        ]
        given = [Deltas.from_bytes(row.body) for row in ordered if row.kind == Kind.DELTAS]
        deltas = concat_deltas([*given, *(one.rest for one in combined)])
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
        is_row = judged.left.owners < 0  # see tasks/spouts/verdict_batch.py
        self.rows_left = Judged(judged.left.roots[is_row], judged.left.owners[is_row])
        if len(settled.done_rows):
            acked = Judged(
                np.concatenate((judged.acked.roots, settled.done_rows)),
                np.concatenate((judged.acked.owners, settled.done_owners)),
            )
            judged = replace(judged, acked=acked)
        return Verdicts.of([*closing.done, *settled.done], judged, deltas.reasons), judged.change

    def _known(self, combined: Combined) -> Combined:
        """Without messages of an earlier run that their queue delivers again: see :meth:`forget_before`."""
        return (
            combined.without_before(self._salt, self._first_sequences) if self._first_sequences else combined
        )
