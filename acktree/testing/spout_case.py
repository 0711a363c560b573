"""What the checks of a spout have in common: opening it, filling its queue, waiting for messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from acktree.core.spouts.retry import Retry
from acktree.testing.broker import Broker, MakeSpout
from acktree.testing.spout_harness import Arrived, SpoutHarness

__all__ = ["Case", "expect"]

PATIENCE_SECS: Final = 15.0
"""Beyond the time that the queue takes to deliver again, what is expected must happen within this time."""


class Case:
    """One check of a spout: its queue, and the steps that checks have in common."""

    def __init__(self, make_spout: MakeSpout, broker: Broker) -> None:
        self.make_spout, self.broker = make_spout, broker
        self.patience = broker.redelivery_secs + PATIENCE_SECS

    def open(self, retry: Retry | None = None, most: int | None = None) -> SpoutHarness:
        """Open the spout, under a retry policy and a limit if they are given."""
        return SpoutHarness(self.make_spout(), retry=retry, max_spout_pending=most)

    def put(self, count: int) -> set[bytes]:
        """Put that number of different messages into the queue; gives their bodies."""
        bodies = [f"message {number}".encode() for number in range(count)]
        self.broker.put(bodies)
        return set(bodies)

    def bodies(self, attempts: Iterable[Arrived]) -> list[bytes]:
        """The messages of attempts that arrived."""
        return [self.broker.body_of(each.values) for each in attempts]

    def until_arrived(self, harness: SpoutHarness, total: int, what: str) -> list[Arrived]:
        """Wait until that number of messages arrived, and give all that did."""
        harness.until(lambda: len(harness.arrived) >= total, self.patience, what)
        return list(harness.arrived)

    def ack_all(self, harness: SpoutHarness, wanted: set[bytes], first: int = 0) -> None:
        """Ack whatever comes until each of these was acked, then let it rest."""
        done: set[bytes] = set()
        at = first

        def is_done() -> bool:
            nonlocal at
            fresh = harness.arrived[at:]
            if fresh:
                at = len(harness.arrived)
                harness.ack(fresh)
                done.update(self.bodies(fresh))
            return wanted <= done and harness.task.is_idle

        harness.until(is_done, self.patience, "every message comes and is acked")
        harness.rest(0.3)
        is_done()

    def expect_left(self, count: int) -> None:
        """Wait until that number of messages is left in the queue; fail if it is not."""
        deadline = time.monotonic() + self.patience
        while (count_left := self.broker.count()) != count and time.monotonic() < deadline:
            time.sleep(0.1)
        expect(count_left == count, f"{count_left} messages are left in the queue, and {count} should be")


def expect(is_so: bool, what: str) -> None:  # noqa: FBT001  # it is the value, not an option
    """Fail the check with what was seen, unless it is so."""
    if not is_so:
        raise AssertionError(what)
