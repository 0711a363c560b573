"""``sparse run``: run a topology in this process, on Spark or, with ``--local``, without it."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time as clock
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

from acktree.logs.loggers import print_by_default
from acktree.multilang.loaded import LoadedTopology
from acktree.streamparse import build, project
from acktree.streamparse.cli.common import add_command, add_options, resolve_options

__all__ = ["main", "run_local_topology", "subparser_hook"]

_GRACE_SECS: Final = 1.0
"""How long a round may go on when the time is over."""


class _TimeIsOverError(BaseException):
    """The time is over while a round runs. Components do not catch it as an error of theirs."""


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "run", "run a topology on this machine", main)
    add_options(parser)
    parser.add_argument("-t", "--time", type=int, default=0, metavar="SECS", help="for how long; 0: for ever")
    parser.add_argument("--local", action="store_true", help="without Spark and Java; nothing is durable")
    parser.add_argument("--checkpoint", metavar="C", help="a folder that the topology goes on from")


def main(args: Namespace) -> None:
    """Run a topology on this machine."""
    more = {name: value for name in ("local", "checkpoint") if (value := getattr(args, name))}
    run_local_topology(
        name=args.name, options=args.options, env_name=args.environment, time=args.time,
        config_file=args.config, **more,
    )  # fmt: skip


def run_local_topology(
    name: str | None = None,
    env_name: str | None = None,
    time: int = 0,
    options: Mapping[str, Any] | None = None,
    config_file: TextIO | None = None,
    *,
    local: bool = False,
    checkpoint: str | None = None,
) -> None:
    """Run a topology of the project in this process.

    Args:
        name: The topology. None: the only one.
        env_name: The environment. None: the only one.
        time: For how many seconds. 0: for ever.
        options: Settings by Storm's dotted keys.
        config_file: An open file in place of ``config.json``.
        local: Without Spark: in a ``LocalCluster``, on the machine's clock.
        checkpoint: With Spark: where to go on from. None: a new folder, whose name is printed.
    """
    loaded = _loaded(name, env_name, options, config_file)
    if local:
        _run_local(loaded, time)
    else:
        _run_on_spark(loaded, time, checkpoint)


def _loaded(
    name: str | None, env_name: str | None, options: Mapping[str, Any] | None, config_file: TextIO | None
) -> LoadedTopology:
    config = project.read_config(config_file)
    name, file = project.topology_file(config, name)
    environment, settings = project.environment_of(config, env_name)
    kind = project.topology_in(file)
    loaded = build.build(kind, name, resolve_options(options, settings, kind, name), environment, {})
    given = project.options_of(options, settings, kind, name)  # without what streamparse adds to each
    if given.get("topology.multilang.serializer") == "json":  # what each project has, and what is done
        del given["topology.multilang.serializer"]
    for key in loaded.ignored.keys() & given.keys():
        _say(f"setting {key} has no effect: {loaded.ignored[key]}")
    return loaded


def _run_local(loaded: LoadedTopology, secs: int) -> None:
    from acktree.testing import LocalCluster  # noqa: PLC0415  # it imports PyArrow

    print_by_default(loaded.config.log_format)
    with LocalCluster() as cluster:
        cluster.now_ms = round(clock.time() * 1000)
        running = cluster.submit(loaded.topology, config=loaded.config)
        _say(f"{loaded.name} runs without Spark, and nothing is durable")
        try:
            with _ending(secs):
                cluster.run(secs or None)
        except KeyboardInterrupt:
            _say("stopped")
        except _TimeIsOverError:
            _say(f"stopped after {secs} s, within a round: what it had not ended is not in the numbers")
        print(running.stats().table())


@contextmanager
def _ending(secs: int) -> Iterator[None]:
    """End the block when the time is over, also within the call of a component. 0: never."""
    if not secs or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, secs + _GRACE_SECS, _GRACE_SECS)  # again: a component may swallow it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  # of the contract
    raise _TimeIsOverError


def _run_on_spark(loaded: LoadedTopology, secs: int, checkpoint: str | None) -> None:
    from acktree import submit  # noqa: PLC0415  # it imports PySpark

    if checkpoint is None:
        checkpoint = tempfile.mkdtemp(prefix=f"{loaded.name}-")
        _say(f"--checkpoint is not given: the topology's memory and open messages are in {checkpoint}")
    with submit(loaded.topology, checkpoint=checkpoint, config=loaded.config) as running:
        try:
            running.await_termination(secs or None)
        except KeyboardInterrupt:
            _say("stopped")
        print(running.stats().table())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
