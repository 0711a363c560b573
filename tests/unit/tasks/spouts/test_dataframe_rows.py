"""Rows of a DataFrame are messages: a root and a verdict each, and with a policy a payload while open."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

pytest.importorskip("pyspark")

from acktree import Config, ConfigError, DataFrameSpout, Retry, TopologyError, Unavailable
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.slices import Slice
from acktree.core.data.values import batch_to_bytes, decode_rows, encode_rows
from acktree.core.micro_batch import MicroBatch
from acktree.core.state.store import MemoryStore
from acktree.core.stats.counters import Counters
from acktree.dead_letters.conversion import letter_of, redriven_letter
from acktree.errors import DeadLetterLimitError
from acktree.spark.query.results import payloads_in_rows
from acktree.tasks import chunk
from acktree.tasks.bolts.level import run_level
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts import dataframe as dataframe_task
from acktree.tasks.spouts.dataframe import DataFrameTask
from acktree.tasks.spouts.dependencies import FEW
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch, timed_out, verdict_batches_of
from tests.unit.checkpoint.commits import Commits
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, in_a_row
from tests.unit.tasks.spouts.spout_harness import HostOf, Inbox, replace_in_host


class Frame:
    """What a ``DataFrameSpout`` looks at of a DataFrame."""

    columns, isStreaming = ["value", "key"], True  # noqa: N815  # Spark's


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Line, "folder", tmp_path, raising=False)


class Line:
    """A topology over a DataFrame, run by hand: rows in, a micro-batch, verdicts at the spout's task."""

    folder: Path

    def __init__(
        self, bolt, retry=None, config=None, message_id="key", grouping=None, acknowledger=None, label=None
    ):
        spout = DataFrameSpout(Frame(), message_id, acknowledger, label=label)
        self.topology = in_a_row(spout, bolt, retry=retry, build=grouping)
        self.plan = Plan.of(self.topology, config or Config(message_timeout_secs=8), 1, 5)
        self.inbox, self.letters, self.stores = Inbox(), [], {}
        self.counters, self.errors, self.now_ms = Counters(), [], 0
        component = self.plan.topology.components["source"]
        spout_host = HostOf(
            self.inbox, record=self.record, report=lambda *noted: self.errors.append(noted),
            reserve=lambda first: first + 99,
        )  # fmt: skip
        self.number = component.task_ids[0]
        self.task = DataFrameTask(spout, component, self.number, self.plan, spout_host, 0)
        self.batch_id, self.ran = 0, set()
        self.checkpoint = Path(mkdtemp(dir=self.folder))
        self.acker = DurableAcker(self.plan, self.checkpoint) if self.plan.is_tracking else None
        self.log = Commits(self.checkpoint, [self.acker] if self.acker else [])

    refusal = None

    def record(self, records):
        if self.refusal is not None:
            raise self.refusal
        self.letters += [letter_of(record, self.topology, len(self.letters) + 1) for record in records]

    def feed(self, *values, is_tracked=True, places=1):
        """One micro-batch with these rows, cut into Arrow batches; and what was handed over since."""
        self.batch_id += 1
        rows = []
        for place in range(places):
            mine = values[place::places]
            batch = encode_rows(["value", "key"], [[value, f"k{value}"] for value in mine])
            head = json.dumps(("source", self.batch_id, place, is_tracked)).encode()
            rows.append(
                WireRow(0, 0, Kind.ROWS, self.number, place, self.now_ms, head, batch_to_bytes(batch))
            )
        self.task.step(self.now_ms)
        self.task.flush(self.now_ms)
        for number in [n for n in self.inbox.chunks if n not in self.inbox.parked and n not in self.ran]:
            whole = Slice(str(number), 0, len(Chunk.from_bytes(self.inbox.chunks[number])))
            rows.append(whole.row(0, self.number, number, self.now_ms))
            self.ran.add(number)
        return self.micro_batch(rows)

    def micro_batch(self, rows):
        """Run every level and the acker; returns the task's verdict batch."""
        read = lambda name: Chunk.from_bytes(self.inbox.chunks[int(name)])  # noqa: E731
        for level in self.plan.levels:
            mine = [row for row in rows if row.level == level.index]
            rows = [row for row in rows if row.level != level.index]
            store = self.stores.setdefault(level.index, MemoryStore())
            rows += run_level(self.plan, level.index, 0, mine, store, read)
        noted = {kind: [row for row in rows if row.kind == kind] for kind in Kind}
        for row in noted[Kind.STATISTICS]:
            self.counters.merge(Counters.from_bytes(row.body))
        verdict_batch = VerdictBatch()
        if self.acker is not None:
            verdicts, payloads = self.acker.judge(
                MicroBatch(self.batch_id, self.now_ms),
                noted[Kind.DELTAS],
                payloads_in_rows(noted[Kind.PAYLOADS]),
            )
            late = timed_out(self.plan.timeout_ms)
            verdict_batch = verdict_batches_of(verdicts, 5, late, list(payloads)).get(
                self.number, verdict_batch
            )
            self.log.write(self.batch_id, verdicts)
        self.task.dispatch(verdict_batch)
        self.task.step(self.now_ms)
        self.task.flush(self.now_ms)
        return verdict_batch

    def kept(self):
        """The payloads that lie beside the acker; those of the last micro-batch go with the next."""
        self.feed()
        folder = self.checkpoint / "payloads"
        return [file.name for file in folder.iterdir()] if folder.exists() else []

    def totals(self):
        """(acked, failed, timed out) as the spout's task counted them."""
        return tuple(
            self.task.counters.total(what, component="source") for what in ("acked", "failed", "timed_out")
        )


