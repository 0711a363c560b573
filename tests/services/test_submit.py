"""A topology on Spark with its dead letters in PostgreSQL, whose password nobody gets to see."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from acktree import Config, IterableSpout, Retry, TopologyBuilder, submit
from acktree.dead_letters import DeadLetters
from acktree.errors import ConnectorError
from tests.services.postgresql import PASSWORD, PostgreSQL
from tests.spark.topologies import PoisonedEvery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def poisoned(name: str):
    builder = TopologyBuilder(name)
    builder.set_spout("numbers", IterableSpout(range(100), ["n"]), retry=Retry(max_attempts=1))
    builder.set_bolt("poisoned", PoisonedEvery(10)).shuffle_grouping("numbers")
    return builder.create_topology()


def test_letters_are_in_the_database_and_its_password_is_in_no_file(
    spark: SparkSession, tmp_path: Path, postgresql: PostgreSQL, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgresql.url(schema)
    with DeadLetters(url) as others:
        others.put([])
    config = Config(dead_letters_url=url)
    with (
        caplog.at_level(logging.DEBUG),
        submit(
            poisoned("flights"), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
        ) as running,
    ):
        assert running.await_termination(timeout_secs=120)
        assert sorted(letter.values[0] for letter in running.dead_letters) == list(range(0, 100, 10))
        used = running._run.plan.config
        shown = f"{used} {used.to_mapping()} {running.dead_letters.place} {config}"
    assert not (tmp_path / "checkpoint" / "dead_letters.sqlite").exists()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    for form in (PASSWORD, quote(PASSWORD), quote(PASSWORD, safe="")):
        assert form.encode() not in kept
        assert form not in shown + caplog.text
    # The topology is over: its letters can still be looked at, but other topologies' are not shown.
    with submit(poisoned("flights"), checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as over:
        assert len(over.dead_letters) == 10
    with DeadLetters(url, topology="orders") as others:
        assert len(others) == 0


def test_a_missing_database_is_reported_at_submit(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    config = Config(dead_letters_url="postgresql+psycopg://me:S3cr3t@127.0.0.1:1/letters?connect_timeout=2")
    with pytest.raises(ConnectorError, match="cannot open postgresql") as refused:
        submit(poisoned("flights"), checkpoint=tmp_path / "checkpoint", spark=spark, config=config)
    assert "S3cr3t" not in str(refused.value)
    with submit(poisoned("flights"), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        assert running.await_termination(timeout_secs=120)  # the checkpoint is free, and as it was
