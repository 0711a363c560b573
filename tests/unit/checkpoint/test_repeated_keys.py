"""A position spout's messages whose keys are ACKED already, or open: wherever a driver dies, each of them has
its verdict, and each key runs once."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import EndOfStream, Retry, Spout
from tests.drawn import drawn
from tests.unit.checkpoint import small_spark
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.small_spark import Driver, World, live

COUNT, KEYS = 30, 4
RETRY = Retry(max_attempts=3, backoff_secs=(0.1, 0.3))


class Repeats(small_spark._NotesVerdicts, Spout):
    """A spout that replays by position: some of its messages have a key of few, one in five has none."""

    outputs = ["n"]
    redelivers = False
    remembers = ["position"]

    def __init__(self, name: str):
        self.world, self.position = name, 0

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.position == COUNT:
            raise EndOfStream
        number = effect_of(self.position)
        key = None if number >= KEYS else f"key {number}"
        self.collector.emit([number], message_id=self.position, key=key)
        self.position += 1

    def ack(self, message_id):
        world = small_spark._worlds[self.world]
        world.verdicts.append(("acked", message_id))
        driver = small_spark._drivers[self.world]
        if not world.committed_effects(driver.held.last_committed())[effect_of(message_id)]:
            world.delivered_before_commit.append(message_id)
        world.passed("delivered")


def effect_of(position: int) -> int:
    """What a message is for bolts: the number of its key; its own if it has none."""
    return KEYS + position if position % 5 == 4 else position % KEYS


def world_in(folder: Path, *deaths: str, retry: Retry | None = RETRY) -> World:
    world = World(folder, COUNT, redelivers=False, retry=retry)
    world.spout, world.has_keys = Repeats, True
    world.lives_until(*deaths)
    return world


def check(world: World, driver: Driver) -> None:
    where = f"died at {world.died_at}"
    verdicts = Counter(world.verdicts)
    assert {each for each in verdicts if each[0] == "acked"} == {("acked", n) for n in range(COUNT)}, where
    # Delivered again only after a death.
    assert max(verdicts.values()) <= 1 + len(world.died_at), where
    assert world.delivered_before_commit == [], where
    ran = world.committed_effects(driver.held.last_committed())
    assert ran == Counter(range(KEYS)) + Counter(n for n in map(effect_of, range(COUNT)) if n >= KEYS), where
    assert driver.inbox.oldest_kept > driver.inbox.last_number, where


@pytest.mark.parametrize("point", [*POINTS, "any"])
def test_a_message_whose_key_is_acked_has_its_verdict_whatever_step_the_driver_dies_at(
    tmp_path: Path, point: str, sized
) -> None:
    died = set[str]()
    for nth in range(1, sized(9, 16, 60)):
        world = world_in(tmp_path / str(nth), f"{point}*{nth}")
        world.weather = lambda number, attempt, run: number == 2 and attempt == 1
        driver = live(world)
        check(world, driver)
        driver.close()
        died |= {*world.died_at}
    assert died or point == "recorded", "it was never there"


@settings(max_examples=drawn(30))
@given(
    st.lists(st.tuples(st.sampled_from([*POINTS, "any"]), st.integers(1, 40)), max_size=4),
    st.integers(0, 1000),
)
def test_any_mixture_of_deaths_leaves_each_repeated_message_its_verdict(
    deaths: list[tuple[str, int]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = world_in(Path(folder), *(f"{point}*{nth}" for point, nth in deaths))
        world.weather = lambda number, attempt, run: attempt < 3 and (number * 7 + attempt + seed) % 4 == 0
        driver = live(world)
        check(world, driver)
        driver.close()
