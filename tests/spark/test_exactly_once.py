"""Exactly-once bolts: a total counts each message once though bolts raise and messages are retried."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import (
    BasicBolt,
    Config,
    DataFrameSpout,
    EndOfStream,
    IterableSpout,
    Retry,
    Sink,
    Spout,
    Topology,
    TopologyBuilder,
    submit,
)  # fmt: skip
from acktree.core.tracking.origins import Origin
from acktree.errors import CheckpointError
from acktree.testing import FeederSpout, LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree import SubmittedTopology

SENTENCES = [f"a b{n % 3} c" for n in range(30)]
QUICK = Retry(max_attempts=3, backoff_secs=(0.01, 0.01))
FILE = "totals.txt"
REFUSED = (7, "a")


class Split(BasicBolt):
    """Emits the words, and raises after that: in the first attempt of some, in all of every tenth."""

    outputs = {"default": ["word"], "rows": ["n", "word"]}

    def execute(self, tup, collector):
        for word in tup["sentence"].split():
            collector.emit([word])
            collector.emit([tup["n"], word], stream="rows")
        if tup["n"] % 10 == 0 or (tup["n"] % 4 == 0 and tup.attempt == 1):
            raise ValueError(f"sentence {tup['n']} fails after its words were emitted")


class Count(BasicBolt):
    """Counts words, and raises after it has counted: in the first attempt of one word."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def __init__(self):
        self.counts = {}

    def execute(self, tup, collector):
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])
        if word == "b1" and tup.attempt == 1:
            raise ValueError("b1 is counted and fails")


class Totals(BasicBolt):
    """Writes the largest count of each word, and how many counts came, to a file."""

    remembers = ["largest"]

    def __init__(self, folder: str):
        self.folder, self.largest = folder, {}

    def execute(self, tup, collector):
        before, came = self.largest.get(tup["word"], (0, 0))
        self.largest[tup["word"]] = max(before, tup["count"]), came + 1

    def flush(self, collector):
        (Path(self.folder) / FILE).write_text(repr(self.largest))


class Table(Sink):
    """Rows in SQLite, and the last mark. Refuses each row of ``b2`` when it comes first, and one always."""

    def __init__(self, file: Path):
        self.file = str(file)

    def open(self, config, context):
        self.writer = f"{context.checkpoint_id} {context.task_id}"
        self.database = sqlite3.connect(self.file)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS words (n INT, word TEXT, refused INT)")
            self.database.execute("CREATE TABLE IF NOT EXISTS marks (writer TEXT, mark BLOB, refused TEXT)")

    def last_mark(self):
        query = "SELECT mark FROM marks WHERE writer = ?"
        row = self.database.execute(query, (self.writer,)).fetchone()
        return None if row is None else row[0]

    def write(self, batch, mark):
        if self.last_mark() != mark:
            rows = [(row["n"], row["word"]) for row in batch.to_pylist()]
            with self.database:
                self._write(rows, mark)
        query = "SELECT refused FROM marks WHERE writer = ?"
        [[refused]] = self.database.execute(query, (self.writer,)).fetchall()
        return {int(row): reason for row, reason in json.loads(refused).items()}

    def _write(self, rows, mark):
        query = "SELECT count(*) FROM words WHERE n = ? AND word = ?"
        refused = {}
        for at, row in enumerate(rows):
            if row[1] == "b2" and self.database.execute(query, row).fetchone() == (0,):
                refused[at] = "not the first time"
            if row == REFUSED:
                refused[at] = "never"
            self.database.execute("INSERT INTO words VALUES (?, ?, ?)", (*row, at in refused))
        self.database.execute("DELETE FROM marks WHERE writer = ?", (self.writer,))
        told = json.dumps(refused)
        self.database.execute("INSERT INTO marks VALUES (?, ?, ?)", (self.writer, mark, told))

    def close(self):
        self.database.close()


def topology(folder: Path, spout: Spout | None = None) -> Topology:
    builder = TopologyBuilder("exact")
    spout = spout or IterableSpout([*enumerate(SENTENCES)], ["n", "sentence"])
    builder.set_spout("sentences", spout, retry=QUICK)
    table = builder.set_sink("table", Table(folder / "words.db"), retry=QUICK)
    table.shuffle_grouping("split", stream="rows")
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("sentences")
    count = builder.set_bolt("count", Count(), parallelism=2, exactly_once=True, retry=QUICK)
    count.fields_grouping("split", ["word"])
    totals = builder.set_bolt("totals", Totals(str(folder)), exactly_once=True)
    totals.global_grouping("count")
    return builder.create_topology()


