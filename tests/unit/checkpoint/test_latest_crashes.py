"""A sink that keeps the latest row of each key, refused rows, outages, and a driver that dies at any step.

Whatever happens, a row of the table is never replaced by an older one, and in the end each key has the last
of its rows that was ACKED.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, ConnectorError, Retry, Sink, Spout, Topology, TopologyBuilder
from tests.drawn import drawn
from tests.unit.checkpoint import small_spark
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.small_spark import Driver, World, live

COUNT = 30
KEYS = 4
GATE = "__gate/table/totals/default"
LETTERS = Retry(max_attempts=3, backoff_secs=(0.01, 0.2))


def key_of(number: int) -> int:
    """The key of a number; the first is alone with its key."""
    return number % KEYS if number else KEYS


class Totals(BasicBolt):
    """Counts the numbers of each key, and says how many there are."""

    outputs = ["key", "total"]
    remembers = ["totals"]

    def __init__(self):
        self.totals = {}

    def execute(self, tup, collector):
        key = key_of(tup["n"])
        self.totals = {**self.totals, key: self.totals.get(key, 0) + 1}
        collector.emit([key, self.totals[key]])


class Table(Sink):
    """A table of the latest total of each key. It refuses rows, and is away, as its database says."""

    latest_by = ("key",)

    def __init__(self, world: str):
        self.world = world

    def open(self, config, context):
        self.writer = context.checkpoint_id, context.component_id, context.task_id

    def last_mark(self):
        return self._database.marks.get(self.writer, (None, None))[0]

    def write(self, batch, mark):
        database = self._database
        if self.last_mark() != mark:
            database.refuse_if_away()
            rows = list(zip(*(column.to_pylist() for column in batch), strict=True))
            refused = {row: "later" for row, each in enumerate(rows) if database.refuses(each)}
            database.written += [each for row, each in enumerate(rows) if row not in refused]
            database.marks[self.writer] = mark, refused
        return database.marks[self.writer][1]

    @property
    def _database(self) -> Database:
        return small_spark._worlds[self.world].database


class Database:
    """What a database has been given, and when it is away."""

    def __init__(self, seed: int, bad: float, gone: float) -> None:
        self.chance, self.gone, self.away = random.Random(seed), gone, 0
        self.outages, self.retry = 6, LETTERS
        self.refuses: Callable[[tuple[int, int]], bool] = lambda row: self.chance.random() < bad
        self.written: list[tuple[int, int]] = []
        self.marks: dict[tuple[str, str, int], tuple[bytes, dict[int, str]]] = {}

    def refuse_if_away(self) -> None:
        if not self.away and self.outages and self.chance.random() < self.gone:
            self.outages -= 1
            self.away = self.chance.choice([7, 14, 40])  # a task asks seven times
        if self.away:
            self.away -= 1
            raise ConnectorError("the database is away", "a test", "wait", can_retry=True)


class QuickWorld(World):
    """A world in which pauses are over after a few micro-batches."""

    def passed(self, point: str) -> None:
        if point == "commit logged":
            self.now_ms += 500
        super().passed(point)


def topology(name: str, spout: Spout, retry: Retry | None) -> Topology:
    builder = TopologyBuilder("totals")
    builder.set_spout("numbers", spout, retry=retry)
    builder.set_bolt("totals", Totals(), exactly_once=True).global_grouping("numbers")
    retry = small_spark._worlds[name].database.retry
    table = builder.set_sink("table", Table(name), parallelism=2, retry=retry)
    table.fields_grouping("totals", ["key"])
    return builder.create_topology()


def run(folder: Path, deaths: list[str], seed: int, bad: float, gone: float) -> None:
    finish(made(folder, deaths, Database(seed, bad, gone)))


def made(folder: Path, deaths: list[str], database: Database) -> World:
    world = QuickWorld(folder, COUNT, redelivers=False, retry=LETTERS)
    world.build, world.database = topology, database
    world.lives_until(*deaths)
    return world


def finish(world: World) -> None:
    driver = live(world, turns=4_000)  # a pause of a dependency is up to 30 s
    check(world, driver)
    driver.close()


def check(world: World, driver: Driver) -> None:
    """See that no row was replaced by an older one, and that none that was ACKED is missing."""
    given_up = {tuple(letter.values) for letter in driver.letters if letter.spout == GATE}
    died = f"died at {world.died_at}"
    for key in range(KEYS + 1):
        written = [total for of, total in world.database.written if of == key]
        assert written == sorted(set(written)), f"{key} went back: {written}, {died}"
        rows = range(1, 1 + sum(key_of(number) == key for number in range(COUNT)))
        acked = [total for total in rows if (key, total) not in given_up]
        assert written[-1:] == acked[-1:], f"{key} ends with {written}, given up {given_up}, {died}"


@pytest.mark.parametrize("nth", [2, 6])
@pytest.mark.parametrize("point", POINTS)
def test_no_older_row_replaces_a_newer_one_whatever_step_the_driver_dies_at(
    tmp_path: Path, point: str, nth: int
) -> None:
    run(tmp_path, [f"{point}*{nth}", f"{point}*{nth}"], seed=nth, bad=0.4, gone=0.1)


@pytest.mark.parametrize("nth", [10, 16])
def test_the_verdict_that_superseded_a_row_is_there_at_a_restart_as_long_as_that_row(
    tmp_path: Path, nth: int
) -> None:
    world = made(tmp_path, [f"chunks deleted*{nth}"], Database(0, 0, 0))
    world.database.retry = Retry(max_attempts=9, backoff_secs=(20, 20))
    refused = set()

    def refuses(row: tuple[int, int]) -> bool:
        is_first = row not in refused
        refused.add(row)
        # The first keeps the first chunk, in which (3, 1) waits until (3, 2) in the next supersedes it.
        return world.run == 1 and (row == (KEYS, 1) or (row == (3, 1) and is_first))

    world.database.refuses = refuses
    finish(world)
    assert (3, 1) in refused
    assert (3, 1) not in world.database.written


def test_the_log_warns_of_old_letters_that_are_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = made(tmp_path, [], Database(0, 0, 0))
    world.database.retry, world.database.refuses = Retry(max_attempts=1), lambda row: row == (3, 1)
    driver = live(world, turns=4_000)  # a pause of a dependency is up to 30 s
    [letter] = driver.letters
    assert letter.id is not None
    assert driver.letters.redrive([letter.id]) == 1
    [line] = [each.message for each in caplog.records if "sent again" in each.message]
    assert f"spout={GATE} letters=1 are sent again to a sink that keeps the latest row" in line
    driver.close()


@settings(max_examples=drawn(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*POINTS, "any"]), st.integers(1, 60)), max_size=5),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.1, 0.4, 0.7]),
    st.sampled_from([0.0, 0.1, 0.3]),
)
def test_each_key_ends_with_the_last_row_that_was_acked_and_never_goes_back(
    deaths: list[tuple[str, int]], seed: int, bad: float, gone: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), [f"{point}*{nth}" for point, nth in deaths], seed, bad, gone)
