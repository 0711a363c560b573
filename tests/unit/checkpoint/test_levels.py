"""The table of levels of docs/exactly-once.md: what says *once* outlives each step at which a driver can die,
and any other cell shows its double."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark")

from acktree import BasicBolt, Retry, Spout, Topology, TopologyBuilder
from tests.unit.checkpoint import small_spark
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.small_spark import World, live
from tests.unit.checkpoint.test_gate_crashes import RETRY, Database, Table, counted

COUNT = 12
EFFECTS = ("own write", "remembers", "exactly-once bolt", "sink")


class Row(NamedTuple):
    """A row of the table: which effects happen once."""

    source: str
    once: tuple[str, ...]
    once_unless_decided_again: tuple[str, ...] = ()


ROWS = [
    Row("position", ("exactly-once bolt", "sink")),
    Row("position with keys", ("exactly-once bolt", "sink")),
    Row("queue", (), ("exactly-once bolt", "sink")),
    Row("queue with keys", ("exactly-once bolt", "sink")),
    Row("untracked", ("remembers", "exactly-once bolt", "sink")),
]


class Writes(BasicBolt):
    """Writes each number somewhere, remembers and emits it; raises then where the weather says so."""

    outputs = ["n"]
    remembers = ["counts"]

    def __init__(self, world: str):
        self.world, self.counts = world, {}

    def prepare(self, config, context):
        self.name = context.component_id, context.task_id

    def execute(self, tup, collector):
        world, number = small_spark._worlds[self.world], tup["n"]
        small_spark._running[self.world].append(number)
        world.written[number] += 1
        self.counts[number] = self.counts.get(number, 0) + 1
        collector.emit([number])
        if world.weather(number, tup.attempt, world.run):
            raise ValueError(f"{number} had bad weather in run {world.run}")

    def flush(self, collector):
        small_spark._worlds[self.world].memory[self.name] = dict(self.counts)


class Counts(Writes):
    """Counts each number; the first attempts of some fail when they are counted."""

    outputs = []

    def execute(self, tup, collector):
        number = tup["n"]
        self.counts[number] = self.counts.get(number, 0) + 1
        if number % 3 == 0 and tup.attempt == 1:
            raise ValueError(f"{number} is counted and fails")


def topology(name: str, spout: Spout, retry: Retry | None) -> Topology:
    builder = TopologyBuilder("levels")
    builder.set_spout("numbers", spout, retry=retry)
    builder.set_bolt("writes", Writes(name), parallelism=2).fields_grouping("numbers", ["n"])
    counts = builder.set_bolt("counts", Counts(name), parallelism=2, exactly_once=True, retry=RETRY)
    counts.fields_grouping("writes", ["n"])
    table = builder.set_sink("table", Table(name), parallelism=2, retry=RETRY)
    table.fields_grouping("writes", ["n"])
    return builder.create_topology()


def effects(folder: Path, source: str, deaths: tuple[str, ...], *, fails: bool) -> dict[str, Counter[int]]:
    """How often each effect of each number happened. ``fails``: whether first attempts of some fail."""
    is_tracked = source != "untracked"
    world = World(folder, COUNT, redelivers="queue" in source, retry=RETRY if is_tracked else None)
    world.has_keys, world.is_tracked = "keys" in source, is_tracked
    world.build, world.database, world.written = topology, Database(), Counter()
    world.weather = lambda number, attempt, run: fails and number % 4 == 1 and attempt == 1
    world.lives_until(*deaths)
    live(world).close()
    if is_tracked:
        assert {number for verdict, number in world.verdicts if verdict == "acked"} == set(range(COUNT))
    return {
        "own write": world.written,
        "remembers": counted(world, "writes"),
        "exactly-once bolt": counted(world, "counts"),
        "sink": Counter(world.database.table),
    }


ONCE = Counter(range(COUNT))


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
@pytest.mark.parametrize("nth", [3])
@pytest.mark.parametrize("point", POINTS)
def test_a_cell_that_says_once_outlives_each_step_at_which_a_driver_dies(
    tmp_path: Path, point: str, nth: int, row: Row
) -> None:
    found = effects(tmp_path, row.source, (f"{point}*{nth}",), fails=row.source != "untracked")
    for effect in EFFECTS:
        assert set(found[effect]) == set(ONCE), f"{effect} was lost"
        if effect in row.once:
            assert found[effect] == ONCE, effect


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
def test_any_other_cell_shows_its_double(tmp_path: Path, row: Row) -> None:
    """By an attempt that failed, a micro-batch that ran again, or a verdict that the queue did not hear."""
    doubled = set[str]()
    for at, death in enumerate(
        ["", "state committed*2", "state committed*3", "commit logged*3", "commit logged*5"]
    ):
        is_calm = row.source == "untracked"
        found = effects(tmp_path / str(at), row.source, (death,) if death else (), fails=not is_calm)
        doubled |= {effect for effect in EFFECTS if max(found[effect].values()) > 1}
    assert doubled == {*EFFECTS} - {*row.once}


def test_where_nothing_dies_a_queue_without_keys_has_its_effects_behind_gates_once(tmp_path: Path) -> None:
    found = effects(tmp_path, "queue", (), fails=True)
    [row] = [row for row in ROWS if row.once_unless_decided_again]
    assert all(found[effect] == ONCE for effect in row.once_unless_decided_again)


def test_an_untracked_tuple_that_was_emitted_before_a_raise_counts_and_one_after_it_does_not(
    tmp_path: Path,
) -> None:
    found = effects(tmp_path, "untracked", (), fails=True)
    assert found["exactly-once bolt"] == ONCE, (
        "what was emitted before the raise passes: nobody tries it again"
    )


def test_the_page_has_these_rows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "exactly-once.md").read_text()
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| a ")]
    cells = [[cell.startswith("**once**") or cell == "once" for cell in line[1:]] for line in table[:4]]
    assert [sum(row) for row in cells] == [2, 0, 1, 1]  # of those that do not say "the same"
