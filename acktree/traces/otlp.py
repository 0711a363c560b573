"""Exports traces to an OpenTelemetry collector, by OTLP over HTTP, on a thread of its own in the driver.

Rules of this file
------------------
1. Nobody waits for the collector: roots wait in a bounded queue; what does not fit is dropped and counted.
2. A collector that is away is reported once until it is back; it stops nothing.
3. A trace that cannot be encoded is left out alone.

Headers, certificates, compression and timeouts are the exporter's: ``OTEL_EXPORTER_OTLP_HEADERS`` etc.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)  # fmt: skip

from acktree.logs.loggers import FirstWords, logger
from acktree.logs.private_urls import masked_text, masked_url
from acktree.texts import error_text
from acktree.traces.spans import SCHEMA, Span, spans_of
from acktree.traces.trace import Trace

log = logger("acktree")

_MOST_WAITING: Final = 10_000
"""How many traces wait to be exported at most."""
_MOST_TRACES: Final = 100
"""How many traces one request has at most."""
_MOST_SPANS: Final = 2000
"""A request that has this number of spans gets no further trace."""
_CLOSE_SECS: Final = 5.0
"""How long the traces that wait are exported after the end of a run."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

Spans = Sequence[ReadableSpan]


class TraceExport:
    """Exports the traces of one run.

    Attributes:
        exported: How many traces the collector has taken.
        dropped: How many it has not: the queue was full, it was away, a trace cannot be encoded, or
            ``OTEL_SDK_DISABLED`` is set.
    """

    def __init__(
        self,
        endpoint: str,
        topology: str,
        read: Callable[[int], Trace | None],
        systems: Mapping[str, str],
        version: str = "",
    ) -> None:
        """Start the thread.

        Args:
            endpoint: The URL of the collector, without ``/v1/traces``.
            topology: The topology's name: the service, unless ``OTEL_SERVICE_NAME`` is set.
            read: Returns the trace of a root; None if it is not stored.
            systems: See :func:`acktree.traces.spans.spans_of`.
            version: Of acktree.
        """
        self.exported = self.dropped = 0
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._topology, self._read, self._systems = topology, read, systems
        self._encoder = _Encoder(topology, version)
        self._exporter = trace_exporter.OTLPSpanExporter(endpoint=self._url)
        self._waiting: deque[int] = deque()
        self._change = threading.Condition()
        self._is_closed = self._is_away = self._is_left_out = False
        self._pending = 0
        if self._encoder.is_disabled:
            self._is_closed = True  # what is put is dropped, and counted
            log.warning("topology=%s exports no traces: OTEL_SDK_DISABLED is set", topology)
        self._thread = threading.Thread(target=self._run, name=f"otlp {topology}", daemon=True)
        self._thread.start()

    def put(self, roots: Iterable[int]) -> None:
        """Export the traces of these roots, whose messages have their verdicts. Any thread; never waits."""
        with self._change:
            for root in roots:
                if len(self._waiting) < _MOST_WAITING and not self._is_closed:
                    self._waiting.append(root)
                    self._pending += 1
                else:
                    self.dropped += 1
            self._change.notify_all()

    def settle(self, timeout_secs: float = 10.0) -> bool:
        """Wait until nothing waits to be exported. False when the time is over first."""
        with self._change:
            return self._change.wait_for(lambda: not self._pending, timeout_secs)

    def close(self) -> None:
        """Export what waits, for a few seconds at most; what still waits then is dropped."""
        self.settle(0.0 if self._is_away else _CLOSE_SECS)
        with self._change:
            self._is_closed = True
            self.dropped += len(self._waiting)
            self._pending -= len(self._waiting)
            self._waiting.clear()
            self._change.notify_all()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends a pause before the next try
        self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        """The thread's target."""
        self._said = FirstWords(trace_exporter.__name__)
        try:
            while roots := self._next():
                self._export(roots)
        finally:
            self._said.close()

    def _next(self) -> list[int]:
        """The roots for the next requests; none when all is over."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._is_closed)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_TRACES))]

    def _export(self, roots: Sequence[int]) -> None:
        traces: list[Spans] = []
        for root in roots:
            spans = self._spans_of(root)
            if not spans:
                self._note(0, 1)
                continue
            traces.append(spans)
            if sum(map(len, traces)) >= _MOST_SPANS:
                self._request(traces)
                traces = []
        if traces:
            self._request(traces)

    def _spans_of(self, root: int) -> Spans:
        """The spans of a root; none if its trace is not stored any more, or cannot be read or encoded."""
        try:
            trace = self._read(root)
        except Exception as error:  # noqa: BLE001  # of the store
            log.debug("topology=%s cannot read trace %d: %s", self._topology, root, error)
            return []
        try:
            return [] if trace is None else self._encoder.encoded(trace, self._systems)
        except Exception as error:  # noqa: BLE001  # of the SDK, or values that no clock gives
            self._leave_out(error)
            return []

    def _request(self, traces: Sequence[Spans]) -> None:
        """Send traces together, without those that cannot be encoded."""
        spans = [span for spans_of_trace in traces for span in spans_of_trace]
        is_taken = self._send(spans)
        if not is_taken and _refusal_of(spans) is not None:
            encoded = [spans_of_trace for spans_of_trace in traces if self._is_encoded(spans_of_trace)]
            if len(encoded) < len(traces):
                if encoded:
                    self._request(encoded)
                return
        self._note(len(traces) * is_taken, len(traces) * (not is_taken))
        self._say(is_away=not is_taken)

    def _is_encoded(self, spans: Spans) -> bool:
        """Whether the spans of a trace can be encoded. If not, the trace is counted as dropped."""
        error = _refusal_of(spans)
        if error is not None:
            self._note(0, 1)
            self._leave_out(error)
        return error is None

    def _leave_out(self, error: Exception) -> None:
        if not self._is_left_out:
            log.warning(
                "topology=%s leaves out a trace that cannot be encoded: %s", self._topology, error_text(error)
            )
        self._is_left_out = True

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether the collector took them. Returns when the exporter's timeout is over, at the latest."""
        self._said.words = ""
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001  # of the exporter
            self._said.words = str(error)
            return False

    def _note(self, taken: int, lost: int) -> None:
        with self._change:
            self.exported += taken
            self.dropped += lost
            self._pending -= taken + lost
            self._change.notify_all()

    def _say(self, *, is_away: bool) -> None:
        where = masked_url(self._url)
        if is_away and not self._is_away:
            why = masked_text(self._said.words, self._url)
            log.warning("topology=%s cannot export traces to %s, and goes on: %s", self._topology, where, why)
        elif self._is_away and not is_away:
            log.info("topology=%s exports traces to %s again", self._topology, where)
        self._is_away = is_away


