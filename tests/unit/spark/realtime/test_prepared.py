"""In real time a bolt stays prepared from epoch to epoch, for as long as it is what a fresh copy would be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from acktree import (
    ArrowBolt,
    BasicBolt,
    Bolt,
    ColumnState,
    Config,
    KeyValueState,
    TaskHook,
    TopologyBuilder,
    submit,
)
from acktree.spark import submit as submitting
from acktree.spark.realtime import connections
from acktree.spark.worker.isolation import UNGUARDED
from acktree.testing import FeederSpout, LocalCluster
from tests.spark.realtime_driver import await_verdicts
from tests.unit.spark.realtime.resident import ThreadedQuery
from tests.unit.spark.realtime.test_drive import session

CONFIG = Config(partitions=1, real_time=True, message_timeout_secs=600)
EPOCHS = range(12)
LAST = 50
FIRST = 3
"""The most copies that a task makes here: one for each of its first two epochs, and the one that stays."""

calls: Counter[str] = Counter()
"""Tasks are threads of this process, and note here what was called."""
seen: list[tuple[int, int]] = []
states: list[object] = []
"""What a bolt's state was, in each call; kept here, so that no two have one id."""
kinds: set[type] = set()
"""Of the collector that a bolt was given."""
threads: set[int] = set()
"""On which a bolt was prepared and cleaned up."""


class Quiet(BasicBolt):
    outputs = ["n"]

    def prepare(self, config, context):
        calls["prepare"] += 1
        threads.add(get_ident())
        self.context, self.opened = context, object()

    def execute(self, tup, collector):
        seen.append((self.context.txid, id(self.opened)))
        collector.emit([tup[0]])

    def cleanup(self):
        calls["cleanup"] += 1
        threads.add(get_ident())


class ByHand(Bolt):
    outputs = ["n"]

    def prepare(self, config, context, collector):
        calls["prepare"] += 1
        self.collector = collector

    def execute(self, tup):
        kinds.add(type(self.collector))
        self.collector.emit([tup[0]], anchors=tup)
        self.collector.ack(tup)

    def cleanup(self):
        calls["cleanup"] += 1


class Batches(ArrowBolt):
    outputs = pa.schema([("n", pa.int64())])

    def prepare(self, config, context):
        calls["prepare"] += 1

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, range(batch.num_rows))

    def cleanup(self):
        calls["cleanup"] += 1


class Raising(Quiet):
    def execute(self, tup, collector):
        if tup[0] % 2:
            raise ValueError(tup[0])


class Flushing(Quiet):
    def flush(self, collector):
        pass


class ReadingNumber(Quiet):
    def prepare(self, config, context):
        super().prepare(config, context)
        assert context.txid is not None


class ReadingClock(Quiet):
    def prepare(self, config, context):
        super().prepare(config, context)
        context.now_ms()


class Hooked(Quiet):
    def prepare(self, config, context):
        super().prepare(config, context)
        context.add_task_hook(TaskHook())


class Counting(Quiet):
    outputs = ["n", "count"]
    remembers = ["counts", "last"]

    def prepare(self, config, context):
        calls["prepare"] += 1
        self.counts, self.last = KeyValueState(), []

    def execute(self, tup, collector):
        self.counts[tup[0] % 3] = self.counts.get(tup[0] % 3, 0) + 1
        self.last.append(tup[0])
        seen.append((len(self.last), self.counts[tup[0] % 3]))


@pytest.fixture(autouse=True)
def tasks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    seen.clear()
    states.clear()
    kinds.clear()
    threads.clear()
    monkeypatch.setenv(UNGUARDED, "1")
    monkeypatch.setattr(submitting, "ResidentQuery", ThreadedQuery)
    monkeypatch.setattr(submitting, "refuse_unseen", lambda *_: None)
    monkeypatch.setattr(submitting, "_session", lambda *_, **__: (session(), lambda: None))


def topology_of(bolt: object) -> tuple[object, FeederSpout]:
    numbers = FeederSpout({"default": pa.schema([("n", pa.int64())])})
    builder = TopologyBuilder("prepared")
    builder.set_spout("numbers", numbers)
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    return builder.create_topology(), numbers


def run(bolt: object, folder: Path) -> None:
    """One message an epoch."""
    topology, numbers = topology_of(bolt)
    with submit(topology, checkpoint=folder / "checkpoint", config=CONFIG) as running:
        for n in EPOCHS:
            numbers.feed([n], message_id=n)
            await_verdicts(running, numbers, [n])


def test_a_bolt_is_cleaned_up_on_the_thread_that_has_prepared_it(tmp_path):
    """A client may refuse other threads, as sqlite3 does."""
    run(Quiet(), tmp_path)
    assert calls["cleanup"]
    assert len(threads) == 1


class Hanging(Quiet):
    """The cleanup of the copy that has executed the last message waits."""

    over = Event()
    drives: list[Any] = []
    last: object = None

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if tup[0] == LAST:
            Hanging.last = self.opened
            for each in self.drives:
                each._batch_until = 0.0

    def cleanup(self):
        super().cleanup()
        if self.opened is Hanging.last:
            self.over.wait()


