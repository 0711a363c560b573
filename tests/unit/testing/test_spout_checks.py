"""``check_spout`` on a queue in memory: who keeps the contract passes, who breaks a rule does not."""

from __future__ import annotations

from collections import deque
from itertools import count
from pathlib import Path

import pytest

from acktree import ConnectorError, Spout
from acktree.testing import SPOUT_CHECKS, Broker, check_spout

GONE = ConnectorError("the connection is gone", "memory", "wait", can_retry=True)


class Memory(Broker):
    """A queue whose acks belong to a connection."""

    redelivery_secs = 0.2
    shortest_lease_secs = 0.1
    counts_attempts = True
    secret = "S3cr3t"

    def __init__(self, given_up="dead_letter", spout=None):
        self.given_up, self.spout = given_up, spout or Good
        self.epochs = count(1)
        self.clear()

    def clear(self):
        self.ready, self.held, self.dead = deque(), {}, []
        self.is_up = self.is_there = True

    def put(self, bodies):
        self.ready.extend((body, 1) for body in bodies)

    def count(self):
        assert not self.held
        return len(self.ready)

    def cut(self):
        for held in self.held.values():
            self.ready.extendleft((body, times + 1) for body, times in reversed(held.values()))
        self.held = {}

    def stop(self):
        self.cut()
        self.is_up = False

    kill = stop

    def start(self):
        self.is_up = True

    def drop_queue(self):
        self.is_there = False
        self.cut()

    def dead_letters(self):
        return self.dead

    def misconfigured(self):
        return {"a wrong password": (lambda: self.spout(self, self.secret), False)}

    # What a client does.

    def connect(self):
        if not self.is_up:
            raise GONE
        if not self.is_there:
            raise ConnectorError("there is no queue", "memory", "declare it")
        epoch = next(self.epochs)
        self.held[epoch] = {}
        return epoch

    def of(self, epoch):
        if epoch not in self.held:
            raise GONE
        return self.held[epoch]


class Good(Spout):
    """Keeps every rule. Its children each break one."""

    outputs = ["body"]
    keep_alive_secs = 0.05

    def __init__(self, queue, password=None):
        self.queue, self.password, self.epoch = queue, password, None
        self.own_dead_letters = queue.given_up == "reject"

    def __deepcopy__(self, memo):
        return type(self)(self.queue, self.password)

    def open(self, config, context, collector):
        if self.password is not None:
            raise ConnectorError("refused", "memory", self.mend())
        self.collector, self.tags = collector, count()
        self.epoch = self.queue.connect()

    def mend(self):
        return "correct the password"

    def next_tuple(self):
        if self.epoch is None:
            self.epoch = self.queue.connect()
        held = self.held()
        if self.queue.ready:
            tag, (body, times) = next(self.tags), self.queue.ready.popleft()
            held[tag] = body, times
            self.collector.emit([body], message_id=(self.epoch, tag), attempt=times)

    def held(self):
        try:
            return self.queue.of(self.epoch)
        except ConnectorError:
            self.lost()
            raise

    def lost(self):
        self.epoch = None
        self.collector.lost()

    def keep_alive(self, open_messages):
        if self.epoch is not None:
            self.held()

    def ack(self, message_id):
        epoch, tag = message_id
        if epoch == self.epoch:
            self.held().pop(tag)

    def fail(self, message_id, failure):
        epoch, tag = message_id
        if epoch != self.epoch:
            return
        body, times = self.held().pop(tag)
        if not failure.final:
            self.queue.ready.append((body, times + 1))
        elif self.own_dead_letters:
            self.queue.dead.append(body)

    def close(self):
        held = self.queue.held.pop(self.epoch, {})
        self.queue.ready.extendleft((body, times + 1) for body, times in reversed(held.values()))


@pytest.mark.slow
@pytest.mark.parametrize("given_up", ["dead_letter", "reject"])
def test_a_spout_that_keeps_the_contract_passes(given_up) -> None:
    broker = Memory(given_up)
    check_spout(lambda: Good(broker), broker)


class Forgets(Good):
    def ack(self, message_id):
        """Nothing."""


class AcksTooEarly(Good):
    def next_tuple(self):
        super().next_tuple()
        for tag in list(self.held()):
            self.held().pop(tag)


class AcksAllUpTo(Good):
    def ack(self, message_id):
        for tag in [tag for tag in self.held() if tag <= message_id[1]]:
            self.held().pop(tag)


class KnowsNoEpochs(Good):
    def open(self, config, context, collector):
        super().open(config, context, collector)
        self.tags = self.tags_of_a_connection()

    def tags_of_a_connection(self):
        while True:
            yield len(self.held())

    def ack(self, message_id):
        if self.epoch is not None:
            self.held().pop(message_id[1], None)


class KeepsItOpen(Good):
    def lost(self):
        self.epoch = None


class NeverGivesBack(Good):
    def fail(self, message_id, failure):
        if failure.final:
            super().fail(message_id, failure)


class CountsNothing(Good):
    def open(self, config, context, collector):
        super().open(config, context, collector)
        emit = collector.emit
        self.collector = type("C", (), {"lost": collector.lost})()
        self.collector.emit = lambda values, message_id, attempt: emit(values, message_id=message_id)


class ShowsThePassword(Good):
    def mend(self):
        return f"mend {self.password}"


class RejectsToo(Good):
    def fail(self, message_id, failure):
        if failure.final:
            self.queue.dead.append(self.held()[message_id[1]][0])
        super().fail(message_id, failure)


class HoldsOn(Good):
    def close(self):
        LEAKED.append(Path(__file__).open())  # noqa: SIM115  # it leaks
        super().close()


class TakesTwo(Good):
    def next_tuple(self):
        super().next_tuple()
        super().next_tuple()


class SaysThatItPasses(Good):
    def next_tuple(self):
        try:
            super().next_tuple()
        except ConnectorError:
            raise GONE from None


LEAKED = []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (HoldsOn, "opens and closes without leaks"),
        (Forgets, "each message at least once"),
        (AcksTooEarly, "acks out of order"),
        (AcksAllUpTo, "acks out of order"),
        (KnowsNoEpochs, "a verdict of an earlier connection"),
        (KeepsItOpen, "a verdict of an earlier connection"),
        (NeverGivesBack, "a failed message comes again"),
        (CountsNothing, "a failed message comes again"),
        (RejectsToo, "what is given up has one copy"),
        (KeepsItOpen, "a cut while a retry waits"),
        (TakesTwo, "never more open than allowed"),
        (ShowsThePassword, "a mistake is told with its mend"),
        (SaysThatItPasses, "a deleted queue stops it"),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else each,
)
def test_a_spout_that_breaks_a_rule_does_not_pass(broken, check, monkeypatch) -> None:
    monkeypatch.setattr("acktree.testing.spout_case.PATIENCE_SECS", 1.0)
    monkeypatch.setattr("acktree.testing.spout_checks.ERROR_SECS", 1.0)
    broker = Memory(spout=broken)
    with pytest.raises(AssertionError, match=f"^{check}: "):
        check_spout(lambda: broken(broker), broker, only=[check])
    while LEAKED:
        LEAKED.pop().close()


def test_every_check_has_a_name() -> None:
    assert len(SPOUT_CHECKS) == 18
