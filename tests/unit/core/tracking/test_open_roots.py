"""Open roots compared with a dict, after any operations: put, age, add, take, drop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acktree.core.packing import unpack
from acktree.core.tracking.open_roots import UNTIMED, AgeTable, OpenRoots, Roots
from acktree.errors import ProtocolError
from tests.drawn import drawn

BYTES_PER_ROOT = 8 + 8 + 4 + 1


def int64s(values):
    array = np.array(list(values), dtype=np.int64)
    array.setflags(write=False)  # as it comes off the wire
    return array


def roots_of(entries):
    """From root -> (sum, owner), read only."""
    owners = np.array([owner for _, owner in entries.values()], dtype=np.int32)
    owners.setflags(write=False)
    return Roots.of(int64s(entries), int64s(total for total, _ in entries.values()), owners)


def as_dict(roots):
    assert (roots.roots.dtype, roots.sums.dtype, roots.owners.dtype) == (np.int64, np.int64, np.int32)
    assert roots.roots.tolist() == sorted(set(roots.roots.tolist()))  # ascending, each once
    found = zip(roots.sums.tolist(), roots.owners.tolist(), strict=True)
    return dict(zip(roots.roots.tolist(), found, strict=True))


def restored(ages, roots):
    """What a checkpoint gives back."""
    again = AgeTable()
    again.restore(ages.to_bytes())
    given = OpenRoots(again)
    given.restore(list(roots.parts()))
    return again, given


some = st.sets(st.integers(-40, 40), max_size=25)


class OpenRootsBesideADict(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.ages = AgeTable()
        self.open = OpenRoots(self.ages)
        self.model = {}  # root -> (sum, owner)
        self.since = {}  # root -> since when its age counts; None while it has not begun
        self.now_ms = 0

    @rule(roots=some, total=st.integers(1, 9))
    def put(self, roots, total):
        fresh = {root: (total, abs(root) % 3) for root in roots if root not in self.model}
        self.open.refuse(roots_of(fresh))
        self.open.put(roots_of(fresh))
        self.model |= fresh
        self.since |= dict.fromkeys(fresh)

    @rule(roots=some)
    def put_what_is_there(self, roots):
        again = dict.fromkeys(roots, (1, 1))
        if roots & self.model.keys():
            with pytest.raises(ProtocolError, match="is open twice"):
                self.open.refuse(roots_of(again))

    @rule(step=st.integers(0, 3))
    def begin_ages(self, step):
        self.now_ms += step
        self.open.begin_ages(self.now_ms)
        for root, since in self.since.items():
            self.since[root] = self.now_ms if since in (None, UNTIMED) else since

    @rule()
    def no_age_counts(self):
        self.open.begin_ages(UNTIMED)
        self.since = dict.fromkeys(self.since, UNTIMED)

    @rule(by_ms=st.integers(0, 5))
    def shift(self, by_ms):
        self.ages.shift(by_ms)
        self.since = {
            root: since if since in (None, UNTIMED) else since + by_ms for root, since in self.since.items()
        }

    @rule(roots=some, total=st.integers(0, 9))
    def add(self, roots, total):
        self.open.add(int64s(sorted(roots)), int64s([total] * len(roots)))
        for root in roots & self.model.keys():
            before, owner = self.model[root]
            self.model[root] = (before ^ total, owner)

    @rule(roots=some)
    def take(self, roots):
        taken = self.open.take(int64s(sorted(roots)))
        assert as_dict(taken) == {root: self.model[root] for root in roots & self.model.keys()}
        self.forget(roots)

    @rule(roots=some, data=st.data())
    def drop(self, roots, data):
        self.open.drop(int64s(data.draw(st.permutations(sorted(roots)))))
        self.forget(roots)
        assert 7 * self.open.nbytes <= 8 * BYTES_PER_ROOT * len(self.model)  # an eighth is gone at most

    def forget(self, roots):
        for root in roots & self.model.keys():
            del self.model[root], self.since[root]

    @rule()
    def come_back_from_a_checkpoint(self):
        self.ages, self.open = restored(self.ages, self.open)

    @rule(back=st.integers(-2, 6))
    def older_than(self, back):
        moment = self.now_ms - back
        late = {root for root, since in self.since.items() if since is not None and since <= moment}
        assert as_dict(self.open.older_than(moment)) == {root: self.model[root] for root in late}

    @invariant()
    def both_have_the_same(self):
        if not hasattr(self, "open"):
            return
        assert self.open.count == len(self.model)
        assert self.open.fresh_count == sum(since is None for since in self.since.values())
        asked = int64s(range(-41, 42))
        is_open, sums, owners = self.open.look_up(asked)
        found = zip(asked.tolist(), is_open.tolist(), sums.tolist(), owners.tolist(), strict=True)
        assert {root: (total, owner) for root, there, total, owner in found if there} == self.model
        found = {}
        for run in self.open.runs():
            found |= as_dict(run)
        assert found == self.model
        begun = [since for since in self.since.values() if since not in (None, UNTIMED)]
        assert self.ages.oldest_ms() == min(begun, default=None)


OpenRootsBesideADict.TestCase.settings = settings(
    max_examples=drawn(80), stateful_step_count=25, deadline=None
)

TestOpenRootsBesideADict = pytest.mark.slow(OpenRootsBesideADict.TestCase)


# ---- size -------------------------------------------------------------------------------------------------


def many(first, count):
    return Roots.of(int64s(range(first, first + count)), int64s([5] * count), np.ones(count, dtype=np.int32))


def test_a_root_takes_21_bytes_in_memory_and_in_the_checkpoint():
    ages = AgeTable()
    opened = OpenRoots(ages)
    for at in range(10):
        opened.put(many(1000 * at, 1000))
        opened.begin_ages(at)
    assert opened.nbytes == BYTES_PER_ROOT * opened.count
    stored = sum(len(view) for part in opened.parts() for view in unpack(part))
    assert stored == BYTES_PER_ROOT * opened.count


def test_there_are_few_runs_however_many_micro_batches_left_something_open():
    opened = OpenRoots(AgeTable())
    for at in range(1000):
        opened.put(many(10 * at, 1 + at % 7))
        opened.begin_ages(at // 100)
    assert len(list(opened.runs())) <= 8


def test_what_is_not_touched_is_not_written_anew():
    opened = OpenRoots(AgeTable())
    opened.put(many(0, 10_000))
    opened.begin_ages(1)
    (before,) = (run.roots for run in opened.runs() if len(run.roots))
    opened.put(many(20_000, 100))
    opened.begin_ages(2)
    opened.add(int64s([3, 20_003]), int64s([1, 1]))
    opened.drop(int64s(range(20_000, 20_090)))
    assert any(np.shares_memory(before, run.roots) for run in opened.runs())


# ---- ages -------------------------------------------------------------------------------------------------


def test_of_more_ages_than_there_are_numbers_some_become_younger_and_none_older():
    opened, count = OpenRoots(AgeTable()), 300
    for at in range(count):
        opened.put(many(at, 1))
        opened.begin_ages(at)
    assert opened.count == count
    for moment in range(count):
        late = opened.older_than(moment).roots.tolist()
        assert late == list(range(len(late)))
        assert len(late) <= moment + 1  # not one before its time
    assert len(opened.older_than(count).roots) == count  # and each in the end
    assert opened.older_than(252).roots.tolist() == [*range(253)]  # only the youngest number was used again


def test_a_number_whose_roots_are_gone_is_used_for_another_age():
    ages = AgeTable()
    opened = OpenRoots(ages)
    for at in range(1000):
        opened.put(many(at, 1))
        opened.begin_ages(at)
        opened.drop(int64s([at - 100]))
    assert opened.older_than(899).roots.tolist() == []
    assert opened.older_than(950).roots.tolist() == [*range(900, 951)]


def test_ages_of_one_moment_are_one_age():
    ages = AgeTable()
    opened = OpenRoots(ages)
    for at in range(1000):
        opened.put(many(at, 1))
        opened.begin_ages(7)
    assert (ages.counts > 0).sum() == 1
    assert ages.oldest_ms() == 7


# ---- a root that is open twice ----------------------------------------------------------------------------


def test_a_root_that_is_given_twice_is_named_with_both_who_opened_it():
    with pytest.raises(ProtocolError, match=r"root 4 is open twice, from spout task \[7, 8\]"):
        Roots.of(int64s([4, 3, 4]), int64s([1, 1, 1]), np.array([7, 7, 8], dtype=np.int32))
    opened = OpenRoots(AgeTable())
    opened.put(many(0, 9))
    opened.begin_ages(0)
    again = Roots.of(int64s([2, 40]), int64s([1, 1]), np.array([8, 8], dtype=np.int32))
    with pytest.raises(ProtocolError, match=r"root 2 is open twice, from spout task \[8, 1\]"):
        opened.refuse(again)


def test_a_root_that_came_in_twice_all_the_same_is_seen_when_its_runs_meet():
    opened = OpenRoots(AgeTable())
    opened.put(many(0, 9))
    opened.begin_ages(0)
    opened.put(many(0, 9))  # without ``refuse``
    with pytest.raises(ProtocolError, match="root 0 is open twice"):
        opened.begin_ages(1)
