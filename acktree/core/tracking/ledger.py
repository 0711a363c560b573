"""The acker's sums: what every open tuple tree still owes, and since when.

Rules of this file
------------------
1. Whatever can change the fate of a root lives here and in ``spans``, and nowhere else.
2. Nothing here knows the time, draws a number or has heard of Spark: deltas and ``now_ms`` arrive as
   arguments, verdicts leave as return values.
3. FAILED wins over ACKED, ACKED over TIMED_OUT; a root is judged once and then forgotten.
4. What a micro-batch changed is told as a *change*, a blob whose size follows what it touched and not what is
   open. A ledger that replays the changes of another is that ledger: so the clock is told while ages count.

A root's sum is the XOR of every edge created and every edge acked below it; it is zero when each edge was
seen twice. XOR commutes, so order and batching cannot matter. XOR is not idempotent, so a delta added twice
is a delta never added: the caller owes exactly-once, and the checkpoint is how it pays. A sum of an
unfinished tree is zero with probability 2**-64: at 10,000 tests a second, once in 58 million years.

An age counts from the end of the micro-batch that admitted the root (slow is not lost), and that end is
known when the next one comes; it is rounded up to a sixteenth of the timeout. T / 16 may pass until a
micro-batch is asked for if none comes by itself, and T / 16 is lost by rounding: a root is timed out never
before T and at the latest after T + T/8 and one micro-batch. Acks do not refresh an age, ``reset_timeout``
does. With timeouts off no age counts, and those that did begin anew if they are switched on again. The time
for which nobody ran the topology counts against nobody. Nor does a clock that is set back keep anybody
waiting until it has caught up: ages go on from where they were.

A message about a root that is not open is left from a root already judged: an init is never later than its
acks' micro-batch. It is dropped, so nothing here can grow for ever.

Source: Storm's ``daemon/Acker``, ``utils/RotatingMap`` and its page "Guaranteeing message processing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s, sequences_of
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.tracking.deltas import Deltas, sum_by_root
from acktree.core.tracking.open_roots import UNTIMED, AgeTable, OpenRoots, Roots
from acktree.errors import CheckpointError

BUCKETS: Final = 16
"""How many widths a message timeout is cut into; the bound on lateness is twice a width."""

_NO_CLOCK: Final = -1


@dataclass(frozen=True, eq=False)
class Judged:
    """Roots that met one fate: ``roots`` and the spout task that opened each (``owners``), shape (n,)."""

    roots: Int64s
    owners: Int32s


@dataclass(frozen=True, eq=False)
class Settlement:
    """What one micro-batch decided.

    Attributes:
        acked: Every tuple of these trees was acked.
        failed: Some tuple of these was failed.
        failures: Index into the deltas' ``reasons`` of the first failure of each failed root, shape (n,).
        others: How many further failures each failed root was told, shape (n,).
        timed_out: These got neither in time.
        left: Roots that it opened and left open.
        open_count: Roots still open.
        next_deadline_ms: When the ledger wants to be asked again if nothing happens before; None when never.
        oldest_ms: Since when the oldest open root's age counts; None when none is, or none yet.
        change: For :meth:`Ledger.replay`; empty when the ledger is as it was.
    """

    acked: Judged
    failed: Judged
    failures: Int64s
    others: Int64s
    timed_out: Judged
    left: Judged
    open_count: int
    next_deadline_ms: int | None
    oldest_ms: int | None
    change: bytes


@dataclass(frozen=True, eq=False)
class _Change:
    """What a micro-batch did to the roots that were open before it, and what it left open.

    Attributes:
        number: The how-manieth change it is, from 1: one that is missing must not be passed over.
        clock_ms: Its clock.
        away_ms: For how long nobody had run the topology: ages are that much younger. Below zero where the
            clock was set back.
        since_ms: From when the ages count that waited for this micro-batch.
        gone: Roots that were judged, or forgotten since the micro-batch before.
        summed, sums: What was added to roots that stay open.
        reset: Roots whose age begins again.
        left: Roots that it opened and did not judge.
    """

    number: int
    clock_ms: int
    away_ms: int
    since_ms: int
    gone: Int64s
    summed: Int64s
    sums: Int64s
    reset: Int64s
    left: Roots

    def __bool__(self) -> bool:
        return bool(self.away_ms) or any(map(len, (self.gone, self.summed, self.reset, self.left.roots)))

    def to_bytes(self) -> bytes:
        head = np.array([self.number, self.clock_ms, self.away_ms, self.since_ms])
        return pack(
            head, self.gone, self.summed, self.sums, self.reset,
            self.left.roots, self.left.sums, self.left.owners,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> _Change:
        head, gone, summed, sums, reset, roots, owed, owners = unpack(blob)
        number, clock, away, since = int64s(head).tolist()
        left = Roots.of(int64s(roots), int64s(owed), int32s(owners))
        return cls(
            number, clock, away, since, int64s(gone), int64s(summed), int64s(sums), int64s(reset), left
        )


class Ledger:
    """The open roots of an acker."""

    def __init__(
        self,
        timeout_ms: int | None,
        whole: Buffer | None = None,
        *,
        timeout_of: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """An empty ledger, or the one that :meth:`to_bytes` wrote.

        Args:
            timeout_ms: The message timeout; None when messages never time out.
            timeout_of: Spout task -> the timeout of its own messages in place of that one.
        """
        self._timeout_ms = timeout_ms
        self._timeout_of = timeout_of if timeout_ms is not None else {}
        self._clock_ms = _NO_CLOCK
        self._told = 0  # so many changes
        self._ages = AgeTable()
        self._open = OpenRoots(self._ages)
        self._forgotten: list[Int64s] = []  # since the last change was told
        if whole is not None:
            head, ages, *runs = unpack(whole)
            self._told, self._clock_ms = int64s(head).tolist()
            self._ages.restore(ages)
            self._open.restore(runs)

    def to_bytes(self) -> bytes:
        """All of it: 21 bytes for each open root."""
        head = np.array([self._told, self._clock_ms])
        return pack(head, self._ages.to_bytes(), *self._open.parts())

    @property
    def open_count(self) -> int:
        """How many roots are open."""
        return self._open.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the open roots take."""
        return self._open.nbytes

    def still_open(self, roots: Int64s) -> Int64s:
        """Those of some roots that are open, ascending."""
        asked = np.unique(roots)
        return asked[self._open.look_up(asked)[0]]

    def settle(self, deltas: Deltas, now_ms: int, *, is_first: bool = False) -> Settlement:
        """Add one micro-batch's deltas, judge what can be judged, and say what changed.

        Args:
            deltas: All that this micro-batch told the acker, in any order; its spans were judged before, and
                are not looked at.
            now_ms: The clock of the micro-batch; one that was set back makes no root older and goes on so.
            is_first: Whether a driver begins with this micro-batch: the time since the one before, when
                nobody ran the topology, makes no root older.

        Raises:
            ProtocolError: A root was opened that is open. Nothing was changed.
        """
        init = Roots.of(deltas.init_roots, deltas.init_sums, deltas.init_owners)
        self._open.refuse(init)
        had_open = self._open.count > 0
        # While ages count an idle micro-batch is told too. Without its clock, a ledger that was rebuilt would
        # take the time since the last change for time in which nobody ran the topology.
        ages_count = self._ages.oldest_ms() is not None
        ages_begin = self._timeout_ms is not None and had_open
        stood_still = is_first or now_ms < self._clock_ms
        away_ms = now_ms - self._clock_ms if stood_still and ages_count else 0
        self._ages.shift(away_ms)
        fail_roots, firsts, repeats = np.unique(deltas.fail_roots, return_index=True, return_counts=True)
        ack_roots, ack_sums = sum_by_root(deltas.ack_roots, deltas.ack_sums)
        closed, failed, left = _judged_at_once(init, ack_roots, ack_sums, fail_roots)

        asked = _of_others(init, ack_roots, fail_roots, deltas.reset_roots) if had_open else init.roots[:0]
        added = np.zeros(len(asked), dtype=np.int64)
        is_acked = np.isin(asked, ack_roots, assume_unique=True)
        added[is_acked] = ack_sums[np.searchsorted(ack_roots, asked[is_acked])]
        found, sums, owners = self._open.look_up(asked)
        asked, added, sums = asked[found], added[found], sums[found] ^ added[found]
        has_failed = np.isin(asked, fail_roots, assume_unique=True)
        is_done = (sums == 0) & ~has_failed
        failed = failed.and_also(Roots(asked[has_failed], sums[has_failed], owners[found][has_failed]))
        closed = closed.and_also(Roots(asked[is_done], sums[is_done], owners[found][is_done]))
        stays = ~(has_failed | is_done)
        is_summed = stays & (added != 0)

        self._open.drop(asked[~stays])
        reset = asked[stays & np.isin(asked, deltas.reset_roots)]
        timed_out = self._late(now_ms, reset)
        change = _Change(
            self._told + 1, now_ms, away_ms, self._since(now_ms),
            np.concatenate((*self._forgotten, asked[~stays], timed_out.roots)),
            asked[is_summed], added[is_summed], reset, left,
        )  # fmt: skip
        is_told = ages_count or ages_begin or bool(change)
        self._told += is_told
        self._forgotten.clear()
        self._apply(change)
        place = np.searchsorted(fail_roots, failed.roots)
        return Settlement(
            Judged(closed.roots, closed.owners),
            Judged(failed.roots, failed.owners),
            deltas.failures[firsts[place]],
            repeats[place] - 1,
            Judged(timed_out.roots, timed_out.owners),
            Judged(left.roots, left.owners),
            self._open.count,
            self._next_deadline_ms(now_ms),
            self._ages.oldest_ms(),
            change.to_bytes() if is_told else b"",
        )

    def replay(self, change: Buffer) -> None:
        """Do again what a micro-batch did; in order, from the state that it found.

        Raises:
            CheckpointError: It is not the change after the last.
        """
        again = _Change.from_bytes(change)
        if again.number != self._told + 1:
            # Silence would be worse: what was opened in between would never have a verdict.
            raise CheckpointError(
                f"of the changes of what is open, number {again.number} follows number {self._told}",
                "the acker's ledger",
                "bring back the files that are missing, or give the topology a new checkpoint",
            )
        self._told = again.number
        self._ages.shift(again.away_ms)
        self._apply(again)

    def forget_before(self, run_salt: int, first_sequences: Mapping[int, int]) -> None:
        """Drop, without a verdict, what spout tasks opened in an earlier run and their queues bring back.

        The next change tells of it.

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

    def _apply(self, change: _Change) -> None:
        self._clock_ms = change.clock_ms
        self._open.drop(change.gone)
        self._open.add(change.summed, change.sums)
        renewed = self._open.take(change.reset)
        self._open.begin_ages(change.since_ms, self._since_of(change.clock_ms))
        self._open.put(change.left.and_also(renewed))

    def _since(self, now_ms: int) -> int:
        """From when the ages count that begin now; rounded up to a width."""
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
        """The roots that are older than the timeout, but for those whose age begins again."""
        if self._timeout_ms is None:
            return Roots.none()
        late = self._open.older_than(now_ms - self._timeout_ms)
        return late.keep(~np.isin(late.roots, reset, assume_unique=True)) if len(reset) else late

    def _next_deadline_ms(self, now_ms: int) -> int | None:
        if self._timeout_ms is None or not self._open.count:
            return None
        oldest = self._ages.oldest_ms()
        ends = [] if oldest is None else [oldest + self._timeout_ms]
        if self._open.fresh_count:  # an age that has not begun begins at the next micro-batch: let one come
            owners = self._open.fresh_owners() if self._timeout_of else []
            shortest = min((self._timeout_of.get(owner, self._timeout_ms) for owner in owners), default=None)
            ends.append(now_ms + _width_ms(self._timeout_ms if shortest is None else shortest))
        return min(ends)


def _width_ms(timeout_ms: int) -> int:
    return max(1, timeout_ms // BUCKETS)


def _judged_at_once(
    init: Roots, ack_roots: Int64s, ack_sums: Int64s, fail_roots: Int64s
) -> tuple[Roots, Roots, Roots]:
    """What was opened just now, as it stands at the micro-batch's end: (done, failed, open)."""
    at, which = init.find(ack_roots)
    sums = init.sums.copy()
    sums[at] ^= ack_sums[which]
    init = Roots(init.roots, sums, init.owners)
    has_failed = np.isin(init.roots, fail_roots, assume_unique=True)
    is_done = (sums == 0) & ~has_failed
    return init.keep(is_done), init.keep(has_failed), init.keep(~(has_failed | is_done))


def _of_others(init: Roots, *told: Int64s) -> Int64s:
    """The roots that something was told of and that were not opened just now, ascending."""
    asked = np.unique(np.concatenate(told))
    return asked[~np.isin(asked, init.roots, assume_unique=True)]
