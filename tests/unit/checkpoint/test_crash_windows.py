"""The driver dies between any two steps: the rows of docs/crash-windows.md, and any mixture of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree import ConnectorError, Retry
from acktree.dead_letters.letter import DeadLetter
from tests.drawn import drawn
from tests.unit.checkpoint import small_spark
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.small_spark import DriverDied, World, live, open_in_files

RETRY = Retry(max_attempts=3, backoff_secs=(0.1, 0.3))
COUNT = 30


def check(world: World) -> None:
    """What holds after any number of deaths."""
    verdicts, where = Counter(world.verdicts), f"died at {world.died_at}"
    # Nothing is lost: every message has a verdict in the end, and the queue is empty.
    assert {number for _, number in verdicts} == set(range(COUNT)), where
    # Acked is what was processed in a micro-batch that is committed, at the moment of its delivery.
    assert world.delivered_before_commit == [], where
    assert world.delivered_before_letter == [], where
    driver = live_driver(world)
    effects = world.committed_effects(driver.held.last_committed())
    assert all(effects[number] for verdict, number in verdicts if verdict == "acked"), where
    # The acker keeps nothing of what drivers that died had opened.
    assert driver.sink.results.progress.open_count == 0, where
    assert open_in_files(driver) == 0, where
    # What a queue brings back is processed for its new delivery alone, so bolts remember no other.
    assert world.ran_for_nobody == [], where
    if not world.redelivers:
        # Only acktree brings it back: one verdict, processed once, and delivered again only after a death.
        assert len({number for _, number in verdicts}) == len(verdicts), where
        assert all(effects[number] == 1 for verdict, number in verdicts if verdict == "acked"), where
        assert all(effects[number] == 0 for verdict, number in verdicts if verdict == "failed"), where
        assert max(verdicts.values()) <= 1 + len(world.died_at), where
        # No chunk with messages is left, and no file of the journal once all is delivered and committed.
        assert driver.inbox.oldest_kept > driver.inbox.last_number, where
    if world.retry is not None:
        failed = {number for verdict, number in verdicts if verdict == "failed"}
        dead = [int(letter.message_id_repr) for letter in driver.letters]
        assert failed <= set(dead), where
        # Only we bring it back: a letter is the one fate of its message, and there is one.
        assert world.redelivers or sorted(failed) == sorted(dead), where


def live_driver(world: World):
    return small_spark._drivers[str(world.folder)]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest):
    redelivers, retry = request.param
    made = World(tmp_path, COUNT, redelivers=redelivers, retry=retry)
    yield made
    live_driver(made).close()


KINDS = [
    pytest.param((False, None), id="position"),
    pytest.param((True, None), id="queue"),
    pytest.param((False, RETRY), id="position with retry"),
    pytest.param((True, RETRY), id="queue with retry"),
]
EACH_KIND = pytest.mark.parametrize("world", KINDS, indirect=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_here_loses_nothing_and_acks_nothing_too_early(
    tmp_path: Path, kind: tuple[bool, Retry | None], point: str, *, thorough: bool
) -> None:
    redelivers, retry = kind
    for nth in (1, 4) if thorough else (1,):
        world = World(tmp_path / str(nth), COUNT, redelivers=redelivers, retry=retry)
        if retry or not redelivers:  # a queue without a policy replays for ever
            world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4
        world.lives_until(f"{point}*{nth}")
        live(world)
        check(world)
        live_driver(world).close()


def test_what_was_tried_again_and_acked_is_not_tried_a_third_time_after_a_death(
    tmp_path: Path, *, thorough: bool
) -> None:
    """Retries come at different times: one is acked while its neighbour in the chunk still waits."""
    for nth in range(20, 300, 20 if thorough else 60):
        world = World(tmp_path / str(nth), COUNT, redelivers=False, retry=RETRY)
        world.weather = lambda number, attempt, run: number % 2 == 0 and attempt == 1
        world.lives_until(f"any*{nth}", "any*40")
        live(world)
        check(world)
        live_driver(world).close()


@EACH_KIND
def test_the_verdicts_of_a_lost_run_of_a_micro_batch_were_never_delivered(world: World) -> None:
    """Run 1 decides ACKED and dies before the commit; in run 2 the same messages fail."""
    world.weather = lambda number, attempt, run: run == 2 and number < 5 and attempt < 3
    if world.retry is None and world.redelivers:
        rain = {2, 4}  # falls once on each: a queue without a policy replays for ever
        world.weather = lambda number, attempt, run: run == 2 and number in rain and not rain.discard(number)
    world.lives_until("sink returned*2")
    live(world)
    check(world)
    assert world.run == 2


def test_a_clean_run_delivers_one_verdict_a_message_and_leaves_no_journal(tmp_path: Path) -> None:
    world = World(tmp_path, COUNT, redelivers=False, retry=RETRY)
    world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4
    driver = live(world)
    check(world)
    assert set(Counter(world.verdicts).values()) == {1}
    assert [each.name for each in driver.held.verdicts.iterdir()] in ([], ["told"])
    driver.close()


@pytest.mark.parametrize("redelivers", [True, False], ids=["queue", "position"])
def test_after_a_stop_for_too_many_letters_the_next_run_tries_open_messages_as_first_attempts(
    tmp_path: Path, *, redelivers: bool
) -> None:
    world = World(
        tmp_path, COUNT, redelivers=redelivers, retry=Retry(max_attempts=2, backoff_secs=(0.1, 0.1))
    )
    world.most_letters = 3
    world.weather = lambda number, attempt, run: run == 1 or number == 7
    live(world)
    check(world)
    assert world.stops == 1
    assert len(world.letters) <= 3 + 1  # what the first run stored before, and 7
    acked = {number for verdict, number in world.verdicts if verdict == "acked"}
    assert acked == set(range(COUNT)) - set(world.letters.values())
    assert set(Counter(world.verdicts).values()) == {1}
    live_driver(world).close()


@settings(max_examples=drawn(30))
@given(
    st.sampled_from([True, False]),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from([*POINTS, "any"]), st.integers(1, 40)), max_size=3),
    st.integers(0, 1000),
)
@example(redelivers=False, most=1, deaths=[("handed over", 4)], seed=0)
def test_the_guarantee_holds_after_any_mixture_of_deaths_and_stops_for_too_many_letters(
    redelivers, most: int, deaths: list[tuple[str, int]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), COUNT, redelivers=redelivers, retry=Retry(max_attempts=1))
        world.most_letters = most
        world.lives_until(*(f"{point}*{nth}" for point, nth in deaths))
        world.weather = lambda number, attempt, run: run < 5 and (number * 7 + run * 3 + seed) % 4 == 0
        live(world)
        check(world)
        live_driver(world).close()


@settings(max_examples=drawn(30))
@given(
    st.sampled_from([True, False]),
    st.sampled_from([True, False]),
    st.lists(st.tuples(st.sampled_from([*POINTS, "any"]), st.integers(1, 40)), max_size=4),
    st.integers(0, 1000),
)
def test_any_mixture_of_deaths_and_weather_leaves_the_guarantee(
    redelivers, retries, deaths: list[tuple[str, int]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), COUNT, redelivers=redelivers, retry=RETRY if retries else None)
        world.lives_until(*(f"{point}*{nth}" for point, nth in deaths))
        if retries or not redelivers:
            world.weather = lambda number, attempt, run: (number * 7 + attempt * 5 + run * 3 + seed) % 4 == 0
        live(world)
        check(world)
        live_driver(world).close()


def redriven_after(world: World, *deaths: str) -> list[DeadLetter]:
    """The letters of a world whose weather becomes good, after its operator has sent all of them again."""
    world.weather = lambda number, attempt, run: number % 7 == 2
    live(world)
    live_driver(world).close()
    world.weather = lambda number, attempt, run: False
    world.wants_redrive = True
    world.lives_until(*deaths)
    driver = live(world)
    letters = [*driver.letters]
    assert sorted(int(each.message_id_repr) for each in letters) == [2, 9, 16, 23]
    done = world.committed_effects(driver.held.last_committed())
    for letter in letters:  # it is run, or it is listed as not sent again
        number, where = int(letter.message_id_repr), f"died at {world.died_at}"
        assert (letter.settled_ms is not None) is (letter.redriven_ms is not None), where
        assert bool(done[number]) is (letter.settled_ms is not None), where
    assert not driver.held.letters_to_redrive
    return letters


REDRIVES = pytest.mark.parametrize(
    "world", [(False, RETRY), (True, RETRY)], indirect=True, ids=["position", "queue"]
)


@REDRIVES
@pytest.mark.parametrize("point", ["ordered", "marked", "sent", "not settled", "settled", *POINTS[:-2]])
def test_a_letter_that_is_ordered_while_the_topology_runs_is_run_whenever_the_driver_dies(world, point):
    letters = redriven_after(world, point)
    assert all(each.settled_ms is not None for each in letters)
    assert world.died_at == [point]


@REDRIVES
def test_a_letter_is_run_though_several_drivers_die_over_it(world):
    redriven_after(world, "sent", "ordered", "marked", "handed over", "sink returned", "not settled")
    assert len(world.died_at) >= 4


def test_verdicts_are_not_noted_as_delivered_while_open_finds_its_queue_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, COUNT, redelivers=False, retry=None)
    world.lives_until("commit logged*2")
    with pytest.raises(DriverDied):
        run_one_driver(world)
    live_driver(world).close()
    open_range = small_spark.Range.open

    def away(self: small_spark.Range, *given: object) -> None:
        raise ConnectorError("no broker", "the queue", "start it", can_retry=True)

    monkeypatch.setattr(small_spark.Range, "open", away)
    driver = small_spark.Driver(world)
    driver.micro_batch()
    driver.task.open(world.now_ms)
    driver.spout_turns()
    driver.journal.note_delivered()
    assert driver.task.due_ms() is None  # its thread would spin
    driver.close()
    monkeypatch.setattr(small_spark.Range, "open", open_range)
    live(world)
    check(world)


def run_one_driver(world: World) -> None:
    """Run one driver until it dies."""
    driver = small_spark.Driver(world)
    driver.micro_batch()
    driver.open()
    for _ in range(20):
        driver.spout_turns()
        driver.micro_batch()
        world.now_ms += 100
