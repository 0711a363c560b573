"""The attempt of a message as it travels beside its root, marked if it is traced.

A mark is a bit of the attempt, so it costs no bytes of its own, and nothing where it is not used: attempts
travel only if not all are unmarked first ones.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s

NAMED: Final = 1 << 30
"""The bit of a message that its spout wants traced, at any rate above 0. All of its attempts have it."""
CHOSEN: Final = -(1 << 31)
"""The bit of one attempt that is traced. The next attempt has it only if it is chosen again. It is the sign,
which releases that do not know it leave out of the number too."""
MOST_ATTEMPTS: Final = NAMED - 1

AnyAttempts = TypeVar("AnyAttempts", int, Int32s)


def number_of(attempts: AnyAttempts) -> AnyAttempts:
    """Attempts without marks, from 1.

    >>> number_of(NAMED | 3), number_of(CHOSEN | 3)
    (3, 3)
    """
    return attempts & MOST_ATTEMPTS


def is_traced(attempts: Int32s) -> npt.NDArray[np.bool_]:
    """Which attempts are traced, shape (n,)."""
    traced: npt.NDArray[np.bool_] = attempts < 0
    return traced
