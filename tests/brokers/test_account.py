"""The account of messages under kills: each breach is found, and what is allowed is not one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import broker_tables, results
from tests.brokers.account import PARTS, Evidence, Kill, Look, Struck, account_of
from tests.brokers.cuts import Letters, Moment
from tests.brokers.kills import Effects, Result
from tests.brokers.leases import Found
from tests.chaos.effects import Effect

DRIVER, SERVER = Struck.DRIVER, Struck.SERVER


def effects(number, at, *, run=1, batch=1, task=1, parts=range(PARTS)):
    return [
        Effect(
            number=number, delivery=0, attempt=1, bolt="store", part=part, run=run, batch=batch,
            spark_task=task, process=1, at=at,
        )
        for part in parts
    ]  # fmt: skip


def look(at, *left):
    return Look(at, len(left), frozenset(left))


CLEAN = Evidence(
    put={1: 0.0, 2: 0.0},
    unsure={},
    effects=[*effects(1, 1.0), *effects(2, 1.0)],
    kills=[],
    looks=[look(9.0)],
)


def found(evidence):
    return {name: len(each) for name, each in account_of(evidence).findings.items()}


def test_what_was_put_and_had_its_effects_once_is_clean() -> None:
    account = account_of(CLEAN)
    assert (account.is_clean, account.messages, account.effects, account.runs) == (True, 2, 4, {1: 2})


@pytest.mark.parametrize("left", [[], effects(2, 1.0, parts=[0])], ids=["none", "one of two"])
def test_a_message_without_its_effects_is_lost_and_acked_without_effects(left) -> None:
    evidence = replace(CLEAN, effects=[*effects(1, 1.0), *left])
    assert found(evidence) == {"lost": 1, "acked without effects": 1}


def test_a_message_that_is_still_in_the_queue_is_lost_and_not_acked() -> None:
    evidence = replace(CLEAN, effects=effects(1, 1.0), looks=[look(9.0, 2)])
    assert found(evidence) == {"lost": 1, "left in the queue": 1}


def test_what_a_run_that_was_given_up_left_undone_is_not_lost_but_its_early_acks_are_found() -> None:
    evidence = replace(CLEAN, effects=effects(1, 1.0), looks=[look(9.0, 2)], is_over=False)
    assert found(evidence) == {}
    assert found(replace(evidence, looks=[look(9.0)])) == {"acked without effects": 1}


def test_a_message_that_is_acked_before_its_effects_is_found_though_it_has_them_later() -> None:
    kills = [Kill(DRIVER, 1.5)]
    late = [*effects(1, 1.0), *effects(2, 3.0, run=2, batch=2)]
    evidence = replace(CLEAN, effects=late, kills=kills, looks=[look(2.0), look(9.0)])
    assert found(evidence) == {"acked without effects": 1}
    assert found(replace(evidence, looks=[look(2.0, 2), look(9.0)])) == {}


def test_where_a_queue_tells_only_how_many_are_left_more_acks_than_effects_are_found() -> None:
    late = [*effects(1, 1.0), *effects(2, 3.0, run=2, batch=2)]
    evidence = replace(CLEAN, effects=late, kills=[Kill(DRIVER, 1.5)])
    assert found(replace(evidence, looks=[Look(2.0, 0, None)])) == {"acked without effects": 1}
    assert found(replace(evidence, looks=[Look(2.0, 1, None), Look(9.0, 0, None)])) == {}


def test_an_effect_twice_without_a_kill_has_no_cause() -> None:
    evidence = replace(CLEAN, effects=[*CLEAN.effects, *effects(2, 2.0, batch=2)])
    assert found(evidence) == {"twice without a cause": PARTS}
    evidence = replace(evidence, kills=[Kill(DRIVER, 2.5)])
    assert found(evidence) == {"twice without a cause": PARTS}


CAUSES = {
    "driver killed: the micro-batch ran again": (DRIVER, {"run": 2, "batch": 1}),
    "driver killed: the queue or the checkpoint had it still": (DRIVER, {"run": 2, "batch": 2}),
    "server killed: delivered again": (SERVER, {"run": 1, "batch": 2}),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_one_more_run_for_a_kill_is_named_and_two_are_found(cause) -> None:
    struck, where = CAUSES[cause]
    once = [*CLEAN.effects, *effects(2, 2.0, **where)]
    account = account_of(replace(CLEAN, effects=once, kills=[Kill(struck, 1.5)]))
    assert (account.is_clean, account.again, account.runs) == (True, {cause: PARTS}, {1: 1, 2: 1})
    twice = [*once, *effects(2, 2.5, **where | {"batch": 3})]
    evidence = replace(CLEAN, effects=twice, kills=[Kill(struck, 1.5)])
    assert found(evidence) == {"more than one further run for a kill": PARTS}
    assert account_of(evidence).most_per_kill == 2


def test_a_task_that_spark_runs_again_needs_a_kill_too() -> None:
    evidence = replace(CLEAN, effects=[*CLEAN.effects, *effects(2, 2.0, task=2)])
    assert found(evidence) == {"more than one further run for a kill": PARTS}


def test_a_message_that_the_queue_did_not_confirm_may_be_there_or_not() -> None:
    evidence = replace(CLEAN, unsure={3: 0.0, 4: 0.0}, effects=[*CLEAN.effects, *effects(3, 1.0)])
    assert found(evidence) == {}
    evidence = replace(CLEAN, effects=[*CLEAN.effects, *effects(5, 1.0)])
    assert found(evidence) == {"never put": PARTS}


def test_a_dead_letter_is_found() -> None:
    assert found(replace(CLEAN, letters=1)) == {"given up": 1}


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_every_lost_message_and_every_early_ack_is_found(lost, acked_early) -> None:
    numbers = range(31)
    put = dict.fromkeys(numbers, 0.0)
    late = acked_early - lost
    left = [*[e for n in numbers if n not in lost | late for e in effects(n, 1.0)]]
    left += [e for n in late for e in effects(n, 3.0, run=2, batch=2)]
    looks = [look(2.0, *lost), look(9.0, *lost)]
    evidence = Evidence(put, {}, left, [Kill(DRIVER, 1.5)], looks)
    wanted = {"lost": len(lost), "left in the queue": bool(lost), "acked without effects": len(late)}
    assert found(evidence) == {name: count for name, count in wanted.items() if count}


def test_effects_are_read_as_they_are_written_and_a_torn_line_later(tmp_path) -> None:
    file = tmp_path / "7"
    lines = "".join(f"{n}\t0\t1\tstore\t{part}\t1\t1\t1\t7\t1.0\n" for n in (1, 2) for part in range(PARTS))
    written = Effects(tmp_path)
    file.write_text(lines[:-5])
    assert written.look() == {1}
    file.write_text(lines)
    assert written.look() == {1, 2}


def test_the_tables_say_what_each_run_came_to(tmp_path) -> None:
    made = {"at": "2026-11-21T00:00:00", "machine": {"acktree": "abc"}, "load_after": 0.5}
    kills = Result(account_of(CLEAN), 3, "", []).to_json() | {"kills": 2, "server_kills": 1}
    letters = Letters(Moment.WAITS, rejects=True, theirs=2, numbers=Counter([7])).to_json()
    leases = Found(messages=40, connections=(2, 2), core_share=0.005, attempts=Counter([1])).to_json()
    for mode, found, rejects in (
        ("kills", kills, False), ("kills", kills | {"findings": {"lost": 3}}, False),
        ("leases", leases, False), ("cuts", {"moments": [letters]}, True),
    ):  # fmt: skip
        variant = {"broker": "rabbitmq", "mode": mode, "reject": rejects}
        results.keep("brokers", {"variant": variant, **made, **found}, tmp_path)
    page = broker_tables.tables(tmp_path)
    assert "| 2 / 1 | 2 | 3 lost | none | 0 | 1 | 2026-11-21, abc |" in page
    assert "| 40 | 0 | 0 | 2 of 2 | 0.50% | 0.5 |" in page
    assert f'given_up="reject"` | {Moment.WAITS} | 0 | 2 |' in page
