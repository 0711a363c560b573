"""A short chaos into PostgreSQL on Spark; a longer one: ``python -m tests.chaos.exactly``."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pika")
pytest.importorskip("pyspark")
pytest.importorskip("sqlalchemy")

from tests.chaos.exactly import perform


@pytest.mark.spark
@pytest.mark.timeout(1800)  # two minutes on two quiet cores; the conductor says what hangs, not this
def test_whatever_is_killed_each_effect_in_postgresql_and_in_memory_happens_once(
    postgresql, rabbitmq, tmp_path
) -> None:
    result = perform(tmp_path / "exactly", 3, 4, postgresql, rabbitmq, print)
    assert result.is_clean, json.dumps(result.to_json(), indent=1)
    assert result.drivers == 2
    assert result.kills["database"] == 1
