"""``acktree rebalance`` and ``acktree reset-state``: for a checkpoint that no driver runs.

Each prints one line with its result. If it fails it prints an error and leaves the checkpoint unchanged.

Source: the names are Storm's. Storm's ``rebalance`` is for a running topology, and drops tuples in transit.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from acktree.cli.answers import Answer, Commands, log_order, new_command, whole_number
from acktree.cli.targets import function_at
from acktree.errors import ConfigError, MisuseError
from acktree.ui.client import find
from acktree.ui.known_names import COMMANDS

if TYPE_CHECKING:
    from acktree.tasks.bolts.moved_memory import GroupOf


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_rebalance = new_command(
        commands, "rebalance", "move the memory of bolts to other tasks, partitions or levels", _rebalance,
        names=False, waits=False,
    )  # fmt: skip
    to_rebalance.add_argument("checkpoint", help="the folder or the name; no topology may be running on it")
    to_rebalance.add_argument("--component", metavar="ID", help="a stateful bolt with another parallelism")
    to_rebalance.add_argument(
        "--parallelism", type=whole_number, metavar="N", help="its number of tasks from now on"
    )
    to_rebalance.add_argument(
        "--by-key", action="append", default=[], metavar="ATTRIBUTE[=MODULE:NAME]",
        help="a remembered mapping whose keys are what the bolt is grouped by: each key goes to its task. "
        "Where they are not, name a function of key and value that returns what they are grouped by",
    )  # fmt: skip
    to_rebalance.add_argument(
        "--forget", action="append", default=[], metavar="ATTRIBUTE",
        help="a remembered attribute to delete",
    )  # fmt: skip
    to_rebalance.add_argument(
        "--partitions", type=whole_number, metavar="N", help="partitions of every level"
    )

    to_reset = new_command(
        commands, "reset-state", "delete the memory of bolts; open messages are kept", _reset_state,
        names=False, waits=False,
    )  # fmt: skip
    to_reset.add_argument("checkpoint", help="the folder or the name; no topology may be running on it")
    to_reset.add_argument("--component", metavar="ID", help="only the memory of this bolt")


def _rebalance(options: Namespace) -> Answer:
    from acktree.spark.offline import rebalance  # noqa: PLC0415  # --help is quick

    place = _stopped_checkpoint(options.checkpoint, "rebalance")
    rebalance(
        place, component=options.component, parallelism=options.parallelism,
        partitions=options.partitions, by_key=dict(map(_by_key, options.by_key)), forget=options.forget,
    )  # fmt: skip
    _log("rebalance", place, options)
    if options.component is None:
        partitions = (
            "" if options.partitions is None else f"every level has {options.partitions} partitions now; "
        )
        return _done(place, f"{partitions}memory can be restored on any level; submit the topology on it")
    return _done(
        place,
        f"{options.parallelism} tasks have the memory of {options.component!r} now; "
        f"submit the topology with parallelism={options.parallelism} there",
    )


def _by_key(option: str) -> tuple[str, GroupOf | None]:
    """An attribute, and the function named for it, which returns what a key is grouped by."""
    attribute, _, function = option.partition("=")
    return attribute, function_at(function) if function else None


def _reset_state(options: Namespace) -> Answer:
    from acktree.spark.offline import reset_state  # noqa: PLC0415  # --help is quick

    place = _stopped_checkpoint(options.checkpoint, "reset-state")
    reset_state(place, component=options.component)
    _log("reset-state", place, options)
    if options.component is None:
        return _done(place, "the memory of all bolts is deleted; open messages are run again")
    return _done(place, f"the memory of {options.component!r} is deleted; messages that it held time out")


def _log(order: str, place: str, options: Namespace) -> None:
    shown = {name: value for name in COMMANDS[order] if (value := getattr(options, name))}
    topology, folder = None, str(Path(place).absolute())
    with suppress(ConfigError):
        target = find(place)
        topology, folder = target.topology, target.checkpoint
    log_order(order, topology, folder, shown, {})


def _done(place: str, result: str) -> Answer:
    return Answer({"checkpoint": place, "done": result}, f"{place}: {result}")


def _stopped_checkpoint(named: str, command: str) -> str:
    """The checkpoint that is named by folder or topology; a folder is returned as given.

    Raises:
        MisuseError: A driver runs on it.
    """
    try:
        target = find(named)
    except ConfigError:
        return named  # the command names what is wrong with it
    if target.is_running and target.entry is not None:
        raise MisuseError(
            f"topology {target.entry.topology!r} is running: what its tasks remember would have to move "
            "under them",
            target.checkpoint,
            f"run `acktree kill {target.checkpoint}`, then `acktree {command} {target.checkpoint} ...`, then "
            "submit it again",
        )
    return named if target.entry is None or named != target.entry.topology else target.checkpoint
