"""Exactly-once bolts, and a driver that dies at any step: each effect once, of what is given up none."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, CheckpointError, Retry, Sink, Spout, Topology, TopologyBuilder
from acktree.checkpoint.staged_files import FOLDER_NAME
from acktree.spark.offline import rebalance, reset_state
from acktree.states import MapState, MemoryMap
from tests.unit.checkpoint import small_spark
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.small_spark import Driver, World, live

COUNT = 20
SOURCES = ["position", "queue", "queue with keys", "position with keys"]
RETRY = Retry(max_attempts=3, backoff_secs=(0.1, 0.3))


class EmitsAndRaises(BasicBolt):
    """Emits a number, and raises then where the weather says so."""

    outputs = ["n"]

    def __init__(self, world: str):
        self.world = world

    def execute(self, tup, collector):
        world = small_spark._worlds[self.world]
        collector.emit([tup["n"]])
        if world.weather(tup["n"], tup.attempt, world.run):
            raise ValueError(f"{tup['n']} had bad weather in run {world.run}")
        small_spark._running[self.world].append(tup["n"])


class Counts(BasicBolt):
    """Counts how often it sees each number. The first attempts of some fail when they are counted."""

    outputs = ["n"]
    remembers = ["counts"]

    def __init__(self, world: str):
        self.world, self.counts = world, {}

    def prepare(self, config, context):
        self.name = context.component_id, context.task_id

    def execute(self, tup, collector):
        number = tup["n"]
        self.counts[number] = self.counts.get(number, 0) + 1
        collector.emit([number])
        if number % 3 == 0 and tup.attempt == 1:
            raise ValueError(f"{number} is counted and fails")

    def flush(self, collector):
        small_spark._worlds[self.world].memory[self.name] = dict(self.counts)


class Table(Sink):
    """Writes numbers to a list, and a mark beside it. Refuses every fourth number when it comes first."""

    def __init__(self, world: str):
        self.world = world

    def open(self, config, context):
        self.writer = context.checkpoint_id, context.component_id, context.task_id

    def last_mark(self):
        return self._database.marks.get(self.writer, (None, None))[0]

    def write(self, batch, mark):
        database = self._database
        if self.last_mark() != mark:
            numbers = batch["n"].to_pylist()
            refused = {row: "later" for row, n in enumerate(numbers) if n % 4 == 0 and n not in database.came}
            database.came.update(numbers)
            database.table += [n for row, n in enumerate(numbers) if row not in refused]
            database.marks[self.writer] = mark, refused
        return database.marks[self.writer][1]

    @property
    def _database(self) -> Database:
        return small_spark._worlds[self.world].database


class Stated(BasicBolt):
    """Counts in one of Trident's states, at the end of each micro-batch."""

    def __init__(self, world: str):
        self.world = world

    def prepare(self, config, context):
        self.txid, self.numbers = context.txid, []
        self.state = MapState(small_spark._worlds[self.world].database.map)

    def execute(self, tup, collector):
        self.numbers.append(tup["n"])

    def flush(self, collector):
        numbers, self.numbers = self.numbers, []
        self.state.begin_commit(self.txid)
        self.state.multi_update(numbers, [lambda count: (count or 0) + 1] * len(numbers))
        self.state.commit(self.txid)


class Database:
    """What a database has, whatever dies beside it."""

    def __init__(self) -> None:
        self.map = MemoryMap()
        self.table: list[int] = []
        self.came: set[int] = set()
        self.marks: dict[tuple[str, str, int], tuple[bytes, dict[int, str]]] = {}


def topology(name: str, spout: Spout, retry: Retry | None) -> Topology:
    builder = TopologyBuilder("counted")
    builder.set_spout("numbers", spout, retry=retry)
    builder.set_bolt("weathered", EmitsAndRaises(name), parallelism=2).shuffle_grouping("numbers")
    for bolt, source in (("first", "weathered"), ("second", "first")):
        counts = builder.set_bolt(bolt, Counts(name), parallelism=2, exactly_once=True, retry=RETRY)
        counts.fields_grouping(source, ["n"])
    stated = builder.set_bolt("stated", Stated(name), parallelism=2, exactly_once=True)
    stated.fields_grouping("first", ["n"])
    table = builder.set_sink("table", Table(name), parallelism=2, retry=RETRY)
    table.fields_grouping("first", ["n"])
    return builder.create_topology()


def counted(world: World, bolt: str) -> Counter[int]:
    """How often a bolt remembers each number, in all tasks."""
    counts = Counter[int]()
    for (name, _), memory in world.memory.items():
        if name == bolt:
            counts.update(memory)
    return counts


def check(world: World) -> None:
    acked = {number for verdict, number in world.verdicts if verdict == "acked"}
    failed = {number for verdict, number in world.verdicts if verdict == "failed"}
    assert acked | failed == set(range(COUNT))
    for bolt in ("first", "second"):
        found = counted(world, bolt)
        if (
            world.redelivers and not world.has_keys
        ):  # a queue brings back what was decided, if it did not hear of it
            assert set(found) >= acked, f"died at {world.died_at}"
            assert set(found) <= acked | failed, f"died at {world.died_at}"
        else:
            assert found == Counter(acked), f"died at {world.died_at}"
    state = MapState(world.database.map)
    counts = Counter({number: state.get(number) or 0 for number in range(COUNT)})
    is_exact = world.has_keys or not world.redelivers
    assert not is_exact or +counts == Counter(acked), f"died at {world.died_at}"
    table = Counter(world.database.table)
    assert table == Counter(acked) if is_exact else set(table) >= acked, f"died at {world.died_at}"