class _Encoder(SpanProcessor, IdGenerator):
    """Makes spans of the SDK, with ids that are given."""

    def __init__(self, topology: str, version: str) -> None:
        self._topology = topology
        self._made: list[ReadableSpan] = []
        self._trace_id = self._span_id = 1
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": topology}
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(named), shutdown_on_exit=False, id_generator=self
        )
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer("acktree", version, schema_url=SCHEMA)
        self.is_disabled = isinstance(self._tracer, NoOpTracer)

    def encoded(self, trace: Trace, systems: Mapping[str, str]) -> Spans:
        """The spans of a trace."""
        self._made = []
        for span in spans_of(trace, self._topology, systems):
            self._make(span)
        return self._made

    def _make(self, span: Span) -> None:
        self._trace_id, self._span_id = span.trace_id, span.span_id
        above = Context()
        if span.parent_id is not None:
            parent = _context_of(span.trace_id, span.parent_id)
            above = set_span_in_context(NonRecordingSpan(parent), above)
        made = self._tracer.start_span(
            span.name, above, SpanKind.CONSUMER if span.is_consumer else SpanKind.INTERNAL,
            attributes=span.attributes, links=[Link(_context_of(*link)) for link in span.links],
            start_time=span.start_ns,
        )  # fmt: skip
        for name, at_ns in span.events:
            made.add_event(name, timestamp=at_ns)
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end_ns)

    def on_end(self, span: ReadableSpan) -> None:
        self._made.append(span)

    def generate_span_id(self) -> int:
        """What is given."""
        return self._span_id

    def generate_trace_id(self) -> int:
        """What is given."""
        return self._trace_id


def _refusal_of(spans: Spans) -> Exception | None:
    """Why spans cannot be encoded; None if they can. The exporter itself says only that it failed."""
    try:
        encode_spans(spans).SerializePartialToString()
    except Exception as error:  # noqa: BLE001  # of the exporter
        return error
    return None


def _context_of(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
