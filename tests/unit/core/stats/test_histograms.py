"""Histograms: exact counts, percentiles that are never too small and at most 3 % too large."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ProtocolError
from acktree.core.stats.histograms import Histogram, bucket_of, top_of

values = st.lists(st.integers(0, 2**40), max_size=60)


def of(*parts) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add_all(np.array(part, dtype=np.int64))
    return histogram


@given(st.integers(0, 2**60))
def test_a_value_lies_in_its_bucket_and_buckets_leave_no_gap(value):
    bucket = bucket_of(value)
    assert value <= top_of(bucket) <= value + value // 32
    assert bucket_of(top_of(bucket)) == bucket
    assert bucket_of(top_of(bucket) + 1) == bucket + 1


@given(values, values)
def test_merged_histograms_are_the_histogram_of_all_values_in_any_order(some, others):
    merged = of(some)
    merged.merge(of(others))
    assert dict(merged) == dict(of(others + some))
    assert merged.count == len(some) + len(others)


@given(values.filter(bool), st.floats(0.1, 100))
def test_a_percentile_is_never_too_small_and_at_most_a_thirtysecond_too_large(mine, percent):
    exact = sorted(mine)[math.ceil(len(mine) * percent / 100) - 1]
    assert exact <= of(mine).percentile(percent) <= exact + exact // 32


def test_one_number_for_many_is_added_as_often():
    histogram = Histogram()
    histogram.add_all(7, 1000)
    histogram.add(-5)
    assert dict(histogram) == {7: 1000, 0: 1}
    assert (histogram.percentile(50), Histogram().percentile(50)) == (7, None)
    assert repr(histogram) == "Histogram(count=1001, p50=7, p99=7)"
    assert len(histogram) == 2


def test_a_histogram_only_grows():
    with pytest.raises(ProtocolError, match="only grows"):
        Histogram().add(3, -1)
