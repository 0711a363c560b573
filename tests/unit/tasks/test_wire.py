"""What the tasks hand to one another: chunks, ticks, verdicts, mail, wills. Read, it is as it was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, Retry
from acktree.core.deltas import Deltas
from acktree.core.frames import Kind, WireRow
from acktree.core.ids import root_ids
from acktree.core.lineage import Runs, Sparse
from acktree.core.state import MemoryStore
from acktree.core.values import decode_rows, encode_rows
from acktree.core.verdicts import Failure
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.wills import letter_of, redriven_letter
from acktree.errors import ProtocolError
from acktree.tasks.acker_task import Verdicts, run_acker
from acktree.tasks.chunk import Chunk
from acktree.tasks.mail import mail_of
from acktree.tasks.outputs import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.retries import Attempt, LastWill, Redriven, concat_rows
from acktree.tasks.rows import FATES, InboundRows
from acktree.tasks.ticks import Ticks
from acktree.testing import FeederSpout
from tests.unit.tasks.test_bolt_task import Ticks as TickingBolt
from tests.unit.tasks.workbench import Calls, in_a_row

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


def verdicts(acked=(), failed=(), late=(), reasons=(), task=1):
    """Verdicts on sequences of a spout task, under salt 7."""

    def judged(sequences):
        roots = root_ids(7, task, np.array(sequences, dtype=np.int64))
        return roots, np.full(len(roots), task, dtype=np.int32)

    which = np.array([reason for _, reason, _ in failed], dtype=np.int64)
    others = np.array([others for _, _, others in failed], dtype=np.int64)
    packed = tuple(reason.to_bytes() for reason in reasons)
    return Verdicts(
        *judged(acked), *judged([n for n, _, _ in failed]), which, others, *judged(late), packed, 5, 77
    )


BROKEN, WORSE = failure_of(ValueError("broken"), "b"), failure_of(KeyError("worse"), "c")
LATE = replace(BROKEN, reason="late", exception=None, traceback=None)


def test_verdicts_are_what_they_were_after_the_wire():
    told = verdicts([1, 2], [(3, 0, 0), (4, 1, 2)], [5], [BROKEN, WORSE])
    again = Verdicts.from_bytes(told.to_bytes())
    for name in ("acked", "acked_owners", "failed", "failed_owners", "failures", "others", "timed_out"):
        assert getattr(again, name).tolist() == getattr(told, name).tolist()
    assert [Failure.from_bytes(reason) for reason in again.reasons] == [BROKEN, WORSE]
    assert (again.open_count, again.next_deadline_ms) == (5, 77)


def test_mail_is_sorted_by_spout_task_and_by_what_befell():
    told = [
        verdicts([1, 2], [(3, 0, 0), (4, 0, 2), (6, 1, 0)], [5], [BROKEN, WORSE]),
        verdicts([9], [(8, 0, 0)], reasons=[WORSE], task=2),
        verdicts(task=4),
    ]
    mail = mail_of(told, 7, LATE)
    assert sorted(mail) == [1, 2]
    assert mail[1].acked.tolist() == [1, 2]
    failed = {(failure.reason, failure.others): sequences.tolist() for sequences, failure in mail[1].failed}
    assert failed == {
        (LATE.reason, 0): [5],
        (BROKEN.reason, 0): [3],
        (BROKEN.reason, 2): [4],
        (WORSE.reason, 0): [6],
    }
    assert mail[2].acked.tolist() == [9]
    assert [(sequences.tolist(), failure.reason) for sequences, failure in mail[2].failed] == [
        ([8], WORSE.reason)
    ]


def test_an_acker_without_rows_says_nothing_and_its_clock_never_goes_back():
    plan = Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), Config(message_timeout_secs=10), 1, 7)
    store = MemoryStore()
    assert run_acker(plan, 0, [], store) == []
    roots = root_ids(7, 1, np.array([0]))
    deltas = Deltas(init_roots=roots, init_sums=np.array([5]), init_owners=np.array([1], dtype=np.int32))
    level = plan.acker_level

    def at(now_ms, *bodies):
        rows = [WireRow(0, level, Kind.CLOCK, 0, 0, now_ms, b"", b"")]
        rows += [WireRow(0, level, Kind.DELTAS, 0, 0, now_ms, b"", body) for body in bodies]
        (told,) = (row for row in run_acker(plan, 0, rows, store) if row.kind == Kind.VERDICTS)
        return told.clock_ms, Verdicts.from_bytes(told.body)

    assert at(50_000, deltas.to_bytes())[1].open_count == 1
    clock_ms, told = at(20_000)  # somebody set the clock back
    assert (clock_ms, told.open_count) == (50_000, 1)
    assert len(at(59_000)[1].timed_out) == 0
    assert at(62_000)[1].timed_out.tolist() == roots.tolist()


@given(st.integers(1, 9), st.integers(1, 9))
def test_acker_tasks_are_spread_over_partitions_and_each_is_in_one(ackers, partitions):
    config = Config(acker_executors=ackers)
    plan = Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), config, partitions, 7)
    told = []
    for partition in range(partitions):
        rows = [WireRow(partition, plan.acker_level, Kind.CLOCK, 0, 0, 0, b"", b"")]
        told += [row.source for row in run_acker(plan, partition, rows, MemoryStore())]
    assert sorted(told) == [*range(ackers)]


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


def test_an_interval_shorter_than_a_millisecond_ticks_each_millisecond():
    class Fast(TickingBolt):
        tick_secs = 0.0001

    ticks = Ticks(Plan.of(in_a_row(FeederSpout(["value"]), Fast()), Config(), 1, 0), 0)
    assert ticks.due(0)
    assert ticks.next_ms() == 1


# ---- wills -----------------------------------------------------------------------------------------------


def will(values, target=None, failure=WORSE):
    """A last will."""
    place = Attempt(("tag", 3), 0, 0, 41, 2, 1_000, "default")
    return LastWill("source", 1, place, failure, -77, values, target, 9_000)


def test_a_letter_tells_the_whole_story():
    topology = in_a_row(FeederSpout(["value"]), Calls(print), retry=Retry(max_attempts=2))
    letter = letter_of(will(encode_rows(["value"], [[(1, "x")]])), topology, 4)
    assert letter == DeadLetter(
        id=4, topology="bench", spout="source", task_id=1, stream="default", root=-77,
        message_id_repr="('tag', 3)", fields=("value",), payload=letter.payload, reason="KeyError: 'worse'",
        kind=WORSE.kind, cause=WORSE.cause, component="c", exception_type="builtins.KeyError",
        traceback=WORSE.traceback, attempts=2, first_emitted_ms=1_000, dead_ms=9_000,
    )  # fmt: skip
    assert letter.values == [(1, "x")]
    late = letter_of(will(encode_rows(["value"], [[1]]), failure=LATE), topology)
    assert (late.id, late.traceback) == (None, None)


@pytest.mark.parametrize("target", [None, 7])
@pytest.mark.parametrize("metadata", [None, {b"own": b"1"}])
def test_a_letter_comes_back_as_it_was_with_its_target(target, metadata):
    topology = in_a_row(FeederSpout(["value"]), Calls(print))
    values = encode_rows(["value"], [["x"]]).replace_schema_metadata(metadata)
    letter = letter_of(will(values, target), topology, 4)
    again = redriven_letter(letter)
    assert (again.letter_id, again.stream, again.target) == (4, "default", target)
    assert again.values.equals(values)
    assert again.values.schema.metadata == metadata
    assert letter.values == ["x"]


def test_a_letter_that_was_not_stored_cannot_come_back():
    letter = letter_of(will(encode_rows(["value"], [["x"]])), in_a_row(FeederSpout(["value"]), Calls(print)))
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


def test_what_was_acked_is_told_once():
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
