"""Metrics consumers: what they are given, and that a slow or broken one harms nothing."""

from __future__ import annotations

import json
import logging
import pickle
import stat
import sys
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import (
    Config,
    ConfigError,
    JsonLinesMetricsConsumer,
    LoggingMetricsConsumer,
    MetricsConsumer,
    OtlpMetricsConsumer,
    UserMetric,
)
from acktree.core.stats.counters import Counters
from acktree.core.stats.histograms import Histogram
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.metrics.consumers import Consumers, Source
from acktree.driver.metrics.data_points import data_points
from acktree.otlp_metrics import otlp_name


def counters():
    found = Counters()
    found.add("lines", 1, "default", "emitted", 12)
    found.add("lines", 1, "default", "acked", 7)
    found.add("lines", 1, "default", "failed", 1)
    found.add("lines", 1, "default", "timed_out", 2)
    found.add("lines", 1, "other", "timed_out", 1)
    found.add_latency("lines", 1, "default", "complete_ms", 70.0, 7)
    waited = {"pending_full": 1.5, "inactive": 2, "inbox_full": 0.25, "outage": 9, "pause": 9}
    for why, secs in waited.items():
        found.add_not_asked("lines", 1, why, secs)
    found.add("split", 2, "lines:default", "executed", 10)
    found.add("split", 2, "lines:default", "acked", 10)
    found.add_latency("split", 2, "lines:default", "execute_ms", 500.0, 10)
    found.add("split", 2, "", "errors", 3)
    return found


def shown(found):
    return {task: {point.name: point.value for point in points} for task, points in found.items()}


def test_the_names_are_storms():
    spread = Histogram()
    spread.add(2)
    metrics = {
        ("split", 2, "lines"): UserMetric("counter", 5),
        ("split", 2, "load"): UserMetric("gauge", value=0.5),
        ("split", 2, "unset"): UserMetric("gauge"),
        ("split", 2, "rate"): UserMetric("meter", 4, rates=(1.0, 2.0, 3.0)),
        ("split", 2, "size"): UserMetric("histogram", 1, sum=2, spread=spread),
    }
    found = data_points(counters(), Counters(), metrics, 2.0)
    assert shown(found) == {
        ("lines", 1): {
            "__emit-count-default": 12,
            "__ack-count-default": 7,
            "__fail-count-default": 3,
            "__timeout-count-default": 2,
            "__fail-count-other": 1,
            "__timeout-count-other": 1,
            "__complete-latency-default": 10.0,
            "__skipped-max-spout-ms": 1500,
            "__skipped-inactive-ms": 2000,
            "__skipped-backpressure-ms": 250,
        },
        ("split", 2): {
            "__execute-count-lines:default": 10,
            "__ack-count-lines:default": 10,
            "__execute-latency-lines:default": 50.0,
            "__capacity": 0.25,
            "__reported-error-count": 3,
            "lines": 5,
            "load": 0.5,
            "rate.count": 4,
            "rate.m1_rate": 1.0,
            "rate.m5_rate": 2.0,
            "rate.m15_rate": 3.0,
            "size.count": 1,
            "size.sum": 2,
            "size.mean": 2.0,
            **{f"size.{percent}percentile": 2 for percent in (50, 75, 95, 99)},
        },
    }
    (point,) = (each for each in found["split", 2] if each.name == "__execute-count-lines:default")
    assert point.dimensions == {"stream": "default", "source": "lines"}


@given(st.integers(0, 100), st.integers(1, 50), st.floats(0.1, 100))
def test_a_latency_and_the_capacity_are_of_the_time_since_the_last_report(before_n, more, each_ms):
    before, now = Counters(), Counters()
    before.add_latency("split", 2, "lines:default", "execute_ms", before_n * 7.0, before_n)
    now.merge(before)
    now.add_latency("split", 2, "lines:default", "execute_ms", more * each_ms, more)
    halved = shown(data_points(now, before, {}, 10.0, {"split": 2}))["split", 2]["__capacity"]
    found = shown(data_points(now, before, {}, 10.0))["split", 2]
    assert 2 * halved == pytest.approx(found["__capacity"])
    assert found["__execute-latency-lines:default"] == pytest.approx(each_ms, rel=0.01)
    assert found["__capacity"] == pytest.approx(more * each_ms / 10_000, rel=0.01)
    again = shown(data_points(now, now, {}, 10.0))["split", 2]
    assert again == {"__capacity": 0.0}


