"""What is done to a checkpoint that nobody runs, whatever moment its driver died at."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, IterableSpout, Retry, Topology, TopologyBuilder
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.logs.memory_log import MemoryLog, MemoryOfBatch
from acktree.checkpoint.migrated_state import SeededStore, read_memory, write_memories
from acktree.core.data.frames import Kind
from acktree.core.state.store import MemoryStore
from acktree.errors import CheckpointError, ConfigError
from acktree.pystorm.hosted import HostedBolt
from acktree.spark.offline import rebalance, reset_state
from tests.drawn import drawn
from tests.unit.checkpoint.commits import Commits
from tests.unit.checkpoint.small_spark import World, live, open_in_files
from tests.unit.checkpoint.test_crash_windows import COUNT, POINTS, check, live_driver
from tests.unit.checkpoint.test_folder import Counting, counting, of_version_1, run_once, swallow

"""The session that reads nothing: the small Spark's state is read instead."""


def lives_until(world: World, point: str) -> None:
    """Run until the driver dies there, and nobody comes after it; or is done, if it never gets there."""

    class OneDriver(World):
        """Its driver is not started again."""

        def passed(self, at: str) -> None:
            if not self.deaths:
                raise LastDeathError
            super().passed(at)

    world.lives_until(point)
    world.__class__ = OneDriver
    with suppress(LastDeathError):
        live(world)
    world.__class__ = World
    world.deaths = []
    live_driver(world).close()


class LastDeathError(Exception):
    """The driver died, and is not started again."""


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest):
    redelivers, retry = request.param
    made = World(tmp_path, COUNT, redelivers=redelivers, retry=retry)
    yield made
    live_driver(made).close()


RETRY = Retry(max_attempts=3, backoff_secs=(0.1, 0.3))
KINDS = pytest.mark.parametrize(
    "world",
    [(True, None), (False, RETRY)],
    indirect=True,
    ids=["queue", "position with retry"],
)


def some_weather(world: World) -> None:
    if world.retry is not None:
        world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4


@KINDS
@pytest.mark.parametrize("point", POINTS)
def test_moved_memory_is_complete_and_all_open_messages_continue(world: World, point: str) -> None:
    some_weather(world)
    lives_until(world, f"{point}*3")
    for _ in range(2):
        rebalance(world.folder / "checkpoint")
    live(world)
    check(world)  # once each, as if nothing had happened: held tuples too


def check_reset(world: World) -> None:
    """Nothing is lost, though what was held may be processed twice."""
    assert {number for _, number in world.verdicts} == set(range(COUNT)), world.died_at
    assert world.delivered_before_commit == []
    driver = live_driver(world)
    assert driver.sink.results.progress.open_count == 0
    assert open_in_files(driver) == 0
    effects = world.committed_effects(driver.held.last_committed())
    assert all(effects[number] for verdict, number in world.verdicts if verdict == "acked")
    if not world.redelivers:
        assert driver.inbox.oldest_kept > driver.inbox.last_number


@KINDS
@pytest.mark.parametrize("point", POINTS)
def test_a_reset_forgets_what_bolts_held_and_runs_their_messages_again(world: World, point: str) -> None:
    some_weather(world)
    lives_until(world, f"{point}*3")
    reset_state(world.folder / "checkpoint")
    live(world)
    check_reset(world)


@pytest.mark.parametrize("point", ["emitted*2", "handed over*2", "handed over*3", "any*16", "any*45"])
def test_messages_of_a_reset_run_again_once_although_the_driver_dies_meanwhile(
    tmp_path: Path, point: str
) -> None:
    world = World(tmp_path, COUNT, redelivers=False)
    lives_until(world, "delivered*3")
    reset_state(tmp_path / "checkpoint")
    lives_until(world, point)
    live(world)
    check_reset(world)
    effects = world.committed_effects(live_driver(world).held.last_committed())
    assert max(effects.values()) <= 2  # once before the reset, once after
    assert max(Counter(number for _, number in world.verdicts).values()) <= 1 + len(world.died_at)
    live_driver(world).close()


