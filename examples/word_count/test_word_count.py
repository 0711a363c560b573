"""The example counts exactly: without Spark, on Spark, over a stop in the middle, and as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, submit
from acktree.core.stats.statistics import Stats
from acktree.testing import LocalCluster
from examples.word_count import word_count as example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(example.__file__)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with two texts and an image in it."""
    folder = tmp_path / "text"
    (folder / "more").mkdir(parents=True)
    (folder / "one.txt").write_text("The cat\n\nDON'T the Cat \u2019 caf\u00e9\n", encoding="utf-8")
    (folder / "more" / "two.txt").write_bytes(b"the end \xff\n" * 500)
    (folder / "image.png").write_bytes(b"the\0the")
    return folder


COUNTS = {"the": 502, "end": 500, "cat": 2, "café": 1, "don't": 1}


def on_local_cluster(text: Path, folder: Path) -> tuple[dict[str, int], Stats]:
    with LocalCluster() as cluster:
        running = cluster.submit(example.word_count(text, folder / "counts.sqlite"))
        cluster.advance()
        assert running.has_ended
        return example.read_counts(folder / "counts.sqlite"), running.stats()


def test_words_are_counted_whatever_their_case_and_a_file_that_is_no_text_is_left_out(
    text: Path, tmp_path: Path
) -> None:
    counts, stats = on_local_cluster(text, tmp_path)
    assert counts == COUNTS
    assert list(counts)[:2] == ["the", "end"]
    assert (stats["lines"].total.acked, stats["lines"].total.failed) == (503, 0)


def test_spark_and_local_cluster_find_the_same_words_and_verdicts(
    text: Path, tmp_path: Path, spark: SparkSession
) -> None:
    counts, stats = on_local_cluster(text, tmp_path)
    folder = tmp_path / "on-spark"
    folder.mkdir()
    topology = example.word_count(text, folder / "counts.sqlite")
    with submit(topology, checkpoint=folder, spark=spark) as running:
        assert running.await_termination(timeout_secs=120)
        for component in ("lines", "split", "count"):
            here, there = running.stats()[component].total, stats[component].total
            assert (here.emitted, here.acked, here.failed) == (there.emitted, there.acked, there.failed)
    assert example.read_counts(folder / "counts.sqlite") == counts


def test_counts_are_exact_after_a_stop_in_the_middle(tmp_path: Path, spark: SparkSession) -> None:
    text, file = tmp_path / "text.txt", tmp_path / "counts.sqlite"
    text.write_text("".join(f"line {n} of many, {n % 7}\n" for n in range(5_000)))
    few_at_a_time = Config(max_spout_pending=200)
    with submit(
        example.word_count(text, file), checkpoint=tmp_path, spark=spark, config=few_at_a_time
    ) as first:
        while not first.stats()["lines"].total.acked:
            assert not first.await_termination(timeout_secs=0.05)
    acked_before = first.stats()["lines"].total.acked
    assert 0 < acked_before < 5_000
    with submit(example.word_count(text, file), checkpoint=tmp_path, spark=spark) as second:
        assert second.await_termination(timeout_secs=120)
    lines = second.stats()["lines"]
    assert (
        acked_before + lines.total.acked >= 5_000
    )  # the last verdicts of a run may be delivered again in the next
    assert (lines.total.failed, lines.total.timed_out, lines.open) == (0, 0, 0)
    words = Counter(word for line in example.read_lines(text) for word in example.WORD.findall(line))
    assert example.read_counts(file) == words


@pytest.mark.spark
@pytest.mark.slow
def test_a_user_sees_the_counts_and_a_second_run_says_that_nothing_is_new(text: Path, tmp_path: Path) -> None:
    def run(text: Path) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            str(SCRIPT),
            str(text),
            "--checkpoint",
            str(tmp_path / "run"),
            "--top",
            "2",
        ]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False
        )

    table = "1,006 words, 5 different ones:\n\n       502  the\n       500  end\n"
    first, second, other = run(text), run(text), run(text / "one.txt")
    assert first.stdout == f"503 lines of {text} are counted, 0 are dead letters.\n{table}", first.stderr
    assert second.stdout == f"Nothing new: all of {text} was counted in an earlier run.\n{table}", (
        second.stderr
    )
    assert other.returncode != 0
    assert "counts another text" in other.stderr
