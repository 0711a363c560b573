"""The history of a topology over its runs: an SQLite file in the checkpoint, or one in memory.

It has *points*, a few numbers of all spouts for a chart, and *samples*, all counts, from which a window of
time goes on over a restart. Both are the counts of all runs as of a committed micro-batch.

Rules of this file
------------------
1. A point is stored by (run, micro-batch), once: numbers only grow, and what grew between two points is their
   difference.
2. The store is bounded, in numbers and in bytes: older points and samples are thinned out, and the newest of
   each stretch of time stays.
3. Readers of other processes are not waited for: the file is in WAL mode.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final

from acktree.core.stats.counters import Counters, Key
from acktree.errors import CheckpointError
from acktree.system.sqlite_files import IN_MEMORY, SqliteStore, prepare_writer, transaction

__all__ = [
    "FILE", "IN_MEMORY", "LARGEST", "MOST_POINTS", "MOST_SAMPLE_BYTES", "POINT_TIERS", "SAMPLE_TIERS",
    "HistoryStore", "Point", "Sample", "counters_in",
]  # fmt: skip

FILE: Final = "history.sqlite"
"""The file in the checkpoint."""
MOST_POINTS: Final = 20_000
MOST_SAMPLE_BYTES: Final = 16 << 20
POINT_TIERS: Final = ((6 * 3600, 60), (48 * 3600, 600), (30 * 86_400, 6 * 3600))
"""(Age, stretch) in seconds: of points that are older, the last one of each stretch and each run stays."""
SAMPLE_TIERS: Final = ((660, 540), (11_340, 4320))
"""The same for samples; those older than a day and a twentieth are deleted."""
_OLDEST_SAMPLE_SECS: Final = 86_400 + 4320
LARGEST: Final = 1 << 62
"""SQLite takes no number of more than 63 bits."""
_MOST_UNPACKED_BYTES: Final = 64 << 20
"""A larger sample is damaged: 1,000,000 counts have fewer bytes."""
_VERSION: Final = 1
_THIN_EVERY: Final = 50
"""Old points are thinned out each time that this number of points was added."""
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS points (
    run INTEGER NOT NULL, batch_id INTEGER NOT NULL, at_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL,
    emitted INTEGER NOT NULL, acked INTEGER NOT NULL, failed INTEGER NOT NULL, timed_out INTEGER NOT NULL,
    PRIMARY KEY (run, batch_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
    at_ms INTEGER PRIMARY KEY, run INTEGER NOT NULL, batch_id INTEGER NOT NULL, ran_ms INTEGER NOT NULL,
    counts BLOB NOT NULL
);
PRAGMA user_version = {_VERSION}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """The messages of all spouts and all runs, as of a committed micro-batch.

    Attributes:
        run: The run that saw them.
        batch_id: The micro-batch.
        at_ms: When they were first seen; milliseconds since 1970.
        until_ms: When they were last seen unchanged.
    """

    run: int
    batch_id: int
    at_ms: int
    until_ms: int
    emitted: int
    acked: int
    failed: int
    timed_out: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Without the times."""
        return self.emitted, self.acked, self.failed, self.timed_out

    @classmethod
    def of(cls, row: Sequence[object]) -> Point:
        """Read a row. ValueError if it is damaged."""
        return cls(*(_number(value) for value in row))


@dataclass(frozen=True, slots=True)
class Sample:
    """All counts of all runs, as of a committed micro-batch.

    Attributes:
        ran_ms: For how long drivers had run the topology, all in all.
    """

    at_ms: int
    run: int
    batch_id: int
    ran_ms: int
    counters: Counters

    @classmethod
    def of(cls, row: Sequence[object]) -> Sample:
        """Read a row. ValueError if it is damaged."""
        at_ms, run, batch_id, ran_ms, counts = row
        return cls(_number(at_ms), _number(run), _number(batch_id), _number(ran_ms), counters_in(counts))


