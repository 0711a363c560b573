"""How a topology is written: a class whose attributes are specs of components."""

from acktree.streamparse.dsl.stream import Grouping, Stream
from acktree.streamparse.dsl.topology import Topology

__all__ = ["Grouping", "Stream", "Topology"]
