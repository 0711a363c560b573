"""Kills drivers, workers and PostgreSQL while effects go into it, and makes the account of every effect.

``python -m tests.chaos.exactly --seeds 7,8,9 --kills 200``. Of the kills 30 % are of the driver, 10 % of the
database, which starts again seconds later. A third of those of drivers and workers come between the
database's commit and Spark's: the sink's own process does that. The others come at random.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pika

from tests.chaos.effects import RUN
from tests.chaos.exactly_account import Account, Row, account_of
from tests.chaos.exactly_topology import ARMED, PUT, SOURCES, STOP
from tests.chaos.processes import Role, kill_all, processes_of, send
from tests.services.postgresql import PostgreSQL, programs
from tests.services.servers import RabbitMQ

ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = 15
PATIENCE_SECS: Final = 900
"""What was put must have its effects within this time; only a run that hangs meets it."""


@dataclass
class Result:
    """What a run came to.

    Attributes:
        kills: How many there were of each kind.
        stuck: What did not come to an end; empty if all did.
    """

    account: Account
    put: int
    drivers: int
    kills: dict[str, int]
    stuck: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.account.is_clean and not self.stuck

    def to_json(self) -> dict[str, Any]:
        """For one line."""
        found = {where: [len(lines), *lines[:5]] for where, lines in self.account.findings.items()}
        return {
            "clean": self.is_clean, "messages": self.put, "effects": self.account.effects,
            "doubles of the plain queue": self.account.doubles, "kills": self.kills, "drivers": self.drivers,
            "findings": found, "stuck": self.stuck,
        }  # fmt: skip


class StuckError(Exception):
    """Something does not come to an end."""


@dataclass
class Conductor:
    """One run in one folder."""

    folder: Path
    sources: Sequence[str]
    database: PostgreSQL
    queue: RabbitMQ
    say: Callable[[str], object]
    put: int = 0
    drivers: int = 0
    kills: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make tables, queues, and what the driver reads."""
        for name in ("rows", "local", "logs"):
            (self.folder / name).mkdir(parents=True)
        self.schema = f"exactly{time.monotonic_ns()}"
        self.database.make_schema(self.schema)
        columns = "source TEXT, number BIGINT, part BIGINT, run BIGINT"
        with self.database.connect() as connection:
            connection.execute(f"CREATE TABLE {self.schema}.direct ({columns})")
            connection.execute(f"CREATE TABLE {self.schema}.totals ({columns}, count BIGINT)")
        with pika.BlockingConnection(pika.URLParameters(self.queue.url)) as connection:
            for name in ("keyed", "plain"):
                connection.channel().queue_declare(name, durable=True)
                connection.channel().queue_purge(name)
        settings = {
            "sources": list(self.sources),
            "queue": self.queue.url,
            "database": self.database.url(self.schema),
        }
        (self.folder / "driver.json").write_text(json.dumps(settings))
        self.put_page()

    def put_page(self) -> None:
        """Give each source some messages."""
        numbers = range(self.put, self.put + _PAGE)
        with pika.BlockingConnection(pika.URLParameters(self.queue.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("keyed", "plain"):
                for number in numbers:
                    properties = pika.BasicProperties(delivery_mode=2, message_id=f"{name} {number}")
                    channel.basic_publish("", name, f"{name} {number}".encode(), properties)
        self.put += _PAGE
        lines = [json.dumps({"body": f"rows {number}", "number": number}) for number in numbers]
        self._write(self.folder / "rows" / f"{self.put:06}.json", "\n".join(lines))
        self._write(self.folder / PUT, str(self.put))

    def _write(self, file: Path, text: str) -> None:
        new = self.folder / "new"
        new.write_text(text)
        new.rename(file)

    def start(self) -> None:
        """Start the next driver."""
        self.drivers += 1
        # A JVM that writes an archive of its classes outlives its driver.
        asked = {"PYTHONPATH": str(ROOT), RUN: str(self.drivers), "ACKTREE_CLASS_ARCHIVE": "use"}
        with (self.folder / "logs" / f"{self.drivers}.log").open("wb") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.exactly_driver", str(self.folder)], cwd=ROOT,
                env={**os.environ, **asked}, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def rows(self, table: str) -> list[Row]:
        """What a table has."""
        with self.database.connect() as connection:
            query = f"SELECT source, number, part, run FROM {self.schema}.{table}"  # our names
            return connection.execute(query).fetchall()

    def await_so(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so; StuckError if the driver ends by itself, or it takes too long."""
        deadline = time.monotonic() + PATIENCE_SECS
        while not is_so():
            if self.driver.poll() is not None and not is_so():
                raise StuckError(f"driver {self.drivers} ended by itself: {self._last_line()}")
            if time.monotonic() > deadline:
                raise StuckError(f"{what} does not happen")
            time.sleep(0.1)

    def await_rows(self) -> None:
        """Wait until the tables grow: the driver works."""
        before = len(self.rows("direct"))
        self.put_page()
        self.await_so(lambda: len(self.rows("direct")) > before, "a row")

    def kill_database(self, chance: random.Random) -> None:
        """Kill it at random, and start it again."""
        self.put_page()
        time.sleep(chance.uniform(0, 3))
        self.database.crash()
        time.sleep(chance.uniform(0, 8))  # sinks try for 3 seconds by themselves
        self.database.start()
        self.kills["database"] = self.kills.get("database", 0) + 1
        self.say(f"{sum(self.kills.values())}: database")

    def kill(self, whom: str, chance: random.Random, *, in_doubt: bool) -> None:
        """Kill the driver or a worker: after the database's commit, or at random."""
        kind = f"{whom}, {'between the two commits' if in_doubt else 'at random'}"
        if in_doubt:
            armed = self.folder / ARMED
            armed.with_suffix(".done").unlink(missing_ok=True)
            self._write(armed, str(self.driver.pid if whom == "driver" else 0))
            self.put_page()
            done = armed.with_suffix(".done")
            self.await_so(lambda: done.exists() or self.driver.poll() is not None, "a commit of the database")
        else:
            self.put_page()
            time.sleep(chance.uniform(0, 3))
            workers = [each.pid for each in processes_of(self.driver.pid) if each.role is Role.WORKER]
            if whom == "driver":
                send(self.driver.pid, signal.SIGKILL)
            elif workers:
                send(chance.choice(workers), signal.SIGKILL)
            else:
                kind = "worker, there was none"
        self.kills[kind] = self.kills.get(kind, 0) + 1
        if whom == "driver":
            self.driver.wait()
            if chance.random() < 0.5:
                kill_all(self.driver.pid)
            self.start()
        self.say(f"{sum(self.kills.values())}: {kind}")

    def end(self) -> None:
        """Let the last driver end, when the tables have all rows."""
        self.await_so(self._has_all, "the last row")
        (self.folder / STOP).touch()
        self.await_so((self.folder / "ended").exists, "the end")
        self.driver.wait(120)

    def _has_all(self) -> bool:
        tables = {table: self.rows(table) for table in ("direct", "totals")}
        found = account_of(self.put, self.sources, tables, {}).findings
        return not any(line.endswith("is not there") for table in tables for line in found.get(table, ()))

    def account(self) -> Account:
        """Make the account of what is there."""
        memory: dict[str, int] = {}
        for file in self.folder.glob("memory-*.json"):
            memory |= json.loads(file.read_text())
        tables = {table: self.rows(table) for table in ("direct", "totals")}
        return account_of(self.put, self.sources, tables, memory)

    def _last_line(self) -> str:
        log = self.folder / "logs" / f"{self.drivers}.log"
        return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:500]


def perform(
    folder: Path,
    seed: int,
    kills: int,
    database: PostgreSQL,
    queue: RabbitMQ,
    say: Callable[[str], object],
    *,
    sources: Sequence[str] = SOURCES,
    secs: float = float("inf"),
) -> Result:
    """Run it.

    Args:
        folder: A folder that does not exist yet.
        seed: Gives the order of the kills, and the pauses before them.
        kills: 30 % are of the driver, 10 % of the database, the others of workers; of those of drivers and
            workers a third is between the two commits.
        secs: After this time there are no more kills.
    """
    chance = random.Random(seed)
    drivers, databases = round(kills * 0.3), -(-kills // 10)
    plan = [("driver", at % 3 == 0) for at in range(drivers)]
    plan += [("worker", at % 3 == 0) for at in range(kills - drivers - databases)]
    plan += [("database", False)] * databases
    chance.shuffle(plan)
    conductor = Conductor(folder, sources, database, queue, say)
    conductor.prepare()
    stuck, until = "", time.monotonic() + secs
    conductor.start()
    try:
        for whom, in_doubt in plan:
            if time.monotonic() > until:
                break
            conductor.await_rows()
            if whom == "database":
                conductor.kill_database(chance)
            else:
                conductor.kill(whom, chance, in_doubt=in_doubt)
        conductor.end()
    except StuckError as error:
        stuck = str(error)
    finally:
        kill_all(conductor.driver.pid)
        conductor.driver.wait()
    return Result(conductor.account(), conductor.put, conductor.drivers, conductor.kills, stuck)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # a program


def main(arguments: Sequence[str]) -> int:
    """Run some seeds; prints a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.exactly", description=__doc__)
    parser.add_argument("--seeds", default="7", help="numbers with commas between")
    parser.add_argument("--kills", type=int, default=200, help="kills a seed")
    parser.add_argument("--secs", type=float, default=float("inf"), help="no more kills after this time")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--folder", type=Path, help="keeps what happened; a temporary one by default")
    given = parser.parse_args(arguments)
    bin_folder = programs()
    if bin_folder is None or RabbitMQ.missing():
        raise SystemExit(f"PostgreSQL: {bin_folder}; RabbitMQ: {RabbitMQ.missing() or 'there'}")
    database, queue = PostgreSQL(bin_folder), RabbitMQ()
    are_clean = True
    try:
        for seed in map(int, given.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                place = (given.folder or Path(folder)) / f"seed-{seed}"
                result = perform(
                    place, seed, given.kills, database, queue, _say,
                    sources=given.sources.split(","), secs=given.secs,
                )  # fmt: skip
                print(json.dumps({"seed": seed, **result.to_json()}), flush=True)  # noqa: T201
                are_clean &= result.is_clean
    finally:
        queue.remove()
        database.remove()
    return 0 if are_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
