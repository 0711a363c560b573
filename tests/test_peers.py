"""Peers but for themselves: what each is given, and what its line of JSON is made of."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.peers import (
    flink_word_count,
    in_java,
    kafka_streams_word_count,
    pathway_word_count,
    places,
    storm_word_count,
)
from benchmarks.work import save_sentences, sentences
from tests.in_module import replace


@pytest.mark.parametrize("peer", [storm_word_count, flink_word_count, kafka_streams_word_count])
def test_without_maven_a_peer_in_java_says_what_is_missing(monkeypatch, tmp_path, capsys, peer):
    monkeypatch.setattr(places, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        in_java.class_path(peer.SOURCES)
    assert ended.value.code == places.MISSING
    assert "no mvn on the path" in capsys.readouterr().err


def test_the_version_of_a_peer_in_java_is_the_poms():
    assert in_java.version(storm_word_count.SOURCES).startswith("2.")
    assert in_java.version(flink_word_count.SOURCES).startswith("2.")
    assert in_java.version(kafka_streams_word_count.SOURCES).startswith("4.")


JAVA_SAYS = """\
import sys
print("starting", "measuring", sep="\\n", flush=True)
print('{{"roots": 7, "secs": {secs}}}', flush=True)
sys.stdin.read()
"""


def test_a_peer_in_java_is_measured_from_its_line_measuring_to_its_line_of_json(tmp_path):
    command = [sys.executable, "-c", JAVA_SAYS.format(secs=0.5)]
    found, cost = in_java.run("Flink", command, tmp_path)
    assert found == {"roots": 7, "secs": 0.5}
    assert cost.ours >= 0


def test_the_cpu_of_a_server_that_a_peer_needs_is_told_apart(tmp_path, monkeypatch):
    spent = iter([machine.Cost(0.0, 3.0, 0.5, 0.1)])
    monkeypatch.setattr(machine.Clock, "cost", lambda clock: next(spent))
    secs = iter([10.0, 11.0])
    command = [sys.executable, "-c", JAVA_SAYS.format(secs=0.5)]
    found, cost = in_java.run("Kafka Streams", command, tmp_path, lambda: next(secs))
    assert found == {"roots": 7, "secs": 0.5, "server_secs": 1.0}
    assert cost == machine.Cost(0.0, 2.0, 0.5, 0.1)


def test_a_peer_in_java_that_ends_without_a_result_fails_the_run(tmp_path):
    with pytest.raises(SystemExit, match="Flink ended with exit code 4 and no result"):
        in_java.run("Flink", [sys.executable, "-c", "raise SystemExit(4)"], tmp_path)


def test_without_java_a_peer_in_java_is_left_out(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        in_java.run("Flink", [str(tmp_path / "java")], tmp_path)
    assert ended.value.code == places.MISSING
    assert "Flink runs on Java 17 or newer" in capsys.readouterr().err


def test_flink_reads_the_sentences_of_its_words_and_its_line_says_how_it_was_set(monkeypatch, capsys):
    """All but the JVM: what it is given, and what the line is made of."""
    given: dict[str, str] = {}

    def run(who, command, folder):
        words = command[command.index("peer.WordCount") + 1 :]
        given.update(zip(words[::2], words[1::2], strict=True))
        lines = Path(given["--sentences"]).read_text().splitlines()
        given["first"], given["last"] = lines[0], lines[-1]
        return {"roots": 1000, "secs": 2.0, "checkpoints": 2}, machine.Cost(0.0, 0.004, 0.0, 0.1)

    replace(monkeypatch, flink_word_count, "os", sched_setaffinity=lambda pid, cores: None)
    monkeypatch.setattr(in_java, "class_path", lambda sources: "")
    monkeypatch.setattr(in_java, "run", run)
    monkeypatch.setattr(flink_word_count, "save_sentences", partial(save_sentences, batches=2, batch_rows=5))
    flink_word_count.main(["--api", "sql", "--words", "50000", "--cores", "1"])
    line = json.loads(capsys.readouterr().out)
    assert (line["roots_per_sec"], line["cpu_us_per_root"], line["checkpoints"]) == (500, 4.0, 2)
    assert line["variant"]["peer"] == "flink"
    assert [given["first"], given["last"]] == [sentences(5, 0, 50_000)[0], sentences(5, 1, 50_000)[-1]]
    assert (given["--api"], given["--parallelism"], given["--checkpoint-ms"]) == ("sql", "1", "1000")


def test_kafka_streams_is_given_its_settings_and_its_line_has_the_cpu_with_the_broker(monkeypatch, capsys):
    """All but the JVM and the broker."""
    given: dict[str, str] = {}

    class Broker:
        bootstrap = "127.0.0.1:1"

    def run(who, command, folder, server_secs):
        words = command[command.index("peer.WordCount") + 1 :]
        given.update(zip(words[::2], words[1::2], strict=True))
        found = {"roots": 1000, "secs": 2.0, "server_secs": 0.001}
        return found, machine.Cost(0.0, 0.004, 0.0, 0.1)

    replace(monkeypatch, kafka_streams_word_count, "os", sched_setaffinity=lambda pid, cores: None)
    monkeypatch.setattr(in_java, "class_path", lambda sources: "")
    monkeypatch.setattr(in_java, "run", run)
    monkeypatch.setattr(kafka_streams_word_count, "started_broker", lambda: nullcontext(Broker()))
    few = partial(save_sentences, batches=2, batch_rows=5)
    monkeypatch.setattr(kafka_streams_word_count, "save_sentences", few)
    kafka_streams_word_count.main(["--store", "rocksdb", "--combine", "--set", "commit.interval.ms=30000"])
    line = json.loads(capsys.readouterr().out)
    assert (line["roots_per_sec"], line["cpu_us_per_root"]) == (500, 4.0)
    assert line["cpu_us_with_broker_per_root"] == 5.0
    assert line["variant"]["settings"]["commit.interval.ms"] == given["--set.commit.interval.ms"] == "30000"
    assert (given["--store"], given["--combine"]) == ("rocksdb", "yes")
    assert (given["--servers"], given["--partitions"]) == ("127.0.0.1:1", "2")


def test_pathway_is_given_files_of_the_sentences_of_its_words(monkeypatch, capsys):
    """All but Pathway."""

    def run(who, command, folder):
        settings = dict(word.split("=", 1) for word in command[1 : command.index("pathway")])
        files = sorted(Path(settings["FLOW_FOLDER"]).iterdir())
        lines = files[-1].read_text().splitlines()
        assert lines == sentences(5, 0, 50_000) + sentences(5, 1, 50_000)
        assert (settings["FLOW_SOURCE"], command[command.index("--threads") + 1]) == ("files", "2")
        return {"roots": 1000, "secs": 2.0}, machine.Cost(0.0, 0.0, 0.004, 0.1)

    replace(monkeypatch, pathway_word_count, "os", sched_setaffinity=lambda pid, cores: None)
    monkeypatch.setattr(places, "python_with", lambda name, *packages: Path("python"))
    monkeypatch.setattr(in_java, "run", run)
    few = partial(save_sentences, batches=2, batch_rows=5)
    monkeypatch.setattr(pathway_word_count, "save_sentences", few)
    pathway_word_count.main(["--words", "50000"])
    line = json.loads(capsys.readouterr().out)
    assert (line["roots_per_sec"], line["cpu_us_per_root"]) == (500, 4.0)
    assert (line["variant"]["peer"], line["machine"]["pathway"]) == ("pathway", pathway_word_count.VERSION)
