"""``acktree debug`` and ``acktree events``: Storm's Debug, and the tuples that it logs."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

from acktree.cli.answers import Answer, Commands, door_of, new_command
from acktree.errors import CheckpointError
from acktree.traces.events import FOLDER, Event, read_events
from acktree.ui.client import Found, find

__all__ = ["add_to"]

_LOOK_SECS = 0.5
_MOST = 1000


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
        "--limit", type=int, default=50, metavar="N",
        help=f"show the last N tuples (default: 50, at most {_MOST:,})",
    )  # fmt: skip
    events.add_argument("--follow", action="store_true", help="go on with those that come")


def _percent(text: str) -> float:
    percent = float(text)
    if not 0 < percent <= 100:  # noqa: PLR2004  # a percentage
        raise ArgumentTypeError("a percentage is above 0, and at most 100")
    return percent


def _debug(given: Namespace) -> Answer:
    component, percent = given.component, given.percent
    if component is not None and component.replace(".", "", 1).isdigit():  # debug on 25
        component, percent = None, _percent(given.component)
    order = {"on": given.order == "on", "component": component, "percent": percent}
    door = door_of(find(given.topology), given)
    done = door.order("debug", order)
    what = "all components" if component is None else component
    text = (
        f"{percent:g} % of the messages are logged at {what}" if order["on"] else f"{what}: nothing is logged"
    )
    return Answer(done, f"{door.entry.id}: {text}")


def _events(given: Namespace) -> Iterator[Answer]:
    found = find(given.topology)
    before: Counter[str] = Counter()
    wanted, is_first = max(1, min(_MOST, given.limit)), True
    if given.follow:  # all that may be asked for is known from the first read on
        given.limit = _MOST
    while True:
        events = _read(found, given)
        lines = Counter(each.to_json() for each in events)
        fresh = lines - before
        if is_first:
            events, is_first = events[-wanted:], False
        for event in events:
            line = event.to_json()
            if fresh[line]:
                fresh[line] -= 1
                yield _line(event)
        before = lines
        if not given.follow:
            return
        time.sleep(_LOOK_SECS)


def _read(found: Found, given: Namespace) -> list[Event]:
    limit = max(1, min(_MOST, given.limit))
    if found.folder is not None and (found.folder / FOLDER).is_dir():
        return read_events(found.folder / FOLDER, limit, given.component)
    if not found.is_running and found.folder is None:
        raise CheckpointError(
            "its checkpoint is at a URL, so its events were deleted with the working copy of its driver",
            found.checkpoint,
            "ask while it runs, or give submit() an event_logger of your own",
        )
    if not found.is_running:
        return []
    query = {"limit": limit, "component": given.component}
    events = door_of(found, given).get("events", query)["events"]
    return [Event(**{**each, "root": each["root"] and int(each["root"])}) for each in events]


def _line(event: Event) -> Answer:
    at = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    values = ", ".join(map(repr, event.values))
    text = (
        f"{at:%Y-%m-%d %H:%M:%S}.{event.time_ms % 1000:03d},{event.component},{event.task_id},{event.stream},"
        f"{event.root or ''},({values})"
    )
    return Answer(asdict(event) | {"root": event.root and str(event.root)}, text)
