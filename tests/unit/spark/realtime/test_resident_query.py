"""The resident query without Spark: the verdicts of ``LocalCluster``, over ends of batches and deaths."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Condition

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.core.data.frames import WireRow
from acktree.spark.realtime.connections import ConnectionLostError
from acktree.spark.realtime.level import ResidentLevel
from acktree.spark.worker.isolation import UNGUARDED
from acktree.tasks.broadcast import Broadcast
from tests.spark.realtime_driver import Cluster
from tests.unit.spark.realtime.resident import Tasks, ThreadedQuery


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, Cluster]]:
    """A model, and the same over a resident query."""
    monkeypatch.setenv(UNGUARDED, "1")  # a task here is a thread: no child process is forked from it
    model, real = Cluster(), Cluster(ThreadedQuery, tmp_path)
    assert real.query is not None
    real.query.start()
    yield model, real
    real.query.stop()


def feed(both: tuple[Cluster, Cluster], first: int, *, together: bool) -> None:
    for cluster in both:
        cluster.feed(range(first, first + 12), together=together)


def are_equal(both: tuple[Cluster, Cluster]) -> bool:
    model, real = (cluster.verdicts() for cluster in both)
    return bool(model["failed"]) and model == real


@pytest.mark.parametrize("together", [False, True])
def test_verdicts_are_those_of_the_local_cluster(both, together):
    feed(both, 0, together=together)
    assert are_equal(both)


def test_what_bolts_remember_outlives_the_end_of_a_batch(both):
    feed(both, 0, together=True)
    both[1].query.end_batch()
    feed(both, 20, together=True)
    assert are_equal(both)


def test_after_a_death_the_epochs_under_way_run_again_from_the_last_commit(both):
    feed(both, 0, together=True)
    both[1].query._query.die()
    feed(both, 20, together=False)
    assert are_equal(both)


def test_a_query_that_is_interrupted_is_not_asked_why_it_failed(both, monkeypatch):
    """It runs on until it is stopped: Spark would be waited for in vain."""
    query, asked = both[1].query, []
    monkeypatch.setattr(Tasks, "awaitTermination", lambda self, secs: asked.append(secs))
    query.interrupt()
    with pytest.raises(ConnectionLostError):
        query.take()
    assert not asked


def test_a_task_without_rows_in_its_first_epoch_reads_the_commit_before_that_epoch(both):
    """Epoch 1 runs while epoch 0 is not committed."""
    query = both[1].query
    count = ResidentLevel(query._shared, 1, 0, query._places)
    assert [count._run(0, []), count._run(1, [Broadcast({}).row(0, 1)])] == [([], [])] * 2


@pytest.mark.parametrize("is_written", [False, True])
def test_memory_of_an_epoch_that_is_not_committed_is_never_seen(both, monkeypatch, is_written):
    """The disk refuses the file of a level, and the next level has had its rows: the epoch runs again."""
    commit, refused = MemoryOfBatch.commit, []

    def refusing(self: MemoryOfBatch, partition: int, attempt: str | None = None) -> Iterator[WireRow]:
        is_refused = self._batch_id in {7, 15} and self._batch_id not in refused and bool(self._tasks)
        if is_refused:
            refused.append(self._batch_id)
        rows = [] if is_refused and not is_written else [*commit(self, partition, attempt)]
        if is_refused:
            raise OSError(errno.ENOSPC, "no room")
        return iter(rows)

    monkeypatch.setattr(MemoryOfBatch, "commit", refusing)
    feed(both, 0, together=False)
    feed(both, 20, together=False)
    assert set(refused) == {7, 15}
    assert are_equal(both)


def test_the_next_level_does_not_wait_for_the_file_of_the_one_before(both, monkeypatch):
    run, written = ResidentLevel._run, ResidentLevel._written_memory
    changed, ran, waited = Condition(), set(), []

    def noting(self: ResidentLevel, epoch: int, rows: list[WireRow]) -> tuple[list[WireRow], list[WireRow]]:
        found = run(self, epoch, rows)
        with changed:
            ran.add((self._level, epoch))
            changed.notify_all()
        return found

    def waiting(self: ResidentLevel) -> Iterator[WireRow]:
        """Once the task has no marks of its own for each epoch: those run alone."""
        if self._memory is not None and self._is_warm:
            with changed:
                waited.append(changed.wait_for(lambda: (2, self._memory._batch_id) in ran, 60))
        return written(self)

    monkeypatch.setattr(ResidentLevel, "_run", noting)
    monkeypatch.setattr(ResidentLevel, "_written_memory", waiting)
    feed(both, 0, together=False)
    assert waited
    assert all(waited)
    assert are_equal(both)
