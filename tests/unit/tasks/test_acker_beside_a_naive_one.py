"""The whole way of a verdict, from a level's deltas to a spout task's verdict batch, beside the naive acker.

Messages are opened in runs and acked in frames, so that most deltas are sequence sums; the constants of
``sequence_sums`` are so small that every form is drawn. Rows of DataFrames have roots that look
like sequences of a spout. Drivers die between a micro-batch and its commit, and at rest.
"""

from __future__ import annotations

from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acktree import Config
from acktree.core.data.frames import SINK_LEVEL, Kind
from acktree.core.ids import root_ids
from acktree.core.tracking import combining, sequence_sums
from acktree.core.tracking.ledger import Ledger
from acktree.core.tracking.verdicts import Failure, Verdicts
from acktree.tasks.acker import Acker
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.combiner import run_combiner
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.verdict_batch import timed_out, verdict_batches_of
from acktree.testing import FeederSpout
from tests.drawn import drawn
from tests.unit.core.tracking.naive_acker import NaiveAcker, content
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row

SALT = 5
ROWS = 3  # the spout task of the DataFrame
LOOKS_LIKE = 2  # and the task that its roots look like
SPOUTS = (1, 2, 4)
HOSTS = [(level, partition) for level in range(2) for partition in range(2)]
LATE = timed_out(1000)


def root(task, sequence):
    return int(root_ids(SALT, task, np.array([sequence]))[0])


def int64s(values):
    return np.array(list(values), dtype=np.int64)


