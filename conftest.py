"""What tests of the library and of the examples share: Spark, and the mark of those that need it."""

from __future__ import annotations

import os
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM that writes an archive of its classes outlives its driver by seconds. run_tests.py lets one do it.
os.environ.setdefault("ACKTREE_CLASS_ARCHIVE", "use")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
SPARK_TESTS = HERE / "tests" / "spark"
UNIT_TESTS = {HERE / "tests" / "unit", HERE / "tests" / "simulator", HERE / "acktree"}
_LISTED = tomllib.loads((HERE / "tests" / "parts.toml").read_text())
PARTS, ORDER = _LISTED["part"], _LISTED["order"]
"""The long parts of the tests, by name; the files that come before all others, or after them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests that take longer, or make something besides."""
    parser.addoption("--long", default="", help="long parts to run (tests/parts.toml), with commas; or all")
    parser.addoption("--in-ci", action="store_true", help="long parts at the size that .ci/run has")
    parser.addoption("--pictures", help="tests/browser: make the pictures of the page, in this folder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs Spark; leave long parts out, unless they are chosen or their path is named."""
    for item in items:
        if SPARK_TESTS in item.path.parents or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if not UNIT_TESTS.isdisjoint(item.path.parents):
            if item.get_closest_marker("spark") is not None:  # no lane would run it
                raise pytest.UsageError(f"{item.nodeid}: a unit test needs no JVM: move it to tests/spark")
            item.add_marker(pytest.mark.unit)
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        chosen = _chosen(config)
        left_out = [item for item in items if not _parts_of(item, "tests") <= chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
        items.sort(key=lambda item: _place(item.nodeid))


def _place(test: str) -> int:
    """Where a test stands in the order: at the longest name there with which its own begins."""
    _, place = max((len(name), place) for place, name in enumerate(ORDER) if test.startswith(name))
    return place


class _OwnThreads:
    """An exception of a thread fails the test that started the thread, and no other: then it is printed."""

    def __init__(self) -> None:
        self._foreign: set[threading.Thread] | None = None
        self._report = threading.excepthook  # pytest's, which fails the test that runs
        threading.excepthook = self._raised

    def pytest_runtest_logstart(self) -> None:
        self._foreign = {*threading.enumerate()}

    def pytest_runtest_logfinish(self) -> None:
        self._foreign = None

    def _raised(self, args: threading.ExceptHookArgs) -> None:
        if self._foreign is None or args.thread in self._foreign:
            threading.__excepthook__(args)
        else:
            self._report(args)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell threads of a test from those of earlier ones, after pytest has begun to watch threads."""
    _chosen(config)  # refuses a part that there is not
    config.pluginmanager.register(_OwnThreads())


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether this test is to try all it can: its part is chosen (``--long``)."""
    return bool(_parts_of(request.node, "more") & _chosen(request.config))


@pytest.fixture
def sized(request: pytest.FixtureRequest, *, thorough: bool) -> Callable[[int, int, int], int]:
    """Which of three numbers counts: of ``make test``, of a long part in ``.ci/run``, or of all of it."""
    at = 0 if not thorough else 1 if request.config.getoption("--in-ci") else 2
    return lambda *numbers: numbers[at]


def _chosen(config: pytest.Config) -> set[str]:
    """The names of the parts that are run."""
    names = config.getoption("--long")
    chosen = set(PARTS) if names == "all" else {*filter(None, names.split(","))}
    if unknown := chosen - set(PARTS):
        message = (
            f"--long: tests/parts.toml has no part {', '.join(sorted(unknown))}; it has {', '.join(PARTS)}"
        )
        raise pytest.UsageError(message)
    return chosen


def _parts_of(item: pytest.Item, key: str) -> set[str]:
    """The parts that list a test under ``tests`` or under ``more``."""
    return {name for name, part in PARTS.items() if item.nodeid.startswith(tuple(part.get(key, ())))}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that can share one: what ``submit`` makes, with Kafka's source if there."""
    from tests.services.kafka import start_with_source  # noqa: PLC0415 - the unit tests run without PySpark

    with start_with_source("acktree-tests") as session:
        yield session