def judges(bolt, tup):
    """Raises, forgets or acks, as the value says."""
    if tup["value"] % 3 == 1:
        raise ValueError(tup["value"])
    if tup["value"] % 3 == 0:
        bolt.collector.ack(tup)


@pytest.mark.parametrize("places", [1, 4])
def test_every_row_gets_its_verdict_and_is_counted(places):
    line = Line(CallsByHand(judges))
    verdict_batch = line.feed(*range(30), places=places)
    assert verdict_batch.acked_rows == 10
    assert sorted(len(roots) for roots, _ in verdict_batch.failed_rows) == [1] * 10
    line.now_ms = 1_000
    line.feed()
    line.now_ms = 20_000
    line.feed()
    assert line.totals() == (10, 10, 10)
    assert line.kept() == []  # without a policy no payload is needed
    assert line.letters == []
    assert line.task.is_idle


def test_equal_rows_are_distinguished_within_a_batch_and_between_batches():
    line = Line(Calls(lambda bolt, tup, collector: None))
    assert line.feed(*[7] * 20, places=3).acked_rows == 20
    assert line.feed(*[7] * 20).acked_rows == 20


@pytest.mark.parametrize("how", ["untracked", "no ackers"])
def test_rows_that_are_not_tracked_have_no_verdict(how):
    config = Config(acker_executors=0) if how == "no ackers" else Config()
    line = Line(CallsByHand(judges), Retry(max_attempts=3), config)
    line.feed(*range(9), is_tracked=how != "untracked")
    assert line.totals() == (0, 0, 0)
    assert line.counters.total("executed", component="b0") == 9
    assert line.kept() == []


def test_a_payload_is_kept_while_its_row_is_open_and_no_longer():
    line = Line(CallsByHand(judges), Retry(max_attempts=1))
    line.feed(0, 3, 2)
    assert len(line.kept()) == 1
    line.now_ms = 1_000
    line.feed(5)
    assert len(line.kept()) == 2
    for line.now_ms in (2_000, 30_000):  # an age begins with the micro-batch after the one that admitted it
        line.feed()
    assert line.kept() == []
    assert line.totals() == (2, 0, 2)
    assert [letter.values for letter in line.letters] == [[2, "k2"], [5, "k5"]]


