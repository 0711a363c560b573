"""A naive acker: a dict root -> entry after Storm's rules A1 to A7, to put beside the real one.

What is ours and not Storm's: a micro-batch is judged when it ends, not message by message; FAILED wins over
ACKED; an entry without init at the end of a micro-batch is dropped; what grows too old is TIMED_OUT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from acktree.core.ids import sequences_of
from acktree.core.packing import int32s, int64s, unpack
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.ledger import Ledger
from acktree.core.tracking.open_roots import UNTIMED


@dataclass
class Entry:
    """Storm's state of a root."""

    val: int = 0
    spout_task: int | None = None  # until its init came; below zero for a row of a DataFrame
    failures: list[bytes] = field(default_factory=list)
    since: int | None = None  # None until a micro-batch after the one that admitted or reset it


class NaiveAcker:
    """A dict of entries. Says who *may* have timed out and who *must* have: the bound, not the buckets."""

    def __init__(self):
        self.entries = {}

    def begin(self, now_ms, *, away_ms=0, is_timed=True):
        """A micro-batch begins, so the one before has ended.

        Args:
            away_ms: For how long nobody had run the topology.
            is_timed: Whether messages time out; while they do not, no age counts.
        """
        for entry in self.entries.values():
            if not is_timed:
                entry.since = None
            else:
                entry.since = now_ms if entry.since is None else entry.since + away_ms

    def hear(self, kind, root, *said):
        entry = self.entries.setdefault(root, Entry())
        if kind == "init":  # A3
            entry.val ^= said[0]
            entry.spout_task = said[1]
        elif kind == "ack":  # A4
            entry.val ^= said[0]
        elif kind == "fail":  # A5
            entry.failures.append(said[0])
        else:  # A6
            entry.since = None

    def judge(self):
        """A7, for every entry."""
        acked, failed = {}, {}
        for root, entry in list(self.entries.items()):
            if entry.spout_task is None:
                del self.entries[root]
            elif entry.failures:
                failed[root] = (entry.spout_task, entry.failures[0], len(entry.failures) - 1)
                del self.entries[root]
            elif entry.val == 0:
                acked[root] = entry.spout_task
                del self.entries[root]
        return acked, failed

    def late_count(self):
        """Roots without an init that have an ack or fail; asked before :meth:`judge`."""
        unknown = (entry for entry in self.entries.values() if entry.spout_task is None)
        return sum(bool(entry.val or entry.failures) for entry in unknown)

    def forget_before(self, salt, firsts):
        """What some spout tasks opened before some sequence is brought back by their queues."""
        for root, entry in list(self.entries.items()):
            (sequence,) = sequences_of(salt, np.array([root]))[1].tolist()
            if sequence < firsts.get(entry.spout_task, 0):
                del self.entries[root]

    def ages(self, now_ms):
        return {root: now_ms - entry.since for root, entry in self.entries.items() if entry.since is not None}


def deltas_of(messages):
    """Messages as one batch of arrays, in their order."""
    inits = [said for kind, *said in messages if kind == "init"]
    acks = [said for kind, *said in messages if kind == "ack"]
    fails = [said for kind, *said in messages if kind == "fail"]
    resets = [said[0] for kind, *said in messages if kind == "reset"]

    def column(rows, at, dtype=np.int64):
        return np.array([row[at] for row in rows], dtype=dtype)

    return Deltas(
        column(inits, 0), column(inits, 1), column(inits, 2, np.int32), column(acks, 0), column(acks, 1),
        column(fails, 0), np.arange(len(fails)), tuple(reason for _, reason in fails),
        np.array(resets, dtype=np.int64),
    )  # fmt: skip


def content(ledger: Ledger):
    """All that will matter of a ledger: each root with its sum, its owner and since when its age counts.

    And the clock, if some age counts; where the roots lie is the ledger's own business.
    """
    head, ages, *runs = unpack(ledger.to_bytes())
    (moments,) = unpack(ages)
    since_ms = [None if since == UNTIMED else since for since in int64s(moments).tolist()]
    found = {}
    for run in runs:
        roots, sums, owners, numbers = unpack(run)
        for root, total, owner, age in zip(
            int64s(roots).tolist(),
            int64s(sums).tolist(),
            int32s(owners).tolist(),
            bytes(numbers),
            strict=True,
        ):
            found[root] = (total, owner, since_ms[age] if age < len(since_ms) else None)
    number, clock_ms = int64s(head).tolist()
    return number, clock_ms if any(since is not None for *_, since in found.values()) else None, found
