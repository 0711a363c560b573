"""The acker's ledger: the sum of every open tuple tree, and its age.

Rules of this file
------------------
1. The code that decides the verdict of a root is in this file and in ``sequence_sums``, and nowhere else.
2. This file reads no clock, draws no random number and does not depend on Spark: deltas and ``now_ms`` are
   arguments, verdicts are return values.
3. FAILED wins over ACKED, ACKED over TIMED_OUT; a root is judged once and then removed.
4. Each micro-batch returns a *change*: a blob whose size depends on the roots that the micro-batch touched,
   not on the roots that are open. A ledger that replays the changes of another has the same state. So an idle
   micro-batch is recorded too while ages count: replay needs its clock.

A root's sum is the XOR of every edge created and every edge acked below it; it is zero when each edge was
seen twice. XOR commutes, so order and batching do not matter. XOR is not idempotent: a delta added twice
equals a delta never added. So the caller must add each delta exactly once; the checkpoint ensures it. The sum
of an unfinished tree is zero with probability 2**-64: at 10,000 tests a second, once in 58 million years.

A root's age counts from the end of the micro-batch that admitted the root, so a slow micro-batch times out
no message. The clock of the next micro-batch is taken as that end, rounded up to a sixteenth of the timeout
T. The acker requests a micro-batch after at most T/16 if none runs, and rounding adds at most T/16: a root is
never timed out before T, and at the latest after T + T/8 and one micro-batch. An age that began while T was
larger was rounded by the larger one. Acks do not refresh an age; ``reset_timeout`` does. While timeouts are
off no age counts; when they are switched on again all ages begin anew. The time during which the topology was
not running adds to no age. When the clock is set back, ages keep their value and go on from there.

A delta for a root that is not open belongs to a root that was judged before: an init is never in a later
micro-batch than its acks. Such a delta is dropped, so the ledger does not grow without bound.

Source: Storm's ``daemon/Acker``, ``utils/RotatingMap`` and its page "Guaranteeing message processing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s, sequences_of
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.runs import end_to_end, xor_by_key
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.open_roots import UNTIMED, AgeTable, OpenRoots, Roots
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.errors import CheckpointError

BUCKETS: Final = 16
"""Ages are rounded up to a multiple of timeout / BUCKETS; a timeout is late by at most twice that."""

_NO_CLOCK: Final = -1
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _LedgerChange:
    """The effect of one micro-batch on the ledger.

    Attributes:
        number: The sequence number of the change, from 1: replay refuses a gap.
        clock_ms: The clock of the micro-batch.
        away_ms: The time to subtract from all ages: how long the topology was not running. Negative when the
            clock was set back.
        since_ms: The time from which those ages count that begin with this micro-batch.
        gone: Roots that were judged, or dropped by ``forget_before`` since the micro-batch before.
        summed: Roots that stay open and have a delta.
        sums: The delta of each of them.
        reset: Roots whose age begins again.
        left_open: Roots that this micro-batch opened and did not judge.
    """

    number: int
    clock_ms: int
    away_ms: int
    since_ms: int
    gone: Int64s
    summed: Int64s
    sums: Int64s
    reset: Int64s
    left_open: Roots

    def __bool__(self) -> bool:
        return bool(self.away_ms) or any(map(len, (self.gone, self.summed, self.reset, self.left_open.roots)))

    def to_bytes(self) -> bytes:
        head = np.array([self.number, self.clock_ms, self.away_ms, self.since_ms])
        return pack(
            head, self.gone, self.summed, self.sums, self.reset,
            self.left_open.roots, self.left_open.sums, self.left_open.owners,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> _LedgerChange:
        head, gone, summed, sums, reset, roots, owed, owners = unpack(blob)
        number, clock, away, since = int64s(head).tolist()
        left_open = Roots.of(int64s(roots), int64s(owed), int32s(owners))
        return cls(
            number, clock, away_ms=away, since_ms=since, gone=int64s(gone), summed=int64s(summed),
            sums=int64s(sums), reset=int64s(reset), left_open=left_open,
        )  # fmt: skip


class Ledger:
    """The open roots of an acker."""

    def __init__(
        self,
        timeout_ms: int | None,
        whole: Buffer | None = None,
        *,
        timeout_of: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Make an empty ledger, or restore the one that :meth:`to_bytes` wrote.

        Args:
            timeout_ms: The message timeout; None when messages never time out.
            whole: What :meth:`to_bytes` wrote; None for an empty ledger.
            timeout_of: Spout task -> the timeout of its own messages in place of that one.
        """
        self._timeout_ms = timeout_ms
        self._timeout_of = timeout_of if timeout_ms is not None else {}
        self._clock_ms = _NO_CLOCK
        self._last_change = 0  # the number of the last change
        self._ages = AgeTable()
        self._open = OpenRoots(self._ages)
        self._forgotten: list[Int64s] = []  # dropped by forget_before, and not in a change yet
        if whole is not None:
            head, ages, *runs = unpack(whole)
            self._last_change, self._clock_ms = int64s(head).tolist()
            self._ages.restore(ages)
            self._open.restore(runs)

    def to_bytes(self) -> bytes:
        """The whole ledger: 21 bytes for each open root."""
        head = np.array([self._last_change, self._clock_ms])
        return pack(head, self._ages.to_bytes(), *self._open.parts())

    @property
    def open_count(self) -> int:
        """The number of open roots."""
        return self._open.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory used by the open roots."""
        return self._open.nbytes

    def still_open(self, roots: Int64s) -> Int64s:
        """The open ones among these roots, ascending."""
        asked = np.unique(roots)
        return asked[self._open.look_up(asked)[0]]

    def open_rows(self) -> Judged:
        """The open roots that are rows of DataFrames: those whose owner is below 0."""
        rows = [run.keep(run.owners < 0) for run in self._open.runs()]
        roots = end_to_end(run.roots for run in rows)
        return Judged(roots, np.concatenate([np.zeros(0, dtype=np.int32), *(run.owners for run in rows)]))

    def refuse(self, roots: Int64s, owner: int) -> None:
        """Check that none of the roots that this micro-batch opened and :meth:`judge` is not given is open.

        Args:
            roots: Ascending.
            owner: Who opened them.

        Raises:
            ProtocolError: A root was opened that is open. The ledger is unchanged.
        """
        if self._open.count:
            owners = np.full(len(roots), owner, dtype=np.int32)
            self._open.refuse(Roots(roots, np.zeros_like(roots), owners))

    def judge(self, deltas: Deltas, now_ms: int, *, is_first: bool = False) -> Verdicts:
        """Add one micro-batch's deltas and judge the roots that they touch, or that are too old.

        Args:
            deltas: All deltas of this micro-batch, in any order. Its sequence sums are ignored: the caller
                has judged them with ``sequence_sums.close``.
            now_ms: The clock of the micro-batch; one that was set back changes no age.
            is_first: Whether this is the first micro-batch of a driver. The time since the micro-batch before
                is then not added to any age, because the topology was not running.

        Returns:
            The verdicts, with the change for :meth:`replay`; no root is among the ``done``.

        Raises:
            ProtocolError: A root was opened that is open. The ledger is unchanged.
        """
        init = Roots.of(deltas.init_roots, deltas.init_sums, deltas.init_owners)
        self._open.refuse(init)
        had_open = self._open.count > 0
        # While ages count, an idle micro-batch makes a change too. Without its clock, a restored ledger would
        # treat the time since the last change as time during which the topology was not running.
        ages_count = self._ages.oldest_ms() is not None
        ages_begin = self._timeout_ms is not None and had_open
        skips_time = is_first or now_ms < self._clock_ms
        away_ms = now_ms - self._clock_ms if skips_time and ages_count else 0
        self._ages.shift(away_ms)
        fail_roots, firsts, repeats = np.unique(deltas.fail_roots, return_index=True, return_counts=True)
        ack_roots, ack_sums = xor_by_key(deltas.ack_roots, deltas.ack_sums)
        closed, failed, left_open, is_other = _judged_at_once(init, ack_roots, ack_sums, fail_roots)

        ack_roots, ack_sums = ack_roots[is_other], ack_sums[is_other]
        asked = _of_others(init, ack_roots, fail_roots, deltas.reset_roots)
        added = np.zeros(len(asked), dtype=np.int64)
        is_acked = np.isin(asked, ack_roots, assume_unique=True)
        added[is_acked] = ack_sums[np.searchsorted(ack_roots, asked[is_acked])]
        is_open, sums, owners = self._open.look_up(asked)
        late_count = _late_count(asked[~is_open], added[~is_open], fail_roots)
        asked, added, sums = asked[is_open], added[is_open], sums[is_open] ^ added[is_open]
        has_failed = np.isin(asked, fail_roots, assume_unique=True)
        is_done = (sums == 0) & ~has_failed
        failed = failed.and_also(Roots(asked[has_failed], sums[has_failed], owners[is_open][has_failed]))
        closed = closed.and_also(Roots(asked[is_done], sums[is_done], owners[is_open][is_done]))
        stays = ~(has_failed | is_done)
        is_summed = stays & (added != 0)

        self._open.drop(asked[~stays])
        reset = asked[stays & np.isin(asked, deltas.reset_roots)]
        timed_out = self._late(now_ms, reset)
        change = _LedgerChange(
            self._last_change + 1, now_ms, away_ms, since_ms=self._since(now_ms),
            gone=np.concatenate((*self._forgotten, asked[~stays], timed_out.roots)), summed=asked[is_summed],
            sums=added[is_summed], reset=reset, left_open=left_open,
        )  # fmt: skip
        is_recorded = ages_count or ages_begin or bool(change)
        self._last_change += is_recorded
        self._forgotten.clear()
        self._apply(change)
        positions = np.searchsorted(fail_roots, failed.roots)
        return Verdicts(
            (), Judged(closed.roots, closed.owners), Judged(failed.roots, failed.owners),
            failures=deltas.failures[firsts[positions]], others=repeats[positions] - 1,
            timed_out=Judged(timed_out.roots, timed_out.owners), reasons=deltas.reasons,
            open_count=self._open.count, next_deadline_ms=self._next_deadline_ms(now_ms),
            late_count=late_count, left_open=Judged(left_open.roots, left_open.owners),
            oldest_ms=self._ages.oldest_ms(),
            change=change.to_bytes() if is_recorded else b"",
        )  # fmt: skip

    def replay(self, change: Buffer) -> None:
        """Apply the change of a micro-batch to the state before it. Changes are replayed in order.

        Raises:
            CheckpointError: The number of the change does not follow that of the last one.
        """
        again = _LedgerChange.from_bytes(change)
        if again.number != self._last_change + 1:
            # Messages that the missing changes opened would never get a verdict.
            raise CheckpointError(
                f"the acker's log has a gap: change number {again.number} follows number {self._last_change}",
                "the acker's ledger",
                "restore the missing files, or give the topology a new checkpoint",
            )
        self._last_change = again.number
        self._ages.shift(again.away_ms)
        self._apply(again)

    def forget_before(self, run_salt: int, first_sequences: Mapping[int, int]) -> None:
        """Drop, without a verdict, the roots of an earlier run that queues deliver again.

        The next change contains the dropped roots.

        Args:
            run_salt: The salt of the checkpoint, to read a root's sequence.
            first_sequences: For each spout task whose queue redelivers, the first sequence of this run.
        """
        for run in list(self._open.runs()):
            sequences = sequences_of(run_salt, run.roots)[1]
            orphaned = np.zeros(len(run.roots), dtype=np.bool_)
            for owner, first in first_sequences.items():
                orphaned |= (run.owners == owner) & (sequences < first)
            self._open.drop(run.roots[orphaned])
            self._forgotten.append(run.roots[orphaned])

    def _apply(self, change: _LedgerChange) -> None:
        self._clock_ms = change.clock_ms
        self._open.drop(change.gone)
        self._open.add(change.summed, change.sums)
        renewed = self._open.take(change.reset)
        self._open.begin_ages(change.since_ms, self._since_of(change.clock_ms))
        self._open.put(change.left_open.and_also(renewed))

    def _since(self, now_ms: int) -> int:
        """The time from which ages that begin now count; rounded up."""
        if self._timeout_ms is None:
            return UNTIMED
        width = _width_ms(self._timeout_ms)
        return -(-now_ms // width) * width

    def _since_of(self, now_ms: int) -> dict[int, int]:
        """From when the ages of roots with a timeout of their own count.

        Such an age is moved by what its timeout exceeds the common one, so that both are late by one rule.
        """
        common_ms = self._timeout_ms or 0
        rounded = {
            owner: -(-now_ms // _width_ms(own_ms)) * _width_ms(own_ms)
            for owner, own_ms in self._timeout_of.items()
        }
        return {owner: since + self._timeout_of[owner] - common_ms for owner, since in rounded.items()}

    def _late(self, now_ms: int, reset: Int64s) -> Roots:
        """The roots that are older than the timeout, except those whose age begins again."""
        if self._timeout_ms is None:
            return Roots.none()
        late = self._open.older_than(now_ms - self._timeout_ms)
        return late.keep(~np.isin(late.roots, reset, assume_unique=True)) if len(reset) else late

    def _next_deadline_ms(self, now_ms: int) -> int | None:
        if self._timeout_ms is None or not self._open.count:
            return None
        oldest = self._ages.oldest_ms()
        ends = [] if oldest is None else [oldest + self._timeout_ms]
        if self._open.fresh_count:  # ages that have not begun need a micro-batch to begin
            owners = self._open.fresh_owners() if self._timeout_of else []
            shortest = min((self._timeout_of.get(owner, self._timeout_ms) for owner in owners), default=None)
            ends.append(now_ms + _width_ms(self._timeout_ms if shortest is None else shortest))
        return min(ends)


def _width_ms(timeout_ms: int) -> int:
    return max(1, timeout_ms // BUCKETS)


def _judged_at_once(
    init: Roots, ack_roots: Int64s, ack_sums: Int64s, fail_roots: Int64s
) -> tuple[Roots, Roots, Roots, _Mask]:
    """Divide the roots that this micro-batch opened by their state at its end: (done, failed, open).

    And which of ``ack_roots`` are not among them.
    """
    at, ack_places = init.find(ack_roots)
    is_other = np.ones(len(ack_roots), dtype=np.bool_)
    is_other[ack_places] = False
    sums = init.sums.copy()
    sums[at] ^= ack_sums[ack_places]
    init = Roots(init.roots, sums, init.owners)
    has_failed = np.isin(init.roots, fail_roots, assume_unique=True)
    is_done = (sums == 0) & ~has_failed
    return init.keep(is_done), init.keep(has_failed), init.keep(~(has_failed | is_done)), is_other


def _late_count(unknown: Int64s, added: Int64s, fail_roots: Int64s) -> int:
    """How many roots that are not open have an ack or a fail.

    A reset alone may be of a root that ``sequence_sums.close`` has found done in this micro-batch.
    """
    if not len(unknown):
        return 0
    return int(np.count_nonzero((added != 0) | np.isin(unknown, fail_roots)))


def _of_others(init: Roots, *touched: Int64s) -> Int64s:
    """The touched roots that were opened in earlier micro-batches, ascending."""
    asked = np.unique(np.concatenate(touched))
    return asked[~np.isin(asked, init.roots, assume_unique=True)]
