"""The smallest run of each benchmark: that it runs and says what it promises, not how fast anything is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import compare, idle, latency, machine, python_side, word_count
from benchmarks.work import VOCABULARY, WORDS, Variant, sentences, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

TINY = Variant(batch_rows=50, inbox_max_messages=200)


@pytest.mark.parametrize(
    "variant", [TINY, replace(TINY, bolts="basic", spout="tuple", memory="dict", tracked=False)]
)
def test_a_word_count_says_how_many_sentences_were_done_a_second(
    spark: SparkSession, variant: Variant
) -> None:
    found = word_count.measure(variant, warm_up_secs=0.0, secs=0.1, session=spark)
    assert min(found["roots_per_sec"], found["micro_batches"], found["cpu_us_per_root"]) > 0
    assert found["batch_ms"]["triggerExecution"] > 0
    assert found["machine"]["pyspark"]


def test_complete_latency_has_quantiles(spark: SparkSession) -> None:
    found = latency.measure(TINY, rate=200.0, warm_up_secs=0.0, secs=0.1, session=spark)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_rest_is_measured(spark: SparkSession) -> None:
    found = idle.measure(TINY, settle_secs=0.0, secs=0.5, session=spark)
    assert min(found["core_share"], found["micro_batches"]) >= 0


@pytest.mark.parametrize("bolts", ["arrow", "basic", "generator"])
def test_the_python_side_acks_what_it_measures(bolts: str) -> None:
    tracked = Variant(bolts=bolts, batch_rows=200)
    assert set(python_side.measure(tracked, 400, rounds=1)["by_level"]) == {"level 0", "level 1", "acker"}
    untracked = replace(tracked, tracked=False)
    assert set(python_side.measure(untracked, 400, rounds=1)["by_level"]) == {"level 0", "level 1"}


def test_sentences_are_six_words_of_a_fixed_vocabulary_and_the_same_in_every_run() -> None:
    words = vocabulary()
    assert len(set(words)) == VOCABULARY
    assert words == vocabulary()
    lines = sentences(100, seed=3)
    assert lines == sentences(100, seed=3) != sentences(100, seed=4)
    assert all(len(line.split()) == WORDS and set(line.split()) <= set(words) for line in lines)


def test_what_is_told_in_a_row_is_one_micro_batch_and_the_cut_one_is_left_out() -> None:
    events = [(0.0, 5), (0.01, 5), (1.0, 7), (1.02, 1), (2.1, 4)]
    assert word_count.batch_ends(events) == [(0.01, 10), (1.02, 8)]
    assert word_count.batch_ends([]) == word_count.batch_ends(events[:1]) == []


def test_a_busy_machine_is_refused_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_share", lambda: 0.9)
    with pytest.raises(SystemExit, match="others take 90%"):
        compare.main(["tracked-arrow/untracked-arrow"])


def test_pairs_run_in_turn_and_their_ratio_is_the_median_of_the_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def run(name: str, further: Sequence[str]) -> dict[str, float]:
        order.append(name)
        assert further == ("--warm-up", "20", "--secs", "1")
        rate = {"tracked-arrow": 80, "untracked-arrow": 100}[name] * len(order)
        return {"roots_per_sec": rate, "cpu_us_per_root": 2.0, "others_cores": 0.1}

    monkeypatch.setattr(machine, "busy_share", lambda: 0.0)
    monkeypatch.setattr(compare, "run", run)
    compare.main(["tracked-arrow/untracked-arrow", "--rounds", "3", "--secs", "1"])
    assert order == ["tracked-arrow", "untracked-arrow"] * 3
    assert "throughput ratio             0.60  (0.40 to 0.67)" in capsys.readouterr().out
