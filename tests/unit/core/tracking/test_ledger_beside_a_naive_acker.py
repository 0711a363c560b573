"""The ledger and a naive acker hear the same messages, while drivers come and go.

A driver that begins has nothing but a whole ledger and the changes since, cut wherever it pleases, and goes
on from there: its later verdicts are compared with those of the naive acker, which was never restarted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acktree.core.ids import root_ids
from acktree.core.tracking.deltas import Deltas, concat_deltas
from acktree.core.tracking.ledger import BUCKETS, Ledger
from tests.drawn import drawn
from tests.unit.core.tracking.naive_acker import Entry, NaiveAcker, content, deltas_of

SALT = 5


class LedgerBesideANaiveAcker(RuleBasedStateMachine):
    @initialize(
        timeout_ms=st.none() | st.sampled_from([16, 100, 1000, 30_000]), start_ms=st.integers(0, 10**6)
    )
    def begin(self, timeout_ms, start_ms):
        self.timeout_ms, self.now_ms = timeout_ms, start_ms
        self.rounded_by_ms = timeout_ms or 0  # the largest timeout by which an age that counts was rounded
        self.ledger = Ledger(timeout_ms)
        self.whole, self.changes = None, []  # what a driver leaves behind
        self.begins, self.was_ms = False, start_ms
        self.naive = NaiveAcker()
        self.firsts = {}  # spout task whose queue redelivers -> the first sequence of its last run
        self.opened = 0
        self.owed = {}  # root -> acks that were not sent yet
        self.reported = {}  # root -> its verdict

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
        step=st.sampled_from([-20, -0.3, 0, 0.01, 0.06, 0.1, 0.5, 0.9, 1, 1.2, 3]),
        shuffle=st.booleans(),
    )
    def micro_batch(self, data, acts, step, shuffle):
        self.now_ms += int((self.timeout_ms or 100) * step)
        messages = [message for act in acts for message in act(self, data)]
        if shuffle:
            messages = data.draw(st.permutations(messages))
        away_ms = self.now_ms - self.was_ms if self.begins or step < 0 else 0
        self.naive.begin(self.now_ms, away_ms=away_ms, is_timed=self.timeout_ms is not None)
        for message in messages:
            self.naive.hear(*message)
        cut = data.draw(st.integers(0, len(messages)))
        self.compare([messages[:cut], messages[cut:]], *self.naive.judge())

    def compare(self, parts, acked, failed):
        sent = concat_deltas([Deltas.from_bytes(deltas_of(part).summed().to_bytes()) for part in parts])
        said = self.ledger.judge(sent, self.now_ms, is_first=self.begins)
        self.begins, self.was_ms = False, self.now_ms
        if self.timeout_ms is None:
            self.rounded_by_ms = 0  # no age counts any more
        if said.change:
            self.changes.append(said.change)
        assert dict(zip(said.acked.roots.tolist(), said.acked.owners.tolist(), strict=True)) == acked
        reasons = [sent.reasons[at] for at in said.failures.tolist()]
        reported = zip(said.failed.owners.tolist(), reasons, said.others.tolist(), strict=True)
        assert dict(zip(said.failed.roots.tolist(), reported, strict=True)) == failed
        late = dict(zip(said.timed_out.roots.tolist(), said.timed_out.owners.tolist(), strict=True))
        self.check_ages(late)
        for roots in (said.acked.roots, said.failed.roots, said.timed_out.roots):
            assert roots.dtype == np.int64
            assert roots.tolist() == sorted(set(roots.tolist()))  # ascending, each once
        for root in (*acked, *failed, *late):
            assert root not in self.reported, "a second verdict"
            self.reported[root] = True
        self.check_outlook(said)

    def check_ages(self, late):
        """Never before T; at the latest T/8 after that, with the T of the age's begin if it was larger."""
        ages = self.naive.ages(self.now_ms)
        for root, owner in late.items():
            assert ages[root] >= self.timeout_ms
            assert self.naive.entries.pop(root).spout_task == owner
        if self.timeout_ms is not None:
            still = self.naive.ages(self.now_ms).values()
            assert all(age < self.timeout_ms + self.rounded_by_ms / 8 for age in still)

    def check_outlook(self, said):
        entries = self.naive.entries.values()
        assert said.open_count == len(entries)
        begun = [entry.since for entry in entries if entry.since is not None]
        if self.timeout_ms is None:
            assert (said.next_deadline_ms, said.oldest_ms) == (None, None)
            return
        width = self.rounded_by_ms // BUCKETS
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
    def the_ledger_is_written_whole(self):
        self.whole, self.changes = self.ledger.to_bytes(), []

    def rebuilt(self, timeout_ms):
        ledger = Ledger(timeout_ms, self.whole)
        for change in self.changes:
            ledger.replay(change)
        return ledger

    @rule(data=st.data(), timeouts=st.sampled_from(["as they were", "as they were", "off", "on"]))
    def the_driver_restarts(self, data, timeouts):
        """What some spout tasks opened before some sequence is forgotten: their queues bring it back."""
        self.timeout_ms = {"as they were": self.timeout_ms, "off": None, "on": self.timeout_ms or 1000}[
            timeouts
        ]
        self.rounded_by_ms = max(self.rounded_by_ms, self.timeout_ms or 0)
        firsts = data.draw(st.dictionaries(st.integers(0, 2), st.integers(0, self.opened + 1), max_size=2))
        self.ledger, self.begins = self.rebuilt(self.timeout_ms), True
        for task, first in firsts.items():
            self.firsts[task] = max(first, self.firsts.get(task, 0))
        self.ledger.forget_before(SALT, self.firsts)
        self.naive.forget_before(SALT, self.firsts)

    @invariant()
    def what_is_kept_is_what_is_open(self):
        if hasattr(self, "ledger"):
            roots = np.array(sorted(self.naive.entries), dtype=np.int64)
            assert self.ledger.still_open(roots).tolist() == roots.tolist()
            assert self.ledger.open_count == len(roots)
            if not self.begins:  # else what was forgotten is in the next change
                assert content(self.rebuilt(self.timeout_ms)) == content(self.ledger)


LedgerBesideANaiveAcker.TestCase.settings = settings(
    max_examples=drawn(120), stateful_step_count=15, deadline=None
)

TestLedgerBesideANaiveAcker = pytest.mark.slow(LedgerBesideANaiveAcker.TestCase)


def test_the_model_itself_follows_storm_where_storm_is_right():
    # Case b and j of Storm's rules, by hand: the naive acker is only worth comparing with if it is right.
    acker = NaiveAcker()
    for message in (("ack", 1, 6), ("init", 1, 6, 2), ("init", 2, 5, 2), ("ack", 2, 5), ("ack", 2, 5)):
        acker.hear(*message)
    assert acker.judge() == ({1: 2}, {})
    assert list(acker.entries) == [2]
    assert replace(acker.entries[2]) == Entry(5, 2)
