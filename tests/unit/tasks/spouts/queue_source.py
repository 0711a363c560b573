"""A spout of a queue that is kept alive, and the errors of its connection."""

from __future__ import annotations

from acktree.errors import ConnectorError
from tests.unit.tasks.spouts.spout_harness import Source

GONE = ConnectorError("the connection is gone", "queue 'q'", "see whether the server runs", can_retry=True)
REFUSED = ConnectorError("access refused", "queue 'q'", "give the user the right to read it")


def ids(messages):
    return sorted(messages)


def nothing(spout):
    """At this ``next_tuple`` do nothing."""


class Beating(Source):
    """Notes what each ``keep_alive`` saw."""

    keep_alive_secs = 4.0

    def __init__(self, *plan):
        super().__init__(*plan)
        self.seen = []

    def keep_alive(self, open_messages):
        self.note("keep_alive")
        self.seen.append(
            (open_messages.count, open_messages.oldest_secs, ids(open_messages.older_than(0)), open_messages)
        )


def tries(harness, secs, step_ms=50):
    """The moments, in ms, at which the spout's plan grew shorter."""
    moments = []
    for _ in range(round(secs * 1000 / step_ms)):
        before = len(harness.spout.plan)
        harness.run()
        if len(harness.spout.plan) < before:
            moments.append(harness.now_ms)
        harness.now_ms += step_ms
    return moments
