"""streamparse's topology classes, and its programs as they are: ``load``, ``install`` and ``acktree sparse``.

``import acktree.streamparse`` imports neither PySpark, PyArrow, YAML nor msgpack, and needs neither
streamparse nor pystorm. It imports public names of acktree alone.

Source: streamparse 5.0.1 (Apache-2.0), whose names, defaults and errors these classes keep. Written anew.
"""

from acktree.multilang.loaded import LoadedTopology
from acktree.streamparse.aliases import install
from acktree.streamparse.build import load
from acktree.streamparse.dsl import Grouping, Stream, Topology
from acktree.streamparse.storm import (
    BatchingBolt,
    Bolt,
    JavaBolt,
    JavaSpout,
    ReliableSpout,
    ShellBolt,
    ShellSpout,
    Spout,
    StormHandler,
    TicklessBatchingBolt,
    Tuple,
)
from acktree.streamparse.version import VERSION, __version__

__all__ = [
    "VERSION",
    "BatchingBolt",
    "Bolt",
    "Grouping",
    "JavaBolt",
    "JavaSpout",
    "LoadedTopology",
    "ReliableSpout",
    "ShellBolt",
    "ShellSpout",
    "Spout",
    "StormHandler",
    "Stream",
    "TicklessBatchingBolt",
    "Topology",
    "Tuple",
    "__version__",
    "install",
    "load",
]
