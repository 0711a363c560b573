"""Names of Java classes in Flux files: which Python class takes the place of each, or what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CLASSES", "advice_for", "is_of_java"]

_STORM: Final = "org.apache.storm"
_OURS: Final = "acktree.flux.storm_classes"

CLASSES: Final[Mapping[str, str]] = {
    f"{_STORM}.flux.wrappers.bolts.FluxShellBolt": f"{_OURS}:FluxShellBolt",
    f"{_STORM}.flux.wrappers.spouts.FluxShellSpout": f"{_OURS}:FluxShellSpout",
    f"{_STORM}.task.ShellBolt": f"{_OURS}:FluxShellBolt",
    f"{_STORM}.spout.ShellSpout": f"{_OURS}:FluxShellSpout",
    f"{_STORM}.flux.wrappers.bolts.LogInfoBolt": f"{_OURS}:LogInfoBolt",
    f"{_STORM}.testing.TestWordSpout": f"{_OURS}:TestWordSpout",
    f"{_STORM}.testing.TestWordCounter": f"{_OURS}:TestWordCounter",
    f"{_STORM}.testing.NGrouping": f"{_OURS}:NGrouping",
    f"{_STORM}.hooks.BaseWorkerHook": "acktree:WorkerHook",
}
"""The class, as ``module:Class``, for each name."""

_ADVICE: Final[Mapping[str, str]] = {
    f"{_STORM}.kafka.": "use acktree.connectors.kafka:KafkaSpout, or KafkaSink",
    f"{_STORM}.redis.": "use acktree.connectors.redis:RedisStreamSpout, or RedisStreamSink",
    f"{_STORM}.jdbc.": "use acktree.connectors.sql:SqlSink",
    f"{_STORM}.hdfs.": "use acktree.connectors.parquet_files:ParquetSink",
    f"{_STORM}.hbase.": "there is no connector for HBase: write a bolt that uses its client",
    f"{_STORM}.topology.base.BaseWindowedBolt": "windows are not configured: keep what one needs in a bolt",
    f"{_STORM}.trident.": "there is no Trident: write bolts",
}
"""What to do, by the beginning of a name."""

_JAVA: Final = ("backtype.", "com.", "java.", "javax.", "org.apache.")


def is_of_java(name: str) -> bool:
    """Whether a name is that of a Java class. Written as ``module:Class`` it is one of Python.

    >>> is_of_java("org.apache.storm.kafka.spout.KafkaSpout"), is_of_java("com.words:Split")
    (True, False)
    """
    return name.startswith(_JAVA) and ":" not in name


def advice_for(name: str) -> str | None:
    """What to do about a Java class; None where nothing is known."""
    return next((advice for start, advice in _ADVICE.items() if name.startswith(start)), None)