@settings(max_examples=drawn(10))
@given(
    redelivers=st.booleans(),
    plan=st.lists(
        st.tuples(st.sampled_from(["reset", "rebalance", "none"]), st.integers(1, 120)),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_is_done_between_deaths_nothing_is_lost(redelivers, plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), COUNT, redelivers=redelivers)
        for tool, nth in plan:
            lives_until(world, f"any*{nth}")
            if tool == "reset":
                reset_state(world.folder / "checkpoint")
            elif tool == "rebalance":
                rebalance(world.folder / "checkpoint")
        live(world)
        check_reset(world)
        live_driver(world).close()


def test_memory_is_taken_in_once_and_lives_in_the_state_from_then_on(tmp_path: Path) -> None:
    write_memories(tmp_path / "memory-2", {3: {"attribute/n": b"old", "gone": b"x"}, 5: {}})
    state = MemoryStore()
    store = SeededStore(state, tmp_path / "memory-2")
    assert store.get("task/3/attribute/n") == b"old"
    store.put("task/3/attribute/n", b"new")
    store.delete("task/3/gone")
    assert store.get("task/4/attribute/n") is None  # a task that there was not
    again = SeededStore(state, tmp_path / "memory-2")  # the next micro-batch
    again.put("task/5/attribute/n", b"first")
    assert again.get("task/3/attribute/n") == b"new"
    assert again.get("task/3/gone") is None
    assert again.get("task/5/attribute/n") == b"first"


def test_a_delete_takes_in_what_the_other_blobs_are(tmp_path: Path) -> None:
    write_memories(tmp_path / "memory-2", {3: {"one": b"1", "two": b"2"}})
    state = MemoryStore()
    SeededStore(state, tmp_path / "memory-2").delete("task/3/one")
    assert SeededStore(state, tmp_path / "memory-2").get("task/3/two") == b"2"
    assert SeededStore(state, tmp_path / "memory-2").get("task/3/one") is None


def test_memory_whose_file_is_gone_is_not_forgotten_in_silence(tmp_path: Path) -> None:
    folder = tmp_path / "memory-2"
    write_memories(folder, {3: {"one": b"1"}})
    (folder / "3").unlink()
    with pytest.raises(CheckpointError, match="what task 3 remembers is not there"):
        read_memory(folder, 3)
    (folder / "tasks").unlink()
    with pytest.raises(CheckpointError, match="what task 4 remembers is not there"):
        SeededStore(MemoryStore(), folder).get("task/4/one")


REFUSED = [
    (lambda folder: rebalance(folder / "typo"), "there is no checkpoint"),
    (
        lambda folder: reset_state(folder, component="cuont"),
        r"has no memory of a component 'cuont'\n.*\n.*'count'",
    ),
    (lambda folder: reset_state(folder, component="numbers"), "spout 'numbers' is not a stateful bolt"),
    (
        lambda folder: rebalance(folder, component="show", parallelism=3),
        "bolt 'show' is not a stateful bolt",
    ),
    (lambda folder: rebalance(folder, component="count"), "a component and its parallelism go together"),
    (lambda folder: rebalance(folder, parallelism=3), "a component and its parallelism go together"),
    (lambda folder: rebalance(folder, component="count", parallelism=0), "less than one"),
    (lambda folder: rebalance(folder, partitions=0), "less than one"),
    (
        lambda folder: rebalance(folder, component="count", parallelism=3, by_key=["cuonts"]),
        r"bolt 'count' does not remember 'cuonts'\n.*\n.*did you mean 'counts'",
    ),
    (
        lambda folder: rebalance(folder, component="count", parallelism=3, by_key={"cuonts": max}),
        r"bolt 'count' does not remember 'cuonts'\n.*\n.*did you mean 'counts'",
    ),
    (
        lambda folder: rebalance(folder, component="all", parallelism=3, by_key=["counts"]),
        "bolt 'all' is not grouped by fields",
    ),
    (
        lambda folder: rebalance(folder, component="hosted", parallelism=3, by_key=["counts"]),
        r"no attribute of it can be moved alone, or by key\n.*\n.*reset-state --component hosted",
    ),
]


class Hosting(Counting):
    """Keeps what the host of a component of streamparse keeps."""

    remembers = HostedBolt.remembers


def three_counts() -> Topology:
    builder = TopologyBuilder("counting")
    builder.set_spout("numbers", IterableSpout([], ["n"]))
    builder.set_bolt("count", Counting(), 2).fields_grouping("numbers", ["n"])
    builder.set_bolt("all", Counting(), 2).all_grouping("numbers")
    builder.set_bolt("hosted", Hosting(), 2).fields_grouping("numbers", ["n"])
    builder.set_bolt("show", swallow).shuffle_grouping("numbers")
    return builder.create_topology()


@pytest.mark.parametrize(("command", "why"), REFUSED)
def test_what_cannot_be_done_is_refused_and_changes_nothing(tmp_path: Path, command, why: str) -> None:
    run_once(tmp_path, three_counts())
    before = (tmp_path / "acktree.json").read_text()
    folder_is_wrong = why == "there is no checkpoint"  # else what was asked for
    with pytest.raises(CheckpointError if folder_is_wrong else ConfigError, match=why):
        command(tmp_path)
    assert (tmp_path / "acktree.json").read_text() == before
    assert not (tmp_path / "typo").exists()
    run_once(tmp_path, three_counts())  # the lock was let go of


def test_a_checkpoint_that_runs_has_ended_or_is_older_is_left_alone(tmp_path: Path) -> None:
    run_once(tmp_path / "held", counting(2))
    with closing(Checkpoint(tmp_path / "held")), pytest.raises(CheckpointError, match="another driver runs"):
        reset_state(tmp_path / "held")
    run_once(tmp_path / "ended", counting(2))
    with closing(Checkpoint(tmp_path / "ended")) as ended:
        ended.mark_ended()
    with pytest.raises(CheckpointError, match="has ended"):
        reset_state(tmp_path / "ended")
    (tmp_path / "old").mkdir()
    of_version_1(tmp_path / "old")
    with pytest.raises(CheckpointError, match="version 1, and this acktree reads 8"):
        rebalance(tmp_path / "old")


def test_with_a_dataframe_spout_sparks_checkpoint_is_not_abandoned(tmp_path: Path) -> None:
    run_once(tmp_path, counting(2))
    with closing(Checkpoint(tmp_path)) as held:
        held._facts["shape"]["parts"]["numbers"]["is_frame"] = True
        held._write(held._facts)
    with pytest.raises(CheckpointError, match="spout 'numbers' is a DataFrame"):
        reset_state(tmp_path)


def test_what_a_bolt_is_given_up_for_is_forgotten_with_its_task_ids(tmp_path: Path) -> None:
    before = run_once(tmp_path, three_counts()).tasks
    (tmp_path / "spark" / "commits").mkdir()
    (tmp_path / "spark" / "offsets").mkdir()
    (tmp_path / "spark" / "commits" / "0").touch()
    (tmp_path / "spark" / "offsets" / "0").write_text('{"chunk":4}')
    one, other = before["count"][0], before["all"][0]
    blobs = {f"task/{one}/x": b"1", f"task/{other}/x": b"2", f"task/{other}/taken in": b"{}"}
    log = Commits(tmp_path, [MemoryLog(tmp_path / "state", 0)])
    memory = MemoryOfBatch(tmp_path / "state", 0, 0)
    for name, blob in blobs.items():
        memory.put(name, blob)
    log.write(0, rows={Kind.MEMORY: [*memory.commit(0)]})
    reset_state(tmp_path, component="count")
    after = run_once(tmp_path, three_counts()).tasks
    assert after["all"] == before["all"]
    assert not {*after["count"]} & {task for tasks in before.values() for task in tasks}
    with closing(Checkpoint(tmp_path)) as held:
        assert (held.first_batch, held.begins_after, held.acker_from) == (1, 4, 0)
        assert (held.last_committed(), held.admitted()) == (0, 4)
        assert held.spark == tmp_path / "spark-2"
        assert held.memory == tmp_path / "memory-2"
        assert read_memory(held.memory, other) == {"x": b"2"}
        assert read_memory(held.memory, one) == {}
    assert not (tmp_path / "spark").exists()


def test_other_partitions_are_those_of_the_next_run(tmp_path: Path) -> None:
    run_once(tmp_path, counting(2))
    rebalance(tmp_path.as_uri(), partitions=5, component="count", parallelism=3, forget=["counts"])
    with closing(Checkpoint(tmp_path)) as held:
        assert held.begin_run(counting(3), Config(), 2).tasks["count"] == (1, 2, 4)
        assert held.partitions == 5


def test_a_tool_that_died_before_the_last_step_has_done_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once(tmp_path, counting(2))
    before = (tmp_path / "acktree.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rebalance(tmp_path)
    assert (tmp_path / "acktree.json").read_text() == before
    assert (tmp_path / "spark").is_dir()
    rebalance(tmp_path)  # writes over what the other left
    with closing(Checkpoint(tmp_path)) as held:
        assert held.spark == tmp_path / "spark-2"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_whose_load_was_interrupted_is_loaded_completely_later(tmp_path):
    class Interrupted(MemoryStore):
        puts = 0

        def put(self, name, blob):
            self.puts += 1
            if self.puts == 2:
                raise TimeoutError("from a signal's handler")
            super().put(name, blob)

    write_memories(tmp_path / "memory", {3: {"one": b"1", "two": b"2"}})
    store = SeededStore(Interrupted(), tmp_path / "memory")
    with pytest.raises(TimeoutError):
        store.get("task/3/one")
    assert (store.get("task/3/one"), store.get("task/3/two")) == (b"1", b"2")
