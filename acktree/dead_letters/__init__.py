"""Dead letters: messages that were given up, stored with their failure, so that they can be sent again."""

from __future__ import annotations

from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.store import DeadLetters

__all__ = ["DeadLetter", "DeadLetters"]
