"""What became of each message of a queue while its driver and its server were killed.

Rules of this file
------------------
1. No clock and no I/O: times, effects and what the queue still had arrive as arguments.
2. A message has its effects when each of its parts has one. An effect is a line that a bolt wrote outside
   of acktree.
3. An effect that happens again needs a cause. Each kill is the cause of at most one more run of a message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tests.chaos.effects import Effect

PARTS = 2
"""The number of tuples made of each message; each leaves an effect."""


class Struck(StrEnum):
    """What was killed."""

    DRIVER = "driver"
    SERVER = "server"


@dataclass(frozen=True)
class Kill:
    """A SIGKILL. Times are seconds of the monotonic clock, as those of effects."""

    struck: Struck
    at: float


@dataclass(frozen=True)
class Look:
    """What was not acknowledged at the queue, while no driver was running.

    Attributes:
        count: How many messages that were.
        left: Which; None where the queue does not report it.
    """

    at: float
    count: int
    left: frozenset[int] | None


@dataclass(frozen=True)
class Evidence:
    """All that is known.

    Attributes:
        put: When each message was given to the queue, of those that the queue has confirmed.
        unsure: When each other was given to the queue: it may have it or not.
        looks: After each kill of a driver, and one at the end.
        letters: How many dead letters there are. No message of these runs fails.
        is_over: Whether the last driver had the time to finish: without it nothing counts as lost.
    """

    put: Mapping[int, float]
    unsure: Mapping[int, float]
    effects: Iterable[Effect]
    kills: Sequence[Kill]
    looks: Sequence[Look]
    letters: int = 0
    is_over: bool = True


@dataclass
class Account:
    """What was found; clean if there are no findings.

    Attributes:
        findings: Messages in words, by what is wrong with them.
        runs: How many messages had their effects once, twice, and so on.
        again: Effects that happened again, by cause.
        most_per_kill: The largest number of further runs of one message between a kill and the next.
    """

    messages: int = 0
    effects: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    most_per_kill: int = 0
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def account_of(seen: Evidence) -> Account:
    """Make the account."""
    account = Account(messages=len(seen.put))
    by_part: dict[tuple[int, int], list[Effect]] = defaultdict(list)
    given = {**seen.unsure, **seen.put}
    for effect in seen.effects:
        account.effects += 1
        if effect.number in given:
            by_part[effect.number, effect.part].append(effect)
        else:
            account.findings["never put"].append(f"{effect}")
    for effects in by_part.values():
        effects.sort(key=lambda each: each.at)
    done = _done_at(by_part)
    for number in seen.put:
        if number not in done and seen.is_over:
            account.findings["lost"].append(f"message {number} has not all of its effects")
    if seen.letters:
        account.findings["given up"].append(f"{seen.letters} dead letters")
    for look in seen.looks:
        _check_acks(account, seen.put, done, look)
    if seen.looks and seen.looks[-1].count and seen.is_over:
        account.findings["left in the queue"].append(f"{seen.looks[-1].count} messages at the end")
    _count_again(account, by_part, given, sorted(seen.kills, key=lambda each: each.at))
    return account


def _done_at(by_part: Mapping[tuple[int, int], Sequence[Effect]]) -> dict[int, float]:
    """When each message had its first effect of each part, of those that have them all."""
    first: dict[int, list[float]] = defaultdict(list)
    for (number, _), effects in by_part.items():
        first[number].append(effects[0].at)
    return {number: max(times) for number, times in first.items() if len(times) == PARTS}


def _check_acks(account: Account, put: Mapping[int, float], done: Mapping[int, float], look: Look) -> None:
    """What was put, and is gone from the queue, must have had its effects by then."""
    before = [number for number, at in put.items() if at < look.at]
    has_effects = sum(at <= look.at for at in done.values())
    if look.left is None:
        gone = len(before) - look.count
        if gone > has_effects:
            line = f"{gone} messages were gone from the queue, and {has_effects} had their effects"
            account.findings["acked without effects"].append(line)
        return
    for number in before:
        if number not in look.left and done.get(number, look.at + 1) > look.at:
            line = f"message {number} was gone from the queue before its effects"
            account.findings["acked without effects"].append(line)


def _count_again(
    account: Account,
    by_part: Mapping[tuple[int, int], Sequence[Effect]],
    given: Mapping[int, float],
    kills: Sequence[Kill],
) -> None:
    """Name the cause of each effect that happened again, and hold it against the kills before it."""
    most: Counter[int] = Counter()
    for (number, part), effects in by_part.items():
        most[number] = max(most[number], len(effects))
        after: Counter[float] = Counter()
        for count, (before, effect) in enumerate(pairwise(effects), 1):
            past = [kill for kill in kills if given[number] < kill.at < effect.at]
            cause = cause_of(before, effect, past)
            if cause is None:
                account.findings["twice without a cause"].append(f"message {number}: {before} and {effect}")
                continue
            account.again[cause] += 1
            after[past[-1].at if past else 0.0] += 1
            if count > len(past):
                line = f"message {number}, part {part}: {count} further runs after {len(past)} kills"
                account.findings["more than one further run for a kill"].append(line)
        account.most_per_kill = max(account.most_per_kill, *after.values(), 0)
    account.runs.update(most.values())


def cause_of(before: Effect, again: Effect, past: Sequence[Kill]) -> str | None:
    """Why an effect happened again.

    Args:
        past: The kills since the message was put.
    """
    if before.run == again.run and before.batch == again.batch:
        return None if before.spark_task == again.spark_task else "Spark ran the task again"
    if before.run != again.run:
        is_same = before.batch == again.batch
        what = "the micro-batch ran again" if is_same else "the queue or the checkpoint had it still"
        return f"driver killed: {what}" if any(each.struck is Struck.DRIVER for each in past) else None
    is_servers = any(each.struck is Struck.SERVER for each in past)
    if is_servers:
        return "server killed: delivered again"
    is_drivers = any(each.struck is Struck.DRIVER for each in past)
    return "driver killed: delivered again" if is_drivers else None
