"""What a run says in the log at INFO: that it warms up, its progress once a minute, failures, its account.

Rules of this file
------------------
1. Lines are ``key=value``; counts are of this run. One screen shows a minute, however much fails.
2. An idle topology is silent: a progress line says that something changed since the last one.
3. Nothing depends on it. Any thread may call any method.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure
from acktree.driver.logs.line_budget import LineBudget
from acktree.logs.loggers import logger
from acktree.tasks.spouts.keys.labels import label_of, shown_id

log = logger("acktree")

FIRST_SECS: Final = 10.0
"""The first progress line comes this long after the topology is warm."""
EVERY_SECS: Final = 60.0
"""The time between two progress lines."""


@dataclass(frozen=True)
class Account:
    """The messages of all spouts of a run, without gates.

    Attributes:
        emitted: Attempts emitted: a message that is tried again counts again.
        open_count: Messages without a final verdict.
        oldest_secs: The age of the oldest of them; None for none.
    """

    emitted: int
    acked: int
    failed: int
    timed_out: int
    open_count: int
    oldest_secs: float | None = None

    @classmethod
    def of(
        cls, counters: Iterable[Counters], spouts: Sequence[str], open_count: int, oldest_secs: float | None
    ) -> Account:
        """Add up the counters of spout tasks."""
        total = Counters()
        for part in counters:
            total.merge(part)
        emitted, acked, failed, timed_out = (
            sum(total.total(what, component=spout) for spout in spouts)
            for what in ("emitted", "acked", "failed", "timed_out")
        )
        return cls(emitted, acked, failed, timed_out, open_count, oldest_secs=oldest_secs)

    def __str__(self) -> str:
        return (
            f"acked={self.acked:,} failed={self.failed:,} timed_out={self.timed_out:,} "
            f"open={self.open_count:,}"
        )


class RunLog:
    """The lines of one run of a topology.

    Attributes:
        warm_secs: How long the warm-up took; None while it lasts.
    """

    def __init__(self, topology: str, began: float | None = None) -> None:
        """Make the log of a run.

        Args:
            topology: The topology's name.
            began: When ``submit`` was called, by ``time.monotonic``. None: now.
        """
        self._topology = topology
        self._began = time.monotonic() if began is None else began
        self._failures, self.errors = LineBudget(), LineBudget()
        self._warned: dict[int, float] = {}
        self._lock, self._overwritten = Lock(), set[tuple[str, str]]()
        self._due = 0.0
        self._last = Account(0, 0, 0, 0, 0)
        self._last_at = 0.0
        self.warm_secs: float | None = None
        self.open_at_start = 0

    @property
    def warming_up_secs(self) -> float | None:
        """For how long the topology has been warming up; None once it is warm."""
        return None if self.warm_secs is not None else time.monotonic() - self._began

    def begins(self, run: int, open_count: int, checkpoint: Path | str) -> None:
        """The query is about to start.

        Args:
            open_count: The messages that earlier runs left open.
        """
        self.open_at_start = open_count
        how = "new" if run <= 1 else "resumed"
        log.info(
            "topology=%s %s run=%d open=%d checkpoint=%s; warming up: the first micro-batch compiles",
            self._topology, how, run, open_count, checkpoint,
        )  # fmt: skip

    def is_warm(self) -> None:
        """The first micro-batch has run; the spouts are opened now."""
        now = time.monotonic()
        self.warm_secs = now - self._began
        self._last_at, self._due = now, now + FIRST_SECS
        log.info("topology=%s is warm after %.1f s: the spouts open", self._topology, self.warm_secs)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a progress line."""
        return self.warm_secs is not None and time.monotonic() >= self._due

    def progress(self, account: Account, batch_id: int, batch_secs: float | None) -> None:
        """Write a progress line, unless nothing changed since the last one.

        Args:
            account: The numbers now.
            batch_id: The last micro-batch.
            batch_secs: How long it took; None when unknown.
        """
        now = time.monotonic()
        last, secs = self._last, max(now - self._last_at, 1e-3)
        self._due = now + EVERY_SECS
        if (account.emitted, account.open_count) == (last.emitted, 0) and str(account) == str(last):
            self._last_at = now
            return
        left_out = self._failures.take_left_out(), self.errors.take_left_out()
        log.info(
            "topology=%s rate=%.1f/s %s oldest_secs=%s micro_batch=%d (%s s)%s",
            self._topology, (account.acked - last.acked) / secs, account,
            "-" if account.oldest_secs is None else f"{account.oldest_secs:.1f}",
            batch_id, "-" if batch_secs is None else f"{batch_secs:.2f}",
            _left_out(*left_out),
        )  # fmt: skip
        self._last, self._last_at = account, now

    def failed(
        self, spout: str, count: int, named: Iterable[tuple[object, int]], failure: Failure, most: int | None
    ) -> None:
        """Log failed messages of a spout, as many as the budget allows.

        Args:
            spout: The spout.
            count: How many messages failed.
            named: The id and the attempt of each; empty where no ids are known, as for rows of a DataFrame.
            failure: Why.
            most: How many attempts a message has; None: the spout decides.
        """
        said = 0
        now_ms = time.time_ns() // 1_000_000
        for message_id, attempt in islice(named, count):
            if not self._failures.allows(spout, now_ms):
                said += 1
                break
            said += 1
            of = "" if most is None else f"/{most}"
            label = label_of(message_id)
            name = f"{shown_id(message_id)} label={label!r}" if label else shown_id(message_id)
            self._say(spout, f"message={name} attempt={attempt}{of}", failure)
        if not said and self._failures.allows(spout, now_ms):
            said = count
            self._say(spout, f"messages={count}", failure)
        self._failures.leave_out(max(0, count - max(said, 1)))

    def superseded(self, spout: str, count: int) -> None:
        """Say that messages of a gate are ACKED unwritten, within the budget of failures."""
        if self._failures.allows(spout, time.time_ns() // 1_000_000):
            log.info(
                "topology=%s spout=%s superseded=%d: newer rows with their keys are written, these are not",
                self._topology, spout, count,
            )  # fmt: skip

    def blocked(self, spout: str, task: int, call: Outage, now_ms: int) -> bool:
        """Warn of a spout's method that does not return: at most once a minute for each task. True if so."""
        now = time.monotonic()
        if now - self._warned.get(task, -EVERY_SECS) < EVERY_SECS:
            return False
        self._warned[task] = now
        log.warning(
            "topology=%s spout=%s task=%d since %.1f s: %s. fix: %s",
            self._topology, spout, task, (now_ms - call.since_ms) / 1000, call.reason, call.fix,
        )  # fmt: skip
        return True

    def away(self, spout: str, task: int, outage: Outage) -> None:
        """What bolts need is away; it is logged once for each outage."""
        log.warning(
            "topology=%s spout=%s task=%d dependency=%s is away: messages wait, and use up no attempt. "
            "reason=%s fix: %s",
            self._topology, spout, task, outage.dependency, outage.reason, outage.fix,
        )  # fmt: skip

    def recovered(self, spout: str, task: int, outage: Outage, now_ms: int) -> None:
        """What a spout task waited for works again."""
        log.info(
            "topology=%s spout=%s task=%d%s works again after %.1f s; tried %d times before",
            self._topology, spout, task, outage.dependency and f" dependency={outage.dependency}",
            max(0, now_ms - outage.since_ms) / 1000, outage.tries,
        )  # fmt: skip

    def overwritten(self, spout: str, attribute: str) -> None:
        """Warn that ``open`` of a spout replaced a position of the earlier run: once for all of its tasks."""
        with self._lock:
            is_known = (spout, attribute) in self._overwritten
            self._overwritten.add((spout, attribute))
        if not is_known:
            log.warning(
                "topology=%s spout=%s open() has set %s, which the spout remembers: what the last run saved "
                "is lost. fix: give %s its first value in __init__, and do not set it in open()",
                self._topology, spout, attribute, attribute,
            )  # fmt: skip

    def _say(self, spout: str, who: str, failure: Failure) -> None:
        by = "" if failure.component is None else f" component={failure.component}"
        cause = "" if failure.exception_types else f" cause={failure.cause.name}"
        log.info(
            "topology=%s spout=%s %s %s%s%s reason=%s",
            self._topology, spout, who, failure.kind.name, by, cause, failure.reason,
        )  # fmt: skip

    def ends(self, account: Account) -> None:
        """The run is over and everything is closed."""
        secs = time.monotonic() - self._began
        left_out = self._failures.take_left_out(), self.errors.take_left_out()
        log.info(
            "topology=%s is over after %.1f s: emitted=%s %s%s",
            self._topology, secs, f"{account.emitted:,}", account, _left_out(*left_out),
        )  # fmt: skip


def _left_out(failures: int, errors: int) -> str:
    parts = [f"{count:,} {what}" for count, what in ((failures, "failures"), (errors, "errors")) if count]
    return f"; not logged: {' and '.join(parts)}" if parts else ""