class Listens(MetricsConsumer):
    def __init__(self):
        self.calls, self.came = [], Event()

    def prepare(self, config, topology_name):
        self.calls.append((topology_name, config.metrics_consumers))

    def handle_data_points(self, task_info, data_points):
        self.calls.append((task_info.component_id, task_info.task_id, task_info.interval_secs))
        self.came.set()

    def cleanup(self):
        self.calls.append("cleanup")


class Blocks(Listens):
    def __init__(self):
        super().__init__()
        self.go = Event()

    def handle_data_points(self, task_info, data_points):
        super().handle_data_points(task_info, data_points)
        self.go.wait(120)


class Raises(Listens):
    def handle_data_points(self, task_info, data_points):
        self.came.set()
        raise ValueError("broken")


def begun(*consumers, interval_secs=60.0):
    errors = ErrorLog(Config())
    config = Config(metrics_consumers=consumers, metrics_interval_secs=interval_secs)
    running = Consumers(config, "words", errors)
    running.begin(Source(counters, dict))
    return running, errors


def test_the_last_numbers_are_reported_when_the_topology_stops():
    listens = Listens()
    running, errors = begun(listens)
    running.close()
    assert listens.calls == [("words", ()), ("lines", 1, 60), ("split", 2, 60), "cleanup"]
    assert errors.count == running.dropped == 0


def test_a_slow_consumer_drops_and_counts_and_slows_no_other():
    blocks, listens = Blocks(), Listens()
    running, errors = begun(blocks, listens, interval_secs=0.001)
    assert blocks.came.wait(120)
    while not running.dropped:
        listens.came.clear()
        assert listens.came.wait(120)  # the other one goes on
    blocks.go.set()
    running.close()
    assert blocks.calls[-1] == listens.calls[-1] == "cleanup"
    assert "Blocks is 100 intervals behind: 1 were dropped so far" in errors.kept[0].reason
    assert len(errors.kept) == 1


def test_what_a_consumer_raises_is_reported_once_a_minute_and_it_is_called_again():
    raises = Raises()
    running, errors = begun(raises, interval_secs=0.001)
    for _ in range(3):
        assert raises.came.wait(120)
        raises.came.clear()
    running.close()
    assert raises.calls == [("words", ()), "cleanup"]
    (error,) = errors.kept
    assert (error.component, error.task_id) == ("__metrics_Raises", None)
    assert "Raises raised in handle_data_points(): ValueError: broken" in error.reason


def test_a_consumer_that_cannot_be_prepared_is_reported_and_not_called():
    class Unprepared(Listens):
        def prepare(self, config, topology_name):
            raise OSError("no such host")

    unprepared = Unprepared()
    running, errors = begun(unprepared)
    running.close()
    assert unprepared.calls == []
    assert "raised in prepare(): OSError: no such host" in errors.kept[0].reason


def test_a_consumer_that_calls_sys_exit_is_called_again():
    class Exits(Raises):
        def handle_data_points(self, task_info, data_points):
            self.came.set()
            sys.exit(3)

    exits = Exits()
    running, errors = begun(exits, interval_secs=0.001)
    for _ in range(3):
        assert exits.came.wait(120)
        exits.came.clear()
    running.close()
    assert exits.calls[-1] == "cleanup"
    assert ["SystemExit: 3" in error.reason for error in errors.kept] == [True]


@pytest.mark.parametrize("error", [OSError("no such host"), SystemExit(3)], ids=repr)
def test_prepare_is_called_again_with_the_next_interval_until_it_returns(error):
    class Late(Listens):
        tries = 0

        def prepare(self, config, topology_name):
            self.tries += 1
            if self.tries < 3:
                raise error
            super().prepare(config, topology_name)

    late = Late()
    running, errors = begun(late, interval_secs=0.001)
    assert late.came.wait(120)
    running.close()
    assert (late.tries, late.calls[0], late.calls[-1]) == (3, ("words", ()), "cleanup")
    assert ["raised in prepare()" in error.reason for error in errors.kept] == [True]
    assert running.dropped == 0


def test_without_consumers_nothing_runs():
    running, errors = begun()
    running.close()
    assert errors.count == 0


