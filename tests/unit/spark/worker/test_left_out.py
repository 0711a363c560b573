"""A tuple of no message that kills its worker is left out and reported as an error; nothing stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Config, TopologyBuilder
from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.tasks.bolts.level import run_level
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.bolts.rows.row_names import Names
from acktree.testing import local_levels
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench

pytestmark = pytest.mark.usefixtures("each_level_in_a_child")


def passes(*poison: int) -> Calls:
    """Passes numbers on, and dies of some."""

    def execute(bolt, tup, collector):
        if tup["value"] in poison:
            os._exit(9)
        return tup["value"]

    return Calls(execute)


def executed(running: Any, component: str) -> int:
    return running.running.stats()[component].total.executed


def killed(running: Any, component: str) -> list[str]:
    reasons = running.reasons(component)
    assert all("exited with code 9, 2 times over this tuple" in reason for reason in reasons), reasons
    return reasons


def in_one_level(first: BasicBolt, second: BasicBolt) -> Callable[[TopologyBuilder], object]:
    """Two bolts, b0 and b1, with no shuffle between them."""

    def build(builder: TopologyBuilder) -> None:
        builder.set_bolt("b0", first).global_grouping("source")
        builder.set_bolt("b1", second).local_or_shuffle_grouping("b0")

    return build


def test_a_message_without_an_id_is_left_out_and_reported_as_an_error() -> None:
    with bench(passes(3, 8), passes()) as running:
        running.feed(*(([n], None) for n in range(10)))
        assert (executed(running, "b0"), executed(running, "b1")) == (10, 8)
        assert len(killed(running, "b0")) == 2
        assert running.running.stats()["b0"].total.errors == 2
        assert (running.acked, running.failures) == ([], {})
        running.feed(([11], None))
        assert executed(running, "b1") == 9


def test_whether_they_are_tracked_or_not_each_that_kills_is_found_and_no_neighbour() -> None:
    with bench(passes(2, 3, 8), passes()) as running:
        running.feed(*(([n], n if n % 2 else None) for n in range(10)))
        assert sorted(running.acked) == [1, 5, 7, 9]
        assert {n: failure.cause for n, failure in running.failures.items()} == {
            3: FailureCause.KILLED_WORKER
        }
        assert (executed(running, "b1"), len(killed(running, "b0"))) == (7, 3)


def test_bolts_of_one_level_may_each_have_poison_of_their_own() -> None:
    with bench(passes(3), passes(0, 5, 9), passes()) as running:
        running.feed(*(([n], None) for n in range(10)))
        assert [executed(running, bolt) for bolt in ("b0", "b1", "b2")] == [10, 9, 6]
        assert (len(killed(running, "b0")), len(killed(running, "b1"))) == (1, 3)


def test_an_unanchored_tuple_that_kills_does_not_fail_its_parent() -> None:
    def sends_on_its_way(bolt, tup):
        bolt.collector.emit([tup["value"]])
        bolt.collector.ack(tup)

    with bench(CallsByHand(sends_on_its_way), passes(1), passes()) as running:
        running.feed(0, 1, 2)
        assert sorted(running.acked) == [0, 1, 2]
        assert (executed(running, "b2"), len(killed(running, "b1"))) == (2, 1)


class Whole(ArrowBolt):
    outputs = pa.schema([("value", pa.int64())])

    def execute_batch(self, batch, collector):
        if {3, 8} & set(batch["value"].to_pylist()):
            os._exit(9)
        collector.emit_batch(batch, parents=range(batch.num_rows))


def test_without_ackers_a_batch_is_cut_until_the_rows_that_kill_are_alone() -> None:
    outputs = pa.schema([("value", pa.int64())])
    with bench(Whole(), passes(), outputs=outputs, config=Config(acker_executors=0)) as running:
        running.feed(*range(10))
        assert executed(running, "b1") == 8
        assert len(killed(running, "b0")) == 2
        assert sorted(running.acked) == list(range(10))  # which says nothing about bolts, without ackers


def test_a_row_left_out_before_others_of_its_level_moves_no_blame_to_a_neighbour(tmp_path: Path) -> None:
    """The second bolt's killer is found first; then the first dies of a row before it, and all move up."""
    deaths = tmp_path / "deaths"

    def dies_of_2_when_the_other_was_found(bolt, tup, collector):
        if tup["value"] == 2 and deaths.exists() and deaths.stat().st_size >= 2:
            os._exit(9)
        return tup["value"]

    def dies_of_5(bolt, tup, collector):
        if tup["value"] == 5:
            with deaths.open("a") as file:
                file.write("x")
            os._exit(9)

    with bench(build=in_one_level(Calls(dies_of_2_when_the_other_was_found), Calls(dies_of_5))) as running:
        assert [level.bolts for level in running.running.plan.levels] == [(), ("b0", "b1")]
        running.feed(*range(10))
        assert sorted(running.failures) == [2, 5]
        assert sorted(running.acked) == [0, 1, 3, 4, 6, 7, 8, 9]
        assert deaths.stat().st_size == 2, "what was found once is not found again"


def test_a_row_that_kills_after_a_bolt_that_emits_other_rows_each_time_is_found(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def emits_one_more_each_time(bolt, tup, collector):
        if tup["value"] == 0:
            with runs.open("a") as file:
                file.write("x")
            for _ in range(runs.stat().st_size):
                collector.emit([0])
        return tup["value"]

    with bench(build=in_one_level(Calls(emits_one_more_each_time), passes(5))) as running:
        running.feed(*range(10))
        assert sorted(running.failures) == [5]
        assert runs.stat().st_size == 3


def test_only_rows_that_a_bolt_of_the_same_level_emits_may_have_another_position_in_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = set()

    class Listens(ExecutionMonitor):
        def names_of(self, frame: Frame, task: int, *, moves: bool) -> Names:
            seen.add((frame.component, frame.subscriber, moves))
            return super().names_of(frame, task, moves=moves)

    monkeypatch.setattr(local_levels, "run_level", partial(run_level, monitor=Listens()))

    def behind_a_spout(builder: TopologyBuilder) -> None:
        in_one_level(passes(), passes())(builder)
        builder.set_bolt("beside", passes()).local_or_shuffle_grouping("source")

    with bench(build=behind_a_spout) as running:
        assert [level.bolts for level in running.running.plan.levels] == [("beside",), ("b0", "b1")]
        running.feed(1, 2)
    assert seen == {("source", "b0", False), ("source", "beside", False), ("b0", "b1", True)}
