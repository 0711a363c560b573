"""Topologies: declared with a builder, validated once, then immutable.

Runs in the user's process, before anything starts. Opens no file and starts nothing.
"""

from __future__ import annotations

from acktree.topology.builder import BoltDeclarer, SpoutDeclarer, TopologyBuilder
from acktree.topology.describe import Description
from acktree.topology.levels import Level, host
from acktree.topology.model import Component, Subscription, Topology

__all__ = [
    "BoltDeclarer",
    "Component",
    "Description",
    "Level",
    "SpoutDeclarer",
    "Subscription",
    "Topology",
    "TopologyBuilder",
    "host",
]
