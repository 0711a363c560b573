"""Runs the service with its servers, and keeps an account of each payment.

``python -m examples.first_service.trial`` starts all of it. With ``--kills`` it kills the service twice, a
worker of Spark twice, RabbitMQ and PostgreSQL, while payments come. With ``--away 60`` the rates are away
for a minute, then PostgreSQL is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event

import psycopg

from acktree import DeadLetter, DeadLetters
from examples.first_service.payments import CURRENCIES, Sender, good_payments, payment
from examples.first_service.servers import HERE, Servers, servers
from tests.chaos.processes import Role, kill_all, processes_of

WAIT_SECS = 600
"""After this time without progress something hangs."""


# 1. The service, in a process that can be killed.


@dataclass
class Service:
    """``service.py`` on one checkpoint, whichever process runs it."""

    servers: Servers
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def checkpoint(self) -> Path:
        """It stays when the process ends."""
        return self.folder / "checkpoint"

    def start(self) -> None:
        """Start it; it goes on where it was."""
        environment = os.environ | self.servers.environment | {"CHECKPOINT": str(self.checkpoint)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  # written here
                [sys.executable, str(HERE / "service.py")], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """As a crash does: the driver alone. What it started has to end by itself, or does no harm."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_worker(self) -> None:
        """Kill one of the processes that run bolts; wait for one where Spark has just lost them."""

        def found() -> bool:
            assert self.process is not None
            workers = [each.pid for each in processes_of(self.process.pid) if each.role is Role.WORKER]
            for pid in workers[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
            return False

        self.wait_until(found, "a worker")

    def stop(self) -> int:
        """As systemd does; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_SECS)

    def remove(self) -> None:
        """End all that it started."""
        if self.process is not None:
            kill_all(self.process.pid)
            self.process.wait()

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """What a command of acktree says of it."""
        name, *options = command
        return subprocess.run(  # noqa: S603  # written here
            [sys.executable, "-m", "acktree", name, str(self.checkpoint), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def rows(self) -> list[tuple[str, str, int, int]]:
        """The table, in the order of each customer's totals."""
        with self.servers.postgresql.connect() as database:
            found = database.execute(
                "SELECT id, customer, cents, total FROM payments ORDER BY customer, total"
            )
            return found.fetchall()

    def row_count(self) -> int:
        """How many rows there are; -1 while PostgreSQL is away."""
        try:
            with self.servers.postgresql.connect() as database:
                (count,) = database.execute("SELECT count(*) FROM payments").fetchone() or (0,)
                return int(count)
        except psycopg.OperationalError:
            return -1

    def wait_for_rows(self, count: int, what: str) -> None:
        """Return when there are so many."""
        self.wait_until(lambda: self.row_count() >= count, what)

    def letters(self) -> list[tuple[bytes, str]]:
        """The body of each dead letter, and the bolt that failed it; some may come twice."""
        file = self.checkpoint / "dead_letters.sqlite"
        if not file.exists():
            return []
        with DeadLetters(file) as letters:
            return [(body_of(letter), str(letter.component)) for letter in letters]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Look again and again; RuntimeError if the service has ended by itself, or it takes too long."""
        deadline, pause = time.monotonic() + WAIT_SECS, 0.05
        while not is_so():
            has_ended = self.process is None or self.process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                end = (self.folder / "log").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{what} does not come: {self.row_count()} rows\n{end}")
            time.sleep(pause)  # to look is a process or a connection: seldom where it takes long
            pause = min(0.5, 1.5 * pause)


# 2. The account.


def body_of(letter: DeadLetter) -> bytes:
    """The message that a letter was made of."""
    body = letter.values[0]
    assert isinstance(body, bytes)
    return body


@dataclass
class Account:
    """What became of each payment.

    Attributes:
        rows: Payments with a row.
        letters: Letters of those that cannot have one, by the bolt that failed them.
        wrong: What must not be; empty if all is right.
    """

    rows: int = 0
    letters: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def expected(sent: Counter[bytes], rates: Path) -> tuple[dict[str, tuple[str, int]], set[bytes]]:
    """The rows that must be, by their ids, and the bodies that must be letters."""
    rows: dict[str, tuple[str, int]] = {}
    refused: set[bytes] = set()
    for body in sent:
        try:
            found = json.loads(body)
            rate = float((rates / found["currency"]).read_text())
            customer, cents = found["customer"], round(found["cents"] * rate)
        except (ValueError, KeyError, TypeError, OSError):
            refused.add(body)
            continue
        if "\0" in customer:
            refused.add(body)
        else:
            rows[found["id"]] = customer, cents
    return rows, refused


def account_of(service: Service, sent: Counter[bytes]) -> Account:
    """Compare what was sent with rows and letters."""
    wanted, refused = expected(sent, service.servers.rates.folder)
    rows, letters = service.rows(), service.letters()
    account = Account(len(rows), Counter(component for _, component in letters))
    found = {name: (customer, cents) for name, customer, cents, _ in rows}
    if found != wanted:
        missing, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
        account.wrong.append(f"rows: {sorted(missing)[:9]} are missing, {sorted(more)[:9]} should not be")
    if {body for body, _ in letters} != refused:
        account.wrong.append(f"letters: {refused ^ {body for body, _ in letters}}")
    totals: Counter[str] = Counter()
    for name, customer, cents, total in rows:  # by customer, from the first payment that was counted
        totals[customer] += cents
        if totals[customer] != total:
            account.wrong.append(f"total of {customer} at {name}: {total}, and not {totals[customer]}")
            break
    return account


def wait_for_all(service: Service, sent: Counter[bytes]) -> None:
    """Return when each payment has its row or its letter."""
    wanted, refused = expected(sent, service.servers.rates.folder)
    service.wait_for_rows(len(wanted), "the last row")
    service.wait_until(
        lambda: len({body for body, _ in service.letters()}) >= len(refused), "the last letter"
    )


# 3. A run, with kills or without.


def kill_everything(service: Service, say: Callable[[str], None] = print) -> None:
    """Kill the driver twice, workers twice, RabbitMQ and PostgreSQL, each after more rows have come."""

    def restart_driver() -> None:
        service.kill()
        service.start()

    def restart_rabbitmq() -> None:
        service.servers.rabbitmq.kill()
        service.servers.rabbitmq.start()

    def restart_postgresql() -> None:
        service.servers.postgresql.crash()
        service.servers.postgresql.start()

    for name, strike in (
        ("the driver", restart_driver), ("a worker", service.kill_worker), ("RabbitMQ", restart_rabbitmq),
        ("a worker", service.kill_worker), ("the driver", restart_driver), ("PostgreSQL", restart_postgresql),
    ):  # fmt: skip
        before = service.row_count()
        service.wait_for_rows(before + 1, f"a row before {name} is killed")
        strike()
        say(f"killed {name} at {before:,} rows")


def run(folder: Path, most: int, *, kills: bool, say: Callable[[str], None] = print) -> Account:
    """Send payments, kill or not, and wait until each has its row or its letter.

    Args:
        folder: For the checkpoint and the log.
        most: How many payments; with kills as many as come meanwhile, if those are more.
    """
    with servers() as running:
        service, sender = Service(running, folder), Sender(running.rabbitmq.url, 50 if kills else 2000)
        numbers, is_over = count(), Event()

        def next_body() -> bytes | None:
            number = next(numbers)
            return None if number >= most and (is_over.is_set() or not kills) else payment(number)

        try:
            service.start()
            sender.start(next_body)
            if kills:
                kill_everything(service, say)
                is_over.set()
            sender.join()
            say(f"{sender.sent.total():,} payments were sent")
            wait_for_all(service, sender.sent)
            account = account_of(service, sender.sent)
            code = service.stop()
        finally:
            is_over.set()
            sender.stop()
            service.remove()
    if code != -signal.SIGTERM and code != 128 + signal.SIGTERM:
        account.wrong.append(f"exit code {code}")
    return account


def run_away(folder: Path, secs: float, say: Callable[[str], None] = print) -> Account:
    """While payments come, let the rates be away, and then PostgreSQL: nothing may be given up.

    Args:
        folder: For the checkpoint, the log and the rates.
        secs: For how long each is away.
    """
    rates = folder / "rates"
    rates.mkdir()
    (folder / "rate").write_text("1.0")
    for number in range(CURRENCIES):
        (rates / f"C{number}").symlink_to(folder / "rate")
    with servers(rates) as running:
        service, sender = Service(running, folder), Sender(running.rabbitmq.url, 20)
        try:
            service.start()
            sender.start(good_payments().__next__)
            service.wait_for_rows(20, "the first row")
            wrong = [
                *be_away(service, sender, "rates", secs, (running.rates.stop, running.rates.start), say),
                *be_away(
                    service, sender, "store", secs, (running.postgresql.stop, running.postgresql.start), say
                ),
            ]
            sender.stop()
            wait_for_all(service, sender.sent)
            account = account_of(service, sender.sent)
            numbers = json.loads(service.ask("stats", "--json").stdout)["components"]["payments"]["total"]
            if numbers["retried"] or numbers["dead_lettered"]:
                wrong.append(
                    f"{numbers['retried']} attempts were used, {numbers['dead_lettered']} payments given up"
                )
            service.stop()
        finally:
            sender.stop()
            service.remove()
    account.wrong += wrong
    return account


def be_away(
    service: Service,
    sender: Sender,
    name: str,
    secs: float,
    stop_and_start: tuple[Callable[[], None], Callable[[], None]],
    say: Callable[[str], None],
) -> Iterator[str]:
    """Let what a bolt needs be away; what must not be meanwhile, and what came of it.

    Args:
        name: What `acktree health` calls it.
    """

    def is_told() -> bool:
        health = service.ask("health")
        return health.returncode == 1 and f"BAD  dependency {name} of spout payments: tried " in health.stdout

    stop, start = stop_and_start
    stop()
    began = time.monotonic()
    asked: list[float] = []

    def is_told_first() -> bool:
        asked.append(time.monotonic())
        return is_told()

    service.wait_until(is_told_first, f"a word of {name} in `acktree health`")
    told_secs, command_secs = time.monotonic() - began, time.monotonic() - asked[-1]
    while time.monotonic() < began + secs:
        if letters := service.letters():
            yield f"{len(letters)} letters while {name} was away"
        listed = json.loads(service.ask("open", "--limit", "500", "--json").stdout)["open"]
        if more := sum(each["attempt"] > 1 for each in listed):
            yield f"{more} payments have used up an attempt while {name} was away"
        if not is_told():
            yield f"`acktree health` says nothing of {name} while it is away"
        time.sleep(secs / 12)  # three commands each time, each as dear as a start of Python
    away_secs, sent = time.monotonic() - began, Counter(sender.sent)
    start()
    back = time.monotonic()
    wait_for_all(service, sent)
    done_secs = time.monotonic() - back
    say(
        f"{name}: away for {away_secs:.0f} s; `acktree health` said so after {told_secs:.1f} s, of which the "
        f"command took {command_secs:.1f} s; "
        f"all {len(sent):,} payments were done {done_secs:.1f} s after it was back"
    )
    service.wait_until(lambda: service.ask("health").returncode == 0, "a good word of `acktree health`")


def main() -> int:
    """Run it, and print the account."""
    parser = argparse.ArgumentParser(description="Payments from RabbitMQ into PostgreSQL, with an account.")
    parser.add_argument("--count", type=int, default=1000, help="how many payments (default: 1000)")
    parser.add_argument(
        "--kills", action="store_true", help="kill the service, workers and servers meanwhile"
    )
    parser.add_argument(
        "--away", type=float, metavar="SECS", help="let the rates and PostgreSQL be away instead"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="payments-") as folder:
        if options.away is None:
            account = run(Path(folder), options.count, kills=options.kills)
        else:
            account = run_away(Path(folder), options.away)
    print(f"{account.rows:,} rows, {account.letters.total():,} dead letters: {dict(account.letters)}")
    print("\n".join(account.wrong) or "Each payment has its row or its letter, and all totals are right.")
    return int(bool(account.wrong))


if __name__ == "__main__":
    sys.exit(main())
