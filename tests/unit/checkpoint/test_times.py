"""Time for which a message can do nothing is not counted against it, from the driver's clock to the spout."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree import Retry
from acktree.checkpoint.inbox_files import ChunkKind
from tests.unit.checkpoint.small_spark import Driver, World

TIMEOUT_SECS = 30
HOUR_MS = 3_600_000


@pytest.fixture(params=[True, False], ids=["queue", "position"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Numbers 0, 1 and 2, of which 1 is held until a tick."""
    world = World(tmp_path, 3, redelivers=request.param, retry=Retry(max_attempts=1))
    world.timeout_secs = TIMEOUT_SECS
    return world


def begun(world: World) -> Driver:
    driver = Driver(world)
    driver.micro_batch()
    driver.open()
    driver.spout_turns()
    driver.micro_batch()
    driver.spout_turns()
    return driver


def after(driver: Driver, secs: float) -> list[tuple[str, int]]:
    """The verdicts that are delivered after this time, once the acker has run."""
    driver.world.now_ms += int(secs * 1000)
    driver.inbox.append_control(ChunkKind.BEAT, {})
    driver.micro_batch()
    driver.spout_turns()
    return driver.world.verdicts


def test_no_message_times_out_while_its_micro_batch_runs_or_because_it_took_long(world: World) -> None:
    def slow(number: int, attempt: int, run: int) -> bool:
        world.now_ms += HOUR_MS
        return False

    world.weather = slow
    driver = begun(world)
    assert sorted(world.verdicts) == [("acked", 0), ("acked", 2)]
    assert sorted(after(driver, 0)) == [("acked", 0), ("acked", 2)]  # an hour late, and its age begins now
    assert sorted(after(driver, TIMEOUT_SECS - 1)) == [("acked", 0), ("acked", 2)]
    driver.tick()
    assert sorted(after(driver, HOUR_MS / 1000)) == [("acked", 0), ("acked", 1), ("acked", 2)]
    driver.close()


def test_an_hour_without_a_driver_times_nothing_out_and_the_ages_before_and_after_add_up(
    world: World,
) -> None:
    first = begun(world)
    after(first, 0)
    assert sorted(after(first, TIMEOUT_SECS / 2)) == [("acked", 0), ("acked", 2)]
    first.close()  # and nobody closes it in order
    world.now_ms += HOUR_MS
    again = begun(world)
    assert ("failed", 1) not in world.verdicts
    # A queue brought it again, as a new message; else its age goes on where it was.
    left_secs = TIMEOUT_SECS if world.redelivers else TIMEOUT_SECS / 2
    assert ("failed", 1) not in after(again, 0)
    assert ("failed", 1) not in after(again, left_secs - 1)
    assert ("failed", 1) in after(again, 1 + TIMEOUT_SECS / 8)
    again.close()
