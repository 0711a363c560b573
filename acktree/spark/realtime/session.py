"""A Spark session for real time: our Java classes in its JVM, and the settings without which rows come late.

Janino, which Spark has for its generated code, compiles the classes before there is a SparkContext, because
the context makes the shuffle manager. So the wheel has no binary, and no JDK is needed.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from acktree.config import Config
from acktree.errors import ConfigError
from acktree.spark.session.settings import lent_settings, start_session
from acktree.topology.model import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "partitions_of",
    "query_settings",
    "refuse_unfit",
    "refuse_unsupported",
    "refuse_without_slots",
    "start_realtime_session",
    "take_slots",
]

SOURCE: Final = "acktree.realtime.FrameSource"
"""The source, as Spark names its format."""
_SHUFFLE: Final = "acktree.realtime.ClosedShuffle"
_SOURCES: Final = Path(__file__).parent / "java" / "acktree" / "realtime"
_WRITER: Final = "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec"
_JAVA: Final = 8
"""The newest Java that Janino compiles."""
_SPARK: Final = "4.3."
"""The minor version that the Java classes and the settings are tested with."""

_MANAGER: Final = "spark.shuffle.manager.incremental"
_taking: Final = Lock()
_taken: Final[dict[str, dict[str, int]]] = {}
"""By application the slots of each topology that runs in it."""
_QUERY: Final = {
    # Spark demands it, also of queries without state.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Without these, rows wait in the JVM until many are there, or until the end of Spark's batch.
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    # Batches are cut by their number of rows alone, see below: this is "no limit".
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}
_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""A row from each partition and one more: see ClosedShuffle.java."""


def refuse_unsupported() -> None:
    """Check that PySpark and the system are what real time is tested with.

    Raises:
        ConfigError: They are not.
    """
    from pyspark import __version__  # noqa: PLC0415

    if not __version__.startswith(_SPARK):
        raise ConfigError(
            f"real time runs on PySpark {_SPARK}x alone, and this is {__version__}", "Config(real_time=True)",
            f"install PySpark {_SPARK}0, or leave real_time out: micro-batches run on this version",
        )  # fmt: skip
    if platform.system() != "Linux":
        raise ConfigError(
            f"real time runs on Linux alone, and this is {platform.system()}", "Config(real_time=True)",
            "run it on Linux or in a container, or leave real_time out",
        )  # fmt: skip


def take_slots(session: SparkSession, name: str, levels: int, partitions: int) -> Callable[[], None]:
    """Take the slots of a topology: all of its tasks run at once, until it ends.

    Returns:
        What gives them back.

    Raises:
        ConfigError: There are too few, or the session has Spark's own shuffle manager.
    """
    if session.conf.get(_MANAGER, "") != _SHUFFLE:
        raise ConfigError(
            "this session's streaming shuffle is open to everybody", f"{_MANAGER} of the session",
            "let submit() make the session: the manager is made with the SparkContext",
        )  # fmt: skip
    needed = levels * partitions
    with _taking:
        taken = _taken.setdefault(session.sparkContext.applicationId, {})
        slots = session.sparkContext.defaultParallelism
        if slots < needed + sum(taken.values()):
            others = "".join(f", of which topology {other!r} has {n}" for other, n in taken.items())
            way = "run it in a program of its own" if taken else f"use master local[{needed}]"
            raise ConfigError(
                f"real time needs {needed} slots, for {levels} levels x {partitions} partitions, "
                f"and this session has {slots}{others}", f"master {session.sparkContext.master}",
                f"{way}, or fewer partitions. Slots mostly wait: more than cores are fine",
            )  # fmt: skip
        taken[name] = taken.get(name, 0) + needed

    def give_back() -> None:
        with _taking:
            taken.pop(name, None)

    return give_back


def refuse_without_slots(session: SparkSession) -> None:
    """Check that micro-batches would have a slot beside what runs in real time: else they wait for ever.

    Raises:
        ConfigError: They would have none.
    """
    with _taking:
        taken = _taken.get(session.sparkContext.applicationId, {})
        if taken and session.sparkContext.defaultParallelism <= sum(taken.values()):
            raise ConfigError(
                f"all slots of this program's Spark are taken in real time, by {', '.join(map(repr, taken))}",
                f"master {session.sparkContext.master}",
                "run it in a program of its own, or after the other has ended",
            )


def refuse_unfit(topology: Topology, *, is_folder: bool) -> None:
    """Check that a topology and its checkpoint are what real time can run.

    Raises:
        ConfigError: They are not.
    """
    refuse_unsupported()
    if not is_folder:
        raise ConfigError(
            "real time needs a checkpoint in a folder, and this is a URL", "Config(real_time=True)",
            "give it a folder, or leave real_time out: an object store does not commit in milliseconds",
        )  # fmt: skip
    for spout in topology.spouts:
        if spout.is_dataframe:
            raise ConfigError(
                "real time takes no rows of a DataFrame: Spark reads them by micro-batches",
                f"Config(real_time=True), spout {spout.id!r}",
                "use a spout of acktree.connectors for this source, or leave real_time out",
            )


def partitions_of(topology: Topology, config: Config) -> int:
    """The number of partitions of a new checkpoint, where the user names none."""
    wanted = max((bolt.parallelism for bolt in topology.bolts), default=1)
    return config.partitions or min(wanted, os.cpu_count() or 2)


def start_realtime_session(name: str, slots: int) -> SparkSession:
    """A local session with our classes.

    Args:
        slots: How many tasks can run at once: levels x partitions of the topology.
    """
    refuse_unsupported()

    def settings(jvm: Any) -> Mapping[str, str]:  # noqa: ANN401  # py4j has no types
        _load_classes(jvm)
        return {
            "spark.master": f"local[{slots}]",  # no second attempt: Spark does not try these tasks again
            "spark.dynamicAllocation.enabled": "false",  # a file of defaults may have it
            _MANAGER: _SHUFFLE,
            # mapInArrow is not on Spark's list of operators for this mode. It runs. Spark reads this setting
            # from the session after the query's start.
            "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
            # Else one thread writes to a Python worker and reads from it: no row comes back while it waits.
            "spark.python.udf.pipelined.enabled": "true",
        }

    session = start_session(name, settings)
    jvm: Any = session._jvm  # noqa: SLF001  # the logger is the JVM's
    log4j = jvm.org.apache.logging.log4j
    # At each end of the query it says, as an error, that a batch is aborted. Why a query failed is in its
    # exception.
    log4j.core.config.Configurator.setLevel(_WRITER, log4j.Level.OFF)
    return session


@contextmanager
def query_settings(session: SparkSession, partitions: int) -> Iterator[None]:
    """The settings of a query that is started here; the session gets its own back."""
    with lent_settings(session, partitions):
        wanted = {**_QUERY, _ROWS: str(partitions + 1)}
        before: dict[str, str | None] = {key: session.conf.get(key, None) for key in wanted}
        try:
            for key, value in wanted.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, earlier in before.items():
                if earlier is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, earlier)


def _load_classes(jvm: Any) -> None:  # noqa: ANN401  # py4j has no types
    """Compile our classes, and let Spark's class loader find them."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    folder = Path(tempfile.mkdtemp(prefix="acktree-classes-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    jar = folder / "acktree.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for source in sorted(_SOURCES.glob("*.java")):
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.setSourceVersion(_JAVA)
            compiler.setTargetVersion(_JAVA)
            compiler.cook(source.read_text())
            for entry in compiler.getBytecodes().entrySet():
                archive.writestr(entry.getKey().replace(".", "/") + ".class", bytes(entry.getValue()))
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
