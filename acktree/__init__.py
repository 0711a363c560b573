"""Storm topologies in Python on Spark Structured Streaming, with a verdict for every message.

What a user needs stands here; ``acktree.testing`` has what a user's tests need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acktree.bolt import (
    ArrowBolt,
    ArrowOutputCollector,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    bolt,
)
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.groupings import CustomGrouping
from acktree.core.data.tuples import Tuple
from acktree.core.spouts.open_messages import OpenMessages
from acktree.core.spouts.retry import Retry
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.tracking.verdicts import Failure
from acktree.errors import (
    AcktreeError,
    BoltError,
    CheckpointError,
    ConfigError,
    ConnectorError,
    DeadLetterLimitError,
    ExecuteTimeoutError,
    KilledWorkerError,
    MisuseError,
    ProtocolError,
    SpoutError,
    TopologyError,
)
from acktree.receiver import Receiver
from acktree.spout import DataFrameSpout, EndOfStream, IterableSpout, Spout, SpoutOutputCollector
from acktree.topology import Topology, TopologyBuilder

if TYPE_CHECKING:
    from acktree.spark.submit import submit

__all__ = [
    "AcktreeError",
    "ArrowBolt",
    "ArrowOutputCollector",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "BoltError",
    "CheckpointError",
    "Config",
    "ConfigError",
    "ConnectorError",
    "CustomGrouping",
    "DataFrameSpout",
    "DeadLetterLimitError",
    "EndOfStream",
    "ExecuteTimeoutError",
    "Failure",
    "IterableSpout",
    "KeyValueState",
    "KilledWorkerError",
    "MisuseError",
    "OpenMessages",
    "OutputCollector",
    "ProtocolError",
    "Receiver",
    "Retry",
    "Spout",
    "SpoutError",
    "SpoutOutputCollector",
    "TaskContext",
    "Topology",
    "TopologyBuilder",
    "TopologyError",
    "Tuple",
    "bolt",
    "submit",
]


def __getattr__(name: str) -> object:
    """Fetch ``submit`` when it is asked for: PySpark takes a second, and LocalCluster does without it."""
    if name == "submit":
        from acktree.spark_extra import needing_spark  # noqa: PLC0415  # see the line above

        with needing_spark("submit()"):
            from acktree.spark.submit import submit  # noqa: PLC0415  # the same

        return submit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is here, ``submit`` included although it is not fetched yet."""
    return sorted({*globals(), *__all__})
