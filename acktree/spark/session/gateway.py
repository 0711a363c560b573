"""Starts Spark's JVM and filters its stderr.

What bolts print on workers comes out of the JVM's stderr, and users need to see it. So the stream is passed
on line by line, without the messages that Spark prints at every start and end and that need no action.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from acktree.errors import ConfigError
from acktree.logs.loggers import logger
from acktree.spark.session.class_archive import archive_options, forget_order
from acktree.spark.session.home import cache_folder, lent_home
from acktree.spark.session.java import FIX, java_folder, refuse_missing_java, where_is_java
from acktree.system.forks import close_file_in_children
from acktree.system.processes import most_files

if TYPE_CHECKING:  # pyspark takes half a second to import, and only submit() needs it
    from pyspark import SparkConf

log = logger("acktree.spark")

_ROUTINE: Final = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting default log level to"
    r"|To adjust logging level use"
    r"|Setting Spark log level to"
    r"|.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* WARN NativeCodeLoader: Unable to load native-hadoop"
    r"|(Starting )?Streaming TransformWithStateInPandas Python worker"
)
_FILES: Final = 1024
"""What most systems allow. Java opens each of Spark's 300 libraries."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_TRACEBACK: Final = "Traceback (most recent call last):"
_muted: Final = Event()
_SHOWN_AGAIN: Final = "acktree passes on what Spark prints after this line"
"""Written into the JVM's stderr, and read from there: what comes before it was printed before it."""
_readers: Final[list[Thread]] = []
"""The thread that reads the stderr of the JVM that was started here."""
_PIPE_GONE: Final = re.compile(
    r"BrokenPipeError: |ConnectionResetError: |EOFError|FileNotFoundError: "
    r"|pyspark[.\w]*[.]PySparkRuntimeError: \[CANNOT_OPEN_SOCKET\]"
)
_OF_SPARK: Final = re.compile(
    '  File "(<frozen runpy>|.*/('
    "pyspark/(daemon|serializers|util|worker_util|sql/streaming/python_streaming_source_runner)"
    '|python3[^/]*/(socket|contextlib))[.]py)"'
)
"""Where Spark's own Python code speaks to the JVM: idle workers, and the process that reads the inbox."""
_NOTHING: Final = re.compile(r"(?!)")
_BLANK: Final = re.compile(r"\s*$")
"""Spark prints an empty line after some of its messages."""
_CHAINED: Final = re.compile(
    r"$|During handling of the above exception|The above exception was the direct cause"
)


