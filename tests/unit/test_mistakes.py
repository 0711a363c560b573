"""What a newcomer mistypes is refused with what is wrong, where, and what to do; nothing is left behind."""

from __future__ import annotations

import pytest

from acktree import (
    AcktreeError,
    BasicBolt,
    Config,
    ConfigError,
    DeadLetters,
    IterableSpout,
    Retry,
    TopologyBuilder,
    bolt,
)
from acktree.connectors.files import FolderSpout
from acktree.connectors.parquet_files import ParquetSink
from acktree.spark.session.java import refuse_missing_java
from acktree.testing import FeederSpout, LocalCluster, complete_topology


def builder():
    made = TopologyBuilder("t")
    made.set_spout("numbers", IterableSpout([1], outputs=["n"]))
    made.set_bolt("print", bolt()(lambda tup: None)).shuffle_grouping("numbers")
    return made


MISTAKES = {
    "Retry has no argument 'attempts'|max_attempts": lambda: Retry(attempts=3),
    "Retry needs the argument 'max_attempts'|write Retry(max_attempts=..., ...)": (
        lambda: Retry(backoff_secs=(5, 5))
    ),
    "bolt has no argument 'output'|outputs": lambda: bolt(output=["a"]),
    "FolderSpout has no argument 'patern'|pattern": lambda: FolderSpout("/", patern="*"),
    "ParquetSink has no argument 'shema'|schema": lambda: ParquetSink("/", shema=None),
    "ParquetSink needs the argument 'path'|write ParquetSink(path=..., ...)": ParquetSink,
    "set_bolt has no argument 'paralelism'|parallelism": lambda: builder().set_bolt("b", 1, paralelism=2),
    "set_spout has no argument 'retires'|retry": lambda: builder().set_spout("b", 1, retires=2),
    "fields_grouping has no argument 'field'|fields": (
        lambda: builder().set_bolt("b", 1).fields_grouping("numbers", field=["n"])
    ),
    "IterableSpout has no argument 'output'|outputs": lambda: IterableSpout([1], output=["n"]),
    "submit has no argument 'confg'|config": (
        lambda: LocalCluster().submit(builder().create_topology(), confg=None)
    ),
    "Config.from_mapping() needs a dict of settings, and is given a list|topology.message.timeout.secs": (
        lambda: Config.from_mapping(["topology.debug"])
    ),
    "complete_topology() needs the tuples of each spout, and is given None|each of ['numbers']": (
        lambda: complete_topology(builder().create_topology(), None)
    ),
    "submit() needs a Config as config, and is given a dict|give Config(": (
        lambda: LocalCluster().submit(builder().create_topology(), config={})
    ),
    "complete_topology() needs a Config as config, and is given a dict|give Config(": (
        lambda: complete_topology(builder().create_topology(), {"numbers": []}, {})
    ),
    "complete_topology() needs a Topology, and is given a str|create_topology()": (
        lambda: complete_topology("t", {})
    ),
    "submit() needs a Topology, and is given a TopologyBuilder|builder.create_topology()": (
        lambda: LocalCluster().submit(builder())
    ),
    "submit() needs a Topology, and is given a str|create_topology()": lambda: LocalCluster().submit("t"),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_named_with_its_fix(said):
    check(said, MISTAKES[said])


def check(said, mistake):
    what, fix = said.split("|")
    with pytest.raises(AcktreeError) as caught:
        mistake()
    assert caught.value.what == what
    assert fix in caught.value.fix
    assert caught.value.where


@pytest.mark.parametrize("place", ["nowhere/letters.sqlite", "folder", "sub/folder"])
def test_a_path_without_dead_letters_is_refused_and_nothing_is_made(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="there are no dead letters in"):
        DeadLetters(tmp_path / place)
    assert [each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*")] == ["folder"]


def test_the_folder_of_a_checkpoint_names_its_dead_letters(tmp_path):
    DeadLetters(tmp_path / "dead_letters.sqlite", create=True).close()
    with DeadLetters(tmp_path) as letters:
        assert letters.count() == 0


def test_a_wrong_java_home_is_reported_before_java_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="JAVA_HOME is wrong") as caught:
        refuse_missing_java()
    assert str(tmp_path / "bin" / "java") in caught.value.what


def test_without_java_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="none is found") as caught:
        refuse_missing_java()
    assert "install Java 17 or newer" in caught.value.fix


def test_a_java_that_is_there_is_taken(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    refuse_missing_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))
    refuse_missing_java()


def test_an_ack_by_a_basic_bolt_fails_its_tuple_and_says_what_acks_it():
    class Acks(BasicBolt):
        outputs = []

        def execute(self, tup, collector):
            assert not hasattr(collector, "fail")
            collector.ack(tup)

    feeder = FeederSpout(["n"])
    made = TopologyBuilder("t")
    made.set_spout("numbers", feeder)
    made.set_bolt("acks", Acks()).shuffle_grouping("numbers")
    with LocalCluster() as cluster:
        cluster.submit(made.create_topology())
        feeder.feed([1], message_id=1)
        cluster.advance()
    [(_, failure)] = feeder.failed
    assert "no 'ack': its tuple is acked when execute returns" in failure.reason
