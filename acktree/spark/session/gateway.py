"""Spark's JVM, started so that its talk does not drown what user code prints.

What bolts print on workers comes out of the JVM's stderr, and a person who puts a ``print`` into a bolt wants
to see it. So the stream is passed on line by line, without the lines that Spark prints at every start and end
and that ask nothing of anybody.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from acktree.errors import ConfigError

if TYPE_CHECKING:  # pyspark takes half a second to import, and only submit() needs it
    from pyspark import SparkConf

_SAID_ALWAYS: Final = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting default log level to"
    r"|To adjust logging level use"
    r"|Setting Spark log level to"
    r"|.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* WARN NativeCodeLoader: Unable to load native-hadoop"
    r"|(Starting )?Streaming TransformWithStateInPandas Python worker"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_muted: Final = Event()
_WORKER_GONE: Final = re.compile(r"BrokenPipeError: |ConnectionResetError: |EOFError")


def launch(conf: SparkConf) -> Any:  # noqa: ANN401  # py4j has no types
    """Start the JVM of a session; its stderr goes on to ours, filtered.

    Raises:
        ConfigError: There is no Java, or it does not start.
    """
    from pyspark import java_gateway  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    launch_gateway: Any = java_gateway.launch_gateway
    # Spark keeps tuples on their way among the machine's temporary files, where others may look. Its workers
    # are given the user's own umask again: see worker.py.
    options = {"stderr": subprocess.PIPE, "text": True, "errors": "replace", "umask": 0o077}
    try:
        gateway = launch_gateway(conf, options)
    except (PySparkRuntimeError, OSError) as error:
        raise ConfigError(
            f"Spark's Java did not start: {error}",
            f"JAVA_HOME={os.environ.get('JAVA_HOME')!r}, PATH={os.environ.get('PATH')!r}",
            "install Java 17 or newer, and let JAVA_HOME name its folder, or PATH the one of `java`",
        ) from error
    if gateway.proc is not None:  # None: somebody else started it, and listens
        Thread(target=_pass_on, args=(gateway.proc.stderr,), name="spark stderr", daemon=True).start()
    return gateway


def mute_stderr(*, is_over: bool = False) -> None:
    """Pass nothing on, until it is over: Spark tells at length of tasks that were broken off on purpose."""
    (_muted.clear if is_over else _muted.set)()


def _pass_on(lines: Iterable[str]) -> None:
    for line in worth_reading(lines):
        if _muted.is_set():
            continue
        # Nobody may be reading ours any more (`... | head`). The JVM's is read all the same: once its pipe is
        # full it would wait for us, for ever, and every worker that prints with it.
        with suppress(OSError, ValueError):
            sys.stderr.write(line)


def worth_reading(lines: Iterable[str]) -> Iterator[str]:
    """What is left without Spark's standing phrases, and without idle workers that find their pipe closed."""
    held: list[str] = []
    after_phrase = False
    for line in lines:
        if len(held) == 1 and not line.startswith(" "):
            held = []  # its process was ended while it wrote: there is nothing in it to read
        if held:
            held.append(line)
            if not line.startswith(" "):
                places = [text for text in held if text.startswith("  File")]
                if not (_WORKER_GONE.match(line) and all("pyspark/daemon.py" in place for place in places)):
                    yield from held
                held = []
        elif line.startswith(_TRACEBACK):
            held = [line]
        elif _SAID_ALWAYS.match(line):
            after_phrase = True
        elif after_phrase and not line.strip():
            pass  # Spark puts an empty line after some of its phrases
        else:
            after_phrase = False
            yield line
    if len(held) > 1:
        yield from held
