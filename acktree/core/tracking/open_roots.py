"""The acker's table of open roots: 21 bytes each (24 with removed roots), found in microseconds.

Roots are stored in a few sorted runs, each at least four times as long as the next younger one. A lookup is a
binary search in a few arrays. The roots that a micro-batch leaves open become the youngest run; runs of
similar size are merged, so each root is merged a few times. A removed root is marked, and a run is rewritten
when more than an eighth of its roots are marked. So the cost of a micro-batch depends on the roots that it
touches, not on the number of open roots.

Roots whose age has not begun are in a run of their own, the *fresh* one, until the next micro-batch.

Source: ours; the structure is that of a log-structured merge tree. Storm keeps a hash map of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.errors import ProtocolError

UNTIMED: Final = 1 << 62
"""The start of every age while message timeouts are off."""
_FRESH: Final = 254
_GONE: Final = 255
_MOMENTS: Final = 254
"""Ages are numbers below this; _FRESH means that the age has not begun, _GONE that the root is removed."""
_MOST_GONE: Final = 8
"""At most one in this many roots of a run is removed: 21 bytes times 8/7 are 24."""
_GROWTH: Final = 4
"""A run is at least this many times as long as the next younger one."""

_UInt8s = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Roots:
    """Roots, the sum of each and the spout task that opened it; ascending by root, shape (n,)."""

    roots: Int64s
    sums: Int64s
    owners: Int32s

    @classmethod
    def none(cls) -> Roots:
        """No roots."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))

    @classmethod
    def of(cls, roots: Int64s, sums: Int64s, owners: Int32s) -> Roots:
        """Make it from distinct roots in any order: a root that is open twice would get two verdicts.

        Raises:
            ProtocolError: A root occurs twice.
        """
        order = np.argsort(roots)
        ascending = roots[order]
        twice = np.flatnonzero(ascending[1:] == ascending[:-1])
        if len(twice):
            root = int(ascending[twice[0]])
            raise ProtocolError(
                f"root {root} is open twice, from spout task {owners[roots == root].tolist()}",
                f"an acker's ledger, {len(twice)} such of {len(roots)} roots",
                "a bug in acktree, or one run_salt used again on other messages: please report it",
            )
        return cls(ascending, sums[order], owners[order])

    def find(self, roots: Int64s) -> tuple[Int64s, Int64s]:
        """Find ascending roots: (positions here, positions in ``roots``) of those found."""
        at = np.searchsorted(self.roots, roots)
        at[at == len(self.roots)] = 0
        hits = np.flatnonzero(self.roots[at] == roots) if len(self.roots) else at[:0]
        return at[hits], hits

    def keep(self, kept: _Mask) -> Roots:
        """The roots selected by a mask, shape (n,)."""
        return Roots(self.roots[kept], self.sums[kept], self.owners[kept])

    def and_also(self, other: Roots) -> Roots:
        """The union of both. ProtocolError when they have a root in common."""
        if not len(other.roots) or not len(self.roots):
            return self if len(self.roots) else other
        return Roots.of(
            np.concatenate((self.roots, other.roots)),
            np.concatenate((self.sums, other.sums)),
            np.concatenate((self.owners, other.owners)),
        )


class AgeTable:
    """The time from which each age counts, and the number of roots that have it.

    Attributes:
        counts: The number of roots of each age, shape (256,).
    """

    def __init__(self) -> None:
        self.counts: Int64s = np.zeros(256, dtype=np.int64)
        self._since_ms = [UNTIMED] * _MOMENTS

    def age_of(self, since_ms: int) -> int:
        """The age number of a start time; takes a free number if none has it."""
        used = [age for age in range(_MOMENTS) if self.counts[age]]
        for age in used:
            if self._since_ms[age] == since_ms:
                return age
        # At most 18 ages are in use within a timeout. When no number is free, some roots become younger.
        free = [age for age in range(_MOMENTS) if not self.counts[age]]
        age = free[0] if free else max(used, key=self._since_ms.__getitem__)
        self._since_ms[age] = since_ms
        return age

    def shift(self, by_ms: int) -> None:
        """Move the start of every age by ``by_ms``: later if positive, earlier if the clock was set back."""
        self._since_ms = [since if since == UNTIMED else since + by_ms for since in self._since_ms]

    def stop(self) -> None:
        """Reset all ages to UNTIMED, because message timeouts are off."""
        self._since_ms = [UNTIMED] * _MOMENTS

    def begin_untimed(self, since_ms: int) -> None:
        """Let ages that are UNTIMED count from this time, because message timeouts are on again."""
        self._since_ms = [since_ms if since == UNTIMED else since for since in self._since_ms]

    def before(self, moment_ms: int) -> list[int]:
        """The ages in use that count from this time or earlier."""
        return [age for age in range(_MOMENTS) if self.counts[age] and self._since_ms[age] <= moment_ms]

    def oldest_ms(self) -> int | None:
        """The start of the oldest age; None when no age counts."""
        begun = (self._since_ms[age] for age in range(_MOMENTS) if self.counts[age])
        return min((since for since in begun if since != UNTIMED), default=None)

    def to_bytes(self) -> bytes:
        """For the checkpoint, without the counts: a restore counts the roots again."""
        return pack(np.array(self._since_ms))

    def restore(self, blob: Buffer) -> None:
        """Read what :meth:`to_bytes` wrote."""
        (since,) = unpack(blob)
        self._since_ms = int64s(since).tolist()


