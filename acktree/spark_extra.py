"""The error for a missing PySpark, which is an optional dependency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acktree.errors import ConfigError, installing

__all__ = ["needing_spark"]

_OF_THE_EXTRA = frozenset({"pyspark", "py4j", "pandas", "google"})


@contextmanager
def needing_spark(who: str) -> Iterator[None]:
    """Wrap an import that needs PySpark or its dependencies.

    Args:
        who: The call that needs it, for the error.

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
            f"{installing('spark')}; without Spark a topology runs in acktree.testing.LocalCluster",
        ) from error
