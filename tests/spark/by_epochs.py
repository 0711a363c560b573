"""Whole topologies by epochs on Spark: scenarios, drawn topologies, hostile values.

``test_real_time.py`` has pytest run it, in a network of its own: the session here is not that of other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, TopologyBuilder, submit
from acktree.spark.realtime.session import start_realtime_session
from acktree.testing import FeederSpout
from tests.generated import at_random
from tests.generated.tracker import Tracker
from tests.spark import test_acker_rules as rules
from tests.spark import test_agreement as agreement
from tests.spark.on_spark import SparkRunner
from tests.spark.realtime_driver import await_verdicts
from tests.spark.test_hostile import check_columns_by_every_grouping
from tests.spark.test_poison import check_a_message_that_stops_its_worker
from tests.spark.test_running import check_that_await_idle_waits_for_what_is_fed
from tests.unit.spark.realtime.test_on_epochs import CONFIG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 32
"""For the topology with the most levels."""
RULES = (
    "test_n1_a_tree_that_is_acked_over_several_micro_batches_makes_one_ack",
    "test_n2_e_a_fail_that_travels_with_the_init_is_kept_and_its_first_reason_reported",
    "test_n3_f_a_tuple_that_raises_after_its_ack_is_failed_although_every_edge_was_acked",
    "test_n9_a_child_of_two_messages_decides_on_both",
    "test_one_tuple_that_is_not_acked_keeps_its_message_from_being_acked",
)
"""All of them run by epochs without Spark, in tests/unit/spark/realtime/test_on_epochs.py."""


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    made = start_realtime_session("by epochs", SLOTS)
    yield made
    made.stop()


@pytest.fixture
def run(session: SparkSession, tmp_path: Path):
    """What the rules are given to run a scenario with."""
    return SparkRunner(session, tmp_path, real_time=True).run


globals().update({name: vars(rules)[name] for name in RULES})


def test_what_is_fed_before_await_idle_is_waited_for_each_time(session: SparkSession, tmp_path: Path) -> None:
    check_that_await_idle_waits_for_what_is_fed(session, tmp_path, CONFIG)


class Noting(BasicBolt):
    """Adds a line to a file when it is prepared, and when it is cleaned up."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def _note(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{what}\n")

    def prepare(self, config, context):
        self._note("prepare")

    def execute(self, tup, collector):
        pass

    def cleanup(self):
        self._note("cleanup")


def test_a_bolt_is_prepared_for_a_task_and_not_for_each_epoch(session: SparkSession, tmp_path: Path) -> None:
    numbers, builder = FeederSpout(["n"]), TopologyBuilder("prepared")
    builder.set_spout("numbers", numbers)
    builder.set_bolt("bolt", Noting(tmp_path / "calls")).shuffle_grouping("numbers")
    config = Config(partitions=1, real_time=True)
    with submit(
        builder.create_topology(), checkpoint=tmp_path / "checkpoint", config=config, spark=session
    ) as running:
        for n in range(12):
            numbers.feed([n], message_id=n)
            await_verdicts(running, numbers, [n])
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("prepare") <= 3, "for the first two epochs of the task, and to stay"
    assert calls.count("cleanup") == calls.count("prepare")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drawn_topologies_get_the_verdicts_that_their_trees_deserve(
    session: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = at_random.topology(seed, largest=300)
    found = agreement.run_on_spark(drawn, session, tmp_path / "checkpoint", CONFIG)
    assert not Tracker(drawn).outcome().differences(found)


def test_all_columns_by_every_grouping_have_the_verdicts_that_they_have_without_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    check_columns_by_every_grouping(session, tmp_path, Config(partitions=2, real_time=True))


def test_a_message_that_stops_its_worker_is_left_out_and_the_rest_is_acked(
    session: SparkSession, tmp_path: Path
) -> None:
    check_a_message_that_stops_its_worker(session, tmp_path, Config(partitions=2, real_time=True))
