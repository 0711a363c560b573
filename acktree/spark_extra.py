"""What is raised where PySpark is missing: it is an extra, and half of this package does without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acktree.errors import ConfigError

__all__ = ["needing_spark"]

_OF_THE_EXTRA = frozenset({"pyspark", "py4j", "pandas", "google"})


@contextmanager
def needing_spark(who: str) -> Iterator[None]:
    """Around an import of what needs PySpark, and what PySpark needs.

    Raises:
        ConfigError: A module of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        raise ConfigError(
            f"{error.name} is not installed, and a topology runs on Spark",
            who,
            "pip install 'acktree[spark]'; without Spark a topology runs in acktree.testing.LocalCluster",
        ) from error
