"""Two poison messages, a ``Retry``, and a connection that is cut at each moment: two dead letters each time.

The letters are acktree's, or the broker's where the spout rejects; never both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from acktree import BasicBolt, BasicOutputCollector, Config, Retry, TopologyBuilder, Tuple, submit
from tests.brokers.queues import Queue, number_in, spout_of
from tests.chaos.effects import effects_in, leave

ATTEMPTS: Final = 2
POISON: Final = 2
"""The number of messages that fail at each moment: the first ones."""
MESSAGES: Final = 6
_BEGUN, _OVER = 0, 1
_EXECUTE_SECS, _FLUSH_SECS, _BACKOFF_SECS = 0.7, 3.0, 3.0
_WAIT_SECS: Final = 120
_REST_SECS: Final = 5


class Moment(StrEnum):
    """When the connection is cut."""

    OPEN = "while a bolt works on the first attempt"
    WAITS = "while the next attempt waits"
    UNCOMMITTED = "between the last attempt's end and the commit"


@dataclass
class Letters:
    """What a moment came to.

    Attributes:
        ours, theirs: Dead letters of acktree, and of the broker.
        numbers: The messages of ours.
        left: What the queue still has.
        done: How many of the other messages had their effects.
    """

    moment: Moment
    rejects: bool
    ours: int = 0
    theirs: int = 0
    numbers: Counter[int] = field(default_factory=Counter)
    left: int = 0
    done: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether there are two letters in the right place, and nothing else is missing or left."""
        wanted = (0, POISON) if self.rejects else (POISON, 0)
        alone = all(count == 1 for count in self.numbers.values())
        return (
            (self.ours, self.theirs) == wanted and alone and not self.left and self.done == MESSAGES - POISON
        )

    def to_json(self) -> dict[str, Any]:
        """For the one line."""
        return {"clean": self.is_clean, **vars(self), "numbers": dict(self.numbers)}


class Poisoned(BasicBolt):
    """Fails the first messages; there is time before it answers, and between its answer and the commit."""

    outputs = []

    def __init__(self, folder: Path, first: int) -> None:
        self.folder, self.first = folder, first

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = number_in(tup.values)
        leave(self.folder, "poisoned", number, 0, tup.attempt, _BEGUN)
        if number - self.first < POISON:
            time.sleep(_EXECUTE_SECS)
            leave(self.folder, "poisoned", number, 0, tup.attempt, _OVER)
            raise ValueError(f"{number} is poison")

    def flush(self, collector: BasicOutputCollector) -> None:
        time.sleep(_FLUSH_SECS)


def perform(
    folder: Path, queue: Queue, session: Any, moment: Moment, first: int, say: Callable[[str], object]
) -> Letters:
    """Put messages from number ``first`` on, cut at one moment, and count the letters."""
    effects = folder / "effects"
    effects.mkdir(parents=True)
    builder = TopologyBuilder("letters")
    retry = Retry(max_attempts=ATTEMPTS, backoff_secs=(_BACKOFF_SECS, _BACKOFF_SECS), jitter=False)
    builder.set_spout("orders", spout_of(queue.settings(proxied=True), session), retry=retry)
    builder.set_bolt("poisoned", Poisoned(effects, first)).shuffle_grouping("orders")
    found = Letters(moment, queue.rejects)
    theirs_before = queue.rejected()
    config = Config(message_timeout_secs=300)
    with submit(
        builder.create_topology(), checkpoint=folder / "checkpoint", spark=session, config=config
    ) as running:

        def until(done: Callable[[], bool], what: str) -> None:
            deadline = time.monotonic() + _WAIT_SECS
            while not done():
                assert time.monotonic() < deadline, f"not within {_WAIT_SECS} s: {what}"
                time.sleep(0.02)

        def poison_at(attempt: int, part: int) -> int:
            seen = {
                each.number for each in effects_in(effects)
                if each.part == part and each.attempt >= attempt and each.number - first < POISON
            }  # fmt: skip
            return len(seen)

        def letters() -> int:
            return len(running.dead_letters) + (queue.rejected() - theirs_before if queue.rejects else 0)

        queue.put(range(first, first + MESSAGES))
        match moment:
            case Moment.OPEN:
                until(lambda: poison_at(1, _BEGUN) > 0, "the first attempt")
            case Moment.WAITS:
                until(lambda: running.stats()["orders"].total.failed >= POISON, "the first failures")
            case Moment.UNCOMMITTED:
                until(lambda: poison_at(ATTEMPTS, _OVER) == POISON, "the end of the last attempt")
        assert not letters(), "the cut comes too late"
        queue.proxy.cut()
        until(lambda: letters() >= POISON, "the dead letters")
        assert running.await_idle(_WAIT_SECS), "something stays open"
        time.sleep(_REST_SECS)  # what comes again does so in this time
        assert running.await_idle(_WAIT_SECS), "something stays open"
        found.ours = len(running.dead_letters)
        found.numbers = Counter(number_in(letter.values) for letter in running.dead_letters)
    seen = {each.number for each in effects_in(effects)}
    found.done = sum(number - first >= POISON for number in seen)
    found.left = queue.left()[0]
    found.theirs = queue.rejected() - theirs_before
    say(f"{moment}: {found.ours} letters of acktree's, {found.theirs} of the broker's, {found.left} left")
    return found
