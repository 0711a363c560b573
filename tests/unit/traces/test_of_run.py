"""The recorder of a run, and which settings and environment variables its export takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry", reason="needs acktree[otel]")

from acktree import Config, ConfigError, TopologyBuilder
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from acktree.traces.of_run import messaging_systems, recorder_of_run
from tests.unit.traces.test_otlp import Ends, topology_of
from tests.unit.traces.test_recorder import CHUNK


@pytest.mark.parametrize("variable", ["OTEL_ATTRIBUTE_COUNT_LIMIT", None])
def test_a_wrong_environment_variable_ends_nothing_but_the_export(variable, caplog, monkeypatch):
    def refuse(endpoint, *_):
        raise ValueError(f"{endpoint} is wrong")

    if variable is None:
        monkeypatch.setattr("acktree.traces.otlp.TraceExport", refuse)
    else:
        monkeypatch.setenv(variable, "-3")
    plan = Plan.of(topology_of(FeederSpout(["line"])), Config(), partitions=1, run_salt=5)
    config = Config(otlp_endpoint="http://me:hidden@127.0.0.1:9")
    recorder = recorder_of_run(None, plan, config, lambda: 9, "1")
    recorder.set_rate(1.0)
    recorder.emitted(CHUNK, ["a", "b", "c"])
    assert recorder.settle()
    assert recorder.store.count() == 3
    recorder.close()
    (record,) = caplog.records
    assert "no traces are exported" in record.getMessage()
    assert (variable or "http://me:***@127.0.0.1:9 is wrong") in record.getMessage()


def test_an_environment_variable_that_opentelemetry_refuses_when_it_is_imported_stops_no_submit():
    code = """
import acktree
from acktree.traces.of_run import refuse_missing_exporter
refuse_missing_exporter(acktree.Config(otlp_endpoint="http://localhost:4318"), "submit")
consumer = acktree.OtlpMetricsConsumer()
try:
    consumer.prepare(None, "pairs")
except ValueError as error:
    print(error)
"""
    env = os.environ | {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in done.stdout


def test_the_settings_and_the_extra_are_checked():
    for wrong in (
        "localhost:4318",
        "http://",
        "http://host:4318/v1/traces",
        "http://host:4318/otel/v1/metrics/",
        "ftp://host",
        4318,
        "http://h?x=1",
    ):
        with pytest.raises(ConfigError, match="otlp_endpoint"):
            Config(otlp_endpoint=wrong)
    for right in ("http://host/v1/tenant", "http://host/api/v1/otlp/", "http://host/v1/traces/of-team"):
        assert Config(otlp_endpoint=right).otlp_endpoint == right
    config = Config.from_mapping({"acktree.otlp.endpoint": "https://me:hidden@host:4318/otel"})
    assert "hidden" not in f"{config!r}{config.without_secrets().to_mapping()}"
    code = """
import sys
sys.modules["opentelemetry"] = None
import acktree
from acktree.traces.of_run import refuse_missing_exporter
refuse_missing_exporter(acktree.Config(), "submit")
try:
    refuse_missing_exporter(acktree.Config(otlp_endpoint="http://localhost:4318"), "submit")
except acktree.ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "acktree[otel]" in done.stdout


def test_the_systems_of_connectors_are_named():
    class Fed(FeederSpout):
        pass

    from acktree.connectors.rabbitmq import RabbitMQSpout  # noqa: PLC0415  # it needs a client

    class Mine(RabbitMQSpout):
        pass

    builder = TopologyBuilder("systems")
    builder.set_spout("fed", Fed(["line"]))
    builder.set_spout("queue", Mine("amqp://localhost", "queue"))
    for spout in ("fed", "queue"):
        builder.set_bolt(f"end-{spout}", Ends()).shuffle_grouping(spout)
    assert messaging_systems(builder.create_topology()) == {"queue": "rabbitmq"}
