"""Lost workers are counted once each, and reported with the results of their level. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from acktree.core.data.frames import SINK_LEVEL, Kind
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats
from acktree.spark.worker.isolation import Isolation
from tests.unit.spark.worker.test_isolation import Level, exits, first_attempt, is_killed, isolation


def lost(alone: Isolation) -> int:
    """How many the level reports."""
    counters = Counters()
    for row in alone.lost_rows():
        assert (row.kind, row.level) == (Kind.STATISTICS, SINK_LEVEL)
        counters.merge(Counters.from_bytes(row.body))
    stats = Stats.of(counters)
    assert not stats.components
    return stats.workers_lost


def run(alone: Isolation, level: Level) -> int:
    """Run a level to its end; returns how many workers it reports as lost."""
    with alone.noting_errors():
        list(alone.run(level))
    return lost(alone)


def kills_once(file: Path):
    def deed() -> None:
        if not file.exists():
            file.touch()
            is_killed()

    return deed


def test_nothing_is_reported_while_no_worker_is_lost(tmp_path: Path) -> None:
    alone = isolation(tmp_path, 0)
    assert run(alone, Level({})) == 0
    assert [*alone.lost_rows()] == []


def test_a_worker_that_is_killed_once_counts_once_by_the_attempt_that_succeeds(tmp_path: Path) -> None:
    level = Level({103: kills_once(tmp_path / "killed")})
    assert first_attempt(tmp_path, level) < 0
    assert run(isolation(tmp_path, 1), level) == 1


def test_each_process_that_a_message_kills_is_counted(tmp_path: Path) -> None:
    level = Level({103: exits})
    assert first_attempt(tmp_path, level) == 9
    assert run(isolation(tmp_path, 1), level) == 2  # its worker and a child: then the message is left out


def test_a_worker_that_is_lost_before_its_level_began_or_with_its_executor_is_counted(tmp_path: Path) -> None:
    assert run(isolation(tmp_path, 1), Level({})) == 1


def test_a_worker_that_raised_is_not_lost(tmp_path: Path) -> None:
    def raises() -> None:
        raise RuntimeError("no connection")

    for attempt in (0, 1):
        with pytest.raises(RuntimeError):
            run(isolation(tmp_path, attempt), Level({103: raises}))
    assert run(isolation(tmp_path, 2), Level({})) == 0


def test_one_that_died_after_another_attempt_raised_is_counted(tmp_path: Path) -> None:
    def raises() -> None:
        raise RuntimeError("no connection")

    with pytest.raises(RuntimeError):
        run(isolation(tmp_path, 0), Level({103: raises}))
    assert run(isolation(tmp_path, 2), Level({})) == 1  # attempt 1 left nothing


def test_what_the_driver_took_with_it_is_not_counted_and_what_was_known_is_reported_again(
    tmp_path: Path,
) -> None:
    level = Level({103: kills_once(tmp_path / "killed")})
    assert first_attempt(tmp_path, level) < 0  # with the driver
    next_run = replace(isolation(tmp_path, 0), run_number=2)
    assert run(next_run, level) == 0
    assert first_attempt(tmp_path, Level({103: is_killed})) < 0
    assert run(isolation(tmp_path, 1), Level({})) == 1  # and the driver dies before the commit
    for number in (2, 3):
        assert run(replace(isolation(tmp_path, 0), run_number=number), Level({})) == 1


def test_one_that_was_lost_before_spark_ran_the_whole_stage_again_is_counted(tmp_path: Path) -> None:
    assert first_attempt(tmp_path, Level({103: is_killed})) < 0
    assert run(isolation(tmp_path, 0), Level({})) == 1


def test_suspects_that_an_older_release_has_written_are_read(tmp_path: Path) -> None:
    (tmp_path / "7.1.0.suspects").write_text('[{"103": 1}, {}, []]')
    alone = isolation(tmp_path, 0)
    assert run(alone, Level({})) == 0
    assert run(isolation(tmp_path, 1), Level({})) == 1
