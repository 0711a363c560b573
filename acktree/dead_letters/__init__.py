"""Dead letters: messages that were given up, stored with their failure, so that they can be sent again.

The driver writes them; commands and the page read them too, from other processes. Imports no PySpark and
calls no user code.
"""

from __future__ import annotations

from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.store import DeadLetters

__all__ = ["DeadLetter", "DeadLetters"]