def test_a_row_that_failed_is_parked_until_its_next_attempt_and_then_a_message_like_any_other():
    def second_time(bolt, tup, collector):
        if tup.attempt < tup["value"]:
            raise ValueError(tup.attempt)

    line = Line(Calls(second_time), Retry(max_attempts=2, backoff_secs=(5, 5), jitter=False))
    line.feed(1, 2, 3)
    assert [decode_rows(line.inbox.read(n).values) for n in line.inbox.parked] == [[(2, "k2"), (3, "k3")]]
    assert line.task.due_ms() == 5_000
    assert line.task.open_count == 2
    line.now_ms = 5_000
    line.feed()  # sends them again
    line.feed()
    assert line.totals() == (2, 3, 0)
    (letter,) = line.letters
    assert (letter.values, letter.attempts, letter.message_id_repr) == ([3, "k3"], 2, "'k3'")
    assert sorted(line.inbox.released) == sorted(line.inbox.chunks)
    assert line.task.is_idle


def test_a_row_that_is_given_up_at_once_is_a_dead_letter_and_can_be_sent_again():
    line = Line(CallsByHand(judges), Retry(max_attempts=9, final=(ValueError,)))
    line.feed(0, 1, 3)
    (letter,) = line.letters
    assert (letter.values, letter.reason, letter.attempts) == ([1, "k1"], "ValueError: 1", 1)
    line.task.dispatch(Redrive([redriven_letter(letter)]))
    line.feed()
    assert len(line.letters) == 2  # it failed again
    assert line.task.is_idle


@pytest.mark.parametrize(("label", "expected"), [("key", "k4"), ("value", "4"), (None, None)])
def test_a_dead_letter_of_a_row_has_the_label_of_its_column_in_the_first_attempt_and_later(label, expected):
    line = Line(CallsByHand(judges), Retry(max_attempts=2, backoff_secs=(1, 1)), label=label)
    line.feed(4)
    line.now_ms = 9_000
    line.feed()
    assert [(letter.label, letter.attempts) for letter in line.letters] == [(expected, 2)]
    once = Line(CallsByHand(judges), Retry(max_attempts=1), label=label)
    once.feed(4)
    assert [letter.label for letter in once.letters] == [expected]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_id": "key", "label": "kee"}, "label='kee' is no column"),
        ({"label": "key"}, "rows have a label and no message_id"),
    ],
)
def test_a_label_that_no_row_can_have_is_refused(options, said):
    with pytest.raises(TopologyError, match=said):
        DataFrameSpout(Frame(), **options)


def test_failed_rows_are_parked_and_recorded_in_parts_however_many_fail_at_once(monkeypatch):
    monkeypatch.setattr(dataframe_task, "_AT_ONCE", 4)
    given_up = Line(CallsByHand(judges), Retry(max_attempts=1))
    recorded = []
    record = given_up.task._host.record
    replace_in_host(given_up.task, record=lambda records: (recorded.append(len(records)), record(records)))
    given_up.feed(*range(1, 31, 3), places=3)
    assert (recorded, len(given_up.letters), given_up.task.is_idle) == ([4, 4, 2], 10, True)
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 1)
    waits = Line(CallsByHand(judges), Retry(max_attempts=2, backoff_secs=(5, 5)))
    waits.feed(*range(1, 31, 3), places=3)
    assert [len(waits.inbox.read(number)) for number in waits.inbox.parked] == [1] * 10


@pytest.mark.parametrize("message_id", ["key", None])
def test_a_row_that_is_one_dead_letter_too_many_is_kept_in_the_inbox_as_a_first_attempt(message_id):
    line = Line(CallsByHand(judges), Retry(max_attempts=1), message_id=message_id)
    line.refusal = DeadLetterLimitError("too many", "here", "correct it")
    line.feed(0, 1, 3, 4)
    assert (line.letters, line.task.is_durable, line.task.open_count) == ([], True, 2)
    number = max(line.inbox.chunks)
    chunk = Chunk.from_bytes(line.inbox.chunks[number])
    assert decode_rows(chunk.values) == [(1, "k1"), (4, "k4")]
    assert chunk.attempts.tolist() == [1, 1]
    line.refusal = None
    line.feed()
    assert [(letter.values, letter.attempts) for letter in line.letters] == [([1, "k1"], 1), ([4, "k4"], 1)]


