"""The smallest run of each benchmark on Spark: that it runs and says what it promises, not how fast it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import fan_out, idle, latency, soak, word_count
from benchmarks.sessions import Place
from benchmarks.work import Variant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TINY = Variant(batch_rows=50, inbox_max_messages=200)


@pytest.mark.parametrize(
    "variant", [TINY, replace(TINY, bolts="basic", spout="tuple", memory="dict", tracked=False)]
)
def test_a_word_count_says_how_many_sentences_were_done_a_second(
    spark: SparkSession, variant: Variant
) -> None:
    found = word_count.measure(variant, warm_up_secs=0.0, secs=0.1, place=Place(spark))
    assert min(found["roots_per_sec"], found["micro_batches"], found["cpu_us_per_root"]) > 0
    assert found["batch_ms"]["triggerExecution"] == found["micro_batch_ms"] > 0
    assert found["machine"]["pyspark"]


@pytest.mark.parametrize(("variant", "rate"), [(TINY, 200.0), (replace(TINY, memory="none"), None)])
def test_complete_latency_has_quantiles(spark: SparkSession, variant: Variant, rate: float | None) -> None:
    found = latency.measure(variant, rate, warm_up_secs=0.0, secs=0.1, place=Place(spark))
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_trees_of_each_size_are_measured(spark: SparkSession) -> None:
    variant = {"bolts": "arrow", "cores": 2, "tuples_per_batch": 500}
    found = fan_out.measure(variant, [20], (0.0, 0.1), place=Place(spark))
    (point,) = found["points"]
    assert point["tuples_per_sec"] == pytest.approx(21 * point["roots_per_sec"], rel=0.01)
    assert found["cpu_us_per_tuple_ratio"] == 1.0


def test_rest_is_measured(spark: SparkSession) -> None:
    found = idle.measure(TINY, settle_secs=0.0, secs=0.5, session=spark)
    assert min(found["core_share"], found["micro_batches"]) >= 0


def test_a_soak_accounts_for_every_message_and_says_what_grew(spark: SparkSession) -> None:
    found = soak.measure(rate=100, minutes=0.1, fault_secs=2.0, seed=1, sample_secs=0.5, session=spark)
    assert found["idle_at_the_end"]
    for book in found["account"].values():
        assert book["emitted"] == book["acked"] + book["dead"] > 0
        assert (book["open"], book["breaches"]) == (0, [])
    assert {"driver_mb", "jvm_mb", "workers_mb", "checkpoint_mb", "open"} <= found["growth"].keys()
    assert len(found["samples"]) == len({sample["secs"] for sample in found["samples"]}) > 1
    assert found["samples"][-1]["open"] == 0
