"""``acktree run`` to the end of its time, on a driver without Spark."""

from __future__ import annotations

import errno
from argparse import Namespace
from contextlib import contextmanager

import pytest

from acktree import CheckpointError
from acktree.cli import run
from tests.unit.ui.driver_without_spark import IdleQuery, Started, started


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


def test_one_that_ends_while_it_is_stopped_has_ended(tmp_path):
    class Ends(IdleQuery):
        def stop(self, *, at_once):
            topology.run.checkpoint.mark_ended()
            super().stop(at_once=at_once)

    with started(tmp_path / "cp") as topology:
        topology.supervisor._query = Ends()
        found = run._run_to_end(lambda: topology.handle, Namespace(timeout=0.01, target="it"))
        assert found == (topology.handle, None)


def test_an_error_that_comes_while_it_is_stopped_is_told_in_place_of_that(tmp_path):
    damage = CheckpointError("it is damaged", "commits/7", "take a copy")

    class Damaged(IdleQuery):
        def stop(self, *, at_once):
            raise damage

    with stopped_after_its_time(tmp_path / "cp", Damaged()) as (topology, (running, error)):
        assert (running, error) == (topology.handle, damage)


def test_a_run_whose_error_cannot_be_explained_ends_with_that_error(tmp_path):
    failed = OSError(errno.ESTALE, "Stale file handle")

    class Unanswered(IdleQuery):
        is_active = False

        def failure(self):
            return failed

        def explained(self, error):
            raise OSError(errno.ESTALE, "asked for its free space")

    topology = Started(tmp_path / "cp")
    topology.supervisor._query = Unanswered()
    topology.begin()
    with pytest.raises(OSError, match="Stale file handle") as raised:
        topology.handle.await_termination(120)
    assert raised.value is failed
    assert not topology.handle.is_running
