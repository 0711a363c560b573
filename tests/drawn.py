"""How many examples hypothesis draws where a test says a number of its own."""

from __future__ import annotations

from hypothesis import settings


def drawn(usual: int) -> int:
    """``max_examples`` for a test that usually draws ``usual``: the profile scales it, 100 being usual."""
    return max(5, usual * settings().max_examples // 100)
