"""``__acker``: the component that knows what every message still owes. The last level of the ladder.

Keyed by acker task, never by root: a key of Spark's state costs about a millisecond, and there are 50,000
roots in a micro-batch.

Source: Storm's ``daemon/Acker``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from acktree.core.deltas import Deltas, concat_deltas
from acktree.core.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.ids import Int32s, Int64s
from acktree.core.ledger import Ledger, Settlement
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.state import Below, StateStore
from acktree.core.values import batch_to_bytes
from acktree.tasks.payloads import Payloads, payload_of_wire
from acktree.tasks.plan import Plan


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What one acker task decided in one micro-batch.

    Attributes:
        acked, acked_owners: Roots fully processed, and the spout task of each.
        failed, failed_owners: Roots of which some tuple failed.
        failures: Index into ``reasons`` of each failed root's first failure.
        others: How many further failures each failed root had.
        timed_out, timed_out_owners: Roots that got neither in time.
        reasons: Encoded failures.
        open_count: Roots still open at this acker.
        next_deadline_ms: When it wants a micro-batch if nothing comes before; None for never.
    """

    acked: Int64s
    acked_owners: Int32s
    failed: Int64s
    failed_owners: Int32s
    failures: Int64s
    others: Int64s
    timed_out: Int64s
    timed_out_owners: Int32s
    reasons: tuple[bytes, ...]
    open_count: int
    next_deadline_ms: int | None

    @classmethod
    def of(cls, settled: Settlement, reasons: tuple[bytes, ...]) -> Verdicts:
        """The verdicts of a settlement, with only the reasons that are told."""
        used, failures = np.unique(settled.failures, return_inverse=True)
        return cls(
            settled.acked.roots, settled.acked.owners, settled.failed.roots, settled.failed.owners, failures,
            settled.others, settled.timed_out.roots, settled.timed_out.owners,
            tuple(reasons[index] for index in used), settled.open_count, settled.next_deadline_ms,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """For the way to the driver; :meth:`from_bytes` reads it."""
        head = json.dumps((self.open_count, self.next_deadline_ms)).encode()
        return pack(
            head, self.acked, self.acked_owners, self.failed, self.failed_owners, self.failures, self.others,
            self.timed_out, self.timed_out_owners, *self.reasons,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Verdicts:
        """Read what :meth:`to_bytes` wrote."""
        head, acked, a_owners, failed, f_owners, failures, others, late, l_owners, *reasons = unpack(blob)
        open_count, next_deadline_ms = json.loads(bytes(head))
        return cls(
            int64s(acked), int32s(a_owners), int64s(failed), int32s(f_owners), int64s(failures),
            int64s(others), int64s(late), int32s(l_owners), tuple(map(bytes, reasons)),
            open_count, next_deadline_ms,
        )  # fmt: skip


def run_acker(plan: Plan, partition: int, rows: Iterable[WireRow], store: StateStore) -> list[WireRow]:
    """Settle one micro-batch for the acker tasks of one partition.

    Args:
        rows: Rows of the acker's level: DELTAS, and a CLOCK for each micro-batch that has one.
        store: State of this partition.
    """
    # By body too: of several failures the first is told, and must be the same when Spark shuffles anew.
    mine = sorted(rows, key=lambda row: (row.source, row.sequence, bytes(row.body)))
    if not mine:
        return []
    clock_ms = _steady(mine[0].clock_ms, store)
    orders = [json.loads(row.body) for row in mine if row.kind == Kind.CLOCK and row.body]
    told: list[WireRow] = []
    for acker in range(plan.ackers):
        if plan.acker_host(acker) != partition:
            continue
        ledger = Ledger(Below(store, f"acker/{acker}/"), plan.timeout_ms)
        for order in orders:  # a new run began: what queues bring back is not open any more
            ledger.forget_before(plan.run_salt, {int(task): first for task, first in order.items()})
        deltas = [
            Deltas.from_bytes(row.body) for row in mine if row.kind == Kind.DELTAS and row.source == acker
        ]
        summed = concat_deltas(deltas)
        verdicts = Verdicts.of(ledger.settle(summed, clock_ms), summed.reasons)
        body = verdicts.to_bytes()
        told.append(WireRow(partition, SINK_LEVEL, Kind.VERDICTS, acker, 0, clock_ms, b"", body))
        arrived = [
            payload_of_wire(row.head, row.body)
            for row in mine
            if row.kind == Kind.PAYLOADS and row.source == acker
        ]
        lost = np.concatenate((verdicts.failed, verdicts.timed_out))
        payloads = Payloads(Below(store, f"payloads/{acker}/"))
        for roots, values in payloads.settle(arrived, verdicts.acked, lost):
            head, body = pack(roots), batch_to_bytes(values)
            told.append(WireRow(partition, SINK_LEVEL, Kind.PAYLOADS, acker, 0, clock_ms, head, body))
    return told


def _steady(clock_ms: int, store: StateStore) -> int:
    """The micro-batch's clock, never earlier than the last one: a wall clock may be set back."""
    before = store.get("clock")
    if before is not None and int(before) >= clock_ms:
        return int(before)
    store.put("clock", str(clock_ms).encode())
    return clock_ms
