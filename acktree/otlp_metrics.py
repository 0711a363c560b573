"""A metrics consumer that sends all numbers to an OpenTelemetry collector, by OTLP over HTTP.

Counts are cumulative sums since the start of the run, other numbers are gauges. OpenTelemetry is an optional
dependency, and imported when it is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from acktree.errors import ConfigError, ConnectorError, installing
from acktree.logs.loggers import FirstWords
from acktree.logs.private_urls import masked_text, masked_url
from acktree.metrics_consumer import DataPoint, MetricsConsumer, TaskInfo

__all__ = ["OtlpMetricsConsumer", "otlp_name"]


class OtlpMetricsConsumer(MetricsConsumer):
    """Sends the numbers of each task to an OpenTelemetry collector. It needs ``acktree[otel]``.

    ``__emit-count-<stream>`` becomes the sum ``acktree.emit_count`` with the attributes ``component``,
    ``task``, ``stream`` and, of a bolt's input, ``source``; a metric of the topology's own becomes
    ``acktree.user.<name>``.
    Headers, certificates and timeouts are read from ``OTEL_EXPORTER_OTLP_HEADERS`` etc.

    Args:
        endpoint: The URL of the collector, without ``/v1/metrics``. None: ``OTEL_EXPORTER_OTLP_ENDPOINT``, or
            ``http://localhost:4318``.

    Raises:
        ConfigError: OpenTelemetry's exporter is not installed.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        try:
            import opentelemetry.exporter.otlp.proto.http.metric_exporter  # noqa: F401, PLC0415  # the extra
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is not installed, and metrics are to be exported",
                "OtlpMetricsConsumer()",
                installing("otel"),
            ) from error
        except Exception:  # noqa: BLE001, S110  # an environment variable is wrong: prepare() raises it again
            pass
        self.endpoint = endpoint

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the settings goes to the workers: without passwords, and not prepared."""
        return {"endpoint": None if self.endpoint is None else masked_url(self.endpoint)}

    def prepare(self, config: Any, topology_name: str) -> None:  # noqa: ANN401, ARG002  # as its base
        """Make the exporter."""
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415  # the extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        url = None if self.endpoint is None else f"{self.endpoint.rstrip('/')}/v1/metrics"
        self._exporter = metric_exporter.OTLPMetricExporter(endpoint=url)
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": topology_name}
        self._resource = Resource.create(named)
        self._began_ns = time.time_ns()
        self._failed_at = 0
        self._said = FirstWords(metric_exporter.__name__)

    def handle_data_points(self, task_info: TaskInfo, data_points: Sequence[DataPoint]) -> None:
        """Send the numbers of a task. Where the collector is away, the others of this interval are left out.

        Raises:
            ConnectorError: The collector did not take them.
        """
        if task_info.timestamp == self._failed_at:
            return
        if not self._is_taken(_metrics_of(task_info, data_points, self._resource, self._began_ns)):
            self._failed_at = task_info.timestamp
            where = self.endpoint or _endpoint_of_environment()
            raise ConnectorError(
                f"the collector did not take them: {masked_text(self._said.words, where)}",
                f"OtlpMetricsConsumer({masked_url(where)})",
                "start the collector, or correct its URL; counts are of the run so far, so none is lost",
                can_retry=True,
            )

    def _is_taken(self, metrics: Any) -> bool:  # noqa: ANN401  # of the extra
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415  # the extra

        self._said.words = ""
        try:
            return self._exporter.export(metrics) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001  # older exporters raise what is not a time-out
            self._said.words = str(error)
            return False

    def cleanup(self) -> None:
        """Let the exporter go."""
        self._said.close()
        self._exporter.shutdown()


def _endpoint_of_environment() -> str:
    """The URL that the exporter reads from environment variables; "" for its default."""
    names = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next(filter(None, map(os.environ.get, names)), "")


def otlp_name(point: DataPoint) -> str:
    """The name of a number in OpenTelemetry.

    >>> otlp_name(DataPoint("__execute-latency-lines:default", 2.5, {"stream": "default", "source": "lines"}))
    'acktree.execute_latency'
    >>> otlp_name(DataPoint("orders", 2))
    'acktree.user.orders'
    """
    if not point.name.startswith("__"):
        return f"acktree.user.{point.name}"
    stream = ":".join(point.dimensions[key] for key in ("source", "stream") if key in point.dimensions)
    return "acktree." + point.name.removeprefix("__").removesuffix(f"-{stream}").replace("-", "_")


def _metrics_of(task_info: TaskInfo, data_points: Sequence[DataPoint], resource: Any, began_ns: int) -> Any:  # noqa: ANN401  # of the extra
    """The numbers of a task as the SDK's ``MetricsData``."""
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415  # the extra
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    found: dict[str, list[sdk.NumberDataPoint]] = {}
    whose: dict[str, str | int] = {"component": task_info.component_id, "task": task_info.task_id}
    at_ns = task_info.timestamp * 1_000_000_000
    for point in data_points:
        number = sdk.NumberDataPoint({**whose, **point.dimensions}, min(began_ns, at_ns), at_ns, point.value)
        found.setdefault(otlp_name(point), []).append(number)
    metrics = []
    for name, numbers in found.items():
        data: sdk.Sum | sdk.Gauge = sdk.Gauge(numbers)
        if name.endswith(("_count", "_ms")) and not name.startswith("acktree.user."):
            data = sdk.Sum(numbers, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        metrics.append(sdk.Metric(name, None, "ms" if name.endswith(("_latency", "_ms")) else "1", data))
    scope = sdk.ScopeMetrics(InstrumentationScope("acktree"), metrics, "")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])
