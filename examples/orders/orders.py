"""Orders from RabbitMQ into PostgreSQL, with some that fail. README.md says what to see.

::

    orders (RabbitMQ) ──► parse ──► price ──► store (PostgreSQL)

``python -m examples.orders.orders [--docker]`` starts both servers, fills the queue, runs the topology, fixes
the cause of some failures, and redrives their dead letters.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import sqlalchemy as sa

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    Retry,
    RunningTopology,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
    bolt,
    submit,
)
from acktree.connectors.rabbitmq import RabbitMQSpout
from acktree.connectors.sql import SqlSink
from examples.orders.servers import servers

QUEUE = "orders"
TABLES = (
    "CREATE TABLE rates (currency text PRIMARY KEY, euros numeric NOT NULL)",
    "INSERT INTO rates VALUES ('EUR', 1), ('USD', 0.9), ('CHF', 1.1)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL, euros numeric CHECK (euros > 0))",
)
WAIT_SECS = 120


# 1. The bolts. Each raises for an order that it cannot process, and only that order fails.


@bolt(outputs=["id", "customer", "amount", "currency"])
def parse(tup: Tuple) -> Iterator[list[Any]]:
    """The order in a message."""
    order = json.loads(tup["body"])
    yield [order["id"], order["customer"], order["amount"], order["currency"]]


class UnknownCurrencyError(Exception):
    """There is no rate for this currency."""


class Price(BasicBolt):
    """The price in euros, by the rates that are in the database when a micro-batch begins."""

    outputs = ["id", "customer", "euros"]

    def __init__(self, database: str) -> None:
        self.database = database

    def prepare(self, config: Config, context: TaskContext) -> None:
        engine = context.cached(self.database, lambda: sa.create_engine(self.database))
        with engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT currency, euros FROM rates"))
            self.rates = {currency: float(euros) for currency, euros in rows}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["currency"] not in self.rates:
            raise UnknownCurrencyError(tup["currency"])
        collector.emit([tup["id"], tup["customer"], round(tup["amount"] * self.rates[tup["currency"]], 2)])


# 2. The topology. The key makes a second run of an order write the same row.


def orders(queue: str, database: str) -> Topology:
    """From a queue of orders to the table of the same name."""
    builder = TopologyBuilder("orders")
    retry = Retry(max_attempts=2, backoff_secs=(0.1, 1), final=(json.JSONDecodeError, UnknownCurrencyError))
    builder.set_spout("orders", RabbitMQSpout(queue, QUEUE), retry=retry)
    builder.set_bolt("parse", parse).shuffle_grouping("orders")
    builder.set_bolt("price", Price(database)).shuffle_grouping("parse")
    builder.set_bolt("store", SqlSink(database, "orders", key="id")).shuffle_grouping("price")
    return builder.create_topology()


# 3. The orders: three in each hundred are poison.


POISON = {17: "no JSON", 42: "an unknown currency", 77: "a negative amount"}


def order(number: int) -> str:
    """What a shop sends."""
    wrong = POISON.get(number % 100)
    if wrong == "no JSON":
        return f"order {number}, please"
    currency = "XYZ" if wrong == "an unknown currency" else ("EUR", "USD", "CHF")[number % 3]
    amount = -1 if wrong == "a negative amount" else 1 + number % 50
    return json.dumps({"id": number, "customer": f"c{number % 7}", "amount": amount, "currency": currency})


def fill(queue: str, database: str, count: int) -> None:
    """Declare the queue, make the tables, send orders."""
    with closing(pika.BlockingConnection(pika.URLParameters(queue))) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        for number in range(count):
            channel.basic_publish("", QUEUE, order(number).encode(), pika.BasicProperties(delivery_mode=2))
    ask(database, *TABLES)


def ask(database: str, *statements: str) -> Any:
    """Run statements; the first value of the last one, if it has any."""
    engine = sa.create_engine(database)
    try:
        with engine.begin() as connection:
            results = [connection.execute(sa.text(statement)) for statement in statements]
            return results[-1].scalar() if results[-1].returns_rows else None
    finally:
        engine.dispose()


# 4. Run it, fix the cause, redrive.


@dataclass(frozen=True)
class Account:
    """Rows in PostgreSQL, and dead letters by the bolt that failed, before and after the redrive."""

    first_rows: int
    first_letters: Counter[str | None]
    rows: int
    letters: Counter[str | None]


def run(running: RunningTopology, database: str, count: int) -> Account:
    """Wait for all orders, then add a rate for one currency and redrive its dead letters."""

    def rows() -> int:
        return int(ask(database, "SELECT count(*) FROM orders"))

    letters = running.dead_letters
    wait_until(running, lambda: rows() + len(letters) == count)
    first, by_bolt = rows(), Counter(letter.component for letter in letters)
    say(f"{first:,} rows in PostgreSQL, {len(letters):,} dead letters: {dict(by_bolt)}")

    ask(database, "INSERT INTO rates VALUES ('XYZ', 2)")
    again = [letter.id for letter in letters.find(component="price") if letter.id is not None]
    letters.redrive(again)
    wait_until(running, lambda: letters.count(redriven=True, settled=True) == len(again))
    left = Counter(letter.component for letter in letters.find(redriven=False))
    say(f"XYZ has a rate now. {len(again):,} letters were sent again: {rows():,} rows, left are {dict(left)}")
    return Account(first, by_bolt, rows(), left)


def wait_until(running: RunningTopology, is_done: Callable[[], bool]) -> None:
    """Raises what stopped the topology, if something did, and TimeoutError after two minutes."""
    deadline = time.monotonic() + WAIT_SECS
    while not is_done():
        if running.await_termination(timeout_secs=0.1) or time.monotonic() > deadline:
            raise TimeoutError("the orders do not come through")


def say(what: str) -> None:
    """Print the progress."""
    print(what, flush=True)


def main() -> int:
    """Start the servers, run it all, and check the account."""
    parser = argparse.ArgumentParser(description="Orders from RabbitMQ into PostgreSQL.")
    parser.add_argument("--docker", action="store_true", help="start the servers with Docker Compose")
    parser.add_argument("--count", type=int, default=1000, help="how many orders (default: 1000)")
    options = parser.parse_args()
    with (
        servers(with_docker=options.docker) as (queue, database),
        tempfile.TemporaryDirectory(prefix="orders-") as folder,
    ):
        fill(queue, database, options.count)
        say(f"{options.count:,} orders are in the queue. Starting Spark, which takes some seconds.")
        with submit(orders(queue, database), checkpoint=Path(folder) / "checkpoint") as running:
            account = run(running, database, options.count)
    lost = options.count - account.rows - account.letters.total()
    say("No order is lost." if not lost else f"{lost:,} ORDERS ARE LOST.")
    return int(lost != 0)


if __name__ == "__main__":
    sys.exit(main())
