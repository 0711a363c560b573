"""A history with a clock and counts that a test sets."""

from __future__ import annotations

from acktree.core.stats.counters import Counters
from acktree.driver.metrics.total_counts import Totals
from acktree.ui import history
from acktree.ui.history import History
from acktree.ui.history_store import IN_MEMORY, HistoryStore, Point


def point(batch_id, at_ms, acked, run=1):
    return Point(run, batch_id, at_ms, at_ms, acked, acked, 0, 0)


def counters(**counts):
    return Counters.of((("spout", 1, "default", what), n) for what, n in counts.items())


class Clock:
    """The time, which a test moves."""

    def __init__(self, monkeypatch):
        self.secs = 1000.0
        monkeypatch.setattr(history, "time", self)

    def monotonic(self):
        return self.secs

    def time_ns(self):
        return int(self.secs * 1e9) + 10**18

    def sleep(self, secs):
        self.secs += secs


class Counting:
    """The counts of all runs, as a test sets them."""

    def __init__(self, begun=None):
        self.begun = begun or Totals()
        self.is_now = self.begun

    def count(self, batch_id, **counts):
        self.is_now = Totals(batch_id, counters(**counts))

    def now(self):
        return self.is_now


def keeper(totals, store=None, run=1, is_committed=lambda _: True):
    made = History(store or HistoryStore(IN_MEMORY), totals, run, "t", ["spout"], is_committed)
    made.begin((600,), 0, totals.begun.batch_id)
    return made