def expected() -> dict[str, tuple[int, int]]:
    """Each word once for each sentence that was not given up, as a model says that replays nothing."""
    words = Counter(word for n, line in enumerate(SENTENCES) if n % 10 for word in line.split())
    return {word: (count, count) for word, count in words.items()}


def check(folder: Path) -> None:
    assert eval((folder / FILE).read_text()) == expected()
    database = sqlite3.connect(folder / "words.db")
    rows = database.execute("SELECT n, word FROM words WHERE NOT refused").fetchall()
    database.close()
    written = [(n, word) for n, line in enumerate(SENTENCES) if n % 10 for word in line.split()]
    assert Counter(rows) == Counter(written) - Counter([REFUSED])


@pytest.mark.parametrize("source", ["position", "rows of a DataFrame"])
def test_each_message_is_counted_and_written_once_though_bolts_raise_after_they_emitted_and_counted(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    spout: Spout | None = None
    if source != "position":
        rows = [json.dumps({"n": n, "sentence": sentence}) for n, sentence in enumerate(SENTENCES)]
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "rows.json").write_text("\n".join(rows))
        frame = spark.readStream.schema("n long, sentence string").json(str(tmp_path / "in"))
        spout = DataFrameSpout(frame, message_id="n", ends=True)
    with submit(
        topology(tmp_path, spout),
        checkpoint=tmp_path / "checkpoint",
        spark=spark,
        config=Config(partitions=2),
    ) as running:
        assert running.await_termination(timeout_secs=180), running.stats().table()
        given_up = list(running.dead_letters.find(spout="sentences"))
        assert len(given_up) == sum(n % 10 == 0 for n in range(len(SENTENCES)))
        [letter] = running.dead_letters.find(component="table")
        message_id = "7" if source == "position" else "a row"
        assert letter.origins == (Origin("sentences", message_id),)
    check(tmp_path)