class AckerBesideANaiveOne(RuleBasedStateMachine):
    PARTITIONS = 2

    @initialize(timeout_ms=st.sampled_from([None, 100, 1000]), start_ms=st.integers(0, 10**6))
    def begin(self, timeout_ms, start_ms):
        self.patch = pytest.MonkeyPatch()
        for name, value in (("GAP", 2), ("THINNEST", 2), ("SHORTEST", 3)):
            self.patch.setattr(sequence_sums, name, value)
        self.now_ms = self.was_ms = start_ms
        config = Config(
            message_timeout_secs=(timeout_ms or 1000) / 1000, enable_message_timeouts=timeout_ms is not None
        )
        self.plan = Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), config, self.PARTITIONS, SALT)
        self.whole, self.changes = None, []
        self.acker, self.begins = Acker(self.plan), False
        self.naive = NaiveAcker()
        self.next = dict.fromkeys((*SPOUTS, ROWS), 0)
        self.firsts = {}
        self.owed = {}  # root -> acks that were not sent yet
        self.names = {}  # root -> (owner, sequence) of everything that was opened
        self.outcome = set()

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()

    # ---- what components say; each act yields (host, message) for the naive acker -------------------------

    def open_a_run(self, data):
        task = data.draw(st.sampled_from(SPOUTS))
        first = self.next[task] + data.draw(st.sampled_from([0, 0, 1, 4]))
        count = data.draw(st.integers(1, 8))
        self.next[task] = first + count
        roots = [root(task, first + n) for n in range(count)]
        sums = [self.owe(each, (task, first + n), data) for n, each in enumerate(roots)]
        cut = data.draw(st.integers(0, count))  # a chunk is read in slices, in several partitions
        for start, end in ((0, cut), (cut, count)):
            if start < end:
                host = (0, data.draw(st.integers(0, 1)))
                self.outputs[host].open(task, first + start, int64s(sums[start:end]))
                for n in range(start, end):
                    yield host, ("init", roots[n], sums[n], task)

    def open_rows(self, data):
        count = data.draw(st.integers(1, 6))
        first = 10_000 + self.next[ROWS]
        self.next[ROWS] += count
        roots = [root(LOOKS_LIKE, first + n) for n in range(count)]
        sums = [self.owe(each, (-ROWS, first + n), data) for n, each in enumerate(roots)]
        host = (0, data.draw(st.integers(0, 1)))
        self.outputs[host].open_rows(int64s(roots), int64s(sums), -ROWS)
        for each, total in zip(roots, sums, strict=True):
            yield host, ("init", each, total, -ROWS)

    def owe(self, each, name, data):
        # Small numbers on purpose: sums pass zero by accident, and both must see it alike.
        self.names[each] = name
        self.owed[each] = data.draw(st.lists(st.integers(0, 3), max_size=3))
        return reduce(xor, self.owed[each], 0)

    def ack_a_frame(self, data):
        """What a run of neighbours owes, as one frame reports it, in any order."""
        owing = sorted((self.names[each], each) for each, values in self.owed.items() if values)
        if owing:
            first = data.draw(st.integers(0, len(owing) - 1))
            some = [each for _, each in owing[first : first + data.draw(st.integers(1, 8))]]
            yield from self.acks(data, [(each, self.owed[each].pop()) for each in some])

    def ack_what_is_not_owed(self, data):
        some = data.draw(st.lists(st.tuples(st.sampled_from(self.known()), st.integers(0, 3)), max_size=8))
        yield from self.acks(data, some)

    def acks(self, data, pairs):
        host = data.draw(st.sampled_from(HOSTS))
        pairs = data.draw(st.permutations(pairs))
        self.outputs[host].ack(int64s(each for each, _ in pairs), int64s(total for _, total in pairs))
        for each, total in pairs:
            yield host, ("ack", each, total)

    def fail(self, data):
        host = data.draw(st.sampled_from(HOSTS))
        some = data.draw(st.lists(st.sampled_from(self.known()), max_size=4, unique=True))
        reason = f"reason {data.draw(st.integers(0, 9))}"
        self.outputs[host].fail(int64s(some), failure_of(None, "b", reason))
        for each in some:
            yield host, ("fail", each, reason)

    def reset(self, data):
        host = data.draw(st.sampled_from(HOSTS))
        some = data.draw(st.lists(st.sampled_from(self.known()), max_size=4))
        self.outputs[host].reset("b", int64s(some))
        for each in some:
            yield host, ("reset", each)

    def known(self):
        """Every root that ever was, and one that never was."""
        return [*self.names, root(1, 1 << 40)]

    ACTS = (open_a_run, open_a_run, open_rows, ack_a_frame, ack_a_frame, ack_a_frame, ack_what_is_not_owed,
            fail, reset)  # fmt: skip

    # ---- what the acker does ------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        acts=st.lists(st.sampled_from(ACTS), max_size=7),
        step=st.sampled_from([0, 0.01, 0.1, 0.5, 0.9, 1, 1.2]),
        dies=st.sampled_from([False, False, True]),
    )
    def micro_batch(self, data, acts, step, dies):
        self.now_ms += int((self.plan.timeout_ms or 100) * step)
        self.outputs = {host: Outputs(self.plan, host[1], host[0], self.now_ms) for host in HOSTS}
        messages = [message for act in acts for message in act(self, data)]
        outcome = self.sent(data)
        begins = self.begins
        first = self.acker.judge(data.draw(st.permutations(outcome)), self.now_ms, is_first=begins)
        twin = Acker(self.plan, self.rebuilt())
        twin.forget_before(self.firsts)
        again = twin.judge(data.draw(st.permutations(outcome)), self.now_ms, is_first=begins)
        # What it decided and what it changed are the same bytes when it runs again.
        assert (first.to_bytes(), first.change) == (again.to_bytes(), again.change)
        if dies:  # before the commit: the next driver finds what was before, and the micro-batch runs again
            self.restart(data)
            first = self.acker.judge(outcome, self.now_ms, is_first=begins)
        self.begins = dies
        away_ms = self.now_ms - self.was_ms if begins else 0
        self.was_ms = self.now_ms
        self.naive.begin(self.now_ms, away_ms=away_ms, is_timed=self.plan.timeout_ms is not None)
        for _, message in sorted(messages, key=lambda pair: pair[0]):
            kind, each = message[:2]
            # The sum of a void message comes all the same, for a root that is never opened.
            is_void = kind == "init" and self.is_void(each)
            self.naive.hear(*(("ack", each, message[2]) if is_void else message))
        assert first.late_count == self.naive.late_count()
        if first.change:
            self.changes.append(first.change)
        self.compare(Verdicts.from_bytes(first.to_bytes()))

    def sent(self, data):  # what is combined is drawn in an order
        """The rows for the acker."""
        return [row for one in self.outputs.values() for row in one.wire_rows() if row.kind == Kind.DELTAS]

    def is_void(self, each):
        owner, sequence = self.names[each]
        return sequence < self.firsts.get(owner, 0)

    def compare(self, said):
        acked, failed = self.naive.judge()
        late = {key: entry.spout_task for key, entry in self.naive.entries.items()}
        verdict_batch = verdict_batches_of(said, SALT, LATE)
        outcome = {}
        for task, letter in verdict_batch.items():
            for sequence in letter.acked.tolist():
                outcome[root(task, sequence)] = "ACKED"
            for sequences, failure in letter.failed:
                for sequence in sequences.tolist():
                    assert root(task, sequence) not in outcome, "two verdicts"
                    outcome[root(task, sequence)] = self.judged(failure)
            for roots, failure in letter.failed_rows:
                for each in roots.tolist():
                    assert self.names[each][0] == -task
                    outcome[each] = self.judged(failure)
        rows = {each for each, owner in acked.items() if owner < 0}
        assert sum(letter.acked_rows for letter in verdict_batch.values()) == len(rows)
        timed = {each for each, verdict in outcome.items() if verdict == "TIMED_OUT"}
        assert {each: verdict for each, verdict in outcome.items() if each not in timed} == {
            **dict.fromkeys(acked.keys() - rows, "ACKED"),
            **{each: (reason, others) for each, (_, reason, others) in failed.items()},
        }
        self.check_ages(timed, late)
        for each in (*acked, *failed, *timed):
            assert each not in self.outcome, "a second verdict"
            self.outcome.add(each)
        assert said.open_count == len(self.naive.entries)
        assert bool(said) == bool(acked or failed or timed)

    def judged(self, failure: Failure):
        return "TIMED_OUT" if failure.kind == "TIMED_OUT" else (failure.reason, failure.others)

    def check_ages(self, timed, open_roots):
        """Never before T; at the latest T + T/8 after the age began."""
        ages, timeout_ms = self.naive.ages(self.now_ms), self.plan.timeout_ms
        for each in timed:
            assert each in open_roots
            assert ages[each] >= timeout_ms
            del self.naive.entries[each]
        if timeout_ms is not None:
            assert all(age < timeout_ms * 9 / 8 for age in self.naive.ages(self.now_ms).values())

    def rebuilt(self):
        ledger = Ledger(self.plan.timeout_ms, self.whole)
        for change in self.changes:
            ledger.replay(change)
        return ledger

    def restart(self, data):
        """Queues bring back what their tasks opened; those of the run that begins come after all of these."""
        for task in data.draw(st.sets(st.sampled_from(SPOUTS), max_size=2)):
            self.firsts[task] = self.next[task]
        self.acker, self.begins = Acker(self.plan, self.rebuilt()), True
        self.acker.forget_before(self.firsts)
        self.naive.forget_before(SALT, {owner: first for owner, first in self.firsts.items() if owner > 0})

    @rule(data=st.data())
    def the_driver_restarts_at_rest(self, data):
        self.restart(data)

    @rule()
    def the_ledger_is_written_whole(self):
        if not self.begins:
            self.whole, self.changes = self.acker.ledger.to_bytes(), []

    @invariant()
    def what_is_open_is_open(self):
        if hasattr(self, "acker"):
            assert self.acker.ledger.open_count == len(self.naive.entries)
            if not self.begins:  # else what was forgotten is reported with the next change
                assert content(self.rebuilt()) == content(self.acker.ledger)


