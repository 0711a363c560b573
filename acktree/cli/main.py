"""``acktree rebalance`` and ``acktree reset-state``.

Each command prints one line with its result. If it fails it prints an error, leaves the checkpoint unchanged,
and exits with code 1.

Source: the names are Storm's. Storm's ``rebalance`` is for a running topology, and drops tuples in transit.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from acktree.errors import AcktreeError
from acktree.spark_extra import needing_spark
from acktree.texts import printable_lines

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Args:
        arguments: The command-line arguments. None: those of this process.
    """
    given = _parser().parse_args(arguments)
    if str(Path.cwd()) not in sys.path:  # remembered values may have classes of the user's program
        sys.path.insert(0, str(Path.cwd()))
    try:
        print(printable_lines(given.run(given)))
    except AcktreeError as error:
        print(printable_lines(f"acktree: {error}"), file=sys.stderr)
        return 1
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("acktree", description="Storm topologies on Spark: commands for checkpoints.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    to_rebalance = commands.add_parser(
        "rebalance", help="move the memory of bolts to other tasks, partitions or levels"
    )
    to_rebalance.add_argument("checkpoint", help="the folder; no topology may be running on it")
    to_rebalance.add_argument("--component", metavar="ID", help="a stateful bolt with another parallelism")
    to_rebalance.add_argument("--parallelism", type=int, metavar="N", help="its number of tasks from now on")
    to_rebalance.add_argument(
        "--by-key", action="append", default=[], metavar="ATTRIBUTE",
        help="a remembered mapping whose keys are the grouping key: each key goes to its task",
    )  # fmt: skip
    to_rebalance.add_argument(
        "--forget", action="append", default=[], metavar="ATTRIBUTE",
        help="a remembered attribute to delete",
    )  # fmt: skip
    to_rebalance.add_argument("--partitions", type=int, metavar="N", help="partitions of every level")
    to_rebalance.set_defaults(run=_rebalance)

    to_reset = commands.add_parser("reset-state", help="delete the memory of bolts; open messages are kept")
    to_reset.add_argument("checkpoint", help="the folder; no topology may be running on it")
    to_reset.add_argument("--component", metavar="ID", help="only the memory of this bolt")
    to_reset.set_defaults(run=_reset_state)
    return parser


def _rebalance(given: Namespace) -> str:
    with needing_spark("python -m acktree rebalance"):
        from acktree.spark.offline import rebalance  # noqa: PLC0415  # --help needs no Spark

    rebalance(
        given.checkpoint, component=given.component, parallelism=given.parallelism,
        partitions=given.partitions, by_key=given.by_key, forget=given.forget,
    )  # fmt: skip
    if given.component is None:
        return f"{given.checkpoint}: memory can be restored on any level; submit the topology on it"
    return (
        f"{given.checkpoint}: {given.parallelism} tasks have the memory of {given.component!r} now; "
        f"submit the topology with parallelism={given.parallelism} there"
    )


def _reset_state(given: Namespace) -> str:
    with needing_spark("python -m acktree reset-state"):
        from acktree.spark.offline import reset_state  # noqa: PLC0415  # --help needs no Spark

    reset_state(given.checkpoint, component=given.component)
    if given.component is None:
        return f"{given.checkpoint}: the memory of all bolts is deleted; open messages are run again"
    return f"{given.checkpoint}: the memory of {given.component!r} is deleted; messages that it held time out"
