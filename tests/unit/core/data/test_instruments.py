"""Metrics of users take numbers of 64 bits, and refuse others in words."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest

from acktree import MisuseError
from acktree.core.data.instruments import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    Instruments,
    MeterMetric,
    TimerMetric,
)

HUGE = 10**4299


@pytest.mark.parametrize("value", [HUGE, 2**63, -1, 1.5, True, "5", None])
def test_counts_that_are_no_whole_numbers_of_64_bits_are_refused(value):
    for call in (
        CounterMetric("n", nullcontext()).inc, MeterMetric("n", nullcontext()).mark,
        HistogramMetric("n", nullcontext()).update,
    ):  # fmt: skip
        with pytest.raises(MisuseError, match="no whole number from 0 to 2"):
            call(value)


@pytest.mark.parametrize("value", [HUGE, -HUGE, "5", None, True])
def test_a_gauge_refuses_what_no_float_holds(value):
    with pytest.raises(MisuseError, match="a gauge was set to"):
        GaugeMetric("n", nullcontext(), None).set(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, HUGE, "5", None, True])
def test_a_timer_refuses_what_is_no_duration(value):
    with pytest.raises(MisuseError, match="a timer was given"):
        TimerMetric("n", nullcontext(), lambda: 0.0).update(value)


def test_what_did_not_grow_is_taken_the_first_time_alone():
    instruments = Instruments(lambda: 0.0, nullcontext())
    calls, level = instruments.counter("calls"), instruments.gauge("level", None)
    assert set(instruments.taken()) == {"calls", "level"}
    assert instruments.taken() == {}
    calls.inc()
    assert set(instruments.taken()) == {"calls"}
    level.set(0)
    assert set(instruments.taken()) == {"level"}
