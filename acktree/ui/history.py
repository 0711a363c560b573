"""Keeps the history of a run: points for charts, and samples from which windows go on after a restart.

The observer's thread calls it. It stores the counts of all runs as of a micro-batch that Spark has committed,
at most every few seconds, while something changes, and when the run ends. That a spout waits is no change: a
topology at rest writes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from acktree.core.stats.counters import NOT_ASKED, Counters, Key
from acktree.driver.metrics.total_counts import TotalCounts, Totals
from acktree.errors import AcktreeError, CheckpointError
from acktree.logs.loggers import logger
from acktree.system.sqlite_files import is_damage
from acktree.ui.history_store import FILE, IN_MEMORY, LARGEST, HistoryStore, Point, Sample
from acktree.ui.known_names import limit_of, read_question
from acktree.ui.windows import Earlier, Windows

log = logger("acktree")

LOOK_SECS: Final = 5.0
"""How often a point is stored, while something changes."""
_SAMPLE_SECS: Final = 30.0
"""How often all counts are stored: twenty times in the shortest window that goes on."""
_REST_SAMPLE_SECS: Final = 600.0
"""How often all counts are stored while only the times of waits grow: once in the shortest window that
goes on over runs, so that none shows waits of long before."""
_SAMPLE_BYTES_A_SEC: Final = 2048
"""Large samples are stored less often: 120 kB a minute at most, however many components there are."""
_COMMIT_SECS: Final = 0.2
"""The longest wait for the commit of a micro-batch whose sink has run; it follows some milliseconds later."""
_MOST_SHOWN: Final = 2000
_ERRORS: Final = (OSError, sqlite3.Error, AcktreeError)
_DAMAGED: Final = ".damaged"
"""The end of the name that a damaged file gets. The next damaged one replaces it."""


def open_store(folder: Path | None, name: str) -> HistoryStore:
    """The history in a checkpoint; in memory for None.

    Where the file is damaged it gets another name, and the history begins anew. Where it cannot be used, the
    history is in memory. Either is logged.
    """
    if folder is None:
        return HistoryStore(IN_MEMORY)
    file = folder / FILE
    try:
        return HistoryStore(file)
    except _ERRORS as error:
        if _is_damage(error):
            return _begun_anew(file, name, error)
        log.warning("topology=%s %s", name, _not_stored(error))
    return HistoryStore(IN_MEMORY)


def _begun_anew(file: Path, name: str, damage: BaseException) -> HistoryStore:
    """A new history in the place of a damaged one, which nobody has open in this process."""
    try:
        file.replace(file.with_name(f"{file.name}{_DAMAGED}"))
        for end in ("-wal", "-shm"):  # they belong to the damaged file
            file.with_name(f"{file.name}{end}").unlink(missing_ok=True)
        store = HistoryStore(file)
    except _ERRORS as error:
        log.warning("topology=%s %s", name, _not_stored(error))
        return HistoryStore(IN_MEMORY)
    log.warning(
        "topology=%s its history begins anew: %s. The damaged file is now %s%s. fix: delete that one, "
        "nothing needs it. The topology runs all the same",
        name, _in_one_line(damage), file, _DAMAGED,
    )  # fmt: skip
    return store


class History:
    """The history of one run.

    Args:
        store: Where it is kept.
        totals: The counts of all runs.
        run: The number of this run.
        name: The topology's, for the log.
        spouts: The ids of its spouts, without gates.
        is_committed: Whether Spark has committed a micro-batch.
    """

    def __init__(
        self,
        store: HistoryStore,
        totals: TotalCounts,
        run: int,
        name: str,
        spouts: Collection[str],
        is_committed: Callable[[int], bool],
    ) -> None:
        self.store = store
        self._totals, self._run, self._name, self._spouts = totals, run, name, spouts
        self._is_committed = is_committed
        self._looked_at = self._sampled_at = time.monotonic()
        self._sample_bytes = 0
        self._last: Point | None = None
        self._events = _events(totals.begun.counters)
        self._has_failed = self._has_begun_anew = False

    def begin(self, lengths_secs: Collection[int], now_ms: int, last_committed: int) -> Windows:
        """Store what earlier runs left as the first point; returns windows that go on where they ended.

        Args:
            lengths_secs: The windows' lengths.
            now_ms: The time now, by a clock that is never set back.
            last_committed: The last micro-batch of earlier runs.
        """
        begun, wall_ms = self._totals.begun, _wall_ms()
        ended_ms, samples = wall_ms, []
        try:
            last = self.store.last()
            ended_ms = wall_ms if last is None else min(last.until_ms, wall_ms)
            oldest_ms = wall_ms - round(1.05 * max(lengths_secs) * 1000)
            samples = [each for each in self.store.samples(oldest_ms) if each.at_ms <= wall_ms]
            if samples:  # a sample is named by its time: the last one of an earlier run stays
                ended_ms = min(wall_ms, max(ended_ms, samples[-1].at_ms + 1))
        except _ERRORS as error:
            self._failed(error)
        self._last = self._point(last_committed, wall_ms, begun.counters)
        # Where the last run ended and this one begins: windows of the next run may begin in between.
        for at_ms in (ended_ms, wall_ms):
            self._store([self._last], Sample(at_ms, self._run, last_committed, begun.ran_ms, begun.counters))
        earlier = [Earlier(now_ms - wall_ms + each.at_ms, each.ran_ms, each.counters) for each in samples]
        end = Earlier(now_ms - wall_ms + ended_ms, begun.ran_ms, begun.counters)
        return Windows(tuple(lengths_secs), now_ms, end, earlier)

    def look(self, *, is_over: bool = False) -> None:
        """Store a point where counts have changed; at most every :data:`LOOK_SECS`. Never raises.

        Args:
            is_over: The run has ended: store what is left.
        """
        now = time.monotonic()
        if self._last is None or (now - self._looked_at < LOOK_SECS and not is_over):
            return
        self._looked_at = now
        found, wall_ms = self._totals.now(), _wall_ms()
        events = _events(found.counters)
        same = events == self._events
        if found.batch_id < 0 or same or not self._waits_for_commit(found.batch_id):
            if same:
                self._last = replace(self._last, until_ms=max(wall_ms, self._last.at_ms))
            is_due = same and now - self._sampled_at >= _REST_SAMPLE_SECS
            if is_over or is_due:
                self._store([self._last], self._sample(found, wall_ms) if same else None)
            if is_due:
                self._sampled_at = now
            return
        point = self._point(found.batch_id, wall_ms, found.counters)
        is_due = is_over or now - self._sampled_at >= max(
            _SAMPLE_SECS, self._sample_bytes / _SAMPLE_BYTES_A_SEC
        )
        if self._store([self._last, point], self._sample(found, wall_ms) if is_due else None):
            is_known = (self._last.run, self._last.batch_id) == (point.run, point.batch_id)
            self._last = replace(point, at_ms=self._last.at_ms) if is_known else point
            self._events = events
            if is_due:
                self._sampled_at = now

    def _waits_for_commit(self, batch_id: int) -> bool:
        """Whether a micro-batch is committed, at once or soon. One that is not may run again, and differ."""
        end = time.monotonic() + _COMMIT_SECS
        try:
            while not self._is_committed(batch_id):
                if time.monotonic() >= end:
                    return False
                time.sleep(_COMMIT_SECS / 20)
        except CheckpointError:  # the file system of a URL is away; that stops the topology
            return False
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _point(self, batch_id: int, wall_ms: int, counters: Counters) -> Point:
        sums = dict.fromkeys(("emitted", "acked", "failed", "timed_out"), 0)
        for (component, _, _, what), n in counters.items():
            if what in sums and component in self._spouts:
                sums[what] = min(LARGEST, sums[what] + n)
        return Point(self._run, batch_id, wall_ms, wall_ms, **sums)

    def _sample(self, found: Totals, wall_ms: int) -> Sample:
        return Sample(wall_ms, self._run, found.batch_id, found.ran_ms, found.counters)

    def _store(self, points: list[Point], sample: Sample | None) -> bool:
        store = self.store
        try:
            size = store.add(points, sample)
        except _ERRORS as error:
            self._failed(error)
            return self.store is not store and self._store(points, sample)  # another store: at most twice
        self._sample_bytes = size or self._sample_bytes
        return True

    def _failed(self, error: BaseException) -> None:
        is_file = self.store.place != IN_MEMORY
        if is_file and _is_damage(error) and not self._has_begun_anew:  # once: then it is the disk
            self._has_begun_anew = True
            with suppress(sqlite3.Error):
                self.store.close()  # SQLite deletes files beside it by their names, which the new one needs
            self.store = _begun_anew(Path(self.store.place), self._name, error)
            return
        if not self._has_failed:  # once
            log.warning("topology=%s %s", self._name, _not_stored(error))
        self._has_failed = True
        if isinstance(error, CheckpointError):  # it does not pass; somebody may still read the old one
            self.store = HistoryStore(IN_MEMORY)


def _events(counters: Counters) -> dict[Key, int]:
    """What happened: the counts without the times of waits, which grow while nothing happens."""
    return {key: n for key, n in counters.items() if not key[3].startswith(NOT_ASKED)}


def page(store: HistoryStore, query: Mapping[str, str]) -> dict[str, Any]:
    """The points that are asked for: ``since`` and ``before`` in milliseconds since 1970, and ``limit``.

    Raises:
        ConfigError: A value is no number, or the limit is not above 0.
    """
    asked = read_question("history", query)
    found = store.points(asked.get("since"), asked.get("before"), limit_of(asked, 300, _MOST_SHOWN))
    return {"points": [asdict(point) for point in found]}


def _is_damage(error: BaseException) -> bool:
    """Whether a file holds something else than a history, and not that a newer acktree wrote it."""
    cause = error.__cause__
    return isinstance(cause, ValueError) or (isinstance(cause, sqlite3.Error) and is_damage(cause))


def _not_stored(error: BaseException) -> str:
    fix = "make room, and see that the checkpoint can be written"
    if isinstance(error, AcktreeError):
        fix = error.fix
    return f"its history is not stored: {_in_one_line(error)}. fix: {fix}. The topology runs all the same"


def _in_one_line(error: BaseException) -> str:
    return f"{error.what}, {error.where}" if isinstance(error, AcktreeError) else str(error)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
