"""The ledger and a naive acker, a dict root -> entry after Storm's rules A1 to A7, hear the same messages.

What is ours and not Storm's: a micro-batch is judged when it ends, not message by message; FAILED wins over
ACKED; an entry without init at the end of a micro-batch is dropped; what grows too old is told TIMED_OUT.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acktree.core.deltas import Deltas, concat_deltas
from acktree.core.ids import root_ids, sequences_of
from acktree.core.ledger import BUCKETS, Ledger
from acktree.core.state import MemoryStore

SALT = 5


@dataclass
class Entry:
    """Storm's state of a root."""

    val: int = 0
    spout_task: int = -1
    failures: list[bytes] = field(default_factory=list)
    since: int | None = None  # None until a micro-batch after the one that admitted or reset it


class NaiveAcker:
    """A dict of entries. Says who *may* have timed out and who *must* have: the bound, not the buckets."""

    def __init__(self):
        self.entries = {}

    def begin(self, now_ms):
        """A micro-batch begins, so the one before has ended."""
        for entry in self.entries.values():
            entry.since = now_ms if entry.since is None else entry.since

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
            if entry.spout_task < 0:
                del self.entries[root]
            elif entry.failures:
                failed[root] = (entry.spout_task, entry.failures[0], len(entry.failures) - 1)
                del self.entries[root]
            elif entry.val == 0:
                acked[root] = entry.spout_task
                del self.entries[root]
        return acked, failed

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


