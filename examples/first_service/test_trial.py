"""The service on Spark with its servers: what is killed, and what is away, loses no payment."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

for client in ("pika", "psycopg", "sqlalchemy", "pyspark"):
    pytest.importorskip(client)

from examples.first_service.servers import missing  # noqa: E402
from examples.first_service.trial import run, run_away  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(autouse=True)
def installed() -> None:
    """Skip where a server is missing, but not in CI."""
    if missing() and not os.environ.get("CI"):
        pytest.skip(missing())


def test_after_kills_of_driver_workers_broker_and_database_each_payment_has_a_row_or_a_letter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account = run(tmp_path, 2000, kills=True)
    assert account.wrong == []
    assert set(account.letters) == {"parse", "convert", "store"}
    killed = [line.split(" at ")[0] for line in capsys.readouterr().out.splitlines() if "killed" in line]
    assert Counter(killed) == Counter(
        {"killed the driver": 2, "killed a worker": 2, "killed RabbitMQ": 1, "killed PostgreSQL": 1}
    )


def test_while_the_rates_or_the_database_are_away_nothing_is_given_up_and_health_says_so(
    tmp_path: Path,
    sized: Callable[[int, int, int], int],
) -> None:
    """With the long part each is away for a minute, in ``.ci/run`` for 15 seconds, else for some."""
    account = run_away(tmp_path, sized(6, 15, 60))
    assert account.wrong == []
    assert account.letters == Counter()
    assert account.rows > 20
