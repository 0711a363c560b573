"""Bounds how many messages of a spout task are traced in a second, by the sequences that the task takes.

Whether an unmarked attempt is traced is known from its root, so from its sequence: those of odd blocks are
passed over (``core/tracking/sampling.py``). A task whose messages are sampled too often takes sequences of an
odd block for a while. A second run, the next run and each level find this in the root.
"""

from __future__ import annotations

from collections.abc import Callable

from acktree.core.tracking.sampling import TRACE_BLOCK
from acktree.tasks.spouts.token_bucket import TokenBucket

__all__ = ["TracePace"]


class TracePace:
    """The sequences of one spout task, for the sake of its traces.

    A traced message takes a token of a bucket. When none is left, messages are passed over until
    the bucket is full, so the block changes about twice a second at most, and few sequences are left out.
    """

    def __init__(self, rate: Callable[[], float], most_per_sec: float | None) -> None:
        """The bucket is full.

        Args:
            rate: Returns the share of messages that is traced.
            most_per_sec: The bound, above 0; None for none.
        """
        self._rate = rate
        self._tokens = None if most_per_sec is None else TokenBucket(most_per_sec)
        self._passes_over = False

    def first(self, sequence: int, count: int, now_ms: int) -> int:
        """The first sequence for new messages: at or after one that is free.

        Args:
            sequence: The first that no message has.
            count: How many messages there are, 1 to ``TRACE_BLOCK``.
            now_ms: The time.
        """
        rate = self._rate()
        if not 0 < rate < 1:  # none is traced, or all are, of each block
            return sequence
        sampled = self._sampled(rate, count, now_ms)
        if not 0 < sampled < count:
            return _within(sequence, count, is_odd=not sampled)
        # The first of them are the last of an even block.
        odd = (sequence + sampled + TRACE_BLOCK - 1) // TRACE_BLOCK | 1
        return odd * TRACE_BLOCK - sampled

    def _sampled(self, rate: float, count: int, now_ms: int) -> int:
        """How many of some messages are to be sampled, the others passed over; takes their tokens."""
        tokens = self._tokens
        if tokens is None:
            return count
        tokens.refill(now_ms)
        if self._passes_over and tokens.left < tokens.full:
            return 0
        sampled = count if tokens.left >= rate * count else int(tokens.left / rate)
        tokens.left -= rate * sampled
        self._passes_over = sampled < count
        return sampled


def _within(sequence: int, count: int, *, is_odd: bool) -> int:
    """The first of ``count`` sequences in one block, odd or even, at or after a sequence."""
    block, place = divmod(sequence, TRACE_BLOCK)
    if block % 2 != is_odd:
        return (block + 1) * TRACE_BLOCK
    return sequence if place + count <= TRACE_BLOCK else (block + 2) * TRACE_BLOCK