class LedgerBesideANaiveAcker(RuleBasedStateMachine):
    @initialize(
        timeout_ms=st.none() | st.sampled_from([16, 100, 1000, 30_000]), start_ms=st.integers(0, 10**6)
    )
    def begin(self, timeout_ms, start_ms):
        self.timeout_ms, self.now_ms = timeout_ms, start_ms
        self.store = MemoryStore()
        self.ledger = Ledger(self.store, timeout_ms)
        self.naive = NaiveAcker()
        self.opened = 0
        self.owed = {}  # root -> acks that were not sent yet
        self.told = {}  # root -> its verdict

    def root(self, sequence):
        return int(root_ids(SALT, sequence % 3, np.array([sequence]))[0])

    def some_root(self, data):
        """Any root: open, judged, opened in this micro-batch or the next, never heard of."""
        return self.root(data.draw(st.integers(0, self.opened + 1)))

    # ---- what components say ------------------------------------------------------------------------------

    def open_a_tree(self, data):
        # Small numbers on purpose: sums pass zero by accident, and both must see it alike.
        root = self.root(self.opened)
        self.owed[root] = data.draw(st.lists(st.integers(0, 3), max_size=4))
        yield "init", root, reduce(xor, self.owed[root], 0), self.opened % 3
        self.opened += 1

    def ack(self, data):
        owing = sorted(root for root, values in self.owed.items() if values)
        if owing:
            root = data.draw(st.sampled_from(owing))
            count = data.draw(st.integers(1, len(self.owed[root])))
            for _ in range(count):
                yield "ack", root, self.owed[root].pop()

    def ack_what_is_not_owed(self, data):
        yield "ack", self.some_root(data), data.draw(st.integers(0, 3))

    def ack_twice(self, data):
        yield from [("ack", self.some_root(data), data.draw(st.integers(0, 3)))] * 2

    def fail(self, data):
        root = self.some_root(data)
        for number in range(data.draw(st.integers(1, 3))):
            yield "fail", root, b"reason %d of %d" % (number, root)

    def reset(self, data):
        yield "reset", self.some_root(data)

    ACTS = (
        open_a_tree,
        open_a_tree,
        open_a_tree,
        ack,
        ack,
        ack_what_is_not_owed,
        ack_twice,
        fail,
        reset,
        reset,
    )

    # ---- what the acker does ------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        acts=st.lists(st.sampled_from(ACTS), max_size=5),
        step=st.sampled_from([0, 0.01, 0.06, 0.1, 0.5, 0.9, 1, 1.2, 3]),
        shuffle=st.booleans(),
    )
    def micro_batch(self, data, acts, step, shuffle):
        self.now_ms += int((self.timeout_ms or 100) * step)
        messages = [message for act in acts for message in act(self, data)]
        if shuffle:
            messages = data.draw(st.permutations(messages))
        self.naive.begin(self.now_ms)
        for message in messages:
            self.naive.hear(*message)
        cut = data.draw(st.integers(0, len(messages)))
        self.settle([messages[:cut], messages[cut:]], *self.naive.judge())

    def settle(self, parts, acked, failed):
        sent = concat_deltas([Deltas.from_bytes(deltas_of(part).summed().to_bytes()) for part in parts])
        said = self.ledger.settle(sent, self.now_ms)
        assert dict(zip(said.acked.roots.tolist(), said.acked.owners.tolist(), strict=True)) == acked
        reasons = [sent.reasons[at] for at in said.failures.tolist()]
        told = zip(said.failed.owners.tolist(), reasons, said.others.tolist(), strict=True)
        assert dict(zip(said.failed.roots.tolist(), told, strict=True)) == failed
        late = dict(zip(said.timed_out.roots.tolist(), said.timed_out.owners.tolist(), strict=True))
        self.check_ages(late)
        for roots in (said.acked.roots, said.failed.roots, said.timed_out.roots):
            assert roots.dtype == np.int64
            assert roots.tolist() == sorted(set(roots.tolist()))  # ascending, each once
        for root in (*acked, *failed, *late):
            assert root not in self.told, "a second verdict"
            self.told[root] = True
        self.check_outlook(said)

    def check_ages(self, late):
        """Never before T; at the latest T + T/8 after the age began."""
        ages = self.naive.ages(self.now_ms)
        for root, owner in late.items():
            assert ages[root] >= self.timeout_ms
            assert self.naive.entries.pop(root).spout_task == owner
        if self.timeout_ms is not None:
            still = self.naive.ages(self.now_ms).values()
            assert all(age < self.timeout_ms + self.timeout_ms / 8 for age in still)

    def check_outlook(self, said):
        entries = self.naive.entries.values()
        assert said.open_count == len(entries)
        begun = [entry.since for entry in entries if entry.since is not None]
        if self.timeout_ms is None:
            assert (said.next_deadline_ms, said.oldest_ms) == (None, None)
            return
        width = self.timeout_ms // BUCKETS
        if not entries:
            assert said.next_deadline_ms is None
        else:
            assert said.next_deadline_ms > self.now_ms
            soonest = [since + self.timeout_ms for since in begun]
            soonest += [self.now_ms] * (len(begun) < len(entries))
            assert min(soonest) <= said.next_deadline_ms <= min(soonest) + width
        if begun:
            assert min(begun) <= said.oldest_ms < min(begun) + width
        else:
            assert said.oldest_ms is None

    @rule()
    def the_partition_moves(self):
        """Another process opens the ledger from the store."""
        self.ledger = Ledger(self.store, self.timeout_ms)

    @rule(data=st.data())
    def the_driver_restarts(self, data):
        """What some spout tasks opened before some sequence is forgotten: their queues bring it back."""
        firsts = data.draw(st.dictionaries(st.integers(0, 2), st.integers(0, self.opened + 1), max_size=2))
        self.ledger = Ledger(self.store, self.timeout_ms)
        self.ledger.forget_before(SALT, firsts)
        for root, entry in list(self.naive.entries.items()):
            (sequence,) = sequences_of(SALT, np.array([root]))[1].tolist()
            if sequence < firsts.get(entry.spout_task, 0):
                del self.naive.entries[root]

    @invariant()
    def what_is_stored_is_what_is_open(self):
        if hasattr(self, "store"):
            blobs = [name for name in self.store.blobs if name.startswith("bucket/")]
            assert bool(blobs) == bool(self.naive.entries)
            # One a width, one that is fresh; a bucket that is not wanted any more is not kept.
            assert len(blobs) <= (1 if self.timeout_ms is None else BUCKETS + 3)


LedgerBesideANaiveAcker.TestCase.settings = settings(max_examples=150, stateful_step_count=15, deadline=None)

TestLedgerBesideANaiveAcker = pytest.mark.slow(LedgerBesideANaiveAcker.TestCase)


def test_the_model_itself_follows_storm_where_storm_is_right():
    # Case b and j of Storm's rules, by hand: the naive acker is only worth comparing with if it is right.
    acker = NaiveAcker()
    for message in (("ack", 1, 6), ("init", 1, 6, 2), ("init", 2, 5, 2), ("ack", 2, 5), ("ack", 2, 5)):
        acker.hear(*message)
    assert acker.judge() == ({1: 2}, {})
    assert list(acker.entries) == [2]
    assert replace(acker.entries[2]) == Entry(5, 2)