class _RootRun:
    """Roots in ascending order; some of them may be marked as removed."""

    __slots__ = ("ages", "gone", "owners", "roots", "sums")

    def __init__(self, roots: Int64s, sums: Int64s, owners: Int32s, ages: _UInt8s) -> None:
        self.roots, self.sums, self.owners, self.ages = roots, sums, owners, ages
        self.gone = 0

    @classmethod
    def fresh(cls, opened: Roots) -> _RootRun:
        # Copies: sums change in place, and the given arrays may be views of a received blob.
        ages = np.full(len(opened.roots), _FRESH, dtype=np.uint8)
        return cls(opened.roots.copy(), opened.sums.copy(), opened.owners.copy(), ages)

    @property
    def count(self) -> int:
        return len(self.roots) - self.gone

    @property
    def nbytes(self) -> int:
        return self.roots.nbytes + self.sums.nbytes + self.owners.nbytes + self.ages.nbytes

    def find(self, roots: Int64s) -> tuple[Int64s, Int64s]:
        """Find ascending roots: (positions here, positions in ``roots``) of those found."""
        at = np.searchsorted(self.roots, roots)
        at[at == len(self.roots)] = 0
        hits = np.flatnonzero((self.roots[at] == roots) & (self.ages[at] != _GONE))
        return at[hits], hits

    def without_gone(self) -> _RootRun:
        return self if not self.gone else self.those(self.ages != _GONE)

    def tidied(self) -> _RootRun:
        return self.without_gone() if _MOST_GONE * self.gone > len(self.roots) else self

    def those(self, rows: _Mask | Int64s) -> _RootRun:
        return _RootRun(self.roots[rows], self.sums[rows], self.owners[rows], self.ages[rows])

    def and_also(self, other: _RootRun) -> _RootRun:
        roots = np.concatenate((self.roots, other.roots))
        order = np.argsort(roots, kind="stable")  # of two ascending runs this is a merge
        merged = _RootRun(
            roots[order],
            np.concatenate((self.sums, other.sums))[order],
            np.concatenate((self.owners, other.owners))[order],
            np.concatenate((self.ages, other.ages))[order],
        )
        if (merged.roots[1:] == merged.roots[:-1]).any():
            Roots.of(roots, roots, np.concatenate((self.owners, other.owners)))  # raises, and names the root
        return merged


