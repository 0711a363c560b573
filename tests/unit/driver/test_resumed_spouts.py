"""What the spouts of a run that is resumed are given, without Spark."""

from __future__ import annotations

from dataclasses import replace

from acktree import Spout, TopologyBuilder
from acktree.core import durable
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.resume import add_spouts, recover
from acktree.driver.spouts.spout_threads import Threads
from tests.unit.checkpoint.inbox_chunks import chunk_of
from tests.unit.ui.driver_without_spark import Double, NothingPasses, started


class FromTheStart(Spout):
    outputs = ["n"]
    redelivers = False
    remembers = ["position"]

    def open(self, config, context, collector):
        self.position = 0

    def next_tuple(self):
        """Emits nothing."""


def test_the_log_warns_once_of_a_spout_whose_open_sets_what_it_remembers(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    builder = TopologyBuilder("numbers")
    builder.set_spout("source", FromTheStart(), parallelism=2)
    builder.set_bolt("double", Double()).shuffle_grouping("source")
    given = builder.create_topology()
    with started(tmp_path / "cp", given=given) as running:
        run = replace(running.run, threads=Threads())
        recorder = DeadLetterRecorder(running.letters, given, run.plan.config)
        add_spouts(given, run, recorder)
        assert len(run.threads.by_task) == 2
        for thread in run.threads.by_task.values():
            thread.task.remember(durable.dumps({"position": 7}))
            thread.task.open()
    (said,) = [each for each in caplog.messages if "remembers" in each]
    assert said.startswith("topology=numbers spout=source open() has set position, which the spout remembers")


class FivePassed(NothingPasses):
    """A gate through which five tuples have passed, and in front of which none waits."""

    def waiting(self, gate, start):
        return 5 - start


def test_a_gate_that_is_resumed_counts_what_it_has_handed_over_once_also_before_its_thread_runs(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    builder = TopologyBuilder("numbers")
    builder.set_spout("source", FromTheStart())
    builder.set_bolt("double", Double(), exactly_once=True).shuffle_grouping("source")
    with started(tmp_path / "cp", given=builder.create_topology()) as running:
        (gate,) = (
            thread
            for thread in running.run.threads.by_task.values()
            if thread.task.component.gated is not None
        )
        gate.task.spout.connect(FivePassed())
        handed_over = replace(chunk_of(0, 1, 2, task=gate.task.task), position=durable.dumps({"end": 3}))
        running.run.inbox.append([handed_over])
        recover(running.run, -1)
        assert gate.task.open_count == 3
        assert gate.task.lag_now.total == 2
