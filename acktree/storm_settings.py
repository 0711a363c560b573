"""Settings of Storm that acktree does not have: why not, and what to set instead.

Source: Storm's ``Config`` and ``conf/defaults.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from acktree.errors import ConfigError, nearest

__all__ = ["refuse_unknown"]

_SPARK_MOVES: Final = ("Spark moves the tuples, in frames", "leave it out, or see inbox_max_messages")
_SPARK_RUNS: Final = ("Spark starts and places the worker processes", "set it up in the SparkSession")
_NO_KRYO: Final = ("values are Arrow or pickle; there is no Kryo", "leave it out")
_REPORTS: Final = ("metrics consumers get all numbers, exact", "set metrics_consumers, metrics_interval_secs")
_WINDOWS: Final = (
    "there are no window bolts",
    "keep what a window needs in a bolt's `remembers`; docs/cookbook.md counts by window",
)
_TRIDENT: Final = (
    "there is no Trident",
    "leave it out; docs/exactly-once.md has exactly-once bolts and Trident's map states",
)
_USERS: Final = ("there are no users of a cluster here", "leave it out; see docs/security.md for access")
_STORED: Final = ("nothing is kept in a blob store", "leave it out; a checkpoint may be a URL")
_OLD_QUEUES: Final = ("it was for the queues of older Storms; Spark moves the tuples", "leave it out")
_MULTILANG: Final = (
    "only components in other languages are subprocesses",
    "leave it out, and give it to ShellBolt(...) or ShellSpout(...): docs/multilang.md",
)

_STORMS_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "workers": ("Spark decides how many workers run", "set partitions, or the cores of the SparkSession"),
    "tasks": (
        "a component has as many tasks as its parallelism",
        "set it there: set_bolt(id, bolt, parallelism=n)",
    ),
    "max.task.parallelism": (
        "the number of tasks is fixed by create_topology(), before a Config is read",
        "set it there: set_bolt(id, bolt, parallelism=min(n, most))",
    ),
    "users": _USERS,
    "groups": _USERS,
    "readonly.": _USERS,
    "submitter.": _USERS,
    "auto-credentials": _USERS,
    "logging.sensitivity": _USERS,
    "blobstore.map": _STORED,
    "hdfs.uri": _STORED,
    "min.replication.count": _STORED,
    "max.replication.wait": _STORED,
    "acker.cpu": _SPARK_RUNS,
    "acker.resources": _SPARK_RUNS,
    "ras.": _SPARK_RUNS,
    "shared.": _SPARK_RUNS,
    "spread.components": _SPARK_RUNS,
    "version": ("a topology has no version", "put one into the builder's name"),
    "disruptor.": _OLD_QUEUES,
    "receiver.buffer": _OLD_QUEUES,
    "sleep.spout.wait": ("it was renamed in Storm 2", "set spout_wait_progressive_level3_sleep_millis"),
    "serialized.message.size": _REPORTS,
    "ras.acker": ("there is no resource-aware scheduler", "set acker_executors"),
    "component.": _SPARK_RUNS,
    "scheduler": _SPARK_RUNS,
    "priority": _SPARK_RUNS,
    "worker": _SPARK_RUNS,
    "worker.max.heap": ("there is no JVM of the topology's own", "set worker_max_bytes for Python's workers"),
    "classpath": _SPARK_RUNS,
    "environment": (
        "components have the environment of the process that starts the topology",
        "export the variables there; for executors on other machines set spark.executorEnv.NAME",
    ),
    "isolate": _SPARK_RUNS,
    "bolt.wait": ("Spark hands the tuples to a bolt; it never waits for them in a loop", "leave it out"),
    "backpressure": _SPARK_MOVES,
    "executor.overflow": ("nothing is dropped when it is full", "see inbox_max_messages, max_spout_pending"),
    "executor.receive": _SPARK_MOVES,
    "executor.send": _SPARK_MOVES,
    "transfer": _SPARK_MOVES,
    "producer": _SPARK_MOVES,
    "batch.flush": _SPARK_MOVES,
    "disable.loadaware": ("a shuffle grouping is not load-aware", "leave it out"),
    "localityaware": ("a shuffle grouping is not load-aware", "leave it out"),
    "spout.recvq": ("verdicts are taken before each next_tuple", "leave it out"),
    "spout.max.batch": _TRIDENT,
    "stats.ewma": _REPORTS,
    "builtin.metrics": _REPORTS,
    "metrics": _REPORTS,
    "v2.metrics": _REPORTS,
    "state": ("what a bolt remembers is in the checkpoint", "submit(topology, checkpoint=...)"),
    "bolts.": _WINDOWS,
    "trident": _TRIDENT,
    "transactional": _TRIDENT,
    "multilang": _MULTILANG,
    "shellbolt": _MULTILANG,
    "subprocess": _MULTILANG,
    "kryo": _NO_KRYO,
    "skip.missing.kryo": _NO_KRYO,
    "fall.back.on.java": _NO_KRYO,
    "tuple.serializer": _NO_KRYO,
    "testing.always.try.serialize": ("LocalCluster always serializes", "leave it out"),
    "name": ("the name is the builder's", "TopologyBuilder(name)"),
}
"""By the prefix of a key without ``topology.``, of which the longest match counts: the reason and the fix."""

_DAEMONS: Final = frozenset(
    {"drpc", "executor", "logviewer", "nimbus", "pacemaker", "storm", "supervisor", "task", "ui", "worker"}
)
"""What the keys of Storm's daemons begin with."""


def refuse_unknown(name: object, dotted: str, where: str, known: Iterable[str]) -> NoReturn:
    """Raise ConfigError with the nearest known setting, or with the reason why Storm's setting is missing."""
    what = f"acktree has no setting {name}"
    topology_key = dotted.removeprefix("topology.")
    if (ours := f"acktree.{topology_key}") in known:
        raise ConfigError(f"{what}: Storm does not have it either", where, f"did you mean {ours!r}?")
    matching = [prefix for prefix in _STORMS_OWN if topology_key.startswith(prefix)]
    if dotted.startswith("topology.") and matching:
        why, fix = _STORMS_OWN[max(matching, key=len)]
        raise ConfigError(f"{what}: {why}", where, fix)
    if dotted.partition(".")[0] in _DAEMONS:
        raise ConfigError(
            f"{what}: it is for a daemon of Storm",
            where,
            "leave it out; Spark is set up in the SparkSession",
        )
    raise ConfigError(what, where, nearest(name, known))
