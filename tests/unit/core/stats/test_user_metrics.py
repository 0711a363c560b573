"""Users' metrics: increments add up to the same in any order, and nothing that is refused is counted."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.instruments import MOST_SERIES, Increment, Instruments
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.user_metrics import (
    MetricTable,
    UserMetric,
    increments_from_bytes,
    increments_to_bytes,
    summed,
)
from acktree.errors import MisuseError

numbers = st.integers(0, 10**12)


def use(instruments, calls):
    """Carry out calls of (name, number) on the metrics of a task."""
    for name, number in calls:
        if name == "counter":
            instruments.counter("c").inc(number)
        elif name == "histogram":
            instruments.histogram("h").update(number)
        elif name == "timer":
            instruments.timer("t").update(number / 1000)
        else:
            instruments.gauge("g", None).set(number)


calls = st.lists(st.tuples(st.sampled_from(("counter", "histogram", "timer", "gauge")), numbers), max_size=20)


@given(st.lists(calls, max_size=6))
def test_micro_batches_add_up_to_what_one_would_have_counted(parts):
    table, whole = MetricTable(), Instruments()
    for part in parts:
        instruments = Instruments()
        use(instruments, part)
        use(whole, part)
        packed = increments_to_bytes("split", 3, instruments.taken())
        assert table.add(increments_from_bytes(packed), now_ms=0) == []
        table = MetricTable.from_bytes(table.to_bytes())
    at_once = MetricTable()
    at_once.add(((("split", 3, name), grown) for name, grown in whole.taken().items()), now_ms=0)
    assert table.metrics(0) == at_once.metrics(0)
    assert len(table) == len(at_once)
    assert all(not grown.count for grown in whole.taken().values())


@given(st.lists(numbers, min_size=1, max_size=50))
def test_a_histogram_and_a_timer_have_the_sum_the_mean_and_the_percentiles_of_their_values(values):
    instruments, table = Instruments(), MetricTable()
    for value in values:
        instruments.histogram("h").update(value)
        instruments.timer("t").update(value / 1000)
    table.add(((("split", 3, name), grown) for name, grown in instruments.taken().items()), now_ms=0)
    metrics = {name: metric for (_, _, name), metric in table.metrics(0).items()}
    histogram, timer = metrics["h"], metrics["t"]
    assert (histogram.sum, histogram.count) == (sum(values), len(values))
    assert histogram.mean == sum(values) / len(values)
    wanted = Histogram()
    for value in values:
        wanted.add(value)
    assert histogram.percentile(90) == wanted.percentile(90)
    assert timer.percentile(90) == pytest.approx(wanted.percentile(90) / 1000, rel=0.04, abs=0.001)
    assert timer.sum == pytest.approx(sum(values) / 1000, abs=0.001 * len(values))


def test_metrics_of_tasks_are_summed():
    spread = Histogram()
    spread.add(5)
    several = [UserMetric("histogram", 1, None, 5, (), spread), UserMetric("histogram", 2, None, 7, (), None)]
    assert summed(several) == UserMetric("histogram", 3, None, 12, (), spread)
    meters = [UserMetric("meter", 1, rates=(1.0, 2.0, 3.0)), UserMetric("meter", 1, rates=(1.0, 1.0, 1.0))]
    assert summed(meters) == UserMetric("meter", 2, rates=(2.0, 3.0, 4.0))
    gauges = [UserMetric("gauge", value=1.5), UserMetric("gauge"), UserMetric("gauge", value=2.0)]
    assert summed(gauges).value == 3.5
    assert summed([UserMetric("gauge")]).value is None
    assert UserMetric("counter").mean is UserMetric("counter").percentile(50) is None


@given(st.integers(1, 1000), st.integers(1, 30))
def test_a_meter_with_a_steady_rate_shows_it(each, secs):
    table = MetricTable()
    for at in range(0, 3_600, secs):
        table.add([(("split", 3, "m"), Increment("meter", count=each))], now_ms=at * 1000)
    metric = table.metrics(3_600_000)["split", 3, "m"]
    assert metric.rates == pytest.approx((each / secs,) * 3, rel=0.35)
    assert metric.count == each * len(range(0, 3_600, secs))
    later = table.metrics(3_600_000 + 3 * 60_000)["split", 3, "m"].rates
    assert later[0] < metric.rates[0] * 0.06
    assert later[2] > metric.rates[2] * 0.8


def test_a_meter_that_has_just_begun_shows_no_rate_of_thousands():
    table = MetricTable()
    table.add([(("split", 3, "m"), Increment("meter", count=100))], now_ms=1_000)
    assert max(table.metrics(1_001)["split", 3, "m"].rates) < 25


def test_a_gauge_keeps_its_last_value_and_infinity_is_one():
    table = MetricTable()
    for value in (3.5, None, math.inf, None):
        packed = increments_to_bytes("split", 3, {"g": Increment("gauge", value=value)})
        table.add(increments_from_bytes(packed), now_ms=0)
    assert MetricTable.from_bytes(table.to_bytes()).metrics(0)["split", 3, "g"].value == math.inf


def test_what_is_one_too_many_or_of_another_kind_is_refused_and_the_others_go_on():
    table = MetricTable()
    keys = [("split", task, "n") for task in range(MOST_SERIES + 1)]
    refused = table.add(((key, Increment("counter", count=1)) for key in keys), now_ms=0)
    assert refused == [keys[-1]]
    assert table.add([(keys[0], Increment("meter", count=1))], now_ms=0) == [keys[0]]
    assert table.add([(keys[0], Increment("counter", count=1))], now_ms=0) == []
    assert table.metrics(0)[keys[0]].count == 2


def test_a_metric_is_registered_once_and_has_one_kind():
    instruments = Instruments()
    assert instruments.meter("m") is instruments.meter("m")
    instruments.meter("m").mark(3)
    assert instruments.taken()["m"].count == 3
    with pytest.raises(MisuseError, match="is a meter, and was registered as a counter"):
        instruments.counter("m")
    assert repr(instruments.meter("m")) == "MeterMetric('m')"


@pytest.mark.parametrize("name", ["", None, 7, "x" * 201, "a\x1b[2J"], ids=repr)
def test_a_metric_without_a_proper_name_is_refused(name):
    with pytest.raises(MisuseError, match="1 to 200 printable characters"):
        Instruments().counter(name)


def test_the_metric_that_is_one_too_many_in_a_task_is_named():
    instruments = Instruments()
    for number in range(MOST_SERIES):
        instruments.counter(f"n{number}")
    with pytest.raises(MisuseError, match="'one more'"):
        instruments.counter("one more")


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "1"], ids=repr)
def test_what_is_no_whole_number_is_refused(wrong):
    instruments = Instruments()
    for call in (
        instruments.counter("c").inc,
        instruments.meter("m").mark,
        instruments.histogram("h").update,
    ):
        with pytest.raises(MisuseError, match="no whole number"):
            call(wrong)


def test_a_gauge_takes_numbers_alone_and_calls_its_function():
    instruments = Instruments()
    gauge = instruments.gauge("g", lambda: 7)
    for wrong in (True, None, "1"):
        with pytest.raises(MisuseError, match="no number"):
            gauge.set(wrong)
    instruments.gauge("still", None).look()
    assert instruments.taken()["g"].value is None
    gauge.look()
    assert instruments.taken()["g"].value == 7.0
    assert instruments.gauges() == [gauge, instruments.gauge("still", None)]


def test_a_timer_times_a_block_by_its_stopwatch():
    moments = count(0, 2)
    instruments = Instruments(lambda: float(next(moments)))
    with pytest.raises(ValueError), instruments.timer("t").time():  # noqa: PT011
        raise ValueError
    instruments.timer("t").update(-5)
    taken = instruments.taken()["t"]
    assert (taken.count, taken.sum) == (2, 2_000_000)