class Asked(BasicBolt):
    """Counts words, and answers how often a word came; then it changes what it remembers."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def __init__(self):
        self.counts = {}

    def execute(self, tup, collector):
        word = tup["word"]
        count, self.counts[word] = self.counts.get(word, 0), self.counts.get(word, 0) + 1
        if tup.component == "questions":
            collector.emit([word, count])


class Answers(BasicBolt):
    """Writes each answer to a file, and fails the questions about some."""

    def __init__(self, folder: str):
        self.folder = folder

    def execute(self, tup, collector):
        (Path(self.folder) / f"{tup['word']}.{tup['count']}").touch()
        if tup["word"] == "b":
            raise ValueError("an answer that fails")


@pytest.mark.parametrize("place", ["spark", "local"])
def test_messages_with_keys_count_once_and_questions_are_answered_in_their_tree(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    words, questions = FeederSpout(["word"]), FeederSpout(["word"])
    builder = TopologyBuilder("asked")
    builder.set_spout("words", words, parallelism=2)
    builder.set_spout("questions", questions)
    asked = builder.set_bolt("asked", Asked(), parallelism=2, exactly_once=True)
    asked.fields_grouping("words", ["word"]).fields_grouping("questions", ["word"], gate=False)
    builder.set_bolt("answers", Answers(str(tmp_path))).shuffle_grouping("asked")
    topology, config = builder.create_topology(), Config(partitions=2)
    with LocalCluster() as cluster:
        if place == "spark":
            running = submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config)
        else:
            running = cluster.submit(topology, config=config)
        with running:
            for n in range(12):  # each of four messages is delivered three times
                words.feed(["ab"[n % 2]], message_id=n, key=f"message {n % 4}")
            while len(words.acked) < 12 or not running.await_idle(1):
                running.await_idle(0.1)
            for n, word in enumerate("aabb"):
                questions.feed([word], message_id=n)
            while len(questions.acked) + len(questions.failed) < 4:
                running.await_idle(0.1)
            words.feed(["a"], message_id=12, key="message 0")
            words.end()
            questions.end()
            assert running.await_termination(120)
    assert sorted(words.acked) == [*range(13)]
    assert (sorted(questions.acked), sorted(n for n, _ in questions.failed)) == ([0, 1], [2, 3])
    # Each of the two answers of a word is 2; if one question had seen the other, one would be 3.
    assert {file.name for file in tmp_path.glob("[ab].*")} >= {"a.2", "b.2"}
    assert {file.name for file in tmp_path.glob("[ab].*")} <= {"a.2", "a.3", "b.2", "b.3"}


def test_rows_of_a_dataframe_with_one_key_count_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"n": n, "word": "ab"[n % 2], "event": f"event {n % 4}"} for n in range(40)]
    rows += [{"n": 40 + n, "word": "a", "event": None} for n in range(3)] + [
        {"n": 43, "word": "a", "event": ""}
    ]
    (tmp_path / "in").mkdir()
    for part in range(4):
        lines = [json.dumps(row) for row in rows[part::4]]
        (tmp_path / "in" / f"{part}.json").write_text("\n".join(lines))
    stream = spark.readStream.schema("n long, word string, event string").option("maxFilesPerTrigger", 2)
    frame = stream.json(str(tmp_path / "in"))
    builder = TopologyBuilder("keyed")
    spout = DataFrameSpout(frame, message_id="n", key="event", ends=True)
    builder.set_spout("rows", spout, retry=QUICK)
    builder.set_bolt("fails", FailsFirst(), parallelism=2).shuffle_grouping("rows")
    builder.set_bolt("totals", CountsAll(str(tmp_path)), exactly_once=True).global_grouping("fails")
    with submit(
        builder.create_topology(),
        checkpoint=tmp_path / "checkpoint",
        spark=spark,
        config=Config(partitions=2),
    ) as running:
        assert running.await_termination(timeout_secs=180), running.stats().table()
        [letter] = running.dead_letters
    assert "the key of a message is empty" in letter.reason
    assert eval((tmp_path / FILE).read_text()) == {"a": 2 + 3, "b": 2}


class FailsFirst(BasicBolt):
    """Emits the word, and fails the first attempt of each third row."""

    outputs = ["word"]

    def execute(self, tup, collector):
        collector.emit([tup["word"]])
        if tup["n"] % 3 == 0 and tup.attempt == 1:
            raise ValueError("a first attempt")


class CountsAll(BasicBolt):
    """Counts words, and writes the counts to a file."""

    remembers = ["counts"]

    def __init__(self, folder: str):
        self.folder, self.counts = folder, {}

    def execute(self, tup, collector):
        self.counts[tup["word"]] = self.counts.get(tup["word"], 0) + 1

    def flush(self, collector):
        (Path(self.folder) / FILE).write_text(repr(self.counts))


def test_local_cluster_counts_the_same(tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        running = cluster.submit(topology(tmp_path))
        assert running.await_termination(timeout_secs=60), running.stats().table()
        emitted = Counter(word for word, _ in running.tuples("count"))
    check(tmp_path)
    assert emitted == Counter({word: count for word, (count, _) in expected().items()})


class Deliveries(Spout):
    """One event in three deliveries, from its position on."""

    outputs = ["n"]
    redelivers = False
    remembers = ("position",)

    def __init__(self, ids: list[object]):
        self.ids, self.position = ids, 0

    def open(self, config, context, collector):
        self.collector = collector
        assert len(context.open_message_ids) == self.position

    def next_tuple(self):
        if self.position == 3:
            raise EndOfStream
        self.collector.emit([self.position], message_id=self.position, key="event 17")
        self.position += 1

    def ack(self, message_id):
        self.ids.append(message_id)

    def __deepcopy__(self, memo):
        return self


class WaitsForFile(BasicBolt):
    """Notes what it executes, and raises until a file is there."""

    outputs = ["word"]

    def __init__(self, folder: str):
        self.folder = folder

    def execute(self, tup, collector):
        (Path(self.folder) / f"ran {tup['n']}").touch()
        if not (Path(self.folder) / "go").exists():
            raise ValueError("not yet")
        collector.emit(["event"])


def test_a_message_that_waits_for_its_key_goes_on_waiting_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    def submitted(acked: list[object]):
        builder = TopologyBuilder("waits")
        builder.set_spout("events", Deliveries(acked), retry=Retry(100_000, backoff_secs=(0.1, 0.1)))
        builder.set_bolt("waits", WaitsForFile(str(tmp_path))).shuffle_grouping("events")
        builder.set_bolt("totals", CountsAll(str(tmp_path)), exactly_once=True).global_grouping("waits")
        config = Config(partitions=1)
        return submit(
            builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
        )

    acked: list[object] = []
    with submitted(acked) as running:
        while running.stats()["events"].total.failed < 2 or running.stats()["events"].open < 3:
            running.await_idle(0.1)  # on a busy machine the three come in more than one micro-batch
        assert running.stats()["events"].open == 3
    assert acked == []
    (tmp_path / "go").touch()
    with submitted(acked) as running:
        assert running.await_termination(timeout_secs=120)
    assert sorted(acked) == [0, 1, 2]
    assert [file.name for file in tmp_path.glob("ran *")] == ["ran 0"]
    assert eval((tmp_path / FILE).read_text()) == {"event": 1}


def test_an_older_copy_of_a_checkpoint_ends_its_run_before_a_message_of_it_is_acked(
    spark: SparkSession, tmp_path: Path
) -> None:
    def submitted(checkpoint: str, numbers: FeederSpout) -> SubmittedTopology:
        builder = TopologyBuilder("copied")
        builder.set_spout("numbers", numbers)
        table = builder.set_sink("table", Table(tmp_path / "words.db"), retry=QUICK)
        table.global_grouping("numbers")
        config = Config(partitions=2)
        topology = builder.create_topology()
        return submit(topology, checkpoint=tmp_path / checkpoint, spark=spark, config=config)

    def written() -> list[tuple[int]]:
        with sqlite3.connect(tmp_path / "words.db") as database:
            return database.execute("SELECT n FROM words ORDER BY n").fetchall()

    for first in (0, 3):
        numbers = FeederSpout(["n", "word"])
        with submitted("checkpoint", numbers) as running:
            for n in range(first, first + 3):
                numbers.feed([n, "a word"], message_id=n)
            while len(numbers.acked) < 3 or not running.await_idle(1):
                running.await_idle(0.1)
        assert written() == [(n,) for n in range(first + 3)]
        if not first:
            ignored = shutil.ignore_patterns("wake")
            shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy", ignore=ignored)
    numbers = FeederSpout(["n", "word"])
    numbers.feed([6, "a word"], message_id=6)
    with (
        pytest.raises(CheckpointError, match="this checkpoint is an older copy") as refused,
        submitted("copy", numbers) as running,
    ):
        running.await_termination(timeout_secs=120)
    assert refused.value.fix.startswith("bring the newest copy back")
    assert (len(str(refused.value).splitlines()), refused.value.__cause__) == (3, None)
    assert numbers.acked == []
    with submitted("checkpoint", numbers) as running:
        while not numbers.acked or not running.await_idle(1):
            running.await_idle(0.1)
    assert written() == [(n,) for n in range(7)]


class CountsKeys(BasicBolt):
    """Counts the numbers of each of three keys."""

    outputs = ["n", "word"]
    remembers = ["totals"]

    def __init__(self):
        self.totals = {}

    def execute(self, tup, collector):
        key = tup["n"] % 3
        self.totals = {**self.totals, key: self.totals.get(key, 0) + 1}
        collector.emit([key, f"{self.totals[key]:03}"])


class LatestTable(Table):
    """Refuses each total up to twice; the last one of a key wins."""

    latest_by = ("n",)

    def _write(self, rows, mark):
        query, refused = "SELECT count(*) FROM words WHERE n = ? AND word = ?", {}
        for at, row in enumerate(rows):
            [[times]] = self.database.execute(query, row)
            if times < int(row[1]) % 3:
                refused[at] = "later"
            self.database.execute("INSERT INTO words VALUES (?, ?, ?)", (*row, at in refused))
        self.database.execute("DELETE FROM marks WHERE writer = ?", (self.writer,))
        told = json.dumps(refused)
        self.database.execute("INSERT INTO marks VALUES (?, ?, ?)", (self.writer, mark, told))


def test_totals_that_were_refused_are_not_written_over_newer_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("latest")
    builder.set_spout("numbers", IterableSpout([[n] for n in range(42)], ["n"]), max_spout_pending=6)
    builder.set_bolt("totals", CountsKeys(), exactly_once=True).global_grouping("numbers")
    table = builder.set_sink("table", LatestTable(tmp_path / "words.db"), parallelism=2, retry=QUICK)
    table.fields_grouping("totals", ["n"])
    with submit(
        builder.create_topology(),
        checkpoint=tmp_path / "checkpoint",
        spark=spark,
        config=Config(partitions=2),
    ) as running:
        assert running.await_termination(timeout_secs=180), running.stats().table()
        assert len(running.dead_letters) == 0
        assert running.stats()["__gate/table/totals/default"].total.acked == 42
    database = sqlite3.connect(tmp_path / "words.db")
    rows = database.execute("SELECT n, word FROM words WHERE NOT refused ORDER BY rowid").fetchall()
    database.close()
    for key in range(3):
        written = [total for of, total in rows if of == key]
        assert (written, written[-1]) == (sorted(set(written)), "014")