class CombinedAckerBesideANaiveOne(AckerBesideANaiveOne):
    """The same with combining tasks between the levels and the acker."""

    PARTITIONS = 24

    @initialize()
    def cut_small_blocks(self):
        self.blocks = pytest.MonkeyPatch()
        self.blocks.setattr(combining, "BLOCK_BITS", 2)

    def teardown(self):
        super().teardown()
        if hasattr(self, "blocks"):
            self.blocks.undo()

    def sent(self, data):
        rows = super().sent(data)
        for_driver = [row for row in rows if row.level == SINK_LEVEL]
        assert self.plan.combiners == 3
        for combiner in range(self.plan.combiners):
            mine = [
                row for row in rows if (row.level, row.partition) == (self.plan.combining_level, combiner)
            ]
            told = [list(run_combiner(self.plan, combiner, data.draw(st.permutations(mine)))) for _ in "ab"]
            assert told[0] == told[1]  # a second run says what the first said
            for_driver += told[0]
        return for_driver


AckerBesideANaiveOne.TestCase.settings = settings(
    max_examples=drawn(120), stateful_step_count=12, deadline=None
)

CombinedAckerBesideANaiveOne.TestCase.settings = AckerBesideANaiveOne.TestCase.settings

TestAckerBesideANaiveOne = pytest.mark.slow(AckerBesideANaiveOne.TestCase)
TestCombinedAckerBesideANaiveOne = pytest.mark.slow(CombinedAckerBesideANaiveOne.TestCase)
