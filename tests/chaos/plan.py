"""What strikes when: drawn from a seed, so that a seed that found something can be run again.

The seed fixes the strikes, their order, and how long after which sign of life each comes; what the processes
do meanwhile is the machine's, so a seed finds its window often, not always.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What is struck."""

    WORKER = "worker"
    """SIGKILL of a process that runs bolts, of it and those that take its work over, or of the daemon."""
    EXECUTOR = "executor"
    """SIGKILL of an executor's JVM."""
    DRIVER = "driver"
    """SIGKILL of the driver: its process group, it alone, its JVM, the source beside it, or everything."""
    STOP = "stop"
    """SIGSTOP for some seconds, of the driver, its JVM or a worker; where there are executors, of one."""
    PIPE = "pipe"
    """Nobody reads what the driver prints any more."""
    DISK = "disk"
    """No space left on the device, for some seconds."""
    FILE = "file"
    """A file of the checkpoint cannot be read when the driver starts."""
    TORN = "torn"
    """A file of the checkpoint has lost its end when the driver starts, as after a power cut."""
    CLOCK = "clock"
    """The wall clock jumps."""
    NETWORK = "network"
    """The network of a host with a Spark worker is cut for some seconds; only where hosts have one each."""


SHARES: Final[Mapping[Kind, float]] = {
    Kind.WORKER: 0.40,
    Kind.EXECUTOR: 0.10,
    Kind.DRIVER: 0.22,
    Kind.STOP: 0.12,
    Kind.PIPE: 0.04,
    Kind.DISK: 0.04,
    Kind.FILE: 0.04,
    Kind.CLOCK: 0.04,
}
"""The usual mixture. A torn file is not in it: a checkpoint is not written through to the disk."""
APART: Final[Mapping[Kind, float]] = {
    Kind.EXECUTOR: 0.30,
    Kind.NETWORK: 0.30,
    Kind.DRIVER: 0.20,
    Kind.WORKER: 0.10,
    Kind.STOP: 0.10,
}
"""The mixture where hosts share nothing."""

_HOWS: Final[Mapping[Kind, Mapping[str, int]]] = {
    Kind.WORKER: {"worker": 4, "again": 2, "daemon": 1},
    Kind.EXECUTOR: {"executor": 1},
    Kind.DRIVER: {"group": 4, "alone": 2, "jvm": 1, "source": 1, "all": 2},
    Kind.STOP: {"driver": 1, "jvm": 1, "worker": 1},
    Kind.PIPE: {"output": 1},
    Kind.DISK: {"full": 1},
    Kind.FILE: {"unreadable": 1},
    Kind.TORN: {"empty": 1, "half": 1, "garbage": 1},
    Kind.CLOCK: {"+3600": 2, "-3600": 2, "+10": 1, "-10": 1, "0": 1},
    Kind.NETWORK: {"cut": 1},
}
"""Ways to do it, with their weights."""

MOMENTS: Final[Mapping[str, str]] = {
    "any": "",
    "effect": "effects/*",
    "hand-over": "disk/checkpoint/inbox/*.data.*",
    "offsets": "disk/checkpoint/spark/offsets/*",
    "state": "disk/checkpoint/state/*/*",
    "verdicts": "disk/checkpoint/acker/*",
    "commit": "disk/checkpoint/spark/commits/*",
}
"""Moments to strike at: just after some file like this has come or grown; any moment where there is none."""
_AIMED_AT: Final = {
    Kind.WORKER: ("any", "effect", "effect", "effect", "state"),
    Kind.EXECUTOR: ("any", "effect", "state"),
    Kind.NETWORK: ("any", "effect"),
    Kind.DRIVER: ("any", "any", "any", "hand-over", "offsets", "state", "verdicts", "commit"),
}
_JITTER_SECS: Final = 0.03
_COLD_SHARE: Final = 0.25
_LONGEST_PAUSE_SECS: Final = 6.0


@dataclass(frozen=True)
class Strike:
    """One blow.

    Attributes:
        how: Which way.
        moment: At which of the moments; a cold one comes at any.
        jitter_secs: How long after that moment.
        is_cold: Whether it may come while the driver is starting; else its spouts are open first.
        wait_secs: How long after that sign of life.
        secs: How long it lasts, where it does.
        which: A number from 0 to 1 that chooses among the targets.
    """

    kind: Kind
    how: str
    moment: str
    jitter_secs: float
    is_cold: bool
    wait_secs: float
    secs: float
    which: float


def plan_of(seed: int, counts: Mapping[Kind, int]) -> list[Strike]:
    """The strikes of each kind, in an order, at moments and in ways that the seed decides."""
    chance = random.Random(f"chaos {seed}")
    kinds = [kind for kind in Kind for _ in range(counts.get(kind, 0))]
    chance.shuffle(kinds)
    return [_strike(kind, chance, has_executors=bool(counts.get(Kind.EXECUTOR))) for kind in kinds]


def _strike(kind: Kind, chance: random.Random, *, has_executors: bool) -> Strike:
    hows = dict(_HOWS[kind])
    if kind is Kind.STOP and has_executors:
        hows["executor"] = 2
    how = chance.choices(list(hows), list(hows.values()))[0]
    is_cold = chance.random() < _COLD_SHARE
    # Mostly soon after the last one, sometimes when all is at rest; a start takes longer than a pause.
    wait = chance.uniform(0, 15) if is_cold else min(chance.expovariate(1 / 1.5), _LONGEST_PAUSE_SECS)
    moment = "any" if is_cold else chance.choice(_AIMED_AT.get(kind, ("any",)))
    jitter = chance.choice((0, chance.uniform(0, _JITTER_SECS)))
    return Strike(kind, how, moment, jitter, is_cold, wait, chance.uniform(0.5, 6), chance.random())


def mixture(kills: int, kinds: Sequence[Kind], shares: Mapping[Kind, float] = SHARES) -> dict[Kind, int]:
    """How many of each of some kinds, in their usual shares; they add up to ``kills``.

    >>> mixture(10, [Kind.WORKER, Kind.DRIVER])
    {<Kind.WORKER: 'worker'>: 6, <Kind.DRIVER: 'driver'>: 4}
    """
    whole = sum(shares.get(kind, 0.05) for kind in kinds)
    counts: dict[Kind, int] = {}
    taken, share = 0, 0.0
    for kind in kinds:
        share += shares.get(kind, 0.05) / whole
        counts[kind] = round(kills * share) - taken
        taken += counts[kind]
    return counts
