"""What of a Kafka partition is done: the frontier never passes an open record, and what is above it stays."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("confluent_kafka")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acktree import Config
from acktree.connectors.kafka.native import (
    SOURCE_JARS,
    Frontier,
    GroupFrontier,
    client_settings,
    kafka_packages,
)
from acktree.connectors.kafka.progress import MOST_METADATA, OpenRuns, Partition, decode_done, encode_done
from acktree.core.data.context import TaskContext
from acktree.errors import ConfigError
from tests.drawn import drawn
from tests.services.kafka import SOURCE_JARS as TESTED_JARS

BATCH = pa.record_batch({"value": pa.array([], pa.binary())})


class OnePartition(RuleBasedStateMachine):
    """A partition beside a set of offsets that are open, over gaps, restarts and late verdicts."""

    def __init__(self):
        super().__init__()
        self.log_end = 0
        self.log: list[int] = []
        self.open: dict[int, int] = {}  # offset -> message id
        self.done: set[int] = set()
        self.read: set[int] = set()
        self.runs, self.late = OpenRuns(), []
        self.partition = Partition("t", 0, 0)

    @rule(steps=st.lists(st.integers(1, 5), min_size=1, max_size=6))
    def records_come(self, steps):
        """Offsets with gaps."""
        offsets = (self.log_end + np.cumsum(steps) - 1).astype(np.int64)
        self.log_end = int(offsets[-1]) + 1
        self.log += offsets.tolist()
        self._read(offsets)

    def _read(self, offsets):
        fresh = offsets[self.partition.fresh(offsets)]
        self.partition.read_through(int(offsets[-1]))
        if len(fresh):
            run = self.runs.open(self.partition, fresh, BATCH)
            assert not self.done & set(fresh.tolist())  # what is done never comes again
            self.open.update(zip(fresh.tolist(), range(run.first_id, run.first_id + len(fresh)), strict=True))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def some_are_done(self, data):
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.open)), unique=True, min_size=1))
        self.runs.close([self.open.pop(offset) for offset in chosen])
        self.done.update(chosen)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_late_verdict_changes_nothing(self, data):
        before = self.partition.to_commit()
        self.runs.close(data.draw(st.lists(st.sampled_from(self.late), min_size=1)))
        assert self.partition.to_commit() == before

    @rule()
    def another_member_continues(self):
        frontier, metadata = self.partition.to_commit()
        assert sorted(self.partition.open_ids()) == sorted(self.open.values())
        self.late += self.open.values()
        self.runs.forget(self.partition)
        self.open = {}
        self.partition = Partition("t", 0, frontier, decode_done(frontier, metadata))
        again = np.array([offset for offset in self.log if offset >= frontier], dtype=np.int64)
        if len(again):
            self._read(again)

    @invariant()
    def the_frontier_is_the_lowest_open_offset(self):
        assert self.partition.frontier == min(self.open, default=self.log_end)

    @invariant()
    def what_is_done_above_the_frontier_is_committed_beside_it(self):
        frontier, metadata = self.partition.to_commit()
        assert set(decode_done(frontier, metadata).tolist()) == {
            each for each in self.done if each > frontier
        }

    @invariant()
    def uncommitted_counts_what_was_emitted_from_the_first_open_batch_on(self):
        assert self.partition.uncommitted >= len(self.open)
        assert bool(self.partition.uncommitted) is bool(self.open)


TestOnePartition = OnePartition.TestCase
TestOnePartition.settings = settings(max_examples=drawn(40), stateful_step_count=25, deadline=None)


@given(st.integers(0, 1 << 60), st.sets(st.integers(1, 10_000)))
def test_offsets_above_the_frontier_come_back_from_the_metadata(frontier, above):
    done = frontier + np.array(sorted(above), dtype=np.int64)
    assert decode_done(frontier, encode_done(frontier, done)).tolist() == done.tolist()


def test_what_does_not_fit_into_the_metadata_is_left_out_from_above():
    random = np.random.default_rng(5)
    done = np.flatnonzero(random.integers(0, 2, 200_000)).astype(np.int64)[1:]
    text = encode_done(0, done)
    kept = decode_done(0, text)
    assert len(text) <= MOST_METADATA
    assert 1_000 < len(kept) < len(done)
    assert kept.tolist() == done[: len(kept)].tolist()


@pytest.mark.parametrize("metadata", [None, "", "{'topologyId': 'x'}", "acktree-1 ???", "acktree-1 AAAA"])
def test_metadata_of_somebody_else_says_that_nothing_is_done(metadata):
    assert len(decode_done(7, metadata)) == 0


def test_the_frontier_of_sparks_records_is_the_lowest_open_one_or_after_the_last():
    frontier = Frontier()
    frontier.note_open([("t", 0, 5)])
    frontier.note_done([("t", 0, 4), ("t", 0, 9), ("t", 1, 3)])
    assert frontier.offsets() == {("t", 0): 5, ("t", 1): 4}
    frontier.note_done([("t", 0, 5), ("t", 0, 2)])
    assert frontier.offsets() == {("t", 0): 10, ("t", 1): 4}


def test_a_login_as_spark_s_source_takes_it_is_taken_by_the_client_that_commits():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="me" password="S3cr=t";',
        "kafka.sasl.login.refresh.buffer.seconds": "5",
        "kafka.ssl.truststore.location": "/nowhere.jks",
        "kafka.session.timeout.ms": "9",
    }
    given = client_settings(options)
    assert (given["sasl.username"], given["sasl.password"]) == ("me", "S3cr=t")
    frontier = GroupFrontier("127.0.0.1:1", "lag", given)
    frontier.open(Config(), TaskContext("t", "s", 1, 0, {"s": (1,)}))
    frontier.close()
    with pytest.raises(ConfigError, match=r"security\.protocol"):
        GroupFrontier("127.0.0.1:1", "lag", {"security.protocol": "none"}).open(
            Config(), TaskContext("t", "s", 1, 0, {"s": (1,)})
        )


def test_jars_are_named_for_each_spark():
    for version in ("4.2.0", "4.3.0"):
        settings = kafka_packages(version)
        named = settings["spark.jars.packages"] + settings["spark.jars"]
        assert all(each.split(":")[1] in named for each in SOURCE_JARS)
    assert tuple(f"{module}:{number}" for module, number in TESTED_JARS) == SOURCE_JARS
    assert kafka_packages("4.4.1") == {
        "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.4.1"
    }
    for version in ("3.5.1", "newest"):
        with pytest.raises(ConfigError, match="Kafka source"):
            kafka_packages(version)
