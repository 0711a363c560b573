"""Counters add up exactly in any order; the view says what was counted and no more."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.stats.counters import LATENCIES, NO_STREAM, WHATS
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import Numbers, ReportedError, SpoutNumbers
from acktree.core.stats.statistics import Counters, Stats
from acktree.core.stats.table import WIDTH
from acktree.errors import ProtocolError

components = st.sampled_from(["orders", "split", "count"])
tasks = st.integers(1, 3)
streams = st.sampled_from(["default", "late", "orders:default"])
counted = st.tuples(components, tasks, streams, st.sampled_from(WHATS), st.integers(0, 2**70))
measured = st.tuples(
    components, tasks, streams, st.sampled_from(LATENCIES), st.floats(0, 1e6), st.integers(0, 100)
)
events = st.lists(counted | measured, max_size=30)


def counters_of(happened) -> Counters:
    counters = Counters()
    for event in happened:
        counters.add(*event) if len(event) == 5 else counters.add_latency(*event)
    return counters


@given(events, st.data())
def test_counts_add_up_to_the_same_in_any_order_and_any_parts(happened, data):
    shuffled = data.draw(st.permutations(happened))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=4)))
    merged = Counters()
    for first, last in zip([0, *cuts], [*cuts, len(shuffled)], strict=True):
        merged.merge(counters_of(shuffled[first:last]))
    assert merged == counters_of(happened)
    assert merged.to_bytes() == counters_of(happened).to_bytes()


@given(events)
def test_counters_arrive_as_they_left(happened):
    counters = counters_of(happened)
    assert Counters.from_bytes(counters.to_bytes()) == counters
    assert Counters.from_bytes(memoryview(counters.to_bytes())) == counters


@given(events, events)
def test_merging_does_not_change_the_other(happened, more):
    counters, other = counters_of(happened), counters_of(more)
    counters.merge(other)
    assert other == counters_of(more)


@given(st.lists(counted), st.sampled_from(WHATS))
def test_every_total_is_the_sum_of_its_parts(happened, what):
    counters = counters_of(happened)
    whole = sum(n for *_, counted_as, n in happened if counted_as == what)
    assert counters.total(what) == whole
    assert sum(counters.by_component(what).values()) == whole
    for component, total in counters.by_component(what).items():
        assert total == counters.total(what, component=component)
        assert total == sum(counters.total(what, component=component, task=task) for task in (1, 2, 3))
        streams = {on for _, _, on, *_ in happened}
        assert total == sum(counters.total(what, component=component, stream=on) for on in streams)


@given(events)
def test_the_view_says_what_the_counters_say(happened):
    counters = counters_of(happened)
    stats = Stats.of(counters)
    assert sorted(stats.components) == sorted({key[0] for key in counters})
    for name, component in stats.components.items():
        for what in WHATS:
            total = counters.total(what, component=name)
            assert getattr(component.total, what) == total
            assert sum(getattr(numbers, what) for numbers in component.streams.values()) == total
            assert sum(getattr(task.total, what) for task in component.tasks.values()) == total
            for task_id, task in component.tasks.items():
                for stream, numbers in task.streams.items():
                    expected = counters.total(what, component=name, task=task_id, stream=stream)
                    assert getattr(numbers, what) == expected


def test_a_count_of_zero_is_no_entry():
    counters = Counters()
    counters.add("split", 1, "default", "acked", 0)
    counters.add_latency("split", 1, "default", "execute_ms", 0.0, 0)
    assert not counters
    assert counters == Counters()


def test_asking_for_what_was_never_counted_adds_nothing():
    counters = Counters()
    with pytest.raises(KeyError):
        counters["split", 1, "default", "acked"]
    assert counters.get(("split", 1, "default", "acked"), 0) == 0
    assert len(counters) == 0


def test_numbers_of_numpy_are_counted_without_wrapping_and_travel():
    counters = Counters()
    for _ in range(3):
        counters.add("split", np.int32(1), "default", "acked", np.int64(2**62))
        counters.add_latency("split", np.int32(1), "default", "execute_ms", np.float64(0.5), np.int64(1))
    assert counters.total("acked") == 3 * 2**62
    assert Counters.from_bytes(counters.to_bytes()) == counters


def test_latencies_are_averages_weighted_by_their_samples_down_to_a_microsecond():
    counters = Counters()
    counters.add_latency("split", 1, "orders:default", "execute_ms", 0.003, 1)
    counters.add_latency("split", 2, "orders:default", "execute_ms", 9.0, 9)
    split = Stats.of(counters)["split"]
    assert split.total.execute_ms == pytest.approx(0.9003)
    assert split.tasks[1].total.execute_ms == pytest.approx(0.003)
    assert split.tasks[2].streams["orders:default"].execute_ms == 1.0
    assert split.total.process_ms is None


@pytest.mark.parametrize("n", [-1, np.int64(-1)])
def test_a_counter_never_shrinks(n):
    with pytest.raises(ProtocolError, match="only grow"):
        Counters().add("split", 1, "default", "acked", n)
    with pytest.raises(ProtocolError, match="only grow"):
        Counters().add_latency("split", 1, "default", "execute_ms", 1.0, n)
    with pytest.raises(ProtocolError, match="only grow"):
        Counters().add_latency("split", 1, "default", "execute_ms", n, 1)


def test_an_unknown_kind_of_count_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="'execute_ms' is not counted"):
        Counters().add("split", 1, "default", "execute_ms", 1)
    with pytest.raises(ProtocolError, match="'acked' is not measured"):
        Counters().add_latency("split", 1, "default", "acked", 1.0, 1)


def test_words_of_a_newer_release_are_kept_and_not_shown():
    packed = json.dumps([["split", 1, "default", "teleported", 4]]).encode()
    counters = Counters.from_bytes(packed)
    assert counters.to_bytes() == packed.replace(b" ", b"")
    assert Stats.of(counters)["split"].total == Numbers()


def test_names_with_lone_surrogates_travel():
    counters = Counters()
    counters.add("caf\u00e9\ud800", 1, "default", "acked", 1)
    assert Counters.from_bytes(counters.to_bytes()) == counters


def test_errors_belong_to_no_stream_and_count_in_the_total():
    counters = Counters()
    counters.add("split", 3, NO_STREAM, "errors", 2)
    split = Stats.of(counters)["split"]
    assert split.total.errors == split.tasks[3].total.errors == 2
    assert dict(split.streams) == dict(split.tasks[3].streams) == {}


def test_a_component_that_did_nothing_yet_is_shown_when_it_is_named():
    stats = Stats.of(Counters(), components=["count"], spouts={"orders": SpoutNumbers(3, 0.5)})
    assert list(stats.components) == ["count", "orders"]
    assert (stats["count"].total, stats["count"].open, stats["count"].tasks) == (Numbers(), None, {})
    assert (stats["orders"].open, stats["orders"].oldest_open_secs) == (3, 0.5)


def test_a_view_stays_as_it_was_made():
    counters = counters_of([("split", 1, "default", "acked", 1)])
    stats = Stats.of(counters)
    counters.add("split", 1, "default", "acked", 1)
    assert stats["split"].total.acked == 1
    with pytest.raises(TypeError):
        stats.components["split"] = stats["split"]
    with pytest.raises(TypeError):
        stats["split"].streams["late"] = Numbers()
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.errors = ()


def test_the_table_can_be_read_by_a_person():
    counters = Counters()
    counters.add("orders", 1, "default", "emitted", 1200)
    counters.add("orders", 1, "default", "transferred", 1200)
    counters.add("orders", 1, "default", "acked", 999)
    counters.add_latency("orders", 1, "default", "complete_ms", 4995.0, 999)
    counters.add("split", 2, "orders:default", "executed", 1000)
    counters.add("split", 2, "default", "emitted", 5000)
    counters.add("split", 2, NO_STREAM, "errors", 1)
    stats = Stats.of(
        counters,
        spouts={"orders": SpoutNumbers(201, 12.34, complete_ms=Histogram({5: 999}))},
        errors=[
            ReportedError("split", 2, "no such order", 1700),
            ReportedError("orders", None, "connection lost\n  where: here", 1800),
        ],
    )
    lines = stats.table().splitlines()
    assert [line.split() for line in (*lines[1:3], *lines[4:7])] == [
        ["orders", "1,200", "999", "0", "0", "0", "5", "5", "5", "201", "12.3"],
        ["default", "1,200", "999", "0", "0", "0", "5"],
        ["split", "1,000", "0", "0", "5,000", "0", "1"],
        ["default", "0", "0", "0", "5,000", "0", "0"],
        ["orders:default", "1,000", "0", "0", "0", "0", "0"],
    ]
    emitted_ends = lines[0].index("emitted") + len("emitted")
    assert all(line[:emitted_ends].endswith("1,200") for line in lines[1:3])
    assert lines[-2:] == [
        "error component=split task=2 at=1970-01-01T00:00:01Z reason='no such order'",
        "error component=orders at=1970-01-01T00:00:01Z reason='connection lost; where: here'",
    ]


def test_the_table_of_nothing_is_its_headings():
    assert Stats.of(Counters()).table().split()[:3] == ["spout", "emitted", "acked"]
    assert len(Stats.of(Counters()).table().splitlines()) == 1


@given(st.data())
def test_no_line_of_the_table_is_longer_than_a_hundred_columns(data):
    counters = Counters()
    names = data.draw(st.lists(st.text("abc-", min_size=1, max_size=80), min_size=1, max_size=4, unique=True))
    for name in names:
        for stream in data.draw(st.lists(st.text("xyz", min_size=1, max_size=80), max_size=3)):
            for what in ("emitted", "transferred", "executed", "acked", "failed", "timed_out", "errors"):
                counters.add(name, 1, stream, what, data.draw(st.integers(0, 10**14)))
            for latency in ("execute_ms", "process_ms", "complete_ms"):
                counters.add_latency(name, 1, stream, latency, data.draw(st.integers(0, 10**6)), 1)
    spouts = {names[0]: SpoutNumbers(10**9, 12345.6, complete_ms=Histogram({800: 3}))}
    table = Stats.of(counters, components=names, spouts=spouts, warming_up_secs=123.4).table()
    assert max(map(len, table.splitlines())) <= WIDTH == 100


def test_a_topology_that_warms_up_says_so_above_its_table():
    stats = Stats.of(Counters(), warming_up_secs=3.21)
    assert stats.table().startswith("warming up for 3.2 s")
    assert "warming up for 3 s" in repr(stats)
    assert "warming" not in repr(Stats.of(Counters()))


def test_the_messages_that_earlier_runs_left_open_are_above_the_table():
    table = Stats.of(Counters(), open_at_start=1156).table()
    assert table.startswith("1,156 messages were open when this run began")
    assert "were open" not in Stats.of(Counters()).table()