def test_json_lines_and_log_lines_have_every_number(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    caplog.set_level(logging.INFO, "acktree.metrics")
    running, errors = begun(JsonLinesMetricsConsumer(file), LoggingMetricsConsumer())
    running.close()
    wanted = shown(data_points(counters(), Counters(), {}, 1.0))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = {(row["component_id"], row["task_id"], row["name"]) for row in rows}
    assert found == {(*task, name) for task, points in wanted.items() for name in points}
    assert len(caplog.records) == len(rows) == 15
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert errors.count == 0


def test_a_file_without_a_folder_and_what_is_no_consumer_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        JsonLinesMetricsConsumer(tmp_path / "none" / "metrics.jsonl")
    with pytest.raises(ConfigError, match=r"extend acktree\.MetricsConsumer"):
        Config(metrics_consumers=["acktree.LoggingMetricsConsumer"])
    config = Config.from_mapping(
        {
            "topology.metrics.consumer.register": "acktree.LoggingMetricsConsumer",
            "topology.builtin.metrics.bucket.size.secs": 10,
        }
    )
    assert isinstance(config.metrics_consumers[0], LoggingMetricsConsumer)
    assert config.metrics_interval_secs == 10


def test_every_number_goes_to_an_opentelemetry_collector():
    pytest.importorskip("opentelemetry", reason="needs acktree[otel]")
    from tests.unit.traces.collector import Collector, attributes_of  # noqa: PLC0415

    with Collector() as collector:
        running, errors = begun(OtlpMetricsConsumer(collector.url))
        running.close()
    assert errors.count == 0
    wanted = data_points(counters(), Counters(), {}, 1.0)
    found = {
        (each["component"], each["task"], metric.name, each.get("source"), each.get("stream")): number
        for metric in collector.metrics
        for number in getattr(metric, metric.WhichOneof("data")).data_points
        for each in [attributes_of(number)]
    }
    assert found.keys() == {
        (*task, otlp_name(point), point.dimensions.get("source"), point.dimensions.get("stream"))
        for task, points in wanted.items()
        for point in points
    }
    assert found["split", 2, "acktree.execute_count", "lines", "default"].as_int == 10
    kinds = {metric.name: (metric.WhichOneof("data"), metric.unit) for metric in collector.metrics}
    assert {kind for name, kind in kinds.items() if name.endswith("_count")} == {("sum", "1")}
    assert kinds["acktree.skipped_inactive_ms"] == ("sum", "ms")
    assert kinds["acktree.complete_latency"] == ("gauge", "ms")
    assert collector.resources[0]["service.name"] == "words"


def test_a_collector_that_is_away_is_reported_once_and_no_password_is_shown(caplog, monkeypatch):
    pytest.importorskip("opentelemetry", reason="needs acktree[otel]")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0.2")
    consumer = OtlpMetricsConsumer("http://me:hidden@127.0.0.1:9")  # nobody serves port 9
    running, errors = begun(consumer)
    running.close()
    (error,) = errors.kept
    assert "the collector did not take them" in error.reason
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert "hidden" not in error.reason + pickle.dumps(consumer).decode("latin-1")


@pytest.mark.parametrize("place", ["argument", "METRICS_ENDPOINT", "ENDPOINT"])
def test_a_password_in_the_text_of_an_error_is_masked(place, monkeypatch):
    pytest.importorskip("opentelemetry", reason="needs acktree[otel]")
    url = "http://me:hidden@127.0.0.1"
    endpoint = url if place == "argument" else None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url if place == "ENDPOINT" else "http://other")
    if place == "METRICS_ENDPOINT":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", url)

    def export(exporter, _):
        raise ValueError(f"no port in {exporter._endpoint}")

    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter.OTLPMetricExporter.export"
    monkeypatch.setattr(name, export)
    running, errors = begun(OtlpMetricsConsumer(endpoint))
    running.close()
    (error,) = errors.kept
    assert "no port in http://me:***@127.0.0.1" in error.reason
    assert "OtlpMetricsConsumer(http://***@127.0.0.1)" in error.reason
    assert "hidden" not in error.reason


@pytest.mark.parametrize("endpoint", ["http://me:hidden@127.0.0.1:9", None])
def test_a_copy_of_an_opentelemetry_consumer_has_its_endpoint_without_the_password(endpoint):
    pytest.importorskip("opentelemetry", reason="needs acktree[otel]")
    consumer = OtlpMetricsConsumer(endpoint)
    consumer.prepare(None, "words")
    copied = pickle.loads(pickle.dumps(consumer))
    consumer.cleanup()
    assert vars(copied) == {"endpoint": None if endpoint is None else "http://***@127.0.0.1:9"}


def test_the_service_of_numbers_is_what_the_environment_names(monkeypatch):
    pytest.importorskip("opentelemetry", reason="needs acktree[otel]")
    from tests.unit.traces.collector import Collector  # noqa: PLC0415

    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    with Collector() as collector:
        running, _ = begun(OtlpMetricsConsumer(collector.url))
        running.close()
    assert collector.resources[0]["service.name"] == "orders"
