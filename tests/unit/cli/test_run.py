"""``acktree run`` to the end of its time, on a driver without Spark."""

from __future__ import annotations

from argparse import Namespace
from contextlib import contextmanager

from acktree import CheckpointError
from acktree.cli import run
from tests.unit.ui.driver_without_spark import IdleQuery, started


@contextmanager
def stopped_after_its_time(folder, query):
    """What a run says that has not ended in its time."""
    with started(folder) as topology:
        topology.supervisor._query = query
        yield topology, run._run_to_end(lambda: topology.handle, Namespace(timeout=0.01, target="it"))


def test_a_run_that_has_not_ended_in_its_time_is_stopped(tmp_path):
    with stopped_after_its_time(tmp_path / "cp", IdleQuery()) as (topology, (running, error)):
        assert running is topology.handle
        assert not running.is_running
        assert str(error) == "numbers has not ended in 0.01 s, and was stopped"
        assert isinstance(error, TimeoutError)


def test_an_error_that_comes_while_it_is_stopped_is_told_in_place_of_that(tmp_path):
    damage = CheckpointError("it is damaged", "commits/7", "take a copy")

    class Damaged(IdleQuery):
        def stop(self, *, at_once):
            raise damage

    with stopped_after_its_time(tmp_path / "cp", Damaged()) as (topology, (running, error)):
        assert (running, error) == (topology.handle, damage)
