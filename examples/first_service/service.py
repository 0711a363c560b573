"""Payments from RabbitMQ, converted by a service, into totals and a table: docs/first-service.md."""

from __future__ import annotations

import json
import logging
import os
import sys
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    ConnectorError,
    DeadLetterLimitError,
    KeyValueState,
    Retry,
    Spout,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
    Unavailable,
    bolt,
    submit,
)
from acktree.connectors.rabbitmq import RabbitMQSpout
from acktree.connectors.sql import SqlSink

QUEUE_URL = os.environ.get("QUEUE_URL", "amqp://guest:guest@127.0.0.1:5672/")
RATES_URL = os.environ.get("RATES_URL", "http://127.0.0.1:8000")
DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql+psycopg://tester:example@127.0.0.1:5432/tester")
CHECKPOINT = os.environ.get("CHECKPOINT", "checkpoints/payments")
CONFIG = Config(message_timeout_secs=60, max_spout_pending=5_000, dead_letter_limit_count=1_000)


@bolt(outputs=["id", "customer", "cents", "currency"])
def parse(tup: Tuple) -> Iterator[list[Any]]:
    """The payment in a message. What it raises fails this message alone."""
    payment = json.loads(tup["body"])
    yield [payment["id"], payment["customer"], payment["cents"], payment["currency"]]


class Convert(BasicBolt):
    """Asks a service for the rate of each currency, once for as long as a worker process lives."""

    outputs = ["id", "customer", "cents"]
    threads = 8

    def __init__(self, url: str) -> None:
        self.url = url

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.rates: dict[str, float] = context.cached("rates", dict)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        currency = tup["currency"]
        if currency not in self.rates:
            self.rates[currency] = rate_of(self.url, currency)
        collector.emit([tup["id"], tup["customer"], round(tup["cents"] * self.rates[currency])])


def rate_of(url: str, currency: str) -> float:
    """Euros for one unit of a currency."""
    try:
        with urllib.request.urlopen(f"{url}/{quote(currency, safe='')}", timeout=2) as answer:  # noqa: S310
            return float(answer.read())
    except HTTPError as error:
        error.close()
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS:
            raise ValueError(f"no rate for {currency!r:.40}: {error.code}") from error  # it fails
        raise Unavailable("rates", retry_after_secs=5) from error
    except OSError as error:  # no answer: messages wait until there is one
        raise Unavailable("rates", retry_after_secs=5) from error


class Total(BasicBolt):
    """Adds up what each customer has paid; a payment that comes again is not added again."""

    outputs = ["id", "customer", "cents", "total"]
    remembers = ["totals", "counted"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.totals: KeyValueState[str, int] = KeyValueState()
        self.counted: KeyValueState[str, tuple[int, int]] = KeyValueState(ttl_secs=7 * 86_400)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        payment, customer, cents = tup["id"], tup["customer"], tup["cents"]
        if payment not in self.counted:
            self.totals[customer] = self.totals.get(customer, 0) + cents
            self.counted[payment] = cents, self.totals[customer]
        collector.emit([payment, customer, *self.counted[payment]])  # the row of the first time


def topology(payments: Spout, rates: str, database: str) -> Topology:
    """From a spout of payments to the table of the same name."""
    builder = TopologyBuilder("payments")
    retry = Retry(
        max_attempts=5, backoff_secs=(1, 60), final=(ValueError, KeyError, TypeError, ConnectorError)
    )
    builder.set_spout("payments", payments, retry=retry)
    builder.set_bolt("parse", parse).shuffle_grouping("payments")
    builder.set_bolt("convert", Convert(rates), parallelism=2).shuffle_grouping("parse")
    builder.set_bolt("total", Total(), parallelism=2).fields_grouping("convert", ["customer"])
    builder.set_bolt("store", SqlSink(database, "payments", key="id")).shuffle_grouping("total")
    return builder.create_topology()


def service() -> Topology:
    """The topology as it runs in production. `acktree doctor` and `--dry-run` take it, too."""
    return topology(RabbitMQSpout(QUEUE_URL, "payments"), RATES_URL, DATABASE_URL)


def main() -> None:
    """Run until SIGTERM, or until most messages become dead letters."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    try:
        with submit(service(), checkpoint=CHECKPOINT, config=CONFIG) as running:
            running.await_termination()
    except DeadLetterLimitError as error:
        print(error, file=sys.stderr)
        sys.exit(65)  # somebody has to look: do not start again


if __name__ == "__main__":
    main()
