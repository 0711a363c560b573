"""``acktree activate``, ``deactivate``, ``kill`` and ``set-log-level``: orders to a running topology."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace

from acktree.checkpoint.holding import is_held
from acktree.cli.answers import Answer, Commands, door_of, new_command, seconds, secs_up_to, table
from acktree.errors import AcktreeError, ConfigError
from acktree.logs.log_levels import level_number
from acktree.system.processes import is_alive
from acktree.ui.client import DoorClient, Found, NobodyRunsError, find, status_of
from acktree.ui.log_levels import MOST_SECS
from acktree.ui.order_log import CLI
from acktree.ui.places import Entry, entries

_LOOK_SECS = 0.2
_STOP_SECS = 120.0
"""How long a topology has to stop after its wait, unless ``--timeout`` says otherwise."""


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    new_command(commands, "activate", "let the spouts emit again", _activate)
    new_command(commands, "deactivate", "stop asking the spouts; what is open goes on", _deactivate)
    to_kill = new_command(commands, "kill", "deactivate, wait for open messages, stop", _kill)
    to_kill.add_argument(
        "-w", "--wait", type=seconds, metavar="SECS",
        help="how long to wait for open messages (default: the longest message timeout)",
    )  # fmt: skip
    to_log = new_command(commands, "set-log-level", "set the level of loggers while it runs", _log_levels)
    to_log.add_argument(
        "-l", "--level", type=_level_named, action="append", default=[], metavar="NAME=LEVEL[:SECS]",
        help="let a logger (or ROOT) have this level, for some seconds; may be repeated",
    )  # fmt: skip
    to_log.add_argument(
        "-r", "--reset", action="append", default=[], metavar="NAME", help="let it have its old level again"
    )


def _activate(options: Namespace) -> Answer:
    return _ordered(options, "activate", "its spouts emit again")


def _deactivate(options: Namespace) -> Answer:
    return _ordered(options, "deactivate", "its spouts are not asked any more; what is open goes on")


def _ordered(options: Namespace, order: str, done: str) -> Answer:
    door = door_of(find(options.topology), options)
    door.order(order)
    return Answer(
        {"topology": door.entry.topology, "id": door.entry.id, "done": order}, f"{door.entry.id}: {done}"
    )


def _log_levels(options: Namespace) -> Answer:
    """Without options it shows what is set."""
    wanted = dict(options.level)
    door = door_of(find(options.topology), options)
    if wanted or options.reset:
        levels = door.order("log-levels", {"set": wanted, "reset": options.reset})
    else:
        levels = door.get("log-levels")
    rows = [
        (name, each["target_level"], each["reset_level"], each["timeout"] or "")
        for name, each in levels["namedLoggerLevels"].items()
    ]
    text = table(("logger", "level", "then", "secs"), rows) if rows else "no logger has a level of its own"
    if not levels["workers"]:
        text += "\nworkers keep their levels: they do not see the checkpoint"
    return Answer(levels, text)


def _level_named(said: str) -> tuple[str, dict[str, object]]:
    """NAME=LEVEL[:SECS]. ArgumentTypeError if it is none."""
    name, equals, rest = said.partition("=")
    level, _, secs = rest.partition(":")
    if not (name and equals and level):
        raise ArgumentTypeError(f"{said!r:.60} names no level: write NAME=LEVEL or NAME=LEVEL:SECS")
    try:
        level_number(level.upper())
    except ConfigError as error:
        raise ArgumentTypeError(f"{error.what}: {error.fix}") from error
    return name, {"level": level, "secs": secs_up_to(MOST_SECS)(secs) if secs else None}


def _kill(options: Namespace) -> Answer:
    """Order it, and wait until the driver is gone and another one may have the checkpoint.

    Raises:
        AcktreeError: Its driver died before it had stopped.
        TimeoutError: It still runs after ``--timeout``.
    """
    target = find(options.topology)
    door = replace(target.door, by=CLI)
    try:
        wait_secs = float(door.order("kill", {"wait_secs": options.wait})["wait_secs"])
    except NobodyRunsError:
        if is_alive(door.entry.pid, of_others=False):
            raise
        return _stopped(target)  # it died, or came to its end, before it could answer
    most_secs = wait_secs + _STOP_SECS if options.timeout is None else options.timeout
    deadline = time.monotonic() + most_secs
    while _still_runs(target, door):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{door.entry.id} still runs after {most_secs:g} s; it goes on stopping")
        time.sleep(_LOOK_SECS)
    return _stopped(target)


def _still_runs(target: Found, door: DoorClient) -> bool:
    """Whether this run still holds its checkpoint."""
    if _is_followed(door.entry):
        return False
    return door.is_answering() or door.is_closing() or (target.folder is not None and is_held(target.folder))


def _is_followed(entry: Entry) -> bool:
    """Whether the next run on the checkpoint has begun."""
    return any(each.checkpoint == entry.checkpoint and each.id != entry.id for each in entries())


def _stopped(target: Found) -> Answer:
    if target.entry is None:
        raise NobodyRunsError("nobody runs it", target.checkpoint, "submit it again")
    last = target.last_snapshot()
    account = None if last is None else last.account()
    open_count = "" if account is None else f"; open: {account['open']:,}"
    if not _is_followed(target.entry) and status_of(target.entry, last, is_running=False) == "DIED":
        raise AcktreeError(
            f"the driver of {target.entry.id} died before it had stopped", target.checkpoint,
            "submit it again on this checkpoint; its last numbers: acktree stats",
        )  # fmt: skip
    return Answer(
        {"topology": target.entry.topology, "id": target.entry.id, "done": "kill", "account": account},
        f"{target.entry.id} is stopped{open_count}. To continue, submit it again on {target.checkpoint}",
    )