class OpenRoots:
    """All open roots of an acker."""

    def __init__(self, ages: AgeTable) -> None:
        self._ages = ages
        self._fresh = _RootRun.fresh(Roots.none())
        self._runs: list[_RootRun] = []

    @property
    def count(self) -> int:
        """The number of open roots."""
        return self._fresh.count + sum(run.count for run in self._runs)

    @property
    def fresh_count(self) -> int:
        """The number of open roots whose age has not begun."""
        return self._fresh.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return sum(run.nbytes for run in self._all())

    def runs(self) -> Iterator[Roots]:
        """All open roots, run by run."""
        for run in self._all():
            whole = run.without_gone()
            yield Roots(whole.roots, whole.sums, whole.owners)

    def look_up(self, roots: Int64s) -> tuple[_Mask, Int64s, Int32s]:
        """Look up ascending roots: whether each is open, its sum and its spout task; each shape (n,)."""
        is_open = np.zeros(len(roots), dtype=np.bool_)
        sums, owners = np.zeros(len(roots), dtype=np.int64), np.zeros(len(roots), dtype=np.int32)
        for run, at, places in self._find(roots):
            is_open[places] = True
            sums[places], owners[places] = run.sums[at], run.owners[at]
        return is_open, sums, owners

    def refuse(self, opened: Roots) -> None:
        """Raise ProtocolError when one of these roots is already open."""
        is_open, sums, owners = self.look_up(opened.roots)
        if is_open.any():
            opened.and_also(Roots(opened.roots, sums, owners).keep(is_open))  # raises, and names the root

    def drop(self, roots: Int64s) -> None:
        """Remove roots; roots that are not open are ignored."""
        for run, at, _ in self._find(np.sort(roots)):
            self._mark_gone(run, at)
        self._tidy()

    def add(self, roots: Int64s, sums: Int64s) -> None:
        """XOR deltas into the sums of ascending, distinct roots; roots that are not open are ignored."""
        for run, at, places in self._find(roots):
            run.sums[at] ^= sums[places]

    def take(self, roots: Int64s) -> Roots:
        """Remove ascending roots and return them."""
        taken = Roots.none()
        for run, at, _ in self._find(roots):
            taken = taken.and_also(Roots(run.roots[at], run.sums[at], run.owners[at]))
            self._mark_gone(run, at)
        return taken

    def put(self, added: Roots) -> None:
        """Add roots whose age has not begun."""
        if not len(added.roots):
            return
        self._ages.counts[_FRESH] += len(added.roots)
        self._fresh = self._fresh.without_gone().and_also(_RootRun.fresh(added))

    def begin_ages(self, since_ms: int, since_of: Mapping[int, int] = MappingProxyType({})) -> None:
        """Let the ages of the fresh roots count from ``since_ms``; with UNTIMED no age counts.

        Args:
            since_of: Owner -> the moment that counts for its roots instead.
        """
        if since_ms == UNTIMED:
            self._ages.stop()
        else:
            self._ages.begin_untimed(since_ms)
        begun, self._fresh = self._fresh.without_gone(), _RootRun.fresh(Roots.none())
        if not begun.count:
            return
        self._ages.counts[_FRESH] -= begun.count
        is_other = np.isin(begun.owners, list(since_of)) if since_of else None
        if is_other is None or not is_other.all():
            self._begin(begun, since_ms, slice(None) if is_other is None else ~is_other)
        for owner, since in since_of.items():
            is_of_owner = begun.owners == owner
            if is_of_owner.any():
                self._begin(begun, since, is_of_owner)
        self._runs.append(begun)
        while len(self._runs) > 1 and self._runs[-2].count < _GROWTH * self._runs[-1].count:
            younger, older = self._runs.pop().without_gone(), self._runs.pop().without_gone()
            self._runs.append(older.and_also(younger))

    def _begin(self, begun: _RootRun, since_ms: int, rows: _Mask | slice) -> None:
        age = self._ages.age_of(since_ms)
        begun.ages[rows] = age
        self._ages.counts[age] += len(begun.ages[rows])

    def fresh_owners(self) -> list[int]:
        """Who owns the roots whose age has not begun, each once."""
        owners: list[int] = np.unique(self._fresh.without_gone().owners).tolist()
        return owners

    def older_than(self, moment_ms: int) -> Roots:
        """The roots whose age counts from this time or earlier, ascending. Scans only if there are any."""
        late = Roots.none()
        ages = self._ages.before(moment_ms)
        for run in self._runs if ages else ():
            whole = run.those(np.isin(run.ages, ages))
            late = late.and_also(Roots(whole.roots, whole.sums, whole.owners))
        return late

    def parts(self) -> Iterator[bytes]:
        """For the checkpoint: one part for each run, the fresh run first."""
        for run in self._all():
            whole = run.without_gone()
            yield pack(whole.roots, whole.sums, whole.owners, whole.ages.tobytes())

    def restore(self, parts: Sequence[Buffer]) -> None:
        """Read what :meth:`parts` wrote."""
        self._fresh, *self._runs = (_run_of(part) for part in parts)
        for run in self._all():
            self._ages.counts += np.bincount(run.ages, minlength=256)

    def _all(self) -> list[_RootRun]:
        return [self._fresh, *self._runs]

    def _find(self, roots: Int64s) -> Iterator[tuple[_RootRun, Int64s, Int64s]]:
        for run in self._all():
            if len(run.roots) and len(roots):
                at, places = run.find(roots)
                if len(at):
                    yield run, at, places

    def _mark_gone(self, run: _RootRun, at: Int64s) -> None:
        self._ages.counts -= np.bincount(run.ages[at], minlength=256)
        run.ages[at] = _GONE
        run.gone += len(at)

    def _tidy(self) -> None:
        """Rewrite the runs that have too many removed roots."""
        self._fresh = self._fresh.tidied()
        self._runs = [run.tidied() for run in self._runs if run.count]


def _run_of(part: Buffer) -> _RootRun:
    roots, sums, owners, ages = unpack(part)
    return _RootRun(
        int64s(roots).copy(), int64s(sums).copy(), int32s(owners).copy(),
        np.frombuffer(ages, dtype=np.uint8).copy(),
    )  # fmt: skip