def counters_in(packed: object) -> Counters:
    """Read the counts of a sample. ValueError if they are damaged, whatever they are."""
    reader = zlib.decompressobj()
    try:
        unpacked = reader.decompress(memoryview(packed), _MOST_UNPACKED_BYTES)  # type: ignore[arg-type]
        return Counters.of(map(_count, json.loads(unpacked if reader.eof else b"cut, or too large")))
    except (zlib.error, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the counts of a sample are damaged: {error}") from error


def _count(row: Sequence[object]) -> tuple[Key, int]:
    component, task, stream, what, n = row
    if not (isinstance(component, str) and isinstance(stream, str) and isinstance(what, str)):
        raise TypeError("a name is no text")
    if _number(n) < 0:
        raise ValueError("a count is negative")
    return (component, _number(task), stream, what), _number(n)


def _number(value: object) -> int:
    """A whole number of at most 62 bits: sums of two have 63, which is what SQLite and arrays take."""
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is not a number, or too large")
    return value


_COLUMNS: Final = ", ".join(field.name for field in fields(Point))
_NO_POINT: Final = " OR ".join(
    f"typeof({field.name}) != 'integer' OR {field.name} NOT BETWEEN {-LARGEST} AND {LARGEST}"
    for field in fields(Point)
)
_PLACES: Final = ", ".join("?" * len(fields(Point)))


class HistoryStore(SqliteStore):
    """A stored history."""

    what = "history"
    damages = (ValueError,)

    def __init__(
        self,
        path: Path | str,
        *,
        read_only: bool = False,
        most_points: int = MOST_POINTS,
        most_sample_bytes: int = MOST_SAMPLE_BYTES,
    ) -> None:
        self._most_points, self._most_sample_bytes = most_points, most_sample_bytes
        self._added = 0
        super().__init__(path, read_only=read_only)

    def _prepare(self, *, read_only: bool) -> None:
        version = self._value("PRAGMA user_version")
        if version > _VERSION:
            raise CheckpointError(
                f"the history has version {version}, and this acktree reads version {_VERSION}",
                self.place,
                "use the acktree that wrote it, or delete the file; messages and counts are not in it",
            )
        if read_only:
            self._value("SELECT count(*) FROM points")
            return
        prepare_writer(self._connection)
        self._connection.execute("PRAGMA wal_autocheckpoint = 100")
        self._connection.execute("PRAGMA journal_size_limit = 1048576")
        with transaction(self._connection) as connection:
            for statement in _TABLES.split(";\n"):  # executescript() would commit what is before it
                connection.execute(statement)
        (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ValueError(found)
        if self._value(f"SELECT count(*) FROM points WHERE {_NO_POINT}"):  # noqa: S608
            raise ValueError("a point is not of whole numbers")

    # ---- writing --------------------------------------------------------------------------------------

    def add(self, points: Sequence[Point], sample: Sample | None = None) -> int:
        """Store points, and all counts with them; of a known (run, micro-batch) the new numbers.

        Returns:
            The bytes of the sample.
        """
        counts = b"" if sample is None else zlib.compress(sample.counters.to_bytes(), 1)
        with self._lock, self._explained():
            with transaction(self._connection) as connection:
                connection.executemany(
                    f"INSERT INTO points ({_COLUMNS}) VALUES ({_PLACES}) ON CONFLICT DO UPDATE SET "  # noqa: S608
                    "until_ms = excluded.until_ms, emitted = excluded.emitted, acked = excluded.acked, "
                    "failed = excluded.failed, timed_out = excluded.timed_out",
                    map(astuple, points),
                )
                if sample is not None:
                    row = (sample.at_ms, sample.run, sample.batch_id, sample.ran_ms, counts)
                    connection.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)", row)
                self._added += 1
                is_time = self._added % _THIN_EVERY == 0
                if is_time:
                    self._thin(connection, max(point.until_ms for point in points))
            if is_time:
                self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        return len(counts)

    def thin(self, now_ms: int) -> None:
        """Delete what is beyond the bounds."""
        with self._lock, self._explained(), transaction(self._connection) as connection:
            self._thin(connection, now_ms)

    def _thin(self, connection: sqlite3.Connection, now_ms: int) -> None:
        for age_secs, stretch_secs in POINT_TIERS:
            given = {"before": now_ms - age_secs * 1000, "stretch": stretch_secs * 1000}
            connection.execute(
                "DELETE FROM points WHERE at_ms < :before AND (run, batch_id) NOT IN (SELECT run, "
                "max(batch_id) FROM points WHERE at_ms < :before GROUP BY run, at_ms / :stretch)",
                given,
            )
        connection.execute(
            "DELETE FROM points WHERE (run, batch_id) NOT IN "
            "(SELECT run, batch_id FROM points ORDER BY run DESC, batch_id DESC LIMIT ?)",
            (self._most_points,),
        )
        for age_secs, stretch_secs in SAMPLE_TIERS:
            given = {"before": now_ms - age_secs * 1000, "stretch": stretch_secs * 1000}
            connection.execute(
                "DELETE FROM samples WHERE at_ms < :before AND at_ms NOT IN "
                "(SELECT max(at_ms) FROM samples WHERE at_ms < :before GROUP BY at_ms / :stretch)",
                given,
            )
        oldest_ms = now_ms - _OLDEST_SAMPLE_SECS * 1000
        connection.execute("DELETE FROM samples WHERE at_ms < ?", (oldest_ms,))
        connection.execute(
            "DELETE FROM samples WHERE at_ms IN (SELECT at_ms FROM (SELECT at_ms, "
            "sum(length(counts)) OVER (ORDER BY at_ms DESC) AS bytes FROM samples) WHERE bytes > ?)",
            (self._most_sample_bytes,),
        )

    # ---- reading --------------------------------------------------------------------------------------

    def last(self) -> Point | None:
        """The newest point; None if there is none."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM points ORDER BY run DESC, batch_id DESC LIMIT 1")  # noqa: S608
        with self._explained():
            return Point.of(rows[0]) if rows else None

    def points(
        self, since_ms: int | None = None, before_ms: int | None = None, limit: int = 300
    ) -> list[Point]:
        """Points in the order of runs and micro-batches, at most ``limit``, evenly spread over the time.

        Args:
            since_ms: None: from the first one on. The point before this time is returned too: what grew
                since then is known by it.
            before_ms: Those that were seen before this time; None: all.
            limit: Of more points the last one of each stretch of time is returned, and the first one.
        """
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM points WHERE at_ms < ? ORDER BY run, batch_id",  # noqa: S608
            (before_ms if before_ms is not None else LARGEST,),
        )
        with self._explained():
            found = [Point.of(row) for row in rows]
        if since_ms is not None:
            later = [at for at, point in enumerate(found) if point.until_ms >= since_ms]
            found = found[max(0, later[0] - 1) :] if later else found[-1:]
        return _spread(found, limit)

    def samples(self, since_ms: int) -> list[Sample]:
        """The samples since a time, the oldest first."""
        rows = self._rows(
            "SELECT at_ms, run, batch_id, ran_ms, counts FROM samples WHERE at_ms >= ? ORDER BY at_ms",
            (since_ms,),
        )
        with self._explained():
            return [Sample.of(row) for row in rows]

    def _rows(self, query: str, given: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            return self._connection.execute(query, given).fetchall()


def _spread(points: list[Point], limit: int) -> list[Point]:
    """At most ``limit`` points: the first one, and the last one of each stretch of time."""
    if len(points) <= limit:
        return points
    first_ms = min(point.at_ms for point in points)
    stretch_ms = (max(point.at_ms for point in points) - first_ms) // max(1, limit - 1) + 1
    last = {(point.at_ms - first_ms) // stretch_ms: point for point in points}
    kept = {points[0], *last.values()}
    return [point for point in points if point in kept][-limit:]
