"""Where the acker keeps ten million open roots: 21 bytes each, 24 with what is gone, found in microseconds.

Roots lie in a few runs, each sorted and some times as long as the next, so that a lookup is a binary search
in a handful of arrays. What a micro-batch leaves open is a new run, the youngest; runs of like size are
merged, which each root undergoes a few times in its life. A root that goes is marked, and a run of which an
eighth is marks is written anew. So the cost of a micro-batch follows what it touches, not what is open.

What is *fresh* waits in a run of its own for the micro-batch that begins its age.

Source: ours; the shape is that of a log-structured merge tree. Storm keeps a hash map of objects.
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
"""The moment from which an age counts while messages never time out."""
_FRESH: Final = 254
_GONE: Final = 255
_MOMENTS: Final = 254
"""Ages are numbers below this; the two others say that an age has not begun, and that a root is not there."""
_MOST_GONE: Final = 8
"""At most one of so many roots of a run is gone: 21 bytes times 8/7 are 24."""
_GROWTH: Final = 4
"""A run is at least so many times as long as the next younger one."""

_UInt8s = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Roots:
    """Roots, what each owes and the spout task that opened it; ascending by root, shape (n,)."""

    roots: Int64s
    sums: Int64s
    owners: Int32s

    @classmethod
    def none(cls) -> Roots:
        """No roots."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))

    @classmethod
    def of(cls, roots: Int64s, sums: Int64s, owners: Int32s) -> Roots:
        """From roots in any order, each once: a root that is open twice would get two verdicts.

        Raises:
            ProtocolError: One is there twice.
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
        """Where these ascending roots are: (positions here, positions in ``roots``) of those found."""
        at = np.searchsorted(self.roots, roots)
        at[at == len(self.roots)] = 0
        found = np.flatnonzero(self.roots[at] == roots) if len(self.roots) else at[:0]
        return at[found], found

    def keep(self, kept: _Mask) -> Roots:
        """Those of a mask, shape (n,)."""
        return Roots(self.roots[kept], self.sums[kept], self.owners[kept])

    def and_also(self, other: Roots) -> Roots:
        """These and others. ProtocolError when they have a root in common."""
        if not len(other.roots) or not len(self.roots):
            return self if len(self.roots) else other
        return Roots.of(
            np.concatenate((self.roots, other.roots)),
            np.concatenate((self.sums, other.sums)),
            np.concatenate((self.owners, other.owners)),
        )


class AgeTable:
    """Since when each age counts, and how many roots have it.

    Attributes:
        counts: How many roots have each age, shape (256,).
    """

    def __init__(self) -> None:
        self.counts: Int64s = np.zeros(256, dtype=np.int64)
        self._since_ms = [UNTIMED] * _MOMENTS

    def age_of(self, since_ms: int) -> int:
        """The age that counts from a moment."""
        used = [age for age in range(_MOMENTS) if self.counts[age]]
        for age in used:
            if self._since_ms[age] == since_ms:
                return age
        # A timeout has at most 18 widths under way; with more ages than numbers some become younger.
        free = [age for age in range(_MOMENTS) if not self.counts[age]]
        age = free[0] if free else max(used, key=self._since_ms.__getitem__)
        self._since_ms[age] = since_ms
        return age

    def shift(self, by_ms: int) -> None:
        """Make every age younger; below zero, as much older as the clock was set back."""
        self._since_ms = [since if since == UNTIMED else since + by_ms for since in self._since_ms]

    def stop(self) -> None:
        """Timeouts were switched off: no age counts from any moment."""
        self._since_ms = [UNTIMED] * _MOMENTS

    def begin_untimed(self, since_ms: int) -> None:
        """Timeouts were switched on: the ages that counted from no moment count from this one."""
        self._since_ms = [since_ms if since == UNTIMED else since for since in self._since_ms]

    def before(self, moment_ms: int) -> list[int]:
        """The ages in use that count from a moment or earlier."""
        return [age for age in range(_MOMENTS) if self.counts[age] and self._since_ms[age] <= moment_ms]

    def oldest_ms(self) -> int | None:
        """Since when the oldest counts; None when none does."""
        begun = (self._since_ms[age] for age in range(_MOMENTS) if self.counts[age])
        return min((since for since in begun if since != UNTIMED), default=None)

    def to_bytes(self) -> bytes:
        """For the checkpoint; the counts are counted anew."""
        return pack(np.array(self._since_ms))

    def restore(self, blob: Buffer) -> None:
        """Read what :meth:`to_bytes` wrote."""
        (since,) = unpack(blob)
        self._since_ms = int64s(since).tolist()


class _Run:
    """Roots in ascending order, some of them gone."""

    __slots__ = ("ages", "gone", "owners", "roots", "sums")

    def __init__(self, roots: Int64s, sums: Int64s, owners: Int32s, ages: _UInt8s) -> None:
        self.roots, self.sums, self.owners, self.ages = roots, sums, owners, ages
        self.gone = 0

    @classmethod
    def fresh(cls, given: Roots) -> _Run:
        # Arrays of our own: sums change in place, and what was given may be a view of a message.
        ages = np.full(len(given.roots), _FRESH, dtype=np.uint8)
        return cls(given.roots.copy(), given.sums.copy(), given.owners.copy(), ages)

    @property
    def count(self) -> int:
        return len(self.roots) - self.gone

    @property
    def nbytes(self) -> int:
        return self.roots.nbytes + self.sums.nbytes + self.owners.nbytes + self.ages.nbytes

    def find(self, roots: Int64s) -> tuple[Int64s, Int64s]:
        """(positions here, positions in ``roots``) of those that are here; ``roots`` ascending."""
        at = np.searchsorted(self.roots, roots)
        at[at == len(self.roots)] = 0
        found = np.flatnonzero((self.roots[at] == roots) & (self.ages[at] != _GONE))
        return at[found], found

    def without_gone(self) -> _Run:
        return self if not self.gone else self.those(self.ages != _GONE)

    def tidied(self) -> _Run:
        return self.without_gone() if _MOST_GONE * self.gone > len(self.roots) else self

    def those(self, which: _Mask | Int64s) -> _Run:
        return _Run(self.roots[which], self.sums[which], self.owners[which], self.ages[which])

    def and_also(self, other: _Run) -> _Run:
        roots = np.concatenate((self.roots, other.roots))
        order = np.argsort(roots, kind="stable")  # two ascending runs: merged, not sorted
        merged = _Run(
            roots[order],
            np.concatenate((self.sums, other.sums))[order],
            np.concatenate((self.owners, other.owners))[order],
            np.concatenate((self.ages, other.ages))[order],
        )
        if (merged.roots[1:] == merged.roots[:-1]).any():
            Roots.of(roots, roots, np.concatenate((self.owners, other.owners)))  # says which
        return merged


class OpenRoots:
    """All open roots of an acker."""

    def __init__(self, ages: AgeTable) -> None:
        self._ages = ages
        self._fresh = _Run.fresh(Roots.none())
        self._runs: list[_Run] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return self._fresh.count + sum(run.count for run in self._runs)

    @property
    def fresh_count(self) -> int:
        """How many of them wait for the micro-batch that begins their age."""
        return self._fresh.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(run.nbytes for run in self._all())

    def runs(self) -> Iterator[Roots]:
        """All of them, a run at a time."""
        for run in self._all():
            whole = run.without_gone()
            yield Roots(whole.roots, whole.sums, whole.owners)

    def look_up(self, roots: Int64s) -> tuple[_Mask, Int64s, Int32s]:
        """Which of these ascending roots are open, what they owe and who opened them; each shape (n,)."""
        is_open = np.zeros(len(roots), dtype=np.bool_)
        sums, owners = np.zeros(len(roots), dtype=np.int64), np.zeros(len(roots), dtype=np.int32)
        for run, at, which in self._find(roots):
            is_open[which] = True
            sums[which], owners[which] = run.sums[at], run.owners[at]
        return is_open, sums, owners

    def refuse(self, given: Roots) -> None:
        """Stop what opens a root again. ProtocolError when some of these are open."""
        is_open, sums, owners = self.look_up(given.roots)
        if is_open.any():
            given.and_also(Roots(given.roots, sums, owners).keep(is_open))  # says which

    def drop(self, roots: Int64s) -> None:
        """Let go of roots; those that are not there are passed over."""
        for run, at, _ in self._find(np.sort(roots)):
            self._mark_gone(run, at)
        self._tidy()

    def add(self, roots: Int64s, sums: Int64s) -> None:
        """Add to what roots owe; ascending, each once."""
        for run, at, which in self._find(roots):
            run.sums[at] ^= sums[which]

    def take(self, roots: Int64s) -> Roots:
        """Take roots out, ascending."""
        taken = Roots.none()
        for run, at, _ in self._find(roots):
            taken = taken.and_also(Roots(run.roots[at], run.sums[at], run.owners[at]))
            self._mark_gone(run, at)
        return taken

    def put(self, given: Roots) -> None:
        """Take in roots whose age has not begun."""
        if not len(given.roots):
            return
        self._ages.counts[_FRESH] += len(given.roots)
        self._fresh = self._fresh.without_gone().and_also(_Run.fresh(given))

    def begin_ages(self, since_ms: int, since_of: Mapping[int, int] = MappingProxyType({})) -> None:
        """The ages of what is fresh count from a moment on; from UNTIMED none does.

        Args:
            since_of: Owner -> the moment that counts for its roots instead.
        """
        if since_ms == UNTIMED:
            self._ages.stop()
        else:
            self._ages.begin_untimed(since_ms)
        begun, self._fresh = self._fresh.without_gone(), _Run.fresh(Roots.none())
        if not begun.count:
            return
        self._ages.counts[_FRESH] -= begun.count
        is_other = np.isin(begun.owners, list(since_of)) if since_of else None
        if is_other is None or not is_other.all():
            self._begin(begun, since_ms, slice(None) if is_other is None else ~is_other)
        for owner, since in since_of.items():
            mine = begun.owners == owner
            if mine.any():
                self._begin(begun, since, mine)
        self._runs.append(begun)
        while len(self._runs) > 1 and self._runs[-2].count < _GROWTH * self._runs[-1].count:
            younger, older = self._runs.pop().without_gone(), self._runs.pop().without_gone()
            self._runs.append(older.and_also(younger))

    def _begin(self, begun: _Run, since_ms: int, which: _Mask | slice) -> None:
        age = self._ages.age_of(since_ms)
        begun.ages[which] = age
        self._ages.counts[age] += len(begun.ages[which])

    def fresh_owners(self) -> list[int]:
        """Who owns the roots whose age has not begun, each once."""
        owners: list[int] = np.unique(self._fresh.without_gone().owners).tolist()
        return owners

    def older_than(self, moment_ms: int) -> Roots:
        """The roots whose age counts from a moment or earlier, ascending. Looks at all only if some are."""
        late = Roots.none()
        ages = self._ages.before(moment_ms)
        for run in self._runs if ages else ():
            whole = run.those(np.isin(run.ages, ages))
            late = late.and_also(Roots(whole.roots, whole.sums, whole.owners))
        return late

    def parts(self) -> Iterator[bytes]:
        """For the checkpoint, a part for each run; the fresh one first."""
        for run in self._all():
            whole = run.without_gone()
            yield pack(whole.roots, whole.sums, whole.owners, whole.ages.tobytes())

    def restore(self, parts: Sequence[Buffer]) -> None:
        """Read what :meth:`parts` wrote."""
        self._fresh, *self._runs = (_run_of(part) for part in parts)
        for run in self._all():
            self._ages.counts += np.bincount(run.ages, minlength=256)

    def _all(self) -> list[_Run]:
        return [self._fresh, *self._runs]

    def _find(self, roots: Int64s) -> Iterator[tuple[_Run, Int64s, Int64s]]:
        for run in self._all():
            if len(run.roots) and len(roots):
                at, which = run.find(roots)
                if len(at):
                    yield run, at, which

    def _mark_gone(self, run: _Run, at: Int64s) -> None:
        self._ages.counts -= np.bincount(run.ages[at], minlength=256)
        run.ages[at] = _GONE
        run.gone += len(at)

    def _tidy(self) -> None:
        """Write anew what has too many gone."""
        self._fresh = self._fresh.tidied()
        self._runs = [run.tidied() for run in self._runs if run.count]


def _run_of(part: Buffer) -> _Run:
    roots, sums, owners, ages = unpack(part)
    return _Run(
        int64s(roots).copy(), int64s(sums).copy(), int32s(owners).copy(),
        np.frombuffer(ages, dtype=np.uint8).copy(),
    )  # fmt: skip
