"""An OpenTelemetry collector on loopback: keeps what it is sent, as protobuf decodes it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry", reason="needs acktree[otel]")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Collector:
    """Listens from its creation to the end of its block."""

    def __init__(self, status=200):
        self.status = status
        self.requests, self.headers = [], []
        self._change = threading.Condition()
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told.take(REQUESTS[self.path].FromString(body), self.headers)
                self.send_response(told.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, request, headers):
        with self._change:
            self.requests.append(request)
            self.headers.append(dict(headers))
            self._change.notify_all()

    def wait_for(self, is_there, secs=20):
        with self._change:
            assert self._change.wait_for(lambda: is_there(self), secs), self.requests

    @property
    def spans(self):
        return [
            span
            for request in self.requests
            for resource in getattr(request, "resource_spans", ())
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self):
        return [
            metric
            for request in self.requests
            for resource in getattr(request, "resource_metrics", ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    @property
    def resources(self):
        both = (
            each
            for request in self.requests
            for each in (*getattr(request, "resource_spans", ()), *getattr(request, "resource_metrics", ()))
        )
        return [attributes_of(each.resource) for each in both]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes_of(given):
    """The attributes of a span, resource or data point, as a dict."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in given.attributes}
