"""What each message is: drawn from its number alone, so that bolts, workers and the account agree on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

LANES: Final = 8
"""Keys of the fields groupings."""
MOST_PARTS: Final = 4
PROBE: Final = 1 << 40
"""The number of the message that asks remembering bolts what they remember; not one of the account's."""

WHOLE: Final = -1
"""The part of an effect that is about the message as a whole."""


class Temper(StrEnum):
    """How a message behaves."""

    CALM = "calm"
    POISON = "poison"
    """Raises in ``work``, always: it must end as dead."""
    FLAKY = "flaky"
    """Raises in ``work`` at its first try."""
    FORGOTTEN = "forgotten"
    """Is neither acked nor failed by ``join`` at its first try: it must time out."""
    SOUR = "sour"
    """Raises in ``notes`` at its first try, and takes what it was joined with along."""


_SHARES: Final = {Temper.POISON: 0.015, Temper.FLAKY: 0.04, Temper.FORGOTTEN: 0.01, Temper.SOUR: 0.015}


@dataclass(frozen=True)
class Nature:
    """A message's nature.

    Attributes:
        parts: Into how many tuples ``split`` cuts it.
        lanes: The key of each part.
    """

    temper: Temper
    parts: int
    lanes: tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def nature_of(number: int) -> Nature:
    """The nature of a message."""
    chance = random.Random(f"nature {number}")
    drawn, temper = chance.random(), Temper.CALM
    for kind, share in _SHARES.items():
        if drawn < share:
            temper = kind
            break
        drawn -= share
    parts = chance.randint(1, MOST_PARTS)
    return Nature(temper, parts, tuple(chance.randrange(LANES) for _ in range(parts)))


def payload_of(number: int) -> bytes:
    """What a message carries: some hundred bytes, now and then forty thousand."""
    chance = random.Random(f"payload {number}")
    return chance.randbytes(40_000 if chance.random() < 1 / 100 else chance.randint(100, 600))


BEFORE_A_HOLD: Final = frozenset({"split", "work", "tally"})
"""Bolts that see a message in the micro-batch that admits it, and in no later one."""


def is_of_queue(number: int) -> bool:
    """Whether the queue spout emits it; the others are the position spout's."""
    return number % 2 == 0


def effects_of(number: int) -> Iterator[tuple[str, int]]:
    """What a message that was processed must have left behind: (bolt, part)."""
    yield "split", WHOLE
    for part in range(nature_of(number).parts):
        for bolt in ("work", "tally", "join", "notes"):
            yield bolt, part
