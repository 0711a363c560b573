"""The runtime classes of pystorm: components that speak Storm's multilang protocol.

A component speaks it over stdin and stdout if it runs as a child process (``python -m acktree.pystorm.run``),
also under Storm itself. In a topology of acktree it lives in acktree's own process, and the messages are
function calls: see ``hosted.py``. Neither needs pystorm.

Source: pystorm 3.1.4 (Apache-2.0), whose names, defaults and messages these classes keep. Written anew.
"""

from acktree.pystorm.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from acktree.pystorm.component import Component, StormHandler, Tuple
from acktree.pystorm.exceptions import StormWentAwayError
from acktree.pystorm.spout import ReliableSpout, Spout
from acktree.pystorm.version import VERSION, __version__

__all__ = [
    "VERSION",
    "BatchingBolt",
    "Bolt",
    "Component",
    "ReliableSpout",
    "Spout",
    "StormHandler",
    "StormWentAwayError",
    "TicklessBatchingBolt",
    "Tuple",
    "__version__",
]
