"""The component classes of a topology: pystorm's, with ``spec``."""

from acktree.streamparse.storm.bolt import BatchingBolt, Bolt, JavaBolt, ShellBolt, TicklessBatchingBolt
from acktree.streamparse.storm.component import Component, StormHandler, Tuple
from acktree.streamparse.storm.spout import JavaSpout, ReliableSpout, ShellSpout, Spout

__all__ = [
    "BatchingBolt",
    "Bolt",
    "Component",
    "JavaBolt",
    "JavaSpout",
    "ReliableSpout",
    "ShellBolt",
    "ShellSpout",
    "Spout",
    "StormHandler",
    "TicklessBatchingBolt",
    "Tuple",
]
