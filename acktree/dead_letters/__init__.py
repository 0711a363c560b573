"""The messages that were given up: kept with everything one needs to mend the cause and send them again."""

from __future__ import annotations

from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.store import DeadLetters

__all__ = ["DeadLetter", "DeadLetters"]