def test_of_rows_that_the_limit_refuses_a_dead_letter_is_delivered_and_only_the_others_are_kept():
    line = Line(CallsByHand(judges), Retry(max_attempts=1))
    roots = []

    def refuse(records):
        roots.extend(record.root for record in records)
        raise DeadLetterLimitError("too many", "here", "correct it", recorded=frozenset(roots[:1]))

    replace_in_host(line.task, record=refuse)
    noted = []
    line.task.spout.fail_batch = noted.extend
    line.feed(0, 1, 3, 4)
    assert len(roots) == 2
    assert [message_id for message_id, _ in noted] == ["k1"]
    assert (line.task.open_count, line.task.is_durable) == (1, True)
    assert decode_rows(Chunk.from_bytes(line.inbox.chunks[max(line.inbox.chunks)]).values) == [(4, "k4")]


def test_a_row_that_an_earlier_run_recorded_is_not_parked_though_the_policy_would_try_it_again_by_now():
    line = Line(CallsByHand(judges), Retry(max_attempts=9))
    line.task.recovery._letters_among = lambda roots: frozenset(roots[:1])
    roots, values = np.array([11, 12]), encode_rows(["value", "key"], [[1, "k1"], [4, "k4"]])
    failed = [(roots, failure_of(ValueError("as before"), "judge"))]
    line.task.recovery.apply_journalled(
        VerdictBatch(failed_rows=failed, payloads=[(roots, values)]), 0, were_delivered=False
    )
    line.task.step(0)
    assert [letter.root for letter in line.letters] == [11]
    assert [line.inbox.read(number).retry_of.tolist() for number in line.inbox.parked] == [[12]]


def test_acked_rows_are_counted_by_the_limit_of_dead_letters():
    noted = []
    line = Line(CallsByHand(judges))
    replace_in_host(line.task, note_acked=lambda *acked: noted.append(acked))
    line.now_ms = 7
    line.feed(0, 3, 1)
    assert noted == [("source", 2, 7)]


def test_rows_without_a_message_id_are_tried_again_like_the_others():
    line = Line(CallsByHand(judges), Retry(max_attempts=2, backoff_secs=(0, 0)), message_id=None)
    line.feed(1)
    line.feed()
    line.feed()
    assert [(letter.values, letter.attempts) for letter in line.letters] == [([1, "k1"], 2)]


def test_a_row_that_a_grouping_refuses_fails_alone():
    def grouping(builder):
        reads = builder.set_bolt("reads", Calls(lambda bolt, tup, collector: None))
        reads.fields_grouping("source", ["value"])

    line = Line(Calls(lambda bolt, tup, collector: None), grouping=grouping)
    assert line.feed(1, 2, 3).acked_rows == 3


def test_the_task_of_a_dataframe_is_never_asked_for_more():
    line = Line(Calls(print))
    line.task.activate()
    assert not line.task.may_emit()


def test_parked_rows_wait_again_after_a_restart_but_for_those_that_were_sent():
    line = Line(CallsByHand(judges), Retry(max_attempts=9, backoff_secs=(5, 5), jitter=False))
    line.feed(1, 4)
    parked = line.inbox.parked[0]
    again = Line(CallsByHand(judges), Retry(max_attempts=9, backoff_secs=(5, 5), jitter=False))
    again.inbox.chunks, again.inbox.parked = dict(line.inbox.chunks), list(line.inbox.parked)
    chunk = Chunk.from_bytes(line.inbox.chunks[parked])
    again.task._retries.earlier.tried_again[int(chunk.sequences[0])] = (
        9  # an earlier run sent the first of them again
    )
    again.task.recover_parked(parked, chunk, 100)
    assert again.task.open_count == 1
    again.task.open(0)
    assert again.task.due_ms() == 100
    again.now_ms = 100
    again.task.step(100)
    (sent,) = (n for n in again.inbox.chunks if n not in again.inbox.parked)
    assert decode_rows(Chunk.from_bytes(again.inbox.chunks[sent]).values) == [(4, "k4")]
    assert again.inbox.released == [parked]


