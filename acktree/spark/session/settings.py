"""The settings of the Spark session, each with its reason and its gain.

Measured with an empty micro-batch of one map and one stateful stage on two cores: 513 ms with Spark's own
settings, about 200 ms with these, and half the CPU. ``ms`` below is the time of that micro-batch without the
one setting. In a session that the user made, settings are changed where that is possible after the start; for
the others a warning names the setting and its gain. Only the state store provider is needed for correctness,
at a URL, where bolts remember in Spark's state.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acktree.errors import AcktreeError
from acktree.spark.session.gateway import end_with_driver, java_that_ended, launch, show_stderr

if TYPE_CHECKING:  # pyspark takes half a second to import, and only submit() needs it
    from pyspark.sql import SparkSession

MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class SlowSessionWarning(UserWarning):
    """The user's session lacks a setting that can only be made when a session starts."""


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        is_static: Whether it is read only when the session starts.
        gain: What it improves, for the warning.
    """

    key: str
    value: str
    is_static: bool
    gain: str


SETTINGS: Final = (
    # transformWithState refuses the default provider.
    Setting("spark.sql.streaming.stateStore.providerClass", ROCKSDB, is_static=False, gain="required"),
    # Without it each commit uploads a snapshot, so its cost grows with the state.
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        is_static=False,
        gain="state commits",
    ),
    # It costs a lookup for each write, and the number is not used here.
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows",
        "false",
        is_static=False,
        gain="a lookup a write",
    ),
    # 301 ms. The default goes through Hadoop's FileContext, which starts chmod and readlink for each file.
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        MANAGER,
        is_static=False,
        gain="a third of an empty micro-batch",
    ),
    # 10 rather than 100: a restart needs the last one only, and each is a file.
    Setting("spark.sql.streaming.minBatchesToRetain", "10", is_static=False, gain="fewer files"),
    Setting(
        "spark.sql.adaptive.enabled",
        "false",
        is_static=False,
        gain="planning time; off for stateful queries anyway",
    ),
    # acktree's source waits for entries, so Spark need not sleep between two calls.
    Setting("spark.sql.streaming.pollingDelay", "1ms", is_static=False, gain="up to 10 ms a message"),
    # There are few frames: batches are limited by bytes, never by the number of rows.
    Setting("spark.sql.execution.arrow.maxRecordsPerBatch", "50000", is_static=False, gain="fewer batches"),
    # 293 ms, spent in waits on loopback TCP. Since Spark 4.1.
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        is_static=True,
        gain="a third of an empty micro-batch",
    ),
)

_JAVA_OPTIONS: Final = (
    # 263-297 ms: the remaining chmods start faster. -Xss16m: Spark matches a regex over an error's text when
    # a query is stopped in mid-batch, which overflows the stock stack and prints a thousand lines.
    "-Djdk.lang.Process.launchMechanism=VFORK -Xss16m "
    # The JVM moves frames and plans a few micro-batches a second. Its second compiler would take half of its
    # CPU for minutes, for code that is not hot. With both options the JVM spends half the CPU for a message.
    "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC "
    # Without it a thread writes counters for jps and jstat, twenty times a second, into a file in /tmp: a
    # fifth of the JVM's CPU at rest, and each collection of garbage waits where the disk of /tmp is slow.
    "-XX:-UsePerfData"
)

_WORKER_ENVIRONMENT: Final = {
    # A worker allocates and frees the same megabytes in every micro-batch. By default the allocator returns
    # them to the kernel and gets them again, zeroed page by page: that is a quarter of a worker's time.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # PyArrow's other allocator starts a thread at its import, and a process that forks must have none.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_HDFS_WAITS: Final = {
    # A client that closes a file asks whether its last block is stored, mostly some milliseconds too early,
    # and asks again after 400 ms. A micro-batch closes files one after the other. With ten tries in place of
    # five it waits 20 s for a datanode, and not 12.
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
    "dfs.client.block.write.locateFollowingBlock.retries": "10",
}
"""Settings of HDFS's client."""
_HDFS_DEFAULTS: Final = "hdfs-default.xml"
"""Where Hadoop says that a setting comes from which nobody has made."""

