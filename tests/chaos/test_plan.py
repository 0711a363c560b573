"""A seed is a plan: the same each time, another one for another seed; and what the plan is played on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.message_queue import MessageQueue, State, What
from tests.chaos.nature import Temper, effects_of, nature_of, payload_of
from tests.chaos.plan import SHARES, Kind, mixture, plan_of


@given(st.integers(0, 1 << 32), st.dictionaries(st.sampled_from(Kind), st.integers(0, 20)))
def test_a_seed_is_one_plan_with_the_strikes_asked_for(seed: int, counts: dict[Kind, int]) -> None:
    plan = plan_of(seed, counts)
    assert plan == plan_of(seed, counts)
    assert Counter(strike.kind for strike in plan) == Counter(counts)
    assert all(strike.wait_secs >= 0 and 0 <= strike.which < 1 for strike in plan)


def test_another_seed_is_another_plan() -> None:
    counts = mixture(50, list(Kind))
    assert plan_of(1, counts) != plan_of(2, counts)


@given(st.integers(0, 500), st.lists(st.sampled_from(Kind), min_size=1, unique=True))
def test_a_mixture_adds_up(kills: int, kinds: list[Kind]) -> None:
    counts = mixture(kills, kinds)
    assert set(counts) == set(kinds)
    assert sum(counts.values()) == kills
    assert min(counts.values()) >= 0


def test_two_hundred_strikes_have_thirty_drivers_among_them() -> None:
    assert mixture(200, [kind for kind in SHARES if kind is not Kind.EXECUTOR])[Kind.DRIVER] >= 30


def test_a_messages_nature_is_its_numbers() -> None:
    natures = [nature_of(number) for number in range(5000)]
    shares = Counter(nature.temper for nature in natures)
    assert set(shares) == set(Temper)
    assert shares[Temper.CALM] > 4000
    assert {nature.parts for nature in natures} == {1, 2, 3, 4}
    assert all(len(list(effects_of(number))) == 1 + 4 * nature_of(number).parts for number in range(50))
    assert payload_of(7) == payload_of(7) != payload_of(8)
    assert any(len(payload_of(number)) == 40_000 for number in range(1000))


def test_what_was_open_when_the_driver_died_is_redelivered_and_a_late_verdict_changes_nothing(
    tmp_path,
) -> None:
    queue = MessageQueue(tmp_path / "queue")
    queue.put(range(10))
    first = MessageQueue(tmp_path / "queue", run=1)
    assert [message.number for message in first.take(0, 2, 10)] == [0, 4, 8]
    first.ack([(0, 1)])
    second = MessageQueue(tmp_path / "queue", run=2)
    second.reconnect(0, 2)
    assert [(message.number, message.delivery) for message in second.take(0, 2, 10)] == [(4, 2), (8, 2)]
    first.ack([(4, 1)])
    second.ack([(8, 2)])
    states = {message.number: message.state for message in queue.messages()}
    assert (states[0], states[4], states[8]) == (State.ACKED, State.DELIVERED, State.ACKED)
    acked = [(entry.run, entry.number, entry.delivery) for entry in queue.diary() if entry.what is What.ACKED]
    assert acked == [(1, 0, 1), (1, 4, 1), (2, 8, 2)]  # the verdict is written down all the same


@pytest.mark.parametrize(("most", "state"), [(2, State.READY), (1, State.DEAD)])
def test_a_failed_message_is_ready_again_until_it_failed_too_often(tmp_path, most: int, state: State) -> None:
    queue = MessageQueue(tmp_path / "queue")
    queue.put([0])
    queue.take(0, 1, 1)
    queue.fail(0, 1, "FAILED:EXCEPTION:x", most)
    (message,) = queue.messages()
    assert (message.state, message.failures) == (state, 1)


def test_a_log_is_read_by_number_and_does_not_forget_a_verdict(tmp_path) -> None:
    queue = MessageQueue(tmp_path / "queue")
    assert queue.take_at(1) is None
    queue.put([1])
    queue.take_at(1)
    queue.ack([(1, 1)])
    again = queue.take_at(1)
    assert again is not None
    assert again.delivery == 2
    assert queue.messages()[0].state is State.ACKED