def test_a_verdict_that_is_delivered_anew_after_a_crash_parks_no_row_twice():
    policy = Retry(max_attempts=9, backoff_secs=(5, 5), jitter=False)
    line = Line(CallsByHand(judges), policy)
    line.feed(1, 4)
    (parked,) = line.inbox.parked
    chunk = Chunk.from_bytes(line.inbox.chunks[parked])
    again = Line(CallsByHand(judges), policy)
    again.inbox.chunks = dict(line.inbox.chunks)
    again.task.recover_parked(parked, chunk, 100)
    waiting = again.task.open_count
    assert waiting == len(chunk)
    payload = (chunk.retry_of, chunk.values)
    failed = [(chunk.retry_of, failure_of(ValueError("as before"), "judge"))]
    again.task.dispatch(VerdictBatch(failed_rows=failed, payloads=[payload]))
    again.task.step(99)
    assert again.inbox.parked == []
    assert again.task.open_count == waiting


def test_a_failure_of_many_rows_is_reported_of_each():
    line = Line(
        CallsByHand(lambda bolt, tup: bolt.collector.fail(tup, "all for one reason")), Retry(max_attempts=1)
    )
    line.feed(*range(5))
    assert {letter.reason for letter in line.letters} == {"all for one reason"}
    assert isinstance(line.letters[0].kind, str)
    assert len(line.letters) == 5


@pytest.mark.parametrize("policy", [None, Retry(max_attempts=1)])
def test_a_wrong_configuration_stops_the_topology_without_a_letter_for_any_row(policy):
    wrong = failure_of(ConfigError("no table", "here", "create it"), "judge", in_hook=True)
    values = encode_rows(["value", "key"], [[1, "k1"], [2, "k2"]])
    roots = np.array([11, 12])
    line = Line(CallsByHand(judges), policy)
    line.task.open(0)
    line.task.dispatch(
        VerdictBatch(failed_rows=[(roots, wrong)], payloads=[(roots, values)] if policy else [])
    )
    with pytest.raises(ConfigError, match="no table"):
        line.task.step(0)
    assert line.letters == []


def test_a_wrong_configuration_that_an_earlier_run_met_does_not_stop_a_later_one():
    wrong = failure_of(ConfigError("no table", "here", "create it"), "judge", in_hook=True)
    roots, values = np.array([11]), encode_rows(["value", "key"], [[1, "k1"]])
    verdicts = VerdictBatch(failed_rows=[(roots, wrong)], payloads=[(roots, values)])
    line = Line(CallsByHand(judges), Retry(max_attempts=1))
    line.task.open(0)
    line.task.dispatch(verdicts)
    with pytest.raises(ConfigError, match="no table"):
        line.task.step(0)
    line = Line(CallsByHand(judges), Retry(max_attempts=1))
    line.task.open(0)
    line.task.recovery.apply_journalled(verdicts, 0, were_delivered=False)
    line.task.step(0)
    assert [line.inbox.read(number).retry_of.tolist() for number in line.inbox.parked] == [[11]]


def test_parked_rows_that_waited_for_what_was_away_are_sent_a_few_at_a_time_after_a_restart():
    away = failure_of(Unavailable("prices"), "judge")
    roots = np.arange(11, 61)
    values = encode_rows(["value", "key"], [[n, f"k{n}"] for n in range(50)])
    line = Line(CallsByHand(judges), Retry(max_attempts=1))
    line.task.open(0)
    line.task.dispatch(VerdictBatch(failed_rows=[(roots, away)], payloads=[(roots, values)]))
    line.task.step(0)
    (number,) = line.inbox.parked
    chunk = line.inbox.read(number)
    again = Line(CallsByHand(judges), Retry(max_attempts=1))
    again.inbox.chunks, again.inbox.parked = dict(line.inbox.chunks), list(line.inbox.parked)
    again.task.recover_parked(number, chunk, 0)
    again.task.open(0)
    again.task.step(60_000)
    later = Chunk.from_bytes(again.inbox.chunks[max(again.inbox.chunks)])
    assert len(later.sequences) == FEW
    assert set(later.attempts.tolist()) == {1}
