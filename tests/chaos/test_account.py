"""The account is fed what must not be, and says so; and what may be, and is content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.chaos.account import FINDINGS, Account, Evidence, Letter, account_of
from tests.chaos.effects import CORRUPT, Effect, Memory, Remembered
from tests.chaos.message_queue import Entry, Message, State, What
from tests.chaos.nature import BEFORE_A_HOLD, Temper, effects_of, nature_of

QUEUED, POSITION = (
    next(n for n in range(even, 1000, 2) if nature_of(n).temper is Temper.CALM and nature_of(n).parts == 3)
    for even in (0, 1)
)
POISON = next(n for n in range(0, 1000, 2) if nature_of(n).temper is Temper.POISON)


@dataclass
class World:
    """What a run leaves behind, put together by hand."""

    messages: dict[int, Message] = field(default_factory=dict)
    diary: list[Entry] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    remembered: list[Remembered] = field(default_factory=list)
    miscounted: int = 0
    queue_retries: bool = True

    def note(self, what: What, number: int, delivery: int = 1, run: int = 1, detail: str = "") -> None:
        self.diary.append(Entry(len(self.diary), run, number, delivery, what, detail))
        state = {What.ACKED: State.ACKED, What.DEAD: State.DEAD, What.DELIVERED: State.DELIVERED}
        before = self.messages.get(number, Message(number, State.READY, 0, 0))
        self.messages[number] = replace(before, state=state.get(what, State.READY), delivery=delivery)

    def leave(
        self,
        number: int,
        delivery: int = 1,
        attempt: int = 1,
        run: int = 1,
        batch: int = 1,
        spark_task: int = 1,
        worker: int = 7,
        but: Sequence[str] = (),
    ) -> None:
        for bolt, part in effects_of(number):
            if bolt not in but:
                at = float(len(self.effects))
                self.effects.append(
                    Effect(number, delivery, attempt, bolt, part, run, batch, spark_task, worker, at)
                )

    def remember(self, number: int, delivery: int = 1, attempt: int = 1, times: int = 1) -> None:
        for part in range(nature_of(number).parts):
            self.remembered.append(Remembered(number, delivery, attempt, part, times))

    def process(self, number: int, delivery: int = 1, attempt: int = 1, run: int = 1, batch: int = 1) -> None:
        self.leave(number, delivery, attempt, run, batch)
        self.remember(number, delivery, attempt)

    def account(self) -> Account:
        by_lane: dict[int, int] = {}
        for seen in self.remembered:
            lane = nature_of(seen.number).lanes[seen.part]
            by_lane[lane] = by_lane.get(lane, 0) + seen.times
        if self.miscounted:
            by_lane[next(iter(by_lane))] += self.miscounted
        memory = Memory(self.remembered, by_lane)
        return account_of(
            Evidence(
                list(self.messages.values()),
                self.diary,
                self.effects,
                self.letters,
                self.queue_retries,
                memory,
            )
        )


@pytest.fixture
def world() -> World:
    """A world in which all is well: a message of each spout acked, and a poison dead."""
    world = World()
    for number in (QUEUED, POSITION):
        world.note(What.DELIVERED, number)
        world.process(number)
        world.note(What.ACKED, number)
    world.note(What.DELIVERED, POISON)
    world.leave(POISON, but=("work", "join", "notes"))
    world.letters.append(Letter(POISON, 1, 6))
    world.note(What.DEAD, POISON)
    return world


def test_where_all_is_well_nothing_is_found(world: World) -> None:
    account = world.account()
    assert account.is_clean, account.findings
    assert (account.messages, account.acked, account.dead, account.duplicates) == (3, 2, 1, {})


def finds(world: World) -> set[str]:
    return set(world.account().findings)


def test_a_message_that_nobody_judged_is_lost(world: World) -> None:
    world.note(What.DELIVERED, 2)
    assert finds(world) == {"lost"}
    assert not world.account().is_clean


def test_a_message_that_nobody_asked_for_has_no_verdict(world: World) -> None:
    world.messages[2] = Message(2, State.READY, 0, 0)
    assert finds(world) == {"never_delivered"}


def test_an_ack_without_its_effects_is_reported(world: World) -> None:
    world.effects = [effect for effect in world.effects if (effect.number, effect.bolt) != (QUEUED, "notes")]
    assert finds(world) == {"acked_without_effects"}


def test_effects_of_two_attempts_are_not_those_of_one(world: World) -> None:
    world.effects = [effect for effect in world.effects if effect.number != QUEUED]
    world.leave(QUEUED, attempt=1, but=("notes",))
    world.leave(QUEUED, attempt=2, but=("split",))
    world.remember(QUEUED, attempt=2)
    assert finds(world) == {"acked_without_effects"}


def test_effects_of_another_delivery_do_not_count(world: World) -> None:
    world.effects = [effect for effect in world.effects if effect.number != QUEUED]
    world.diary = [entry for entry in world.diary if (entry.number, entry.what) != (QUEUED, What.ACKED)]
    world.leave(QUEUED)
    world.note(What.REDELIVERED, QUEUED, run=2)
    world.note(What.DELIVERED, QUEUED, delivery=2, run=2)
    world.note(What.ACKED, QUEUED, delivery=2, run=2)
    assert finds(world) == {"acked_without_effects", "not_remembered"}


def test_a_poison_that_was_acked_is_reported(world: World) -> None:
    world.diary.pop()
    world.note(What.ACKED, POISON)
    world.letters.clear()
    assert finds(world) == {"acked_without_effects", "not_remembered"}


@pytest.mark.parametrize(("first", "then"), [(What.ACKED, What.DEAD), (What.DEAD, What.ACKED)])
@pytest.mark.parametrize("number", [QUEUED, POSITION])
def test_acked_and_dead_is_reported(world: World, number: int, first: What, then: What) -> None:
    world.diary = [entry for entry in world.diary if (entry.number, entry.what) != (number, What.ACKED)]
    world.note(first, number)
    world.note(then, number, run=2)
    assert "judged_twice" in finds(world)


@pytest.mark.parametrize("number", [QUEUED, POSITION])
def test_a_verdict_delivered_twice_in_one_run_is_reported(world: World, number: int) -> None:
    world.note(What.ACKED, number)
    assert finds(world) == {"judged_twice"}


def test_the_next_driver_may_deliver_verdicts_of_position_spouts_alone_again(
    world: World,
) -> None:
    world.note(What.ACKED, POSITION, run=2)
    assert finds(world) == set()
    assert world.account().told_again == 1
    world.note(What.ACKED, QUEUED, run=2)
    assert finds(world) == {"judged_twice"}


def test_a_verdict_of_an_earlier_delivery_is_stale(world: World) -> None:
    world.note(What.DELIVERED, 2, run=1)
    world.note(What.REDELIVERED, 2, run=2)
    world.note(What.DELIVERED, 2, delivery=2, run=2)
    world.note(What.FAILED, 2, delivery=1, run=2, detail="FAILED:EXCEPTION:no")
    assert finds(world) == {"stale_verdict", "lost"}


def test_a_verdict_by_another_driver_is_stale_for_a_queue(world: World) -> None:
    world.note(What.DELIVERED, QUEUED + 1000 * 2, run=1)
    world.note(What.FAILED, QUEUED + 1000 * 2, run=2, detail="FAILED:EXCEPTION:no")
    assert finds(world) == {"stale_verdict", "lost"}


def test_a_message_that_is_asked_for_after_its_verdict_is_reported(world: World) -> None:
    ready = world.messages[POSITION]
    world.note(What.DELIVERED, POSITION, delivery=2, run=2)
    world.messages[POSITION] = ready
    assert finds(world) == {"delivered_after_verdict"}


def test_giving_up_what_is_no_poison_is_reported(world: World) -> None:
    world.diary = [entry for entry in world.diary if (entry.number, entry.what) != (QUEUED, What.ACKED)]
    world.note(What.DEAD, QUEUED)
    world.letters.append(Letter(QUEUED, 1, 6))
    assert finds(world) == {"dead_unexpectedly"}


def test_a_dead_message_without_its_letter_is_reported_unless_the_queue_gave_it_up(world: World) -> None:
    world.letters.clear()
    assert finds(world) == {"dead_without_letter"}
    world.queue_retries = False
    assert finds(world) == set()


def test_a_letter_of_a_message_that_was_acked_later_may_be(world: World) -> None:
    world.letters.append(Letter(QUEUED, 1, 6))
    assert finds(world) == set()
    assert world.account().stale_letters == 1


def test_bytes_that_changed_on_their_way_are_reported(world: World) -> None:
    world.effects.append(replace(world.effects[0], bolt=CORRUPT, part=2))
    assert finds(world) == {"corrupt"}


def test_a_position_spouts_message_under_two_deliveries_is_reported(world: World) -> None:
    world.diary.insert(2, Entry(2, 2, POSITION, 1, What.REDELIVERED))
    world.leave(POSITION, delivery=2, run=2)
    world.diary.insert(3, Entry(3, 2, POSITION, 2, What.DELIVERED))
    assert finds(world) == {"seen_twice"}


def test_what_is_remembered_twice_or_not_at_all_or_without_a_message_is_reported(world: World) -> None:
    before = list(world.remembered)
    world.remembered[0] = replace(before[0], times=2)
    assert finds(world) == {"remembered_twice"}
    world.remembered = before[1:]
    assert finds(world) == {"not_remembered"}
    world.remembered = [*before, replace(before[0], attempt=2)]
    assert finds(world) == {"remembered_without_effect"}
    world.remembered, world.miscounted = before, 1
    assert finds(world) == {"miscounted"}


def test_a_memory_that_nobody_was_asked_for_is_not_judged(world: World) -> None:
    nothing = Evidence(
        list(world.messages.values()), world.diary, world.effects, world.letters, queue_retries=True
    )
    assert account_of(nothing).is_clean


AGAIN = {
    "Spark ran the task again": {"spark_task": 2},
    "a child of the worker died, and the next one ran the level": {"worker": 8},
    "the micro-batch ran again, by the next driver": {"run": 2},
    "tried again after a failure": {"attempt": 2, "batch": 3},
}


@pytest.mark.parametrize("cause", AGAIN)
def test_each_duplicate_has_its_cause(world: World, cause: str) -> None:
    number = POSITION if "next driver" in cause else QUEUED
    world.leave(number, **AGAIN[cause])
    account = world.account()
    assert account.is_clean, account.findings
    assert account.duplicates == {cause: len(list(effects_of(number)))}


def test_a_queues_message_that_a_second_run_executes_again_is_reported(world: World) -> None:
    world.leave(QUEUED, run=2)
    account = world.account()
    # What was held may come out of the second run again; what the queue brings back is not executed there.
    assert set(account.findings) == {"done_twice_without_cause"}
    found = account.findings["done_twice_without_cause"]
    bolts = Counter(line.split(", ")[1] for line in found)
    assert bolts == Counter(bolt for bolt, _ in effects_of(QUEUED) if bolt in BEFORE_A_HOLD)


@pytest.mark.parametrize(("batch", "run"), [(2, 2), (2, 1), (1, 2)])
def test_what_a_join_keeps_for_longer_in_a_second_run_comes_in_a_later_micro_batch(
    world: World, batch: int, run: int
) -> None:
    [behind] = [effect for effect in world.effects if (effect.number, effect.bolt) == (POSITION, "notes")][:1]
    later = replace(behind, batch=behind.batch + batch - 1, run=behind.run + run - 1, at=behind.at + 1)
    world.effects.append(later)
    account = world.account()
    expected = {
        (2, 2): "held for longer in the second run of a micro-batch",
        (2, 1): "without cause",  # its micro-batch was committed: the next one of that driver came
        (1, 2): "the micro-batch ran again, by the next driver",
    }
    assert account.duplicates == {expected[batch, run]: 1}
    assert account.is_clean == (run == 2)


@pytest.mark.parametrize(
    ("what", "detail", "cause"),
    [
        (What.REDELIVERED, "", "redelivered: the driver had died"),
        (What.FAILED, "FAILED:EXCEPTION:x", "redelivered: failed (EXCEPTION)"),
    ],
)
def test_a_second_delivery_has_its_cause(world: World, what: What, detail: str, cause: str) -> None:
    run = 2 if what is What.REDELIVERED else 1
    world.diary = [entry for entry in world.diary if (entry.number, entry.what) != (QUEUED, What.ACKED)]
    world.note(what, QUEUED, detail=detail, run=run)
    world.note(What.DELIVERED, QUEUED, delivery=2, run=run)
    world.process(QUEUED, delivery=2, run=run, batch=2)
    world.note(What.ACKED, QUEUED, delivery=2, run=run)
    account = world.account()
    assert account.is_clean, account.findings
    assert account.duplicates == {cause: len(list(effects_of(QUEUED)))}


@pytest.mark.parametrize("again", [{"batch": 2}, {"batch": 2, "run": 2}, {}, {"delivery": 2}])
def test_a_duplicate_that_nothing_explains_is_reported(world: World, again: dict[str, int]) -> None:
    world.leave(QUEUED, **again)
    assert finds(world) == {"done_twice_without_cause"}


def test_two_processes_that_work_on_one_task_at_the_same_time_are_no_cause(world: World) -> None:
    world.leave(QUEUED, worker=8)
    world.leave(POSITION, delivery=1, attempt=2)  # the first one was not dead
    assert finds(world) == {"done_twice_without_cause"}


def test_a_held_tuple_of_an_earlier_delivery_may_come_late(world: World) -> None:
    world.effects = [effect for effect in world.effects if effect.number != QUEUED]
    world.remembered = [seen for seen in world.remembered if seen.number != QUEUED]
    world.diary = [entry for entry in world.diary if (entry.number, entry.what) != (QUEUED, What.ACKED)]
    world.note(What.REDELIVERED, QUEUED, run=2)
    world.note(What.DELIVERED, QUEUED, delivery=2, run=2)
    world.process(QUEUED, delivery=2, run=2, batch=2)
    world.process(QUEUED, delivery=1, run=2, batch=3)
    world.note(What.ACKED, QUEUED, delivery=2, run=2)
    account = world.account()
    assert account.is_clean, account.findings
    assert set(account.duplicates) == {"redelivered: the driver had died"}


def test_each_finding_is_found_by_some_test_above() -> None:
    source = Path(__file__).read_text()
    assert [name for name in FINDINGS if f'"{name}"' not in source] == []
