"""A topology on Spark, from submit to its end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, IterableSpout, Retry, Spout, TopologyBuilder, submit
from acktree.errors import CheckpointError, MisuseError, SpoutError
from acktree.spark.session.settings import _HDFS_WAITS, _set_short_waits, prepare_session
from acktree.testing import FeederSpout
from tests.scenarios.running_calls import make_all_calls, watched
from tests.spark.topologies import BatchSink, Hoard, Notebook, PoisonedEvery, Tally, counted, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_one_percent_of_poison_fails_one_percent_of_the_messages_and_the_query_never_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("poison")
    builder.set_spout("numbers", IterableSpout(range(10_000), ["n"]), retry=Retry(max_attempts=1))
    builder.set_bolt("poisoned", PoisonedEvery(100), parallelism=2).shuffle_grouping("numbers")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        query = running._supervisor._query._query
        assert running.await_termination(timeout_secs=120)
        assert running._supervisor._query._query is query
        assert query.exception() is None
        totals = running.stats()["numbers"].total
        assert (totals.acked, totals.failed, totals.timed_out) == (9_900, 100, 0)
        letters = list(running.dead_letters)
    assert sorted(letter.values[0] for letter in letters) == list(range(0, 10_000, 100))
    assert {letter.reason for letter in letters} == {
        f"ValueError: {n} is poison" for n in range(0, 10_000, 100)
    }
    assert {(letter.component, letter.attempts) for letter in letters} == {("poisoned", 1)}


def test_a_child_that_user_code_forks_does_not_keep_the_jvm(spark: SparkSession) -> None:
    prepare_session(spark)
    stdin = spark.sparkContext._gateway.proc.stdin.fileno()  # the JVM ends with the last holder of this pipe
    pid = os.fork()
    if not pid:
        try:
            os.fstat(stdin)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_files_at_hdfs_are_closed_soon_and_what_the_user_set_stays(spark: SparkSession) -> None:
    conf = spark._jvm.org.apache.hadoop.conf.Configuration()  # the session's remembers what was set before
    delay, retries = _HDFS_WAITS
    conf.set(retries, "5")  # what Hadoop ships, but the user's
    _set_short_waits(conf)
    assert (conf.get(delay), conf.get(retries)) == (_HDFS_WAITS[delay], "5")
    prepare_session(spark, is_folder=False)
    assert spark.sparkContext._jsc.hadoopConfiguration().get(delay) == _HDFS_WAITS[delay]
    prepare_session(spark)


class Environment(BasicBolt):
    """Writes which settings of the allocator its worker has."""

    def __init__(self, file: Path):
        self.file = file

    def execute(self, tup, collector):
        self.file.write_text(json.dumps(allocator_settings()))


def allocator_settings():
    return {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}


def test_workers_have_our_environment_except_what_the_user_set_and_other_queries_keep_theirs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
    for name, value in users.items():  # as spark.executorEnv.NAME does
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    builder = TopologyBuilder("environment")
    builder.set_spout("numbers", IterableSpout(range(1), ["n"]))
    builder.set_bolt("environment", Environment(tmp_path / "seen")).shuffle_grouping("numbers")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        assert running.await_termination(timeout_secs=120)
    assert json.loads((tmp_path / "seen").read_text()) == users | {"MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
    own = spark.sparkContext.parallelize([0], 1).map(lambda _: allocator_settings())
    assert own.collect() == [users]


def test_a_message_is_tried_again_until_its_attempts_are_used_up(spark: SparkSession, tmp_path: Path) -> None:
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("retries")
    builder.set_spout("numbers", feeder, retry=Retry(max_attempts=3, backoff_secs=(0.1, 0.2)))
    builder.set_bolt("poisoned", PoisonedEvery(2)).shuffle_grouping("numbers")
    builder.set_bolt("notes", Notebook(tmp_path)).global_grouping("poisoned")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        feeder.feed([1], message_id="odd")
        feeder.feed([2], message_id="even")
        feeder.end()
        assert running.await_termination(timeout_secs=120)
        assert feeder.acked == ["odd"]
        assert [(name, failure.attempt, failure.final) for name, failure in feeder.failed] == [
            ("even", 3, True)
        ]
        assert [(letter.values, letter.attempts) for letter in running.dead_letters] == [([2], 3)]
        assert running.stats()["poisoned"].total.executed == 4  # 1 + 3 attempts
    assert notes(tmp_path, "notes") == [["1"]]


def test_held_tuples_stay_open_over_micro_batches_and_are_acked_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("hoard")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("hoard", Hoard()).global_grouping("numbers")
    builder.set_bolt("notes", Notebook(tmp_path)).global_grouping("hoard")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        for n in (1, 2, 3):
            feeder.feed([n], message_id=n)
            wait_until(lambda n=n: running.stats()["hoard"].total.executed == n)
            assert feeder.acked == []
        feeder.feed([4], message_id=4)
        wait_until(lambda: len(feeder.acked) == 4)
        assert sorted(feeder.acked) == [1, 2, 3, 4]
        assert running.stats()["numbers"].open == 0
    assert notes(tmp_path, "notes") == [["10"]]


def test_a_forgotten_tuple_times_out_although_nothing_flows_and_then_the_query_is_at_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("forgotten")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("hoard", Hoard()).global_grouping("numbers")
    config = Config(message_timeout_secs=2)
    with submit(
        builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
    ) as running:
        wait_until(lambda: running.is_warm)
        fed_at = time.monotonic()
        feeder.feed([1], message_id="lost")
        wait_until(lambda: bool(feeder.failed))
        assert time.monotonic() - fed_at >= 2
        [(message_id, failure)] = feeder.failed
        assert (message_id, failure.kind, failure.cause) == ("lost", "TIMED_OUT", "TIMEOUT")
        assert running.await_idle(timeout_secs=60)
        before = running._run.results.progress.batch_id
        assert not running.await_termination(timeout_secs=3)
        assert running._run.results.progress.batch_id == before


def test_without_ackers_every_message_is_acked_and_the_end_waits_for_the_last_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("untracked")
    builder.set_spout("numbers", IterableSpout(range(500), ["n"]))
    builder.set_bolt("poisoned", PoisonedEvery(100), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("notes", Notebook(tmp_path)).global_grouping("poisoned")
    config = Config(acker_executors=0)
    with submit(
        builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
    ) as running:
        assert running.await_termination(timeout_secs=120)
        assert running.stats()["numbers"].total.acked == 500
    assert len(notes(tmp_path, "notes")) == 495


def test_the_same_topology_with_the_same_salt_names_every_root_and_edge_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    def ids(place: Path) -> list[list[str]]:
        place.mkdir()
        topology = counted_anchors(place)
        config = Config(run_salt=11)
        with submit(topology, checkpoint=place / "checkpoint", spark=spark, config=config) as running:
            assert running.await_termination(timeout_secs=120)
        return sorted(notes(place, "notes"))

    first, second = ids(tmp_path / "first"), ids(tmp_path / "second")
    assert first == second
    assert len({tuple(line) for line in first}) == len(first) == 200


def test_a_spout_that_cannot_be_opened_stops_the_topology_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Locked(Spout):
        outputs = ["n"]

        def open(self, config, context, collector):
            raise ConnectionError("the queue is not there")

        def next_tuple(self):
            raise AssertionError

    builder = TopologyBuilder("locked")
    builder.set_spout("numbers", Locked())
    builder.set_bolt("tally", PoisonedEvery(2)).shuffle_grouping("numbers")
    running = submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark)
    with pytest.raises(SpoutError, match="the queue is not there"):
        running.await_termination(timeout_secs=120)


def test_a_checkpoint_serves_one_driver_and_one_shape(spark: SparkSession, tmp_path: Path) -> None:
    topology = counted(FeederSpout(["n"]), tmp_path)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        with pytest.raises(CheckpointError, match="another driver"):
            submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark)
        with pytest.raises(MisuseError, match="rebalanced"):
            running.rebalance(partitions=3)
    builder = TopologyBuilder("counted")
    builder.set_spout("numbers", FeederSpout(["n"]))
    builder.set_bolt("tally", Tally(), parallelism=3).fields_grouping("numbers", ["n"])
    with pytest.raises(CheckpointError, match="'tally' has parallelism 3 now, and had 2"):
        submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark)


def test_an_ended_topology_stays_ended(spark: SparkSession, tmp_path: Path) -> None:
    topology = counted(IterableSpout(range(50), ["n"]), tmp_path)
    for wanted in (50, 0):
        with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
            assert running.await_termination(timeout_secs=120)
            assert running.stats()["numbers"].total.acked == wanted


def test_a_redriven_dead_letter_is_tried_again_and_its_source_gets_no_verdict(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("redriven")
    builder.set_spout("numbers", feeder, retry=Retry(max_attempts=1))
    builder.set_bolt("healing", HealsBy(tmp_path / "cured")).shuffle_grouping("numbers")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        feeder.feed([7], message_id="seven")
        wait_until(lambda: len(running.dead_letters) == 1)
        [letter] = running.dead_letters
        (tmp_path / "cured").touch()
        assert running.dead_letters.redrive([letter.id]) == 1
        wait_until(lambda: running.stats()["numbers"].total.acked == 1)
        assert running.await_idle(timeout_secs=60)
        assert (feeder.acked, [name for name, _ in feeder.failed]) == ([], ["seven"])


def wait_until(done, secs: float = 120) -> None:
    """Until a condition holds; a test that waits in vain fails. It looks more seldom where it takes long."""
    deadline, pause = time.monotonic() + secs, 0.005
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
        pause = min(0.05, 1.2 * pause)


class HealsBy(PoisonedEvery):
    """Raises until a file is there."""

    def __init__(self, file: Path):
        super().__init__(1)
        self.file = file

    def execute(self, tup, collector):
        if self.file.exists():
            collector.emit([tup["n"]])
        else:
            super().execute(tup, collector)


def counted_anchors(place: Path):
    """numbers -> two children each -> their ids in a notebook."""
    builder = TopologyBuilder("anchors")
    builder.set_spout("numbers", IterableSpout(range(100), ["n"]))
    builder.set_bolt("twice", Twice(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("notes", AnchorNotebook(place), parallelism=2).fields_grouping("twice", ["n"])
    return builder.create_topology()


class Twice(PoisonedEvery):
    """Emits what it is given twice."""

    def __init__(self):
        super().__init__(1)

    def execute(self, tup, collector):
        collector.emit([tup["n"]])
        collector.emit([tup["n"]])


class AnchorNotebook(Notebook):
    """Notes the ids and not the values."""

    def execute(self, tup, collector):
        with self.file.open("a") as file:
            file.write(f"{tup['n']}\t{tup.anchors}\n")


def test_a_sink_that_flushes_writes_once_a_micro_batch_and_fails_what_it_could_not_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("flush")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("sink", BatchSink(tmp_path)).global_grouping("numbers")
    builder.set_bolt("count", Notebook(tmp_path)).global_grouping("sink")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        for number in (1, 2, 3):
            feeder.feed([number], message_id=number)
        assert running.await_idle(120)
        feeder.feed([-4], message_id=-4)
        assert running.await_idle(120)
        feeder.end()
        assert running.await_termination(timeout_secs=120)
        totals = running.stats()["sink"].total
    assert sorted(feeder.acked) == [1, 2, 3]
    assert [(number, failure.reason) for number, failure in feeder.failed] == [
        (-4, "ValueError: a negative number")
    ]
    lines = (tmp_path / "written").read_text().splitlines()
    assert sorted(n for line in lines for n in json.loads(line)) == [1, 2, 3]
    assert notes(tmp_path, "count") == [[str(len(json.loads(line)))] for line in lines]
    assert (totals.acked, totals.failed) == (3, 1)


def test_what_is_fed_before_await_idle_is_waited_for_each_time(spark: SparkSession, tmp_path: Path) -> None:
    check_that_await_idle_waits_for_what_is_fed(spark, tmp_path, Config())


def check_that_await_idle_waits_for_what_is_fed(session: SparkSession, folder: Path, config: Config) -> None:
    feeder, checkpoint = FeederSpout(["n"]), folder / "checkpoint"
    with submit(counted(feeder, folder), checkpoint=checkpoint, config=config, spark=session) as running:
        for number in range(4):
            feeder.feed([number], message_id=number)
            assert running.await_idle(120)
            assert feeder.acked == [*range(number + 1)]
        running.deactivate()
        feeder.feed([4], message_id=4)
        assert running.await_idle(120)
        running.activate()
        assert running.await_idle(120)
        assert feeder.acked == [*range(5)]


def test_a_submitted_topology_answers_every_call_of_a_running_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["line"])
    running = submit(watched(feeder), checkpoint=tmp_path / "checkpoint", spark=spark)
    make_all_calls(running, feeder)
