"""The keys of a checkpoint: those of messages that were ACKED, as sections of the commit log.

Keys count with the commit of the micro-batch that ACKED them, as what it let through gates does. A section
has the keys of one micro-batch, 16 bytes each, and the keys of rows of DataFrames that are open. From time
to time one has all that are kept, and supersedes those before.

Keys age while the topology runs: a queue that brings back what was decided before the driver died finds its
keys, however long nobody started it again. Each section has the age. Where no key is decided for
long, a section is written for the age alone: so a restart sets the age back by less than a 64th of the
retention, and by the time at rest since the last micro-batch. Ages are by a stopwatch: what becomes of a key
does not depend on a clock that somebody sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Final

import numpy as np

from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section
from acktree.core.data.frames import Kind
from acktree.core.ids import Int64s, root_ids
from acktree.core.packing import int64s, pack, unpack
from acktree.core.spouts.keys import KeptPart
from acktree.core.stats.numbers import KeyNumbers
from acktree.core.tracking.verdicts import Verdicts
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.key_table import Keys

_MOST_CHANGES: Final = 256
"""After this number of sections one with all keys is written in any case: a restart reads them all."""
_SMALL: Final = 1 << 20
"""... and not before the sections since the last one have this number of bytes."""
_AGES: Final = 64
"""The age is in a section at least each time it has grown by one part in this number of the retention."""
_NONE: Final = np.zeros(0, dtype=np.int64)


class KeyLog(Participant):
    """The keys of a topology. The sink decides; spout threads ask :attr:`keys`.

    Attributes:
        keys: The keys.
        repeated: Roots that the last micro-batch ACKED after another with the same key: they pass no gate.
    """

    name = "keys"

    def __init__(self, plan: Plan, stopwatch_ms: Callable[[], int] | None = None) -> None:
        """No key was seen yet, until :meth:`recover`.

        Args:
            stopwatch_ms: A clock that nobody sets; None for that of micro-batches, as in simulations.
        """
        retention_ms = round(plan.config.key_retention_secs * 1000)
        self.keys = Keys(retention_ms, self._age_now_ms)
        self._most_unwritten_ms = max(1, retention_ms // _AGES)
        self.repeated = _NONE
        self._salt = plan.run_salt
        self._lock = Lock()
        self._age_ms = 0  # for how long the topology has run
        self._written_age_ms = 0  # as the last section has it
        self._stopwatch_ms = stopwatch_ms
        self._shown_ms: int | None = None  # by whichever clock, in the last micro-batch of this run
        self._born_ms: int | None = None  # what the stopwatch showed, or would have shown, at age 0
        self._decided = -1
        self._open_rows = self._packed_rows()
        self._written = self._changes = 0  # since the last section with all keys: bytes, sections

    def publish(self, number: int) -> None:
        """Note that Spark has committed a micro-batch."""
        with self._lock:
            if number >= self._decided and self.keys.is_used:
                self.keys.publish(self._age_ms)

    def numbers(self, waiting: int) -> KeyNumbers:
        """The keys at this moment; with how many messages wait for one."""
        return replace(self.keys.numbers(self._age_now_ms()), waiting=waiting)

    def _age_now_ms(self) -> int:
        """The age at this moment: as of the last micro-batch, where there was none in this run."""
        born_ms = self._born_ms  # one value: no lock is held here
        if born_ms is None or self._stopwatch_ms is None:
            return self._age_ms
        return self._stopwatch_ms() - born_ms

    # ---- a participant of the commit log ----------------------------------------------------------------

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        for _, section in sections:
            head, roots, rows, *digests = unpack(section.content)
            self._open_rows = pack(roots, rows)
            self._age_ms, *times = int64s(head).tolist()
            pairs = zip(times[::2], times[1::2], digests, strict=True)
            self.keys.keep(KeptPart.from_bytes(*pair) for pair in pairs)
        self._written_age_ms = self._age_ms
        if sections:
            roots, rows = unpack(self._open_rows)
            self.keys.rows(int64s(roots), KeptPart.from_bytes(0, 0, rows).digests)
        self._changes = len(sections)
        self.keys.is_used |= bool(sections)

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:
        self.repeated = _NONE
        for row in outcome.rows.get(Kind.KEYS, ()):
            self.keys.rows(int64s(unpack(row.head)[0]), KeptPart.from_bytes(0, 0, row.body).digests)
        if not self.keys.is_used:
            return None
        with self._lock:
            self.keys.publish(self._age_ms)  # the micro-batch before this one is committed
            self._decided = commit.number
            self._grow_older(commit, outcome)
            if outcome.verdicts is None or not self.keys.waits_for_verdicts:
                return self._aged()
            judged = self.keys.judge(*_roots(outcome.verdicts, self._salt), self._age_ms)
            self.repeated = judged.repeated
            before, self._open_rows = self._open_rows, self._packed_rows()
            if not len(judged.kept) and self._open_rows == before:
                return self._aged()
            return self._section(KeptPart.of(self._age_ms, judged.kept))

    def _aged(self) -> Section | None:
        """A section for the age alone; None while a restart would set it back by little."""
        if self._age_ms - self._written_age_ms < self._most_unwritten_ms or not self.keys.parts():
            return None
        return self._section()

    def _grow_older(self, commit: Commit, outcome: Outcome) -> None:
        """Count the time since the micro-batch before this one, if the same run had it."""
        is_first = Broadcast.of(outcome.rows.get(Kind.BROADCAST, ())).is_first
        shown_ms = commit.clock_ms if self._stopwatch_ms is None else self._stopwatch_ms()
        if self._shown_ms is not None and not is_first:
            self._age_ms += max(0, shown_ms - self._shown_ms)
        self._shown_ms = shown_ms
        self._born_ms = shown_ms - self._age_ms

    def _packed_rows(self) -> bytes:
        rows = self.keys.open_rows()
        return pack(np.array([*rows], dtype=np.int64), b"".join(rows.values()))

    def _section(self, *added: KeptPart) -> Section:
        parts = self.keys.parts()
        self._written_age_ms = self._age_ms
        self._changes += 1
        self._written += sum(part.digests.nbytes for part in added)
        size = sum(part.digests.nbytes for part in parts)
        is_whole = self._changes > _MOST_CHANGES or self._written >= max(_SMALL, size)
        if is_whole:
            self._written = self._changes = 0
        return Section(self._packed(parts if is_whole else added), is_whole)

    def _packed(self, parts: Sequence[KeptPart]) -> bytes:
        times = [time for part in parts for time in (part.first_ms, part.last_ms)]
        digests = (part.digests.tobytes() for part in parts)
        return pack(np.array([self._age_ms, *times]), *unpack(self._open_rows), *digests)


def _roots(verdicts: Verdicts, salt: int) -> tuple[Int64s, Int64s]:
    """The roots that were ACKED, and the others that have a verdict."""
    done = (root_ids(salt, task, sequences) for task, sequences in verdicts.done)
    acked = np.concatenate([*done, verdicts.acked.roots])
    return acked, np.concatenate([verdicts.failed.roots, verdicts.timed_out.roots])
