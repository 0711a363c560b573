"""What tests of the library and of the examples share: Spark, and the mark of those that need it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM that writes an archive of its classes outlives its driver by seconds.
os.environ.setdefault("ACKTREE_CLASS_ARCHIVE", "off")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
SPARK_TESTS = HERE / "tests" / "spark"
LONG = (
    "tests/simulator",
    "tests/unit/tasks/bolts/test_interruptions.py",
    "tests/unit/spark/session/test_shipping.py",
    "tests/chaos",
    "tests/spark",
    "tests/browser",
    "examples",
)
"""What takes minutes, and is begun first: no process of a parallel run is left alone with it at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests that make something besides."""
    parser.addoption("--pictures", help="tests/browser: make the pictures of the page, in this folder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark, so that nobody can forget to, and begin with what takes long."""
    items.sort(key=_turn)
    for item in items:
        if SPARK_TESTS in item.path.parents or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def _turn(item: pytest.Item) -> int:
    """The place of a test's file among those that take long, or after them."""
    path = item.path.as_posix().removeprefix(f"{HERE.as_posix()}/")
    return next((turn for turn, begin in enumerate(LONG) if path.startswith(begin)), len(LONG))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that can share one: what ``submit`` makes, with Kafka's source if there."""
    from tests.services.kafka import start_with_source  # noqa: PLC0415 - the unit tests run without PySpark

    with start_with_source("acktree-tests") as session:
        yield session
