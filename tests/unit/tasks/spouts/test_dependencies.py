"""What messages wait for: pauses, how few are sent after one, and that what always fails stops nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from sys import maxsize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ConfigError, ConnectorError, Unavailable
from acktree.core.tracking.verdicts import FailureCause
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.dependencies import (
    FEW,
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    Dependencies,
    dependency_of,
)

AWAY = failure_of(Unavailable("prices"), "lookup")
BROKEN = failure_of(ValueError("broken"), "lookup")


def ids(*sequences):
    return np.array(sequences, dtype=np.int64)


class Sender:
    """A spout task as :class:`Dependencies` sees it: it numbers what it sends, and passes verdicts on."""

    def __init__(self):
        self.dependencies = Dependencies()
        self.now_ms = self.next_sequence = self.emitted = 0
        self.open, self.acked, self.failed, self.changes = [], [], [], []

    def emit(self, count):
        """New messages, as many as may be emitted; returns how many."""
        count = min(count, self.dependencies.room(self.next_sequence))
        for _ in range(count):
            self.open.append((self.next_sequence, self.emitted))
            self.next_sequence += 1
            self.emitted += 1
        return count

    def tick(self, ms=0):
        """Let time pass, and send what is due. Returns how many were sent."""
        self.now_ms += ms
        due = self.dependencies.take_due(self.now_ms)
        for (message, name), waited_ms in due:
            self.dependencies.note_sent(name, self.next_sequence, waited_ms)
            self.open.append((self.next_sequence, message))
            self.next_sequence += 1
        self.changes += self.dependencies.settle()
        return len(due)

    def next_tick(self):
        """Let time pass until something is due."""
        return self.tick(max(0, (self.dependencies.due_ms() or self.now_ms) - self.now_ms))

    def verdicts(self, fails, failure=AWAY, most=maxsize):
        """The oldest open messages get a verdict: those that a function names fail."""
        verdicts, self.open = self.open[:most], self.open[most:]
        failed = [(sequence, message) for sequence, message in verdicts if fails(message)]
        acked = [(sequence, message) for sequence, message in verdicts if not fails(message)]
        self.acked += [message for _, message in acked]
        groups = [(ids(*(sequence for sequence, _ in failed)), failure)] if failed else []
        self.changes += self.dependencies.judge(
            ids(*(sequence for sequence, _ in acked)), groups, self.next_sequence, self.now_ms
        )
        name = dependency_of(failure)
        for _, message in failed:
            if name is None:
                self.failed.append(message)
            else:
                self.dependencies.hold(name, (message, name), self.now_ms)


def all_fail(_message):
    return True


def none_fails(_message):
    return False


def away(count=100):
    """A sender whose dependency is away: all of its messages wait."""
    sender = Sender()
    sender.emit(count)
    sender.verdicts(all_fail)
    return sender


def test_the_name_is_that_of_the_error_or_of_the_bolt():
    assert dependency_of(AWAY) == "prices"
    assert dependency_of(failure_of(ConnectorError("w", "w", "f", can_retry=True), "store")) == "store"
    assert dependency_of(failure_of(ConnectorError("w", "w", "f"), "store")) is None
    assert dependency_of(BROKEN) is None


@given(st.integers(2, 200))
def test_while_it_is_away_spouts_are_held_back_and_few_are_sent_after_each_pause(count):
    sender = away(count)
    pauses = []
    for _ in range(12):
        assert sender.dependencies.room(sender.next_sequence) == 0
        pause_ms = sender.dependencies.due_ms() - sender.now_ms
        pauses.append(pause_ms)
        assert sender.tick(pause_ms - 1) == 0
        assert sender.tick(1) == min(FEW, len(sender.dependencies) + len(sender.open))
        assert sender.emit(1000) == FEW
        sender.verdicts(all_fail)
    assert pauses == [min(FIRST_PAUSE_MS * 2**n, LONGEST_PAUSE_MS) for n in range(12)]
    assert len(sender.dependencies) == count + 12 * FEW


@given(st.integers(2, 500))
def test_when_it_works_again_each_round_sends_more_and_then_nothing_is_held_back(count):
    sender = away(count)
    sender.now_ms = sender.dependencies.due_ms()
    rounds = 0
    while len(sender.acked) < count:
        assert 0 < sender.tick() <= FEW * 3**rounds
        sender.verdicts(none_fails)
        rounds += 1
        assert sender.dependencies.room(sender.next_sequence) == maxsize
    sender.tick()
    assert [change.works for change in sender.changes] == [False, True]
    assert sender.dependencies.due_ms() is None
    assert sender.dependencies.outages == []
    assert not len(sender.dependencies)


def test_the_outage_says_since_when_how_often_and_what():
    sender = away()
    for _ in range(3):
        sender.next_tick()
        sender.verdicts(all_fail)
    (outage,) = sender.dependencies.outages
    assert (outage.dependency, outage.since_ms, outage.tries) == ("prices", 0, 4)
    assert "prices is not available (bolt 'lookup')" in outage.reason
    assert "prices" in outage.fix


def test_verdicts_of_messages_sent_before_the_pause_do_not_lengthen_it_and_do_not_end_it():
    sender = Sender()
    sender.emit(6)
    sender.verdicts(all_fail, most=2)
    due_ms = sender.dependencies.due_ms()
    for fails in (all_fail, none_fails):
        sender.verdicts(fails, most=2)
        assert sender.dependencies.due_ms() == due_ms
        assert sender.dependencies.holds
    assert sender.dependencies.outages[0].tries == 1


@given(st.integers(0, 86_400))
def test_the_error_may_say_when_to_try_again(secs):
    sender = Sender()
    sender.emit(3)
    sender.verdicts(all_fail, failure_of(Unavailable("prices", retry_after_secs=secs), "lookup"))
    assert sender.dependencies.due_ms() == max(FIRST_PAUSE_MS, secs * 1000)


@given(st.integers(2, 50), st.integers(0, 49))
def test_one_of_many_waits_alone_holds_nobody_back_and_is_reported_if_it_fails_again(count, which):
    sender = Sender()
    sender.emit(count + 1)
    sender.verdicts(lambda message: message == which % count)
    assert sender.dependencies.outages == []
    assert sender.dependencies.room(sender.next_sequence) == maxsize
    assert len(sender.dependencies) == 1
    assert sender.next_tick() == 1
    sender.verdicts(all_fail)
    assert sender.dependencies.outages
    assert sender.dependencies.room(sender.next_sequence) == maxsize


@given(st.integers(1, 60), st.integers(1, 40), st.booleans())
def test_messages_that_always_fail_hold_nobody_back_however_many_they_are(poisoned, per_round, is_apart):
    """Whether their verdicts come together with those of new messages, or in another micro-batch."""
    sender = Sender()
    sender.emit(poisoned)
    sent = sender.next_tick()
    for _ in range(30):
        sender.verdicts(lambda message: message < poisoned, most=(sent or maxsize) if is_apart else maxsize)
        sent = sender.next_tick()
        sender.emit(per_round)
        sender.verdicts(lambda message: message < poisoned, most=sent if is_apart else maxsize)
    assert not sender.dependencies.holds
    assert sender.emit(1000) == 1000
    assert all(message >= poisoned for message in sender.acked)


def test_what_needs_it_not_goes_on():
    """A tenth of the messages need it; it is away for a long time, and works again."""
    sender = Sender()
    for _ in range(50):
        assert sender.emit(100) == 100
        sender.verdicts(lambda message: message % 10 == 0)
        sender.next_tick()
        sender.verdicts(lambda message: message % 10 == 0)
    assert sender.dependencies.outages
    assert len(sender.acked) == 50 * 90
    for _ in range(12):
        sender.next_tick()
        sender.verdicts(none_fails)
    sender.tick()
    assert len(sender.acked) == 5000
    assert sender.dependencies.outages == []


def test_what_is_heard_of_none_is_followed_by_twice_as_many():
    """As by a bolt that keeps what it gets until it has a hundred: of those that waited, and of new ones."""
    sender = away()
    sent, times = [], []
    for _ in range(4):
        sent.append((sender.next_tick(), sender.emit(1000)))
        times.append(sender.now_ms)
    assert sent == [(FEW, FEW), (FEW, FEW), (2 * FEW, 2 * FEW), (4 * FEW, 4 * FEW)]
    assert np.diff(times).tolist() == [LONGEST_PAUSE_MS, 2 * LONGEST_PAUSE_MS, 4 * LONGEST_PAUSE_MS]


def test_a_failure_of_another_kind_is_none_of_it():
    sender = Sender()
    sender.emit(3)
    sender.verdicts(all_fail, BROKEN)
    assert sender.failed == [0, 1, 2]
    assert sender.changes == []
    assert sender.dependencies.due_ms() is None


@pytest.mark.parametrize(
    ("cause", "works"),
    [
        (FailureCause.EXCEPTION, True),
        (FailureCause.FAILED_BY_BOLT, True),
        (FailureCause.TIMEOUT, False),
        (FailureCause.KILLED_WORKER, False),
        (FailureCause.HUNG, False),
    ],
)
def test_what_fails_in_another_way_has_passed_if_a_bolt_failed_it(cause, works):
    sender = away()
    sender.next_tick()
    sender.verdicts(all_fail, replace(BROKEN, cause=cause))
    assert sender.dependencies.holds != works
    assert (sender.dependencies.outages == []) == works


def test_two_dependencies_wait_each_for_itself():
    sender = Sender()
    store = failure_of(Unavailable("store", retry_after_secs=7), "store")
    sender.emit(4)
    sender.open = []
    sender.changes = sender.dependencies.judge(ids(), [(ids(0, 1), AWAY), (ids(2, 3), store)], 4, 0)
    for failure, name in ((AWAY, "prices"), (store, "store")):
        sender.dependencies.hold(dependency_of(failure), (f"of {name}", name), 0)
    assert len(sender.changes) == 2
    assert sender.tick(FIRST_PAUSE_MS) == 0  # it would have to pass what still pauses
    assert sender.tick(7_000 - FIRST_PAUSE_MS) == 2


def test_for_how_long_a_message_waited_is_known_when_it_has_its_verdict():
    sender = away(1)
    assert not sender.dependencies.holds  # one alone
    sender.now_ms = 1_500
    ((_, waited_ms),) = sender.dependencies.take_due(sender.now_ms)
    assert waited_ms == 1_500
    sender.dependencies.note_sent("prices", 1, waited_ms)
    assert sender.dependencies.take_waited_ms(1) == 1_500
    assert sender.dependencies.take_waited_ms(1) == 0


def test_what_waits_for_another_thing_than_what_pauses_is_not_sent_all_at_once_later():
    sender = Sender()
    sender.emit(1000)
    sender.verdicts(all_fail)
    store = failure_of(Unavailable("store", retry_after_secs=3_600), "store")
    sender.now_ms += FIRST_PAUSE_MS
    sender.tick()
    sender.emit(FEW)
    sender.verdicts(all_fail, store)
    assert sender.tick(3_599_000) == 0
    assert sender.tick(1_000) <= 3 * FEW


def test_a_spout_without_new_messages_is_not_held_back():
    sender = away(2)
    assert sender.dependencies.holds
    for _ in range(3):
        sender.next_tick()
        sender.verdicts(all_fail)
    assert sender.emit(1) == 1


def test_half_of_what_waits_always_fails_and_the_other_half_passes_soon():
    sender = away(200)
    while len(sender.acked) < 100:
        sender.next_tick()
        sender.verdicts(lambda message: message % 2)
    assert sender.now_ms < 60_000


def test_what_fails_in_another_way_shows_that_new_messages_need_not_be_held_back():
    sender = Sender()
    sender.emit(103)
    (_, failed), others = (ids(0, 1, 2), AWAY), ids(*range(3, 103))
    sender.dependencies.judge(ids(), [(ids(0, 1, 2), failed), (others, BROKEN)], 103, 0)
    assert not sender.dependencies.holds


def test_nothing_is_kept_of_a_message_that_waited_when_it_is_acked():
    dependencies = Dependencies()
    dependencies.note_sent("", 7, 1_000)  # a later attempt of a message that waited before
    dependencies.judge(ids(7), [], 8, 0)
    assert dependencies.take_waited_ms(7) == 0


def test_a_subclass_travels_as_what_it_says():
    class Gone(Unavailable):
        def __init__(self):
            super().__init__("prices", 7)

    assert repr(pickle.loads(pickle.dumps(Gone()))) == "Unavailable('prices', retry_after_secs=7)"


@pytest.mark.parametrize("name", ["", None, ["prices"], OSError("no answer")])
def test_what_is_away_has_a_name(name):
    with pytest.raises(ConfigError, match="name of what is away"):
        Unavailable(name)


def test_the_name_of_what_is_away_is_one_printable_line_wherever_it_is_shown():
    error = pickle.loads(pickle.dumps(Unavailable("prices\nof\x1b[2J today")))
    assert error.name == r"prices\nof\x1b[2J today"
    assert dependency_of(failure_of(error, "lookup")) == error.name
    for text in (error.what, error.fix):
        assert error.name in text
        assert text.isprintable()


def test_what_is_lost_waits_no_more():
    sender = away(7)
    sender.next_tick()
    sequences = [sequence for sequence, _ in sender.open]
    gone = sender.dependencies.discard(lambda pair: pair[0] < 6, sequences)
    assert gone == [(4, "prices"), (5, "prices")]
    assert len(sender.dependencies) == 1
    sender.dependencies.discard(all_fail, [])
    assert [change.works for change in sender.dependencies.settle()] == [True]
    assert sender.dependencies.room(10**6) == maxsize


@given(st.integers(0, 10**9))
def test_a_clock_that_was_set_back_makes_no_pause_longer(back_ms):
    sender = Sender()
    sender.now_ms = 10**9
    sender.emit(2)
    sender.verdicts(all_fail)
    sender.now_ms -= back_ms
    sent = sender.tick(FIRST_PAUSE_MS)
    assert sent == 2 or back_ms <= FIRST_PAUSE_MS


def test_the_failure_travels_with_its_name_and_its_pause():
    failure = failure_of(Unavailable("prices", retry_after_secs=2.5), "lookup")
    back = type(failure).from_bytes(failure.to_bytes())
    assert replace(back, attempt=1) == failure
    assert repr(back.exception) == "Unavailable('prices', retry_after_secs=2.5)"


@given(st.data(), st.integers(0, 3), st.sampled_from([1, 2, 10]))
def test_whatever_happens_all_is_sent_again_and_what_can_pass_does(data, poisoned, share):
    """A service that comes and goes, that each message needs or only some of them, beside poison."""
    sender, works = Sender(), True

    def fails(message):
        return message < poisoned or (not works and message % share == 0)

    for _ in range(data.draw(st.integers(1, 40))):
        works = data.draw(st.booleans())
        sender.emit(data.draw(st.integers(0, 20)))
        sender.verdicts(fails, most=data.draw(st.integers(0, 30)))
        sender.tick(data.draw(st.integers(0, 40_000)))
    works = True
    for _ in range(60):
        sender.emit(1)
        sender.verdicts(fails)
        sender.next_tick()
    assert sorted(sender.acked) == list(range(poisoned, sender.emitted))
    assert len(sender.dependencies) + len(sender.open) == min(poisoned, sender.emitted)
    assert not sender.dependencies.holds
