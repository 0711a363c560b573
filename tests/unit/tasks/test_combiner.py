"""The acker behind combining tasks decides what it decides without: verdicts, changes of the ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.tracking.deltas import Deltas
from acktree.errors import ProtocolError
from acktree.tasks.acker import Acker
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.broadcast import Broadcast, OperatorOrder
from acktree.tasks.combiner import run_combiner
from acktree.tasks.plan import COMBINED_FROM, Plan
from acktree.testing import FeederSpout
from tests.unit.core.tracking.test_combining import micro_batches, root, small_numbers
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row

SALT = 5


def plan_of(partitions, **settings):
    config = Config(message_timeout_secs=1, **settings)
    return Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), config, partitions, SALT)


def rows_of(parts, plan, clock_ms):
    """The rows that reach the acker of this plan, and how many combining tasks spoke."""
    rows = []
    for partition, part in enumerate(parts):
        outputs = Outputs(plan, partition, 0, clock_ms)
        rows += outputs._rows_of(part)
    told = [
        row
        for combiner in range(plan.combiners)
        for row in run_combiner(
            plan,
            combiner,
            [row for row in rows if (row.level, row.partition) == (plan.combining_level, combiner)],
        )
    ]
    return [row for row in rows if row.level == SINK_LEVEL] + told


def content(verdicts):
    """Verdicts in no order; failures with their reasons."""
    judged = {
        name: sorted(zip(which.roots.tolist(), which.owners.tolist(), strict=True))
        for name, which in (("acked", verdicts.acked), ("timed_out", verdicts.timed_out))
    }
    failed = sorted(
        (each, owner, verdicts.reasons[index], others)
        for each, owner, index, others in zip(
            verdicts.failed.roots.tolist(), verdicts.failed.owners.tolist(), verdicts.failures.tolist(),
            verdicts.others.tolist(), strict=True,
        )
    )  # fmt: skip
    done = sorted((task, at) for task, sequences in verdicts.done for at in sequences.tolist())
    return judged, failed, done, verdicts.open_count, verdicts.next_deadline_ms, verdicts.late_count


def reopened(parts, batch):
    """The same where no message is opened in two micro-batches."""
    if batch == 0:
        return parts
    return [
        replace(part, opened=(), init_roots=part.init_roots[:0], init_sums=part.init_sums[:0],
                init_owners=part.init_owners[:0])
        for part in parts
    ]  # fmt: skip


@given(st.lists(micro_batches(), min_size=1, max_size=3), st.sampled_from([16, 24, 100]))
def test_with_combining_tasks_the_acker_decides_what_it_decides_without(batches, partitions):
    plan, bare = plan_of(partitions), plan_of(COMBINED_FROM - 1)
    assert (plan.combiners > 0, bare.combiners) == (True, 0)
    combined, alone = Acker(plan), Acker(bare)
    with small_numbers():
        for batch, drawn in enumerate(batches):
            parts, clock_ms = reopened(drawn, batch), 700 * batch
            one = combined.judge(rows_of(parts, plan, clock_ms), clock_ms)
            other = alone.judge(rows_of(parts, bare, clock_ms), clock_ms)
            assert content(one) == content(other)
            assert one.change == other.change  # the ledger's log has the same bytes
            assert combined.rows_left.roots.tolist() == alone.rows_left.roots.tolist()


def test_fewer_than_sixteen_partitions_have_no_combining_task_and_untracked_topologies_never():
    assert [plan_of(partitions).combiners for partitions in (1, 15, 16, 17, 100, 1000)] == [
        0,
        0,
        2,
        3,
        13,
        125,
    ]
    assert plan_of(100, acker_executors=0).combiners == 0


def test_rows_that_the_driver_gets_for_other_reasons_pass_the_combining_tasks_which_share_them():
    for partitions, through in ((2, 0), (100, 1)):
        outputs = Outputs(plan_of(partitions), 1, 0, 0)
        outputs.open(1, 0, np.array([0, 0]))
        outputs.payload(np.array([1]), b"values")
        outputs.forgotten("b", np.array([3]))
        sent = {
            row.kind: (row.level, row.partition) for row in outputs.wire_rows() if row.kind != Kind.DELTAS
        }
        assert sent == dict.fromkeys((Kind.PAYLOADS, Kind.FORGOTTEN, Kind.STATISTICS), (SINK_LEVEL, through))


def test_ticks_and_orders_of_a_run_with_more_levels_have_no_effect_in_a_combining_task():
    left = [Broadcast({"b": 1.0}, OperatorOrder(0.5)).row(0, 1)]
    assert list(run_combiner(plan_of(16), 0, left)) == []


def test_a_combining_task_refuses_what_is_not_for_it_and_says_nothing_where_it_was_told_nothing():
    plan = plan_of(16)
    assert list(run_combiner(plan, 0, [])) == []
    with pytest.raises(ProtocolError, match="a row of kind 1 reached a combining task"):
        list(run_combiner(plan, 0, [WireRow(0, 1, Kind.FRAME, 0, 0, 0, b"", b"")]))


@pytest.mark.parametrize("partitions", [1, 16])
def test_a_row_that_is_open_and_opened_once_more_is_an_error_also_if_it_is_done_at_once(partitions):
    plan = plan_of(partitions)
    acker = Acker(plan)
    opens = Deltas(
        init_roots=np.array([7, 8]),
        init_sums=np.array([3, 3]),
        init_owners=np.array([-3, -3], dtype=np.int32),
    )
    acker.judge(rows_of([opens], plan, 0), 0)
    again = replace(opens, ack_roots=np.array([7, 8]), ack_sums=np.array([3, 3]))
    with pytest.raises(ProtocolError, match="open twice"):
        acker.judge(rows_of([again], plan, 1), 1)
    assert acker.ledger.open_count == 2


def test_a_sum_of_zero_of_an_old_message_is_not_sent():
    ack = Deltas(ack_roots=np.array([root(1, 5)]), ack_sums=np.array([6]))
    plan = plan_of(16)
    assert len(rows_of([ack], plan, 0)) == 1
    assert rows_of([ack, ack], plan, 0) == []
