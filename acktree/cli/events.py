"""``acktree debug`` and ``acktree events``: Storm's Debug, and the tuples that it logs."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import inf

from acktree.cli.answers import Answer, Commands, UsageError, door_of, limit, new_command
from acktree.errors import CheckpointError, ConfigError, nearest
from acktree.texts import is_number, printable
from acktree.traces.events import FOLDER, MOST_EVENTS, Event, read_events
from acktree.ui.client import Found, find
from acktree.ui.known_names import NUMBER

_LOOK_SECS = 0.5


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    debug = new_command(commands, "debug", "log the tuples that components emit, or stop that", _debug)
    debug.add_argument("order", choices=["on", "off"], help="log tuples, or stop that")
    debug.add_argument("component", nargs="?", metavar="COMPONENT", help="all, if none is named")
    debug.add_argument(
        "percent", nargs="?", type=_percent, default=10.0, metavar="PCT",
        help="the percentage of messages whose tuples are logged (default: 10)",
    )  # fmt: skip
    events = new_command(commands, "events", "the last tuples that were logged", _events)
    events.add_argument("component", nargs="?", metavar="COMPONENT", help="of this component alone")
    events.add_argument(
        "--limit", type=limit(MOST_EVENTS), default=50, metavar="N",
        help=f"show the last N tuples (default: 50, at most {MOST_EVENTS:,})",
    )  # fmt: skip
    events.add_argument("--follow", action="store_true", help="go on with those that come")


def _percent(text: str) -> float:
    with suppress(ConfigError):
        percent = float(NUMBER.read(text, "", is_text=True))
        if 0 < percent <= 100:  # noqa: PLR2004  # a percentage
            return percent
    raise ArgumentTypeError(f"{text!r:.60} is not a percentage above 0 and at most 100")


def _debug(options: Namespace) -> Answer:
    component, percent = options.component, options.percent
    if component is not None and is_number(component.replace(".", "", 1)):  # debug on 25
        try:
            component, percent = None, _percent(options.component)
        except ArgumentTypeError as error:
            raise UsageError(str(error), "debug T on PCT", "give more than 0, and at most 100") from None
    order = {"on": options.order == "on", "component": component, "percent": percent}
    door = door_of(find(options.topology), options)
    done = door.order("debug", order)
    what = "all components" if component is None else component
    text = (
        f"{percent:g} % of the messages are logged at {what}" if order["on"] else f"{what}: nothing is logged"
    )
    return Answer(done, f"{door.entry.id}: {text}")


def _events(options: Namespace) -> Iterator[Answer]:
    """The tuples, and with ``--follow`` those that come.

    Raises:
        TimeoutError: ``--timeout`` is over.
    """
    end = inf if options.timeout is None else time.monotonic() + options.timeout
    target = find(options.topology)
    shown_before: Counter[str] = Counter()
    is_first = True
    most = MOST_EVENTS if options.follow else options.limit  # a later read must know all that was there
    door = door_of(target, options) if options.follow and target.is_running else None
    while True:
        if door is not None:
            target = replace(target, is_running=door.is_answering())
        # A driver that answers no more logs what is queued, and leaves its socket when it has.
        goes_on = target.is_running or (door is not None and target.door_is_closing)
        # What was logged last is read; at a URL it went with the driver's working copy.
        is_gone = door is not None and not target.is_running and target.folder is None
        events = [] if is_gone else _read(target, options, most)
        lines = Counter(each.to_json() for each in events)
        fresh = lines - shown_before
        if is_first:
            events, is_first = events[-options.limit :], False
            if not events:
                _say(_why_none(target, options))
        for event in events:
            line = event.to_json()
            if fresh[line]:
                fresh[line] -= 1
                yield _line(event)
        shown_before = lines
        if not options.follow:
            break
        if not goes_on:
            _say(f"no driver of topology {target.topology!r} answers any more")
            break
        _wait_for_next_look(end, options)


def _wait_for_next_look(end: float, options: Namespace) -> None:
    """Wait; TimeoutError where ``--timeout`` is over by then."""
    left_secs = end - time.monotonic()
    time.sleep(max(0.0, min(_LOOK_SECS, left_secs)))
    if left_secs <= _LOOK_SECS:
        raise TimeoutError(f"{options.timeout:g} s are over")


def _say(text: str) -> None:
    """Say something that is not an event."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def _why_none(target: Found, options: Namespace) -> str:
    """Why no tuple is shown. ConfigError where the topology has no such component."""
    snapshot = target.snapshot()
    known = {} if snapshot is None else snapshot.graph["components"]
    if options.component is not None and known and options.component not in known:
        raise ConfigError(
            f"the topology has no component {options.component!r:.60}",
            "events",
            nearest(options.component, known),
        )
    logs = snapshot is not None and any(
        snapshot.debug_percent(each) for each in ([options.component] if options.component else known)
    )
    if not target.is_running or logs:
        return "no tuple is logged yet" if target.is_running else "no tuple was logged"
    return f"no tuple is logged: acktree debug {options.topology} on"


def _read(target: Found, options: Namespace, most: int) -> list[Event]:
    if target.folder is not None and (target.folder / FOLDER).is_dir():
        return read_events(target.folder / FOLDER, most, options.component)
    if not target.is_running and target.folder is None:
        raise CheckpointError(
            "its checkpoint is at a URL, so its events were deleted with the working copy of its driver",
            target.checkpoint,
            "ask while it runs, or give submit() an event_logger of your own",
        )
    if not target.is_running:
        return []
    query = {"limit": most, "component": options.component}
    events = door_of(target, options).get("events", query)["events"]
    return [Event(**{**each, "root": each["root"] and int(each["root"])}) for each in events]


def _line(event: Event) -> Answer:
    at = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    values = ", ".join(map(repr, event.values))
    text = (
        f"{at:%Y-%m-%d %H:%M:%S}.{event.time_ms % 1000:03d},{event.component},{event.task_id},{event.stream},"
        f"{event.root or ''},({values})"
    )
    return Answer(asdict(event) | {"root": event.root and str(event.root)}, text)
