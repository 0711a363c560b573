"""DataFrames that end: when idle one more micro-batch is run; the first that finds nothing new ends them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from acktree.checkpoint.inbox_files import ChunkKind
from acktree.driver import ending_dataframes
from acktree.driver.ending_dataframes import EndingFrames
from acktree.tasks.spouts.dataframe import DataFrameTask


class Frame(DataFrameTask):
    """A task of a DataFrame, without one."""

    ends = True

    def __init__(self):
        self.has_ended = False


class World:
    """A run, and a source of some parts; each micro-batch reads one."""

    def __init__(self, parts: int, *frames: object) -> None:
        self.parts, self.frames, self.entries = parts, frames, []
        self.progress = SimpleNamespace(batch_id=-1)
        self.results = self.checkpoint = self.inbox = self.threads = self
        self.by_task = {number: SimpleNamespace(task=frame) for number, frame in enumerate(frames)}
        self.is_drained, self.found_nothing = True, False

    def is_committed(self, batch_id):
        return True

    def append_control(self, kind, what):
        self.entries.append(kind)

    def has_read_all(self):
        return self.found_nothing

    def run_a_batch(self):
        self.progress.batch_id += 1
        self.found_nothing = self.parts == 0
        self.parts = max(0, self.parts - 1)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(ending_dataframes, "_LOOK_SECS", 0.0)


def test_the_first_micro_batch_that_finds_nothing_new_ends_them_and_none_before():
    world = World(3, Frame(), Frame())
    watched = EndingFrames(world)
    world.run_a_batch()  # the run's first
    assert watched.longest_pause_secs is not None
    while not world.frames[0].has_ended:
        for _ in range(3):  # looked at more often than micro-batches run
            watched.look(world)
        world.run_a_batch()
        assert len(world.entries) <= world.progress.batch_id
        assert all(frame.has_ended for frame in world.frames) <= (world.parts == 0)
        assert world.progress.batch_id < 9
    assert set(world.entries) == {ChunkKind.BEAT}
    assert len(world.entries) == 3
    watched.look(world)
    assert len(world.entries) == 3, "once they have ended nothing is asked for"
    assert watched.longest_pause_secs is None


def test_a_dataframe_that_does_not_end_keeps_the_others():
    endless = Frame()
    endless.ends = False
    world = World(0, Frame(), endless)
    world.run_a_batch()
    watched = EndingFrames(world)
    watched.look(world)
    assert (world.entries, world.frames[0].has_ended) == ([], False)
    assert watched.longest_pause_secs is None


def test_no_micro_batch_is_asked_for_while_one_is_due():
    world = World(2, Frame())
    world.run_a_batch()
    world.is_drained = False
    EndingFrames(world).look(world)
    assert world.entries == []