_MESSAGE_REST_MB: Final = 4
"""The part of a message to an executor that is reserved for everything except the chunk."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
PARTS_RUN_AGAIN_ALONE: Final = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}
"""Spark adds up checksums of rows, and if a part that runs again has other rows, it ends a job of which some
parts are done. Rows of levels are others each time: they name files of their attempt, and have durations.
So without these settings the loss of an executor in the last stage would end the query. See decision 0038."""

_starting: Final = threading.Lock()
"""Held while a query starts: the session's settings are changed for it, and restored."""
_lent: dict[str, int] = {}
"""The number of topologies that run in each session made here, by application id."""
_lending = threading.Lock()


def lend_session(
    name: str, start: Callable[[str], SparkSession] | None = None
) -> tuple[SparkSession, Callable[[], None]]:
    """A session to run in, and a function that gives it back.

    An active session is used, since a process has one Spark. A session that was started here is stopped when
    the last topology in it gives it back.

    Args:
        name: The name of the application.
        start: Starts a session; None for :func:`start_session`.
    """
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with _lending:
        try:
            session, is_new = SparkSession.active(), False
        except PySparkRuntimeError:
            session, is_new = (start or start_session)(name), True
        key = session.sparkContext.applicationId
        if not is_new and key not in _lent:
            return session, lambda: show_stderr(SparkContext._gateway)  # noqa: SLF001
        _lent[key] = _lent.get(key, 0) + 1

    given_back = False

    def give_back() -> None:
        nonlocal given_back
        with _lending:
            if given_back:
                return
            given_back = True
            _lent[key] -= 1
            try:
                if not _lent[key]:
                    del _lent[key]
                    session.stop()
            except Exception:
                if java_that_ended(SparkContext._gateway) is None:  # noqa: SLF001
                    raise
            finally:  # other topologies print in this session, and later sessions in this JVM
                show_stderr(SparkContext._gateway)  # noqa: SLF001

    return session, give_back


def refuse_without_java() -> None:
    """Say that the JVM of an earlier session has ended: PySpark starts no other one in this process.

    Raises:
        AcktreeError: It has.
    """
    from pyspark import SparkContext  # noqa: PLC0415

    if (what := java_that_ended(SparkContext._gateway)) is not None:  # noqa: SLF001
        raise AcktreeError(
            f"{what}, and PySpark starts no other one in the same process",
            "submit()",
            "start this program again: a checkpoint goes on where it was, nothing is lost",
        )


def start_session(name: str, more_settings: Callable[[Any], Mapping[str, str]] | None = None) -> SparkSession:
    """A local session with all settings, and four attempts for each task: a killed worker is tried again.

    Args:
        name: The name of the application.
        more_settings: Called with the JVM before there is a SparkContext; returns further settings.
    """
    # Workers run this interpreter, not whichever python3 is first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings = {
        "spark.master": f"local[{os.cpu_count() or 2},4]",
        "spark.app.name": name,
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",  # its ports are on loopback, which other users can reach
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Workers are forked from a process that has imported PyArrow and pandas: saves 2-5 s of CPU at the
        # start.
        "spark.python.daemon.module": "acktree.spark.worker.daemon",
        "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop does not use the process's umask
    }
    settings |= {setting.key: setting.value for setting in SETTINGS}
    conf = SparkConf().setAll(list(settings.items()))
    handler = signal.getsignal(signal.SIGINT)
    gateway = SparkContext._gateway  # noqa: SLF001  # the only way to pass our own gateway
    is_new, gateway = gateway is None, gateway or launch(conf)
    if more_settings is not None:
        conf.setAll(list(more_settings(gateway.jvm).items()))
    if is_new:
        SparkContext(conf=conf, gateway=gateway)
    else:
        SparkContext.getOrCreate(conf)
    # Spark's handler cancels every job first: Ctrl-C would break the micro-batch that kill() waits for.
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    return session


