"""A tuple that a bolt neither acks, fails nor keeps is known at the end of its micro-batch."""

from __future__ import annotations

import pytest

from acktree import Config, KeyValueState
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from tests.unit.tasks.bolts.bolt_harness import CallsByHand, bench

FAILS = Config(fail_forgotten=True)


def forgets_odd(bolt, tup):
    if tup["value"] % 2 == 0:
        bolt.collector.ack(tup)


def test_a_forgotten_tuple_is_reported_at_once_and_times_out_with_the_bolts_name():
    with bench(CallsByHand(forgets_odd)) as running:
        running.feeder.feed([1], message_id=1)
        running.feed(2, 3)
        assert (running.acked, running.failures) == ([2], {})
        (reason,) = running.reasons("b0")
        assert "2 tuples were neither acked, failed nor kept" in reason
        assert "value=1" in reason
        running.cluster.advance(60)
        assert {value: failure.component for value, failure in running.failures.items()} == {1: "b0", 3: "b0"}
        failure = running.failures[1]
        assert (failure.kind, failure.cause) == (FailureKind.TIMED_OUT, FailureCause.TIMEOUT)
        assert "bolt 'b0' neither acked, failed nor kept a tuple" in failure.reason


def test_with_fail_forgotten_it_fails_there_and_then():
    with bench(CallsByHand(forgets_odd), config=FAILS) as running:
        running.feed(1, 2)
        assert running.acked == [2]
        failure = running.failures[1]
        assert (failure.kind, failure.cause, failure.component) == ("FAILED", FailureCause.MISUSE, "b0")
        assert running.running.stats()["b0"].total.failed == 1


@pytest.mark.parametrize("kind", [list, dict, KeyValueState])
@pytest.mark.parametrize("config", [None, FAILS])
def test_a_tuple_that_is_held_is_not_forgotten_until_it_is_dropped(kind, config):
    def holds_one(bolt, tup):
        """Holds the newest tuple, in place of the one before; "drop" drops it, "ack" acks it."""
        held = bolt.held
        before = list(held.values()) if hasattr(held, "values") else list(held)
        if tup["value"] == "ack":
            bolt.collector.ack(before[0])
        held.clear()
        if tup["value"] in {"drop", "ack"}:
            bolt.collector.ack(tup)
        elif hasattr(held, "values"):
            held["one"] = tup
        else:
            held.append(tup)

    with bench(CallsByHand(holds_one, remembers=("held",), held=kind), config=config) as running:
        running.feed("a")
        running.feed("ack")
        assert running.acked in (["ack", "a"], ["a", "ack"])
        running.feed("b")
        assert running.reasons("b0") == []
        running.feed("drop")
        (reason,) = running.reasons("b0")
        assert "value='b'" in reason
        running.cluster.advance(60)
        assert running.failures["b"].component == "b0"
        assert running.failures["b"].kind == ("TIMED_OUT" if config is None else "FAILED")


def test_a_tuple_that_a_later_one_of_its_micro_batch_acks_is_not_forgotten():
    def pairs(bolt, tup):
        bolt.open.append(tup)
        if len(bolt.open) == 2:
            for each in bolt.open:
                bolt.collector.ack(each)
            bolt.open.clear()

    class Pairs(CallsByHand):
        def flush(self, collector):
            """Let attributes change until here."""

    with bench(Pairs(pairs, open=list)) as running:
        running.feeder.feed([1], message_id=1)
        running.feed(2)
        assert running.acked == [1, 2]
        assert running.reasons("b0") == []


def test_an_untracked_tuple_is_no_messages_and_is_not_reported():
    with bench(CallsByHand(forgets_odd)) as running:
        running.feeder.feed([1])
        running.cluster.advance()
        assert running.reasons("b0") == []
