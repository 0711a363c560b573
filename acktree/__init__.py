"""Storm topologies in Python on Spark Structured Streaming, with a verdict for every message.

What a user needs is here; ``acktree.testing`` has what a user's tests need.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from acktree import errors
from acktree.acknowledger import Acknowledger
from acktree.bolt import (
    AnyBolt,
    ArrowBolt,
    ArrowOutputCollector,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
)
from acktree.config import Config
from acktree.core.data.context import TaskContext, TaskHook
from acktree.core.data.fields import Outputs, StreamDeclaration
from acktree.core.data.groupings import CustomGrouping, Grouping
from acktree.core.data.hooks import (
    BoltAckInfo,
    BoltExecuteInfo,
    BoltFailInfo,
    EmitInfo,
    SpoutAckInfo,
    SpoutFailInfo,
    WorkerContext,
    WorkerHook,
)
from acktree.core.data.instruments import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    MeterMetric,
    TimerMetric,
)
from acktree.core.data.tuples import Tuple
from acktree.core.spouts.open_messages import OpenMessages
from acktree.core.spouts.retry import Retry
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, Verdict
from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import (
    AcktreeError,
    BoltError,
    CheckpointError,
    ConfigError,
    ConnectorError,
    DeadLetterLimitError,
    ExecuteTimeoutError,
    HookError,
    KilledWorkerError,
    MisuseError,
    ProtocolError,
    SpoutError,
    TopologyError,
    Unavailable,
)
from acktree.function_bolt import FunctionBolt, bolt
from acktree.iterable_spout import IterableSpout
from acktree.logs.log_lines import LogFormatter
from acktree.metrics_consumer import (
    DataPoint,
    JsonLinesMetricsConsumer,
    LoggingMetricsConsumer,
    MetricsConsumer,
    TaskInfo,
)
from acktree.otlp_metrics import OtlpMetricsConsumer
from acktree.receiver import Receiver
from acktree.sink import Sink
from acktree.spark_extra import needing_spark
from acktree.spout import EndOfStream, MessageId, Spout, SpoutOutputCollector
from acktree.topology import (
    BoltDeclarer,
    Component,
    Description,
    Level,
    SpoutDeclarer,
    Subscription,
    Topology,
    TopologyBuilder,
)

if TYPE_CHECKING:
    from acktree.core.state.column_state import ColumnState
    from acktree.core.stats.histograms import Histogram
    from acktree.core.stats.numbers import (
        AckerNumbers,
        ComponentStats,
        KeyNumbers,
        Numbers,
        Outage,
        ReportedError,
        SpoutNumbers,
        TaskStats,
        TraceNumbers,
    )
    from acktree.core.stats.statistics import Stats
    from acktree.core.stats.user_metrics import UserMetric
    from acktree.core.tracking.origins import Origin
    from acktree.dead_letters.letter import DeadLetter
    from acktree.dead_letters.store import DeadLetters
    from acktree.dead_letters.summary import LetterGroup
    from acktree.dead_letters.table import Filters
    from acktree.driver.handle import SubmittedTopology
    from acktree.driver.running import RunningTopology
    from acktree.spark.submit import submit
    from acktree.system.stopped_by import StoppedByCtrlC, StoppedBySignal
    from acktree.traces.events import Event, EventLogger
    from acktree.traces.trace import Trace, TracedMessage, TracedTuple
    from acktree.traces.traces import Traces
    from acktree.ui.page import Page, serve_page

errors.full_tracebacks = os.environ.get("ACKTREE_TRACEBACK") == "full"

_LAZY: Final = {
    "AckerNumbers": "acktree.core.stats.numbers",
    "KeyNumbers": "acktree.core.stats.numbers",
    "ColumnState": "acktree.core.state.column_state",
    "ComponentStats": "acktree.core.stats.statistics",
    "DeadLetter": "acktree.dead_letters.letter",
    "DeadLetters": "acktree.dead_letters.store",
    "Origin": "acktree.core.tracking.origins",
    "LetterGroup": "acktree.dead_letters.summary",
    "Event": "acktree.traces.events",
    "EventLogger": "acktree.traces.events",
    "Filters": "acktree.dead_letters.table",
    "Histogram": "acktree.core.stats.histograms",
    "Numbers": "acktree.core.stats.statistics",
    "Outage": "acktree.core.stats.numbers",
    "Page": "acktree.ui.page",
    "ReportedError": "acktree.core.stats.statistics",
    "SpoutNumbers": "acktree.core.stats.statistics",
    "RunningTopology": "acktree.driver.running",
    "Stats": "acktree.core.stats.statistics",
    "StoppedByCtrlC": "acktree.driver.signals",
    "StoppedBySignal": "acktree.driver.signals",
    "SubmittedTopology": "acktree.driver.handle",
    "TaskStats": "acktree.core.stats.statistics",
    "Trace": "acktree.traces.trace",
    "TraceNumbers": "acktree.core.stats.statistics",
    "TracedMessage": "acktree.traces.trace",
    "TracedTuple": "acktree.traces.trace",
    "Traces": "acktree.traces.traces",
    "UserMetric": "acktree.core.stats.user_metrics",
    "serve_page": "acktree.ui.page",
}
"""Names that are imported when they are asked for, with their modules: these import PyArrow or SQLite."""

__all__ = [
    "AckerNumbers",
    "Acknowledger",
    "AcktreeError",
    "AnyBolt",
    "ArrowBolt",
    "ArrowOutputCollector",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "BoltAckInfo",
    "BoltDeclarer",
    "BoltError",
    "BoltExecuteInfo",
    "BoltFailInfo",
    "CheckpointError",
    "ColumnState",
    "Component",
    "ComponentStats",
    "Config",
    "ConfigError",
    "ConnectorError",
    "CounterMetric",
    "CustomGrouping",
    "DataFrameSpout",
    "DataPoint",
    "DeadLetter",
    "DeadLetterLimitError",
    "DeadLetters",
    "Description",
    "EmitInfo",
    "EndOfStream",
    "Event",
    "EventLogger",
    "ExecuteTimeoutError",
    "Failure",
    "FailureCause",
    "FailureKind",
    "Filters",
    "FunctionBolt",
    "GaugeMetric",
    "Grouping",
    "Histogram",
    "HistogramMetric",
    "HookError",
    "IterableSpout",
    "JsonLinesMetricsConsumer",
    "KeyNumbers",
    "KeyValueState",
    "KilledWorkerError",
    "LetterGroup",
    "Level",
    "LogFormatter",
    "LoggingMetricsConsumer",
    "MessageId",
    "MeterMetric",
    "MetricsConsumer",
    "MisuseError",
    "Numbers",
    "OpenMessages",
    "Origin",
    "OtlpMetricsConsumer",
    "Outage",
    "OutputCollector",
    "Outputs",
    "Page",
    "ProtocolError",
    "Receiver",
    "ReportedError",
    "Retry",
    "RunningTopology",
    "Sink",
    "Spout",
    "SpoutAckInfo",
    "SpoutDeclarer",
    "SpoutError",
    "SpoutFailInfo",
    "SpoutNumbers",
    "SpoutOutputCollector",
    "Stats",
    "StoppedByCtrlC",
    "StoppedBySignal",
    "StreamDeclaration",
    "SubmittedTopology",
    "Subscription",
    "TaskContext",
    "TaskHook",
    "TaskInfo",
    "TaskStats",
    "TimerMetric",
    "Topology",
    "TopologyBuilder",
    "TopologyError",
    "Trace",
    "TraceNumbers",
    "TracedMessage",
    "TracedTuple",
    "Traces",
    "Tuple",
    "Unavailable",
    "UserMetric",
    "Verdict",
    "WorkerContext",
    "WorkerHook",
    "__version__",
    "bolt",
    "serve_page",
    "submit",
]


def __getattr__(name: str) -> object:
    """Fetch what is imported late, when it is asked for.

    PySpark takes a second to import, and LocalCluster does without it. The version is in the package's
    metadata.
    """
    if name == "submit":
        with needing_spark("submit()"):
            from acktree.spark.submit import submit  # noqa: PLC0415  # see the docstring

        return submit
    if name == "__version__":
        return _version()
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is here, with the names that are imported when they are asked for."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  # it takes longer than all of acktree

    return version("acktree")