def made(folder: Path, source: str) -> World:
    world = World(folder, COUNT, redelivers="queue" in source, retry=RETRY)
    world.has_keys = "keys" in source
    world.build, world.database = topology, Database()
    return world


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("point", POINTS)
def test_each_acked_message_is_counted_once_and_no_other_whatever_step_the_driver_dies_at(
    tmp_path: Path, point: str, source: str, *, thorough: bool
) -> None:
    """At the first time that it passes the step, or at the fifth; the part windows tries both."""
    is_first = (POINTS.index(point) + SOURCES.index(source)) % 2 == 0
    for nth in (1, 5) if thorough else (1,) if is_first else (5,):
        world = made(tmp_path / str(nth), source)
        world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4
        world.lives_until(f"{point}*{nth}")
        driver = live(world)
        check(world)
        assert not driver.task._host.keys._claimed, "a key is claimed, and nobody has its message"
        driver.close()


@pytest.mark.parametrize("order", ["rebalance", "reset first", "reset all"])
@pytest.mark.parametrize("point", ["state committed", "commit logged"])
def test_what_operators_do_between_two_runs_neither_doubles_nor_loses_a_row(
    tmp_path: Path, point: str, order: str
) -> None:
    world = made(tmp_path, "position")
    world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4
    world.lives_until(f"{point}*3", "commit logged*5")
    refusals = []

    def between_runs() -> None:
        try:
            if order == "rebalance":
                rebalance(tmp_path / "checkpoint", partitions=2)
            else:
                reset_state(tmp_path / "checkpoint", component="first" if order == "reset first" else None)
        except CheckpointError as error:
            refusals.append(str(error))

    world.between_runs = between_runs
    driver = live(world)
    acked = {number for verdict, number in world.verdicts if verdict == "acked"}
    assert Counter(world.database.table) == Counter(acked)
    if order == "rebalance":
        check(world)
    assert len(refusals) == (point == "state committed")
    assert all("may have written its rows" in refusal for refusal in refusals)
    driver.close()


def test_a_file_of_staged_values_that_is_gone_in_a_run_ends_it_and_once_it_is_back_the_next_goes_on(
    tmp_path: Path,
) -> None:
    world = made(tmp_path, "position")
    driver, staged = Driver(world), tmp_path / "checkpoint" / FOLDER_NAME
    driver.micro_batch()
    driver.open()
    while not [*staged.iterdir()]:
        driver.spout_turns()
        driver.micro_batch()
    kept = staged.rename(tmp_path / "aside")
    staged.mkdir()
    with pytest.raises(CheckpointError, match="a file of the checkpoint is missing") as error:
        driver.spout_turns()  # it would ask the gate again and again, and never end
    assert error.value.where in {str(staged / file.name) for file in kept.iterdir()}
    driver.close()
    staged.rmdir()
    kept.rename(staged)
    driver = live(world)
    check(world)
    driver.close()


def test_a_checkpoint_that_is_begun_anew_at_the_same_place_writes_its_rows_again(tmp_path: Path) -> None:
    database = Database()
    for times in (1, 2):
        world = made(tmp_path, "position")
        world.database, world.salt = database, times  # a checkpoint draws its own
        database.came.clear()
        live(world).close()
        acked = Counter(number for verdict, number in world.verdicts if verdict == "acked")
        assert len(acked) == COUNT
        assert Counter(database.table) == Counter(dict.fromkeys(acked, times))
        shutil.rmtree(tmp_path / "checkpoint")


@pytest.mark.parametrize("source", ["position", "queue with keys"])
def test_an_older_copy_of_a_checkpoint_is_told_before_a_message_of_its_run_is_acked_and_writes_no_row(
    source: str, tmp_path: Path
) -> None:
    """Else a queue hears that messages are ACKED whose tuples only the copy has, and no sink takes them."""
    world = made(tmp_path, source)
    world.lives_until("commit logged*2", "commit logged*8")
    checkpoint, copied = tmp_path / "checkpoint", tmp_path / "copy"
    written: list[int] = []
    new = {COUNT + 1, COUNT + 2}

    def between_runs() -> None:
        if not copied.exists():
            shutil.copytree(checkpoint, copied, ignore=shutil.ignore_patterns("wake"))
        else:
            written[:] = world.database.table
            world.queue |= new
            shutil.rmtree(checkpoint)
            shutil.copytree(copied, checkpoint)

    world.between_runs = between_runs
    with pytest.raises(CheckpointError, match="an older copy"):
        live(world)
    assert written
    assert world.database.table == written
    assert not new & {number for _, number in world.verdicts}


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from([*POINTS, "any"]), st.integers(1, 40)), max_size=4),
    st.integers(0, 1000),
    st.sampled_from(["position", "queue with keys", "position with keys"]),
)
def test_any_mixture_of_deaths_and_attempts_that_fail_when_run_again_leaves_each_effect_once(
    deaths: list[tuple[str, int]], seed: int, source: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = made(Path(folder), source)
        world.lives_until(*(f"{point}*{nth}" for point, nth in deaths))
        world.weather = lambda number, attempt, run: (number * 7 + attempt * 5 + run * 3 + seed) % 4 == 0
        driver = live(world)
        check(world)
        assert not driver.task._host.keys._claimed
        driver.close()