def prepare_session(session: SparkSession, *, is_folder: bool = True) -> None:
    """Make the settings that can be made after the start, and warn of the others.

    Args:
        is_folder: Whether the checkpoint is a local folder. At a URL Spark, or the user, chooses the file
            manager: the one of :data:`SETTINGS` cannot replace a file on HDFS.
    """
    end_with_driver(session.sparkContext._gateway)  # noqa: SLF001  # nothing else knows the JVM's process
    for setting in SETTINGS:
        if setting.value == MANAGER and not is_folder:
            if session.conf.get(setting.key, "") == MANAGER:
                session.conf.unset(setting.key)
        elif not setting.is_static:
            session.conf.set(setting.key, setting.value)
        elif session.conf.get(setting.key, "") != setting.value:
            warnings.warn(
                f"this session was started without {setting.key}={setting.value}, which buys "
                f'{setting.gain}. Add .config("{setting.key}", "{setting.value}") where it is built, or let '
                "submit() make the session.",
                SlowSessionWarning,
                stacklevel=3,
            )
    _without_checksums(session)
    context = getattr(session, "_jsc", None)
    if not is_folder and context is not None:  # None: Spark Connect
        _set_short_waits(context.hadoopConfiguration())


@contextmanager
def lent_settings(
    session: SparkSession, partitions: int, more: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Set the partitions and the environment of Python workers for a query that is made and started here.

    A query copies its session's settings when it starts, and the environment when its functions are made.
    Both are restored: a user's other queries keep theirs. Only one query starts at a time: of two at once,
    one could start with the settings of the other, and the session could keep either. What the user set
    with ``spark.executorEnv`` stays.

    Args:
        session: The session.
        partitions: Of each shuffle.
        more: Further settings.
    """
    with _starting:
        wanted = {_PARTITIONS: str(partitions)} | dict(more or {})
        before = {key: session.conf.get(key, None) for key in wanted}
        environment = session.sparkContext.environment
        added = [name for name in _WORKER_ENVIRONMENT if name not in environment]
        for key, value in wanted.items():
            session.conf.set(key, value)
        environment.update({name: _WORKER_ENVIRONMENT[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                environment.pop(name, None)
            for key, old in before.items():
                if old is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, old)


def no_retries_hint(session: SparkSession) -> str | None:
    """A hint for a local session in which a single dead worker stops the query; None for other sessions."""
    master = session.sparkContext.master or ""
    match = re.fullmatch(r"local(?:\[([^,\]]+)(?:,\s*(\d+)\s*)?\])?", master)
    if match is None or int(match[2] or 1) > 1:
        return None
    return (
        f"master {master!r} tries a task once, so the first Python worker that dies stops the topology. fix: "
        f"build the session with master('local[{match[1] or 1},4]'), or let submit() make it"
    )


def other_python_hint(session: SparkSession) -> str | None:
    """What to say of a local session whose workers run another Python than this program; None: nothing."""
    named = str(session.sparkContext.pythonExec)
    program = shutil.which(named)
    if not (session.sparkContext.master or "").startswith("local") or program is None:
        return None
    if Path(program).parent.resolve() == Path(sys.executable).parent.resolve():
        return None
    return (
        f"Spark runs bolts with {program}, which may miss packages: this program runs with {sys.executable}. "
        f"fix: set PYSPARK_PYTHON={sys.executable} before the session is made, or activate its environment"
    )


def _without_checksums(session: SparkSession) -> None:
    """Write local files without .crc files: half as many files, and log writes of 5 ms instead of 10."""
    jvm, context = getattr(session, "_jvm", None), getattr(session, "_jsc", None)
    if jvm is None or context is None:
        return  # Spark Connect: the file system is the server's
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration())
    local.setWriteChecksum(False)
    local.setVerifyChecksum(False)


def _set_short_waits(conf: Any) -> None:  # noqa: ANN401  # py4j has no types
    """Let files at HDFS be closed soon after their last block is stored; what the user set stays.

    Args:
        conf: Hadoop's configuration, in the JVM.
    """
    for name, value in _HDFS_WAITS.items():
        sources = conf.getPropertySources(name)
        if sources is None or list(sources)[-1] == _HDFS_DEFAULTS:
            conf.set(name, value)


def most_carried(session: SparkSession) -> int | None:
    """The most bytes of a chunk that a row can carry to an executor; None for a local session: no limit."""
    if re.match(r"local(\[[^\[]*\])?$", session.sparkContext.master or ""):
        return None
    most_mb = int(session.sparkContext.getConf().get("spark.rpc.message.maxSize", "128"))
    return (most_mb - _MESSAGE_REST_MB) << 20
