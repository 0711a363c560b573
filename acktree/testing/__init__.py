"""For testing one's topology without Spark: the same tasks, one thread, a clock that moves when told."""

from acktree.testing.complete import CompletedTopology, Fixed, VerdictKey, VerdictTable, complete_topology
from acktree.testing.feeder import FeederSpout
from acktree.testing.local_cluster import LocalCluster, LocalTopology

__all__ = [
    "CompletedTopology",
    "FeederSpout",
    "Fixed",
    "LocalCluster",
    "LocalTopology",
    "VerdictKey",
    "VerdictTable",
    "complete_topology",
]
