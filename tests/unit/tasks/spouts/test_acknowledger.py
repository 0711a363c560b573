"""An Acknowledger gets the verdicts of a DataFrame's rows: once, after the commit, by id alone."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import (
    Acknowledger,
    BasicBolt,
    Config,
    ConnectorError,
    DataFrameSpout,
    Retry,
    TopologyBuilder,
    TopologyError,
)
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.journal import Journal
from acktree.core.data.frames import Kind
from acktree.core.data.values import batch_from_bytes
from acktree.core.micro_batch import MicroBatch
from acktree.core.state.store import MemoryStore
from acktree.driver.batch import BatchResults, Decided, rows_by_kind
from acktree.driver.logs.error_log import ErrorLog
from acktree.spark.query.results import payloads_in_rows
from acktree.tasks.bolts.level import run_level
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.verdict_batch import timed_out, verdict_batches_of
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn
from tests.unit.checkpoint.commits import Commits
from tests.unit.tasks.bolts.bolt_harness import CallsByHand
from tests.unit.tasks.spouts.test_dataframe_rows import Frame, Line, judges


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Line, "folder", tmp_path, raising=False)


class Notes(Acknowledger):
    """Writes down its verdicts."""

    def __init__(self):
        self.opened, self.acked, self.failed, self.found, self.calls = [], [], [], [], []
        self.is_down = False

    def open(self, config, context):
        self.found = list(context.open_message_ids)

    def open_batch(self, message_ids):
        self.opened += message_ids

    def ack_batch(self, message_ids):
        if self.is_down:
            raise ConnectorError("away", "here", "wait", can_retry=True)
        self.acked += message_ids

    def fail_batch(self, failures):
        self.failed += [(message_id, failure.kind.value, failure.final) for message_id, failure in failures]

    def keep_alive(self):
        self.calls.append("keep_alive")

    def close(self):
        self.calls.append("close")


class Told(Line):
    """A line whose micro-batches are journalled, so that another driver can follow."""

    def __init__(self, *given, follows=None, committed=-1, **named):
        self.notes = Notes()
        super().__init__(*given, acknowledger=self.notes, **named)
        if follows is not None:
            self.checkpoint, self.batch_id = follows.checkpoint, committed
        self.acker = DurableAcker(self.plan, self.checkpoint)
        self.delivered_through = -1
        self.journal = Journal(self.checkpoint / "verdicts", lambda: self.delivered_through, lambda: 0)
        self.log = Commits(self.checkpoint, [self.acker, self.journal], committed)
        self.results = BatchResults(self.plan, self.acker, ErrorLog(Config()), self.journal)
        self.waiting = []
        for task, message_ids in self.acker.open_row_ids():
            assert task == self.number
            self.task.note_open(message_ids)
        for were_delivered, verdicts, stored in self.journal.earlier():
            late = timed_out(self.plan.timeout_ms)
            for task, letters in verdict_batches_of(verdicts, 5, late, stored.failed, ids=stored.ids).items():
                assert task == self.number
                self.task.recovery.apply_journalled(letters, 0, were_delivered=were_delivered)

    def micro_batch(self, rows):
        """Run it up to its commit; what it decided waits for :meth:`deliver`."""
        read = lambda name: Chunk.from_bytes(self.inbox.chunks[int(name)])  # noqa: E731
        for level in self.plan.levels:
            mine = [row for row in rows if row.level == level.index]
            rows = [row for row in rows if row.level != level.index]
            rows += run_level(self.plan, level.index, 0, mine, MemoryStore(), read)
        delivered = rows_by_kind(rows)
        payloads, ids = (payloads_in_rows(delivered.get(kind, [])) for kind in (Kind.PAYLOADS, Kind.IDS))
        batch = MicroBatch(self.batch_id, self.now_ms)
        decided = self.results.judge(batch, delivered, payloads, ids)
        self.log.write(self.batch_id, decided.verdicts, end=0)
        self.waiting.append(decided.by_task.get(self.number))
        return rows

    def deliver(self):
        """What happens after a commit."""
        for verdict_batch in self.waiting:
            if verdict_batch is not None:
                self.task.dispatch(verdict_batch)
        self.waiting = []
        self.task.step(self.now_ms)
        self.task.flush(self.now_ms)
        if self.task.is_durable:
            self.delivered_through = self.batch_id

    def run(self, *values):
        self.feed(*values)
        self.deliver()


def keys(*values):
    return [f"k{value}" for value in values]


def test_ids_of_acked_and_failed_rows_are_delivered_after_the_commit_and_those_of_open_rows_as_open():
    line = Told(CallsByHand(judges))
    line.feed(0, 1, 2, 3)
    assert (line.notes.acked, line.notes.failed, line.notes.opened) == ([], [], [])
    line.deliver()
    assert sorted(line.notes.acked) == keys(0, 3)
    assert line.notes.failed == [("k1", "FAILED", False)]
    assert line.notes.opened == keys(2)
    line.now_ms = 1_000
    line.run()
    line.now_ms = 30_000
    line.run()
    assert line.notes.failed[1:] == [("k2", "TIMED_OUT", False)]
    assert sorted(line.notes.acked) == keys(0, 3)


def test_ids_alone_ride_to_the_driver():
    line, seen = Told(CallsByHand(judges)), []
    line.results.judge = lambda batch, delivered, payloads, ids: seen.append(delivered) or Decided(None, {})
    line.feed(0, 1)
    assert Kind.PAYLOADS not in seen[0]
    [row] = seen[0][Kind.IDS]
    assert batch_from_bytes(row.body).to_pydict() == {"key": ["k0", "k1"]}


def test_with_a_retry_a_row_is_open_until_the_verdict_of_its_last_attempt():
    line = Told(CallsByHand(judges), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False))
    line.run(0, 1)
    assert (line.notes.acked, line.notes.opened, line.notes.failed) == (keys(0), keys(1), [])
    line.now_ms = 2_000
    line.deliver()  # emits the next attempt
    line.run()
    assert line.notes.failed == [("k1", "FAILED", True)]
    assert len(line.letters) == 1
    assert line.notes.acked == keys(0)


def test_several_columns_make_a_tuple():
    line = Told(CallsByHand(judges), message_id=["key", "value"])
    line.run(0, 1)
    assert line.notes.acked == [("k0", 0)]
    assert [each for each, *_ in line.notes.failed] == [("k1", 1)]


@settings(max_examples=drawn(30), deadline=None)
@given(
    micro_batches=st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=5),
    dies=st.lists(
        st.sampled_from(["not", "before the commit", "before delivery", "after delivery"]), max_size=5
    ),
)
def test_whenever_drivers_die_each_row_gets_its_one_verdict_and_gets_it_again_only_after_a_death(
    tmp_path_factory, micro_batches, dies
):
    Line.folder = tmp_path_factory.mktemp("line")
    line, committed, heard = Told(CallsByHand(judges)), 0, []
    line.feed()  # so that micro-batch numbers begin with the first
    line.deliver()
    committed = line.batch_id
    wanted, opened = Counter(), Counter()
    for at, values in enumerate(micro_batches):
        how = dies[at] if at < len(dies) else "not"
        line.feed(*values)
        if how == "before the commit":  # it runs again
            heard.append(line.notes)
            line = Told(CallsByHand(judges), follows=line, committed=committed)
            line.feed(*values)
        committed = line.batch_id
        for value in values:
            wanted[f"k{value}"] += value % 3 != 2
            opened[f"k{value}"] += value % 3 == 2
        if how == "before delivery":
            heard.append(line.notes)
            line = Told(CallsByHand(judges), follows=line, committed=committed)
            assert not line.notes.acked
        line.deliver()
        if how == "before delivery":
            assert Counter(line.notes.found) == +opened
        if how == "after delivery":  # and before that was noted
            heard.append(line.notes)
            line = Told(CallsByHand(judges), follows=line, committed=committed)
            line.deliver()
    heard.append(line.notes)
    delivered = Counter(each for notes in heard for each in notes.acked)
    delivered += Counter(each for notes in heard for each, *_ in notes.failed)
    assert set(delivered) == set(+wanted)
    assert all(delivered[each] >= count for each, count in wanted.items())
    if set(dies[: len(micro_batches)]) <= {"not"}:
        assert delivered == +wanted


def test_while_the_acknowledger_cannot_be_reached_verdicts_wait_and_are_not_noted_as_delivered():
    line = Told(CallsByHand(judges))
    line.notes.is_down = True
    line.run(0)
    assert (line.notes.acked, line.delivered_through) == ([], -1)
    assert len(line.errors) == 1
    line.run(3)
    line.notes.is_down = False
    line.now_ms = 60_000
    line.deliver()
    assert line.notes.acked == keys(0, 3)
    assert line.delivered_through == line.batch_id


def test_what_is_kept_of_open_rows_goes_with_their_verdicts():
    line = Told(CallsByHand(judges))
    line.run(2, 5)
    assert len(list((line.checkpoint / "ids").iterdir())) == 1
    for line.now_ms in (1_000, 30_000, 31_000):
        line.run()
    assert list((line.checkpoint / "ids").iterdir()) == []


def test_an_acknowledger_needs_an_id_that_is_a_column():
    with pytest.raises(TopologyError, match="no message_id"):
        DataFrameSpout(Frame(), acknowledger=Acknowledger())
    with pytest.raises(TopologyError, match="'kex'"):
        DataFrameSpout(Frame(), ["value", "kex"], Acknowledger())


class Odd(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        if tup["n"] % 2 == 0:
            raise ValueError(tup["n"])


def test_in_local_cluster_a_feeder_stands_in_for_the_rows():
    notes = Notes()
    feeder = FeederSpout(["n"], acknowledger=notes)
    builder = TopologyBuilder("local")
    builder.set_spout("rows", feeder)
    builder.set_bolt("odd", Odd()).shuffle_grouping("rows")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for n in range(4):
            feeder.feed([n], message_id=n)
        cluster.advance()
    assert notes.acked == feeder.acked == [1, 3]
    assert [each for each, *_ in notes.failed] == [0, 2]
    assert notes.calls[-1] == "close"
