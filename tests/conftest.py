"""What all tests share: which of them need Spark, and how hypothesis looks for counterexamples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TESTS = Path(__file__).parent / "spark"

# Two busy cores are slow at times: a deadline would test the machine. CI repeats the same examples each time,
# so that a red build is the change's doing; at home each run looks at new ones.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark, so that nobody can forget to."""
    for item in items:
        if SPARK_TESTS in item.path.parents or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that can share one: the session that ``submit`` would make."""
    from acktree.spark.settings import start_session  # noqa: PLC0415 - the unit tests run without PySpark

    session = start_session("acktree-tests")
    yield session
    session.stop()
