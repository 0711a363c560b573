"""The example keeps its account with real servers, which it starts itself; without Spark."""

from __future__ import annotations

import os
from collections import Counter

import pytest

for client in ("pika", "psycopg", "sqlalchemy"):
    pytest.importorskip(client)

from acktree.testing import LocalCluster  # noqa: E402
from examples.orders import orders as example  # noqa: E402
from examples.orders.servers import servers  # noqa: E402
from tests.services.postgresql import programs  # noqa: E402
from tests.services.servers import RabbitMQ  # noqa: E402


@pytest.mark.slow
def test_no_order_is_lost_and_what_was_mended_comes_through() -> None:
    if (RabbitMQ.missing() or not programs()) and not os.environ.get("CI"):
        pytest.skip("RabbitMQ or PostgreSQL is missing")
    with servers() as (queue, database):
        example.fill(queue, database, 200)
        with LocalCluster() as cluster:
            account = example.run(cluster.submit(example.orders(queue, database)), database, 200)
    assert (account.first_rows, account.first_letters) == (194, Counter(parse=2, price=2, store=2))
    assert (account.rows, account.letters) == (196, Counter(parse=2, store=2))