@pytest.mark.parametrize("ends", ["the run", "a batch of Spark's"])
def test_a_cleanup_that_hangs_is_told_and_holds_nobody_up(tmp_path, monkeypatch, caplog, ends):
    topology, numbers = topology_of(Hanging())
    monkeypatch.setattr(connections, "BATCH_ENDS_SECS", 0.2)
    monkeypatch.setattr(Hanging, "drives", [])
    monkeypatch.setattr(Hanging, "over", Event())
    try:
        with submit(topology, checkpoint=tmp_path / "checkpoint", config=CONFIG) as running:
            if ends == "a batch of Spark's":
                Hanging.drives.append(running._supervisor._query)
            for n in [*EPOCHS, LAST]:
                numbers.feed([n], message_id=n)
                await_verdicts(running, numbers, [n])
            if ends == "a batch of Spark's":
                numbers.feed([99], message_id=99)
                await_verdicts(running, numbers, [99])
    finally:
        Hanging.over.set()
    assert "a cleanup() of their bolts may hang" in caplog.text


@pytest.mark.parametrize("bolt", [Quiet(), ByHand(), Batches()], ids=lambda bolt: type(bolt).__name__)
def test_a_bolt_is_prepared_once_and_cleaned_up_at_the_end(bolt, tmp_path):
    run(bolt, tmp_path)
    assert calls["prepare"] <= FIRST < len(EPOCHS)
    assert calls["cleanup"] == calls["prepare"]


def test_a_bolt_has_one_collector_though_some_of_its_epochs_are_timed_and_others_not(tmp_path):
    topology, numbers = topology_of(ByHand())
    config = replace(CONFIG, stats_sample_rate=0.5)
    with submit(topology, checkpoint=tmp_path / "checkpoint", config=config) as running:
        n = 0
        while n <= FIRST or len(kinds) < 2:  # which are timed is drawn by their clocks
            numbers.feed([n], message_id=n)
            await_verdicts(running, numbers, [n])
            if n == FIRST:
                kinds.clear()
            n += 1
    assert calls["prepare"] <= FIRST


def test_the_context_that_a_bolt_keeps_names_each_epoch_and_what_it_opened_stays(tmp_path):
    run(Quiet(), tmp_path)
    numbers, opened = zip(*seen, strict=True)
    assert list(numbers) == sorted(set(numbers))
    assert len(set(opened[FIRST:])) == 1


@pytest.mark.parametrize(
    "bolt", [Flushing(), ReadingNumber(), ReadingClock(), Hooked()], ids=lambda bolt: type(bolt).__name__
)
def test_a_bolt_whose_prepare_begins_something_for_the_epoch_is_prepared_for_each(bolt, tmp_path):
    run(bolt, tmp_path)
    assert calls["prepare"] == calls["cleanup"] == len(EPOCHS)


def test_a_bolt_that_has_raised_is_prepared_anew(tmp_path):
    run(Raising(), tmp_path)
    assert calls["prepare"] >= len(EPOCHS) // 2
    assert calls["cleanup"] == calls["prepare"]


class Keeping(Counting):
    """Notes the object that is its state."""

    def execute(self, tup, collector):
        super().execute(tup, collector)
        states.append(self.counts)
        collector.emit([tup[0], 0])


class KeepingAndRaising(Keeping):
    def execute(self, tup, collector):
        super().execute(tup, collector)
        if tup[0] % 2:
            raise ValueError(tup[0])


class KeepingColumns(Batches):
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = ColumnState(int, int)

    def execute_batch(self, batch, collector):
        states.append(self.counts)
        seen.append((batch["n"][0].as_py() % 3, self.counts.add_many([batch["n"][0].as_py() % 3])[0].as_py()))


@pytest.mark.parametrize("bolt", [Keeping(), KeepingColumns()], ids=lambda bolt: type(bolt).__name__)
def test_a_state_stays_from_epoch_to_epoch(bolt, tmp_path):
    run(bolt, tmp_path)
    assert len({id(state) for state in states[-5:]}) == 1
    last = [count for _, count in seen[-3:]]
    assert last == [len(EPOCHS) // 3] * 3


def test_a_state_does_not_stay_in_a_bolt_that_has_raised(tmp_path):
    run(KeepingAndRaising(), tmp_path)
    raised = [n for n in EPOCHS if n % 2]
    assert all(states[n] is not states[n + 1] for n in raised[:-1])
    assert [count for _, count in seen[-3:]] == [len(EPOCHS) // 3] * 3


def test_a_state_does_not_stay_where_something_is_written_exactly_once(tmp_path):
    numbers = FeederSpout({"default": pa.schema([("n", pa.int64())])})
    builder = TopologyBuilder("exact")
    builder.set_spout("numbers", numbers)
    builder.set_bolt("bolt", Keeping()).shuffle_grouping("numbers")
    builder.set_bolt("exact", Quiet(), exactly_once=True).fields_grouping("bolt", ["n"])
    topology = builder.create_topology()
    with submit(topology, checkpoint=tmp_path / "checkpoint", config=CONFIG) as running:
        for n in EPOCHS:
            numbers.feed([n], message_id=n)
            await_verdicts(running, numbers, [n])
    assert len({id(state) for state in states}) == len(EPOCHS)


def test_what_is_remembered_is_that_of_the_local_cluster(tmp_path):
    run(Counting(), tmp_path)
    on_epochs, prepared = list(seen), calls["prepare"]
    seen.clear()
    topology, numbers = topology_of(Counting())
    with LocalCluster() as cluster:
        cluster.submit(topology)
        for n in EPOCHS:
            numbers.feed([n], message_id=n)
            cluster.advance()
    assert on_epochs == seen
    assert prepared <= FIRST
