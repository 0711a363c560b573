"""How many examples hypothesis draws where a test says a number of its own."""

from __future__ import annotations

from hypothesis import settings


def drawn(usual: int) -> int:
    """The number for ``max_examples`` where ``usual`` stands beside hypothesis's usual 100: the profile scales it."""
    return max(5, usual * settings().max_examples // 100)
