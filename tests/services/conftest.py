"""Servers that tests need: started once for all of them, each in a folder and on a port of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest

from tests.services.kafka import Kafka
from tests.services.postgresql import MISSING, PgBouncer, PostgreSQL, programs
from tests.services.servers import Beanstalkd, Kestrel, Moto, Nats, RabbitMQ, Redis, Server

_SCHEMAS = count(1)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server; skipped where none is installed, but not in CI."""
    found = programs()
    missing = MISSING or ("" if found else "no PostgreSQL server (Debian: apt-get install postgresql)")
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing or found is None:
        pytest.skip(missing)
    server = PostgreSQL(found)
    yield server
    server.remove()


@pytest.fixture(scope="module")
def pgbouncer(postgresql: PostgreSQL) -> Iterator[Server]:
    """In front of the server; each transaction may have another of its sessions."""
    yield from _running(PgBouncer, "psycopg", postgresql.port)


@pytest.fixture
def schema(postgresql: PostgreSQL) -> str:
    """The name of an empty schema."""
    name = f"letters_{next(_SCHEMAS)}"
    postgresql.make_schema(name)
    return name


def _running(kind: type[Server], client: str, *arguments: Any) -> Iterator[Server]:
    """A server; skipped where it or its client is not installed, but in CI that is a failure."""
    missing = kind.missing()
    if find_spec(client) is None:
        missing = missing or f"no {client} (make setup)"
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    server = kind(*arguments)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    yield from _running(RabbitMQ, "pika")


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    yield from _running(Redis, "redis")


@pytest.fixture(scope="module")
def beanstalkd() -> Iterator[Server]:
    yield from _running(Beanstalkd, "greenstalk")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Server]:
    yield from _running(Kafka, "confluent_kafka")


@pytest.fixture(scope="module")
def nats_server() -> Iterator[Server]:
    yield from _running(Nats, "nats")


@pytest.fixture(scope="module")
def sqs() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "S3cr3t")
        yield from _running(Moto, "boto3")


@pytest.fixture(scope="module")
def kestrel() -> Iterator[Server]:
    yield from _running(Kestrel, "socket")
