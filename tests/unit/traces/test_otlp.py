"""Traces go to an OpenTelemetry collector: a span for each tuple, with the ids that acktree derived."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("opentelemetry", reason="needs acktree[otel]")

from opentelemetry.proto.trace.v1.trace_pb2 import Span as Kind
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from acktree import BasicBolt, Bolt, Config, Retry, TopologyBuilder
from acktree.core.micro_batch import MicroBatch
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout, LocalCluster
from acktree.traces.otlp import TraceExport
from acktree.traces.recorder import TraceRecorder
from acktree.traces.spans import span_id_of, trace_id_of_root
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.traces import Traces
from tests.unit.traces.collector import Collector, attributes_of
from tests.unit.traces.test_recorder import CHUNK

SECRET = "jellyfish"


class Pieces(BasicBolt):
    outputs = ["piece"]

    def execute(self, tup, collector):
        for piece in tup["line"].split():
            collector.emit([piece])


class Pairs(Bolt):
    """Emits for each two tuples one that is anchored to both."""

    outputs = ["pair"]
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, []

    def execute(self, tup):
        if tup["piece"] == "bad":
            raise ValueError("no such piece")
        self.kept.append(tup)
        if len(self.kept) == 2:
            self.collector.emit([SECRET], anchors=self.kept)
            for each in self.kept:
                self.collector.ack(each)
            self.kept = []


class Ends(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


def topology_of(spout, retry=None):
    builder = TopologyBuilder("pairs")
    builder.set_spout("source", spout, retry=retry)
    builder.set_bolt("pieces", Pieces()).shuffle_grouping("source")
    builder.set_bolt("pairs", Pairs()).global_grouping("pieces")
    builder.set_bolt("ends", Ends()).shuffle_grouping("pairs")
    return builder.create_topology()


def recorded(*lines, retry=None, advance=0):
    """Traces of messages with these lines as ids and values, as LocalCluster records them."""
    feeder = FeederSpout(["line"])
    with LocalCluster() as cluster:
        running = cluster.submit(topology_of(feeder, retry), config=Config(trace_sample_rate=1))
        for line in lines:
            feeder.feed([f"{line} {SECRET}"], message_id=line)
        cluster.advance(advance)
        return [running.traces.get(each.root) for each in running.traces.find()]


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


def exported(collector, traces, url=None, systems=()):
    by_root = {each.message.root: each for each in traces}
    export = TraceExport(url or collector.url, "pairs", by_root.get, dict(systems))
    try:
        export.put(by_root)
        assert export.settle(20)
    finally:
        export.close()
    return export


def ids(span):
    return span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()


def test_each_tuple_is_a_span_whose_id_is_its_edge(collector):
    (trace,) = recorded("a")
    export = exported(collector, [trace], systems={"source": "kafka"})
    assert (export.exported, export.dropped) == (1, 0)
    assert {span.span_id.hex() for span in collector.spans} == {
        f"{each.edge % 2**64:016x}" for each in trace.tuples
    }
    spans = {int(span.span_id.hex(), 16): span for span in collector.spans}
    assert {span.trace_id.hex() for span in spans.values()} == {
        f"{trace_id_of_root(trace.message.root):032x}"
    }
    root = spans[span_id_of(trace.message.root)]
    assert (root.name, root.kind, root.parent_span_id) == ("process source", Kind.SPAN_KIND_CONSUMER, b"")
    told = attributes_of(root)
    assert told["messaging.system"] == "kafka"
    assert (told["messaging.message.id"], told["acktree.verdict"]) == ("'a'", "ACKED")
    assert [event.name for event in root.events] == ["ACKED"]
    assert collector.resources[0]["service.name"] == "pairs"
    for each in trace.tuples[1:]:
        span = spans[span_id_of(each.edge)]
        assert int(span.parent_span_id.hex(), 16) == span_id_of(each.parents[0])
        assert {int(link.span_id.hex(), 16) for link in span.links} == {*map(span_id_of, each.parents[1:])}
        assert span.start_time_unix_nano == each.began_ms * 1_000_000
        told = attributes_of(span)
        names = ("component", "task", "stream", "micro_batch", "fate")
        assert [told[f"acktree.{name}"] for name in names] == [
            each.component, each.task_id, each.stream, each.batch_id, each.fate,
        ]  # fmt: skip
    (joined,) = (each for each in trace.tuples if len(each.parents) == 2)
    assert len(spans[span_id_of(joined.edge)].links) == 1


def test_what_fails_is_an_error_with_its_reason_and_another_attempt_links_the_one_before(collector):
    traces = recorded("bad", retry=Retry(max_attempts=2), advance=120)
    exported(collector, traces)
    roots = sorted((s for s in collector.spans if not s.parent_span_id), key=lambda s: s.start_time_unix_nano)
    assert [attributes_of(span)["acktree.attempt"] for span in roots] == [1, 2]
    assert all(span.status.code == Status.STATUS_CODE_ERROR for span in roots)
    assert all("no such piece" in span.status.message for span in roots)
    (link,) = roots[1].links
    assert (link.trace_id, link.span_id) == (roots[0].trace_id, roots[0].span_id)
    failed = [span for span in collector.spans if span.name == "pairs" and span.status.code]
    assert {span.status.message for span in failed} == {"ValueError: no such piece"}


def test_no_value_leaves_the_driver(collector):
    traces = recorded("a", "bad")
    assert all(SECRET in str(trace) for trace in traces)
    exported(collector, traces)
    assert collector.spans
    assert all(SECRET.encode() not in request.SerializeToString() for request in collector.requests)


def test_a_second_run_exports_the_same(collector):
    traces = recorded("a", "bad")
    exported(collector, traces)
    first = sorted(span.SerializeToString() for span in collector.spans)
    collector.requests.clear()
    exported(collector, traces)
    assert sorted(span.SerializeToString() for span in collector.spans) == first


def test_what_has_its_verdict_is_exported_and_what_is_open_is_not(collector):
    store = TraceStore(IN_MEMORY)
    export = TraceExport(collector.url, "pairs", Traces(store).get, {})
    recorder = TraceRecorder(store, 1.0, 5, lambda: 9, export=export)
    recorder.emitted(CHUNK, ["a", "b", "c"])
    recorder.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(2))})
    recorder.close()
    assert (export.exported, export.dropped) == (2, 0)
    assert {attributes_of(span)["messaging.message.id"] for span in collector.spans} == {"'a'", "'b'"}


@pytest.mark.parametrize("status", [500, None])
def test_a_collector_that_is_away_is_reported_once_and_stops_nothing(status, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")
    traces = recorded("a")
    with Collector(status=status) as collector:
        url = collector.url if status else f"http://user:hidden@127.0.0.1:{unused_port()}"
        by_root = {each.message.root: each for each in traces}
        with caplog.at_level(logging.WARNING):
            export = TraceExport(url, "pairs", by_root.get, {})
            for _ in range(3):
                export.put(by_root)
                assert export.settle(20)
            export.close()
    assert (export.exported, export.dropped) == (0, 3)
    (record,) = caplog.records
    assert "cannot export traces" in record.getMessage()
    assert "hidden" not in record.getMessage()


@pytest.mark.parametrize("wrong", ["took_ms", "emitted_ms", "reason", "tuples"])
def test_a_trace_with_wrong_values_harms_no_other(wrong, collector, caplog):
    traces = recorded("a", "b", "c")
    one = traces[1]
    if wrong == "took_ms":  # no clock gives such times
        traces[1] = replace(one, tuples=[replace(each, took_ms=float("inf")) for each in one.tuples])
    elif wrong == "emitted_ms":
        traces[1] = replace(one, message=replace(one.message, emitted_ms=-5))
    elif wrong == "reason":  # it cannot be encoded
        traces[1] = replace(one, message=replace(one.message, verdict="FAILED", reason="\ud800"))
    else:  # no span can be made of it
        traces[1] = replace(one, tuples=[None])
    by_root = {each.message.root: each for each in traces}
    export = TraceExport(collector.url, "pairs", by_root.get, {})
    for _ in range(2):
        export.put(by_root)
        assert export.settle(20)
    export.close()
    lost = 2 if wrong in {"reason", "tuples"} else 0
    assert (export.exported, export.dropped) == (6 - lost, lost)
    assert ["cannot be encoded" in each.getMessage() for each in caplog.records] == [True] * (lost // 2)
    sent = {span.trace_id.hex() for span in collector.spans}
    kept = [each for each in traces if not lost or each is not traces[1]]
    assert sent == {f"{trace_id_of_root(each.message.root):032x}" for each in kept}


def test_nothing_is_counted_as_exported_where_opentelemetry_is_off(collector, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    traces = recorded("a", "b")
    export = exported(collector, traces)
    assert (export.exported, export.dropped, collector.requests) == (0, 2, [])
    assert ["OTEL_SDK_DISABLED" in each.getMessage() for each in caplog.records] == [True]


def test_a_request_has_no_more_spans_than_the_bound_and_one_trace(collector, monkeypatch):
    traces = recorded("a", "b", "c", "d", "e")
    monkeypatch.setattr("acktree.traces.otlp._MOST_SPANS", min(len(each.tuples) for each in traces) + 1)
    exported(collector, traces)
    sent = [
        {span.trace_id for span in request.resource_spans[0].scope_spans[0].spans}
        for request in collector.requests
    ]
    assert [len(each) for each in sent] == [2, 2, 1]
    collector.requests.clear()
    monkeypatch.undo()
    exported(collector, traces)
    assert len(collector.requests) == 1


def test_the_service_is_what_the_environment_names(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    exported(collector, recorded("a"))
    assert collector.resources[0]["service.name"] == "orders"


def test_a_password_in_the_text_of_an_error_is_masked(caplog, monkeypatch):
    def export(*_):
        raise ValueError("no port in http://me:hidden@127.0.0.1/v1/traces")

    monkeypatch.setattr("acktree.traces.otlp.trace_exporter.OTLPSpanExporter.export", export)
    exported(None, recorded("a"), url="http://me:hidden@127.0.0.1")
    (record,) = caplog.records
    assert "no port in http://me:***@127.0.0.1/v1/traces" in record.getMessage()
    assert "hidden" not in record.getMessage()


def test_the_end_of_a_run_ends_the_pause_before_the_next_try(monkeypatch):
    monkeypatch.setattr("acktree.traces.otlp._CLOSE_SECS", 0.05)
    (trace,) = recorded("a")
    with Collector(status=503) as collector:
        export = TraceExport(collector.url, "pairs", lambda _: trace, {})
        export.put([1])
        collector.wait_for(lambda it: it.requests)
        export.close()
        export._thread.join(2)  # the exporter tries for 10 s
        assert not export._thread.is_alive()


def test_a_full_queue_drops_and_counts(collector, monkeypatch):
    monkeypatch.setattr("acktree.traces.otlp._MOST_WAITING", 5)
    (trace,) = recorded("a")
    may_read, read = threading.Event(), []

    def take(root):
        may_read.wait(120)
        read.append(root)
        return trace

    export = TraceExport(collector.url, "pairs", take, {})
    export.put([0])
    while export._waiting:  # the thread takes it, and waits
        may_read.wait(0.001)
    export.put(range(1, 9))
    may_read.set()
    assert export.settle(20)
    export.close()
    assert read == [0, 1, 2, 3, 4, 5]
    assert (export.exported, export.dropped) == (6, 3)


def test_a_run_that_ends_does_not_wait_for_a_collector_that_is_away():
    taken = socket.create_server(("127.0.0.1", 0))  # it accepts, and never answers
    try:
        (trace,) = recorded("a")
        export = TraceExport(f"http://127.0.0.1:{taken.getsockname()[1]}", "pairs", lambda _: trace, {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("acktree.traces.otlp._CLOSE_SECS", 0.1)
            export.put([1])
            export.close()
    finally:
        taken.close()


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
