"""The attempt of a message as it travels beside its root, with a mark for one that its spout wants traced.

The mark is a bit of the attempt, so it costs no bytes of its own, and nothing where it is not used: attempts
travel only if not all are first ones.
"""

from __future__ import annotations

from typing import Final, TypeVar

from acktree.core.ids import Int32s

__all__ = ["MOST_ATTEMPTS", "NAMED", "number_of"]

NAMED: Final = 1 << 30
"""The bit of an attempt whose message is traced at any rate."""
MOST_ATTEMPTS: Final = NAMED - 1

AnyAttempts = TypeVar("AnyAttempts", int, Int32s)


def number_of(attempts: AnyAttempts) -> AnyAttempts:
    """Attempts without the mark, from 1.

    >>> number_of(NAMED | 3)
    3
    """
    return attempts & MOST_ATTEMPTS
