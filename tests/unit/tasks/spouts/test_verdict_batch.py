"""What tasks hand to one another: chunks, ticks, verdict batches, given-up records. Reading returns what was
written.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, Retry
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import decode_rows, encode_rows
from acktree.core.ids import root_ids
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.lineage import Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.core.tracking.verdicts import Failure, Judged, Verdicts
from acktree.dead_letters.conversion import letter_of, redriven_letter
from acktree.dead_letters.letter import DeadLetter
from acktree.driver.ticks import Ticks
from acktree.errors import ProtocolError
from acktree.tasks.acker import Acker
from acktree.tasks.bolts.rows.frame_rows import FATES, InboundRows
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.retries import Attempt, GivenUpRecord, Redriven, concat_rows
from acktree.tasks.spouts.verdict_batch import verdict_batches_of
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row
from tests.unit.tasks.bolts.test_ticks import Ticks as TickingBolt

values = st.lists(
    st.tuples(st.integers() | st.text(max_size=3) | st.none() | st.tuples(st.booleans())), max_size=6
)
int32s = st.integers(-(2**31), 2**31 - 1)


@given(values, st.data())
def test_a_chunk_is_what_it_was_and_a_slice_of_it_is_a_part(rows, data):
    def maybe(kind, dtype):
        array = st.lists(kind, min_size=len(rows), max_size=len(rows)).map(lambda a: np.array(a, dtype=dtype))
        return data.draw(st.none() | array) if rows else None

    chunk = Chunk(
        "spout", 3, "s", data.draw(st.booleans()), data.draw(st.integers(0, 2**47)), 1_000,
        encode_rows(["f"], rows), maybe(int32s, np.int32), maybe(int32s, np.int32),
        maybe(st.integers(0, 2**40), np.int64), maybe(st.integers(0, 2**40), np.int64),
        data.draw(st.binary(max_size=3)), data.draw(st.binary(max_size=3)),
    )  # fmt: skip
    again = Chunk.from_bytes(chunk.to_bytes())
    assert shown(again) == shown(chunk)
    assert len(again) == len(rows)
    assert again.sequences.tolist() == [chunk.first_sequence + n for n in range(len(rows))]
    first = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(first, len(rows)))
    part = chunk.slice(first, end)
    assert decode_rows(part.values) == rows[first:end]
    assert part.sequences.tolist() == chunk.sequences.tolist()[first:end]
    for mine, whole in ((part.attempts, chunk.attempts), (part.tasks, chunk.tasks)):
        assert (None if mine is None else mine.tolist()) == (
            None if whole is None else whole.tolist()[first:end]
        )


def shown(chunk):
    """A chunk as plain values."""
    arrays = (chunk.attempts, chunk.tasks, chunk.first_emitted_ms, chunk.retry_of)
    return (
        *(
            chunk.component,
            chunk.task,
            chunk.stream,
            chunk.is_tracked,
            chunk.first_sequence,
            chunk.emitted_ms,
        ),
        *(None if array is None else array.tolist() for array in arrays),
        *(chunk.message_ids, chunk.position, decode_rows(chunk.values)),
    )


def verdicts(done=(), acked=(), failed=(), late=(), reasons=()):
    """Verdicts under salt 7; of (task, sequence) each, a failure with its reason and how many others."""

    def judged(messages):
        roots = [int(root_ids(7, task, np.array([sequence]))[0]) for task, sequence in messages]
        owners = np.array([task for task, _ in messages], dtype=np.int32)
        return Judged(np.array(roots, dtype=np.int64), owners)

    which = np.array([reason for *_, reason, _ in failed], dtype=np.int64)
    others = np.array([others for *_, others in failed], dtype=np.int64)
    packed = tuple(reason.to_bytes() for reason in reasons)
    runs = [(task, np.array(sequences, dtype=np.int64)) for task, sequences in done]
    lost = judged([message[:2] for message in failed])
    return Verdicts(runs, judged(acked), lost, which, others, judged(late), packed, 5, 77)


BROKEN, WORSE = failure_of(ValueError("broken"), "b"), failure_of(KeyError("worse"), "c")
LATE = replace(BROKEN, reason="late", exception=None, traceback=None)


ascending = st.sets(st.integers(0, 60), min_size=1).map(sorted)


@given(st.lists(st.tuples(st.integers(1, 3), ascending), max_size=4), st.integers(0, 1 << 47))
def test_verdicts_are_what_they_were_in_the_journal(done, first):
    done = [(task, [first + sequence for sequence in sequences]) for task, sequences in done]
    failed = [(1, 3, 0, 0), (2, 4, 1, 2)]
    outcome = verdicts(done, [(1, 1), (1, 2)], failed, [(2, 5)], [BROKEN, WORSE])
    again = Verdicts.from_bytes(outcome.to_bytes())
    assert [(task, sequences.tolist()) for task, sequences in again.done] == done
    for name in ("acked", "failed", "timed_out"):
        mine, its = getattr(outcome, name), getattr(again, name)
        assert (its.roots.tolist(), its.owners.tolist()) == (mine.roots.tolist(), mine.owners.tolist())
    assert (again.failures.tolist(), again.others.tolist()) == ([0, 1], [0, 2])
    assert [Failure.from_bytes(reason) for reason in again.reasons] == [BROKEN, WORSE]
    assert (again.open_count, again.next_deadline_ms) == (5, 77)


def test_a_long_run_of_messages_that_are_done_takes_few_bytes_in_the_journal():
    few, many = (len(verdicts([(1, range(count))]).to_bytes()) for count in (1, 100_000))
    assert few == many


@pytest.mark.parametrize(
    "outcome",
    [
        verdicts(done=[(1, [3])]),
        verdicts(acked=[(1, 3)]),
        verdicts(failed=[(1, 3, 0, 0)], reasons=[BROKEN]),
        verdicts(late=[(1, 3)]),
    ],
)
def test_verdicts_are_true_when_there_is_any(outcome):
    assert outcome
    assert not verdicts()


def test_verdicts_is_sorted_by_spout_task_and_by_what_befell():
    outcome = verdicts(
        done=[(1, [1, 7]), (3, [4]), (1, [10])],
        acked=[(2, 9), (1, 2)],
        failed=[(1, 3, 0, 0), (1, 4, 0, 2), (2, 8, 1, 0), (1, 6, 1, 0)],
        late=[(1, 5)],
        reasons=[BROKEN, WORSE],
    )
    verdict_batch = verdict_batches_of(outcome, 7, LATE)
    assert sorted(verdict_batch) == [1, 2, 3]
    assert sorted(verdict_batch[1].acked.tolist()) == [1, 2, 7, 10]
    failed = {
        (failure.reason, failure.others): sequences.tolist() for sequences, failure in verdict_batch[1].failed
    }
    assert failed == {
        (LATE.reason, 0): [5],
        (BROKEN.reason, 0): [3],
        (BROKEN.reason, 2): [4],
        (WORSE.reason, 0): [6],
    }
    assert verdict_batch[2].acked.tolist() == [9]
    assert [(sequences.tolist(), failure.reason) for sequences, failure in verdict_batch[2].failed] == [
        ([8], WORSE.reason)
    ]
    assert (verdict_batch[3].acked.tolist(), verdict_batch[3].failed) == ([4], ())
    assert verdict_batches_of(verdicts(), 7, LATE) == {}


def acker(**config):
    plan = Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), Config(**config), 1, 7)
    return Acker(plan)


def judged_at(acker, now_ms, *deltas):
    """The verdicts of one micro-batch."""
    rows = [WireRow(0, SINK_LEVEL, Kind.DELTAS, 0, 0, now_ms, b"", part.to_bytes()) for part in deltas]
    return acker.judge(rows, now_ms)


def test_an_acker_without_deltas_gives_no_verdict_and_goes_on_from_a_clock_set_back():
    steady = acker(message_timeout_secs=10)
    assert not judged_at(steady, 0)
    roots = root_ids(7, 1, np.array([0]))
    deltas = Deltas(init_roots=roots, init_sums=np.array([5]), init_owners=np.array([1], dtype=np.int32))
    assert judged_at(steady, 50_000, deltas).open_count == 1
    outcome = judged_at(steady, 20_000)  # somebody set the clock back
    assert (outcome.open_count, bool(outcome)) == (1, False)
    assert len(judged_at(steady, 29_999).timed_out.roots) == 0
    assert judged_at(steady, 31_000).timed_out.roots.tolist() == roots.tolist()


def test_what_a_micro_batch_opens_and_ends_is_named_by_its_sequences_and_never_enters_the_ledger():
    mine = acker()
    opened = Deltas(opened=(Opened(1, 40, 43),), sequence_sums=(SequenceSums(1, 40, np.array([5, 6, 7])),))
    acked = Deltas(sequence_sums=(SequenceSums(1, 40, np.array([5, 6, 1])),))
    outcome = judged_at(mine, 0, opened, acked)
    assert [(task, sequences.tolist()) for task, sequences in outcome.done] == [(1, [40, 41])]
    assert mine.ledger.open_count == outcome.open_count == 1
    # And what it leaves open, by its root, in whichever form the rest is reported.
    alone = Deltas(ack_roots=root_ids(7, 1, np.array([42])), ack_sums=np.array([6]))
    outcome = judged_at(mine, 0, alone)
    assert (outcome.done, outcome.acked.roots.tolist(), outcome.acked.owners.tolist()) == (
        [],
        alone.ack_roots.tolist(),
        [1],
    )


def test_of_the_reasons_only_those_that_failed_a_message_are_kept():
    failing = Deltas(
        fail_roots=np.array([9, *root_ids(7, 1, np.array([41, 40, 41]))]), failures=np.array([0, 1, 2, 1]),
        reasons=(b"nobody's", b"of 41", b"of 40"), opened=(Opened(1, 40, 42),),
        sequence_sums=(SequenceSums(1, 40, np.array([0, 0])),),
    )  # fmt: skip
    outcome = judged_at(acker(), 0, failing)
    said = {
        root: (outcome.reasons[at], others)
        for root, at, others in zip(
            outcome.failed.roots.tolist(), outcome.failures, outcome.others.tolist(), strict=True
        )
    }
    of_40, of_41 = root_ids(7, 1, np.array([40, 41])).tolist()
    assert said == {of_40: (b"of 40", 0), of_41: (b"of 41", 1)}
    assert len(outcome.reasons) == 2
    assert outcome.done == []  # their sums are zero, and yet


# ---- ticks -----------------------------------------------------------------------------------------------


def test_a_tick_is_due_after_each_interval_and_what_was_missed_is_missed():
    topology = in_a_row(FeederSpout(["value"]), Calls(print), TickingBolt())
    plan = Plan.of(topology, Config(), 1, 0)
    ticks = Ticks(plan, 1_000)
    level = plan.level_of["b1"]
    assert ticks.next_ms() == 6_000
    assert ticks.due(5_999) == {}
    assert ticks.due(6_000) == {level: {"b1": 5.0}}
    assert ticks.due(6_000) == {}
    assert ticks.due(22_000) == {level: {"b1": 5.0}}
    assert ticks.next_ms() == 26_000
    assert Ticks(Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), Config(), 1, 0), 0).next_ms() is None


def test_after_a_clock_was_set_back_the_next_tick_comes_an_interval_later():
    topology = in_a_row(FeederSpout(["value"]), Calls(print), TickingBolt())
    plan = Plan.of(topology, Config(), 1, 0)
    ticks = Ticks(plan, 3_600_000)
    assert ticks.due(1_000) == {}
    assert ticks.next_ms() == 6_000
    assert ticks.due(5_999) == {}
    assert ticks.due(6_000) == {plan.level_of["b1"]: {"b1": 5.0}}


def test_an_interval_shorter_than_a_millisecond_ticks_each_millisecond():
    class Fast(TickingBolt):
        tick_secs = 0.0001

    ticks = Ticks(Plan.of(in_a_row(FeederSpout(["value"]), Fast()), Config(), 1, 0), 0)
    assert ticks.due(0)
    assert ticks.next_ms() == 1


# ---- given-up records ------------------------------------------------------------------------------------


def record(values, target=None, failure=WORSE):
    """A given-up record."""
    place = Attempt(("tag", 3), 0, 0, 41, 2, 1_000, "default")
    return GivenUpRecord("source", 1, place, failure, -77, values, target, 9_000)


def test_a_letter_has_all_that_is_known_of_its_message():
    topology = in_a_row(FeederSpout(["value"]), Calls(print), retry=Retry(max_attempts=2))
    letter = letter_of(record(encode_rows(["value"], [[(1, "x")]])), topology, 4)
    assert letter == DeadLetter(
        id=4, topology="bench", spout="source", task_id=1, stream="default", root=-77,
        message_id_repr="('tag', 3)", fields=("value",), payload=letter.payload, reason="KeyError: 'worse'",
        kind=WORSE.kind, cause=WORSE.cause, component="c", exception_type="builtins.KeyError",
        traceback=WORSE.traceback, attempts=2, first_emitted_ms=1_000, dead_ms=9_000,
    )  # fmt: skip
    assert letter.values == [(1, "x")]
    late = letter_of(record(encode_rows(["value"], [[1]]), failure=LATE), topology)
    assert (late.id, late.traceback) == (None, None)


@pytest.mark.parametrize("target", [None, 7])
@pytest.mark.parametrize("metadata", [None, {b"own": b"1"}])
def test_a_letter_comes_back_as_it_was_with_its_target(target, metadata):
    topology = in_a_row(FeederSpout(["value"]), Calls(print))
    values = encode_rows(["value"], [["x"]]).replace_schema_metadata(metadata)
    letter = letter_of(record(values, target), topology, 4)
    again = redriven_letter(letter)
    assert (again.letter_id, again.stream, again.target) == (4, "default", target)
    assert again.values.equals(values)
    assert again.values.schema.metadata == metadata
    assert letter.values == ["x"]


def test_a_letter_that_was_not_stored_cannot_come_back():
    letter = letter_of(
        record(encode_rows(["value"], [["x"]])), in_a_row(FeederSpout(["value"]), Calls(print))
    )
    with pytest.raises(ProtocolError, match="was not stored"):
        redriven_letter(letter)


@given(values.filter(len))
def test_payloads_of_one_stream_are_put_together_as_they_were(rows):
    assert decode_rows(concat_rows([encode_rows(["f"], [row]) for row in rows])) == rows


def test_payloads_without_fields_keep_their_number():
    assert concat_rows([encode_rows([], [[]]), encode_rows([], [[]])]).num_rows == 2
    typed = pa.record_batch({"f": pa.array([1], pa.int32())})
    assert decode_rows(concat_rows([typed, encode_rows(["f"], [[2]])])) == [(1,), (2,)]


# ---- rows ------------------------------------------------------------------------------------------------


def test_what_was_acked_is_reported_once():
    lineage = Runs.of_rows(np.array([5, 5, 6]), np.array([1, 2, 4]))
    rows = InboundRows("a", "s", 1, ("f",), lineage, [(0, 1, 2)])
    assert rows.newly_acked() is None
    rows.fate[0] = rows.fate[2] = FATES.index("acked")
    rows.ack_values[0] = 8
    assert [part.tolist() for part in rows.newly_acked()] == [[5, 6], [9, 4]]
    assert rows.newly_acked() is None
    rows.fate[1] = FATES.index("acked")
    assert [part.tolist() for part in rows.newly_acked()] == [[5], [2]]
    whole = InboundRows("a", "s", 1, ("f",), lineage, [(0, 1, 2)])
    whole.fate[:] = bytes([FATES.index("acked")] * 3)
    assert [part.tolist() for part in whole.newly_acked()] == [[5, 6], [3, 4]]


def test_a_row_knows_its_roots_and_attempts():
    tried = Runs.of_rows(np.array([5, 6]), np.array([1, 2]), np.array([3, 1], dtype=np.int32))
    rows = InboundRows("a", "s", 1, ("f",), tried, [(0, 1)])
    assert [rows.attempt_of(row) for row in (0, 1)] == [3, 1]
    assert [tried.root_attempts(row) for row in (0, 1)] == [{5: 3}, {6: 1}]
    assert Runs.of_rows(np.array([5]), np.array([1])).root_attempts(0) == {}
    joined = Sparse.of_anchors([{5: 1, 6: 2}, {}], {5: 3})
    assert [joined.root_attempts(row) for row in (0, 1)] == [{5: 3, 6: 1}, {}]
    assert Sparse.untracked(1).root_attempts(0) == {}
    assert rows.anchors_of(1) == {6: 2}


def test_the_id_of_a_redriven_message_names_its_letter():
    assert Redriven(3) == Redriven(3) != Redriven(4)
