"""For testing one's topology without Spark: the same tasks, one thread, a clock that the test moves.

Runs in the test's process, and is no engine for production: nothing is durable.
"""

from acktree.testing.broker import Broker, MakeSpout
from acktree.testing.complete import CompletedTopology, Fixed, VerdictKey, VerdictTable, complete_topology
from acktree.testing.feeder import FeederSpout
from acktree.testing.local_cluster import LocalCluster
from acktree.testing.local_topology import LocalTopology
from acktree.testing.sink_checks import SINK_CHECKS, MakeSink, ReadRows, check_sink
from acktree.testing.spout_checks import SPOUT_CHECKS, check_spout
from acktree.testing.spout_harness import Arrived, SpoutHarness

__all__ = [
    "SINK_CHECKS",
    "SPOUT_CHECKS",
    "Arrived",
    "Broker",
    "CompletedTopology",
    "FeederSpout",
    "Fixed",
    "LocalCluster",
    "LocalTopology",
    "MakeSink",
    "MakeSpout",
    "ReadRows",
    "SpoutHarness",
    "VerdictKey",
    "VerdictTable",
    "check_sink",
    "check_spout",
    "complete_topology",
]