def launch(conf: SparkConf) -> Any:  # noqa: ANN401  # py4j has no types
    """Start the JVM of a session. Its stderr is filtered and passed on to this process's stderr.

    Raises:
        ConfigError: Java is missing or does not start.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    _muted.clear()  # the JVM whose tasks were stopped has ended
    refuse_missing_java()
    try:
        with lent_home() as home:
            gateway = _with_archive_or_without(conf, home)
    except (PySparkRuntimeError, OSError) as error:
        if most_files() < _FILES:
            raise ConfigError(
                f"Spark's Java did not start, and may have {most_files()} files open", "ulimit -n",
                f"allow {_FILES:,} or more: `ulimit -n {_FILES}`, or LimitNOFILE={_FILES} of a service",
            ) from error  # fmt: skip
        raise ConfigError(
            f"Spark's Java did not start: {error}",
            where_is_java(),
            f"look at what it printed above. {FIX}",
        ) from error
    if gateway.proc is not None:
        reader = Thread(target=_pass_on, args=(gateway.proc.stderr,), name="spark stderr", daemon=True)
        _readers[:] = [reader]
        reader.start()
    return gateway


def end_with_driver(gateway: Any) -> None:  # noqa: ANN401  # py4j has no types
    """Let the JVM end with this process, though a child that user code forks lives on.

    The JVM ends when its stdin does. A child inherits the other end of that pipe, and would keep it open.

    Args:
        gateway: Of any session, also one that the user started; None if there is none.
    """
    process = getattr(gateway, "proc", None)  # None: another program started the JVM
    if process is not None and process.stdin is not None:
        close_file_in_children(process.stdin)


def java_that_ended(gateway: Any, secs: float = 0.0) -> str | None:  # noqa: ANN401  # py4j has no types
    """What to say of a JVM that has ended, without being asked to; None if it runs or is another program's.

    Args:
        gateway: Of its session; None if there is none.
        secs: How long to wait for its end: its connections are closed a moment earlier.
    """
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(secs)
    except subprocess.TimeoutExpired:
        return None
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"Spark's Java process {process.pid} {how}"


def _with_archive_or_without(conf: SparkConf, home: Path | None) -> Any:  # noqa: ANN401  # py4j has no types
    """Start the JVM with the options of the archive of classes, and without them if it fails."""
    from pyspark import SparkConf as Conf  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    own_options = conf.get(_JAVA_OPTIONS, "") or ""
    options = "" if home is None else archive_options(home, java_folder(), cache_folder(), own_options)
    if not options:
        return _started(conf)
    with_options = (
        Conf(loadDefaults=False).setAll(conf.getAll()).set(_JAVA_OPTIONS, f"{own_options} {options}".strip())
    )
    try:
        return _started(with_options)
    except (PySparkRuntimeError, OSError):
        forget_order()
    gateway = _started(conf)
    log.warning("Spark's Java did not start with the options %s, and has started without them. "
                "fix: set ACKTREE_CLASS_ARCHIVE=off", options)  # fmt: skip
    return gateway


def _started(conf: SparkConf) -> Any:  # noqa: ANN401  # py4j has no types
    """Start the JVM. If it fails, what it has printed is passed on: PySpark drops its process unread."""
    from pyspark import java_gateway  # noqa: PLC0415

    launch_gateway: Any = java_gateway.launch_gateway
    reads, writes = os.pipe()
    # Spark writes tuples to the machine's temporary folder, which other users can list. Workers set the
    # user's own umask again: see spark/worker/process.py.
    options = {"stderr": writes, "text": True, "errors": "replace", "umask": 0o077}
    try:
        gateway = launch_gateway(conf, options)
    except BaseException:
        _pass_on(_held(reads))
        os.close(reads)
        raise
    finally:
        os.close(writes)
    if gateway.proc is None:  # another program started the JVM and reads its stderr
        os.close(reads)
    else:
        gateway.proc.stderr = os.fdopen(reads, errors="replace")
    return gateway


def _held(pipe: int) -> list[str]:
    """The lines in a pipe. Does not wait: the process at its other end may still run."""
    os.set_blocking(pipe, False)
    output = b""
    with suppress(BlockingIOError):
        while piece := os.read(pipe, 1 << 16):
            output += piece
    return output.decode(errors="replace").splitlines(keepends=True)


def mute_stderr() -> None:
    """Pass no line on, until :func:`show_stderr`. Hides Spark's errors about tasks stopped on purpose."""
    _muted.set()


def show_stderr(gateway: Any) -> None:  # noqa: ANN401  # py4j has no types
    """Pass on again what the JVM prints from now on, after its tasks were stopped.

    Args:
        gateway: Of the session; None if there is none.
    """
    if not _muted.is_set():
        return
    if gateway is not None and any(reader.is_alive() for reader in _readers):
        with suppress(Exception):  # a JVM that is gone prints nothing more
            gateway.jvm.System.err.println(_SHOWN_AGAIN)
            return
    _muted.clear()


def _pass_on(lines: Iterable[str]) -> None:
    for line in worth_reading(lines):
        if line.rstrip() == _SHOWN_AGAIN:
            _muted.clear()
            continue
        if _muted.is_set():
            continue
        # Our stderr may be closed (`... | head`). The JVM's is still read: if its pipe were full, the JVM and
        # every worker that prints would block.
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(line)


def _is_of_closed_pipe(traceback: list[str]) -> bool:
    """Whether a traceback says no more than that Spark's own code lost the JVM it works for."""
    places = [line for line in traceback if line.startswith("  File")]
    return _PIPE_GONE.match(traceback[-1]) is not None and all(map(_OF_SPARK.match, places))


def worth_reading(lines: Iterable[str]) -> Iterator[str]:
    """The lines without Spark's routine messages and the tracebacks of its own code whose pipe was closed."""
    block: list[str] = []
    left_out_too: re.Pattern[str] = _NOTHING  # what may follow upon the last thing that was left out
    for line in lines:
        if len(block) == 1 and not line.startswith(" "):
            block = []  # only the first line: the process was ended while it wrote
        if block:
            block.append(line)
            if not line.startswith(" "):
                is_hidden = _is_of_closed_pipe(block)
                left_out_too = _CHAINED if is_hidden else _NOTHING
                if not is_hidden:
                    yield from block
                block = []
        elif line.startswith(_TRACEBACK):
            block = [line]
        elif _ROUTINE.match(line):
            left_out_too = _BLANK
        elif not left_out_too.match(line):
            left_out_too = _NOTHING
            yield line
    if len(block) > 1:
        yield from block
