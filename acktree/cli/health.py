"""``acktree health``: whether topologies are as they should be."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from acktree.cli.answers import DONE, FAILED, Answer, Commands, door_of, new_command
from acktree.cli.checks import Check, data_of, free_space, line_of
from acktree.tasks.plan import LATE
from acktree.ui.client import (
    BADLY_ENDED,
    DoorClient,
    DoorError,
    Found,
    NobodyRunsError,
    find,
    found_topologies,
    status_of,
)
from acktree.ui.places import forget_gone
from acktree.ui.snapshot import RECENT, STORM_WINDOWS, Snapshot

_WORD: Final = re.compile(r"[\w./:-]+")
_OLD_SECS: Final = 10.0
_LONG: Final = STORM_WINDOWS[0]
_MANY: Final = 100
_FEW: Final = 10
_MOST_LETTERS: Final = 0.01
"""More dead letters than this share of what got its final verdict are not healthy."""


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_health = new_command(commands, "health", "whether a topology works as it should", _health, names=False)
    to_health.add_argument(
        "topology",
        nargs="?",
        help="its name, id or checkpoint; default: all that run, and those that an error has ended",
    )


def _health(options: Namespace) -> Answer:
    is_named = options.topology is not None
    checks: dict[str, list[Check]] = {}
    if is_named:
        doors = [door_of(find(options.topology), options)]
    else:
        forget_gone(lambda entry: DoorClient(entry).is_answering())
        known = list(found_topologies())
        doors = [door_of(target, options) for target in known if target.is_running]
        for target in known:
            ended = _bad_end(target)
            if target.entry is not None and ended is not None:
                checks[target.entry.id] = [ended]
    for door in doors:
        try:
            checks[door.entry.id] = list(_checks_of(door))
        except (NobodyRunsError, TimeoutError) as error:
            if is_named:
                raise
            said = error.what if isinstance(error, NobodyRunsError) else str(error)
            checks[door.entry.id] = [Check("driver", is_ok=False, found=said, fix="see the driver's log")]
    data = {name: [data_of(check) for check in each] for name, each in checks.items()}
    lines = [line for name, each in checks.items() for line in (name, *map(line_of, each))]
    is_ok = all(check.is_ok for each in checks.values() for check in each)
    return Answer(
        {"healthy": is_ok, "topologies": data},
        "\n".join(lines) if lines else "no topology is running",
        DONE if is_ok else FAILED,
    )


def _bad_end(target: Found) -> Check | None:
    """The check of a topology that an error, or a killed driver, has ended; None for any other."""
    last = target.last_snapshot()
    status = status_of(target.entry, last, is_running=target.is_running)
    if target.is_running or status not in BADLY_ENDED:
        return None
    why = last.stopped_by if last is not None and status == "FAILED" else None
    found, fix = why or "", f"submit it again on {target.checkpoint}"
    what, _, rest = found.rpartition("\n  where: ")
    where, _, ours = rest.partition("\n  fix:   ")
    if what and ours:  # an error of acktree: those end with what mends them
        found, fix = f"{what}\n  where: {where}", ours
    return Check("status", is_ok=False, found=f"{status}: {found}" if found else status, fix=fix)


def _checks_of(door: DoorClient) -> Iterator[Check]:
    try:
        snapshot = door.snapshot()
    except DoorError as error:
        yield Check("snapshot", is_ok=False, found=error.what, fix="see the driver's log")
        return
    age_secs = max(0.0, time.time() - snapshot.taken_ms / 1000)
    yield Check("driver", age_secs < _OLD_SECS, f"snapshot is {age_secs:.1f} s old", "see the driver's log")
    yield Check("status", snapshot.status != "STARTING", snapshot.status, "wait until it is warm")
    for name in snapshot.sources:
        yield from _connections(snapshot, name)
    yield from _stuck(snapshot)
    yield from _undone(snapshot)
    yield from _letters(snapshot)
    inbox = snapshot.inbox
    is_roomy = inbox.bytes < inbox.limit_bytes and inbox.messages < inbox.limit_messages
    yield Check(
        "inbox", is_roomy, f"{inbox.messages:,} messages, {inbox.bytes:,} of {inbox.limit_bytes:,} bytes",
        "bolts are slower than spouts: see `acktree top`",
    )  # fmt: skip
    if "://" not in snapshot.checkpoint:
        yield free_space("disk", Path(snapshot.checkpoint))


def _connections(snapshot: Snapshot, source: str) -> Iterator[Check]:
    """Whether what a spout calls, such as its queue, answers, and all that the bolts behind it need."""
    of = _source(snapshot, source)
    calls, outages = f"calls of {of}", snapshot.outages.get(source, ())
    if not outages:
        yield Check(calls, is_ok=True, found="none waits to be made again")
    for outage in outages:
        name = f"dependency {_named(outage.dependency)} of {of}"
        secs = max(0.0, (snapshot.taken_ms - outage.since_ms) / 1000)
        since = f"{datetime.fromtimestamp(outage.since_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        tried = f"tried {outage.tries:,} time{'s' * (outage.tries != 1)} " if outage.tries else ""
        found = f"{tried}since {since}, for {secs:.1f} s: {outage.reason}"
        fix = outage.fix or "see the driver's log"
        yield Check(name if outage.dependency else calls, is_ok=False, found=found, fix=fix)


def _source(snapshot: Snapshot, name: str) -> str:
    """A spout or gate, as it is called."""
    return f"{'gate' if name in snapshot.gates else 'spout'} {_named(name)}"


def _named(name: str) -> str:
    """A name of a user, in quotes if it would not be read as one word."""
    return name if _WORD.fullmatch(name) else repr(name)


def _undone(snapshot: Snapshot) -> Iterator[Check]:
    """Whether messages get done, and each bolt does some of its tuples. What is away has its own check."""
    if any(outage.dependency for outages in snapshot.outages.values() for outage in outages):
        return
    for name in snapshot.sources:
        found = _lately(snapshot, name, ("acked", "failed", "timed_out"))
        yield Check(
            f"verdicts of {_source(snapshot, name)}", found.are_few or bool(found.first), _verdicts(found),
            f"nothing is done: see the errors in `acktree stats {snapshot.topology}`, and stop it with "
            "`acktree deactivate` before the queue becomes dead letters",
        )  # fmt: skip
    for bolt in snapshot.bolts:
        found = _lately(snapshot, bolt, ("executed", "failed"))
        if not found.are_few and found.others >= found.first:
            last = [error.reason for error in snapshot.errors if error.component == bolt]
            text = f"all of the last {found.others:,} tuples failed" + (f": {last[-1]}" if last else "")
            yield Check(f"bolt {_named(bolt)}", is_ok=False, found=text, fix="correct what the error says")


class _Counts(NamedTuple):
    """Counts of a component in the last seconds.

    Attributes:
        first: The first of the counts that were asked for.
        others: The sum of the other counts.
        secs: The length of the window.
        are_few: Whether there are too few of the others to draw a conclusion.
    """

    first: int
    others: int
    secs: float
    are_few: bool


def _lately(snapshot: Snapshot, component: str, whats: tuple[str, ...]) -> _Counts:
    """Counts of the shortest window that has enough of the others; else of the longest one.

    Enough are a hundred of ten seconds, or ten of ten minutes: a few failures say nothing.
    """
    counts = _Counts(0, 0, 0.0, are_few=True)
    for name, least in ((RECENT, _MANY), (_LONG, _FEW)):
        window = snapshot.windows.get(name)
        found = None if window is None else window.stats.components.get(component)
        if window is not None and found is not None:
            first, *others = (getattr(found.total, what) for what in whats)
            counts = _Counts(first, sum(others), window.secs, are_few=sum(others) < least)
            if not counts.are_few:
                break
    return counts


def _verdicts(counts: _Counts) -> str:
    if not counts.first and not counts.others:
        return f"none in the last {counts.secs:,.0f} s"
    return f"{counts.first:,} acked, {counts.others:,} attempts failed in the last {counts.secs:,.0f} s"


def _letters(snapshot: Snapshot) -> Iterator[Check]:
    """How fast messages are given up, and whether something runs those that were sent again."""
    window, letters = snapshot.windows.get(_LONG), snapshot.dead_letters
    if window is not None and window.secs > 0:
        made, is_ok = 0, True
        for sources in (snapshot.spouts, snapshot.gates):  # what passes a gate is no further message
            totals = [window.stats[name].total for name in sources if name in window.stats.components]
            mine, acked = sum(each.dead_lettered for each in totals), sum(each.acked for each in totals)
            is_ok = is_ok and (mine < _FEW or mine <= _MOST_LETTERS * (acked + mine))
            made += mine
        found = f"{made:,} in the last {window.secs:,.0f} s, {made * 60 / window.secs:.1f} a minute"
        yield Check("dead letters", is_ok, found, f"see `acktree dead-letters list {snapshot.topology}`")
    is_open = any(snapshot.stats[name].open for name in snapshot.sources)
    if letters.redriven and not is_open:
        found = f"{letters.redriven:,} have no verdict, and nothing is open"
        order = f"acktree dead-letters redrive {snapshot.topology} --redriven true --settled false"
        yield Check("redriven letters", is_ok=False, found=found, fix=f"send them again: {order}")


def _stuck(snapshot: Snapshot) -> Iterator[Check]:
    config = snapshot.config
    if not snapshot.has_acker or not config.get("topology.enable.message.timeouts", True):
        return
    default_secs = float(config["topology.message.timeout.secs"])
    for spout in snapshot.sources:
        oldest_secs = snapshot.stats[spout].oldest_open_secs or 0.0
        run_secs = min(oldest_secs, snapshot.uptime_secs)  # the time in which nobody ran it does not count
        limit_secs = _longest_open_secs(snapshot.graph["components"][spout], default_secs)
        yield Check(
            _source(snapshot, spout), limit_secs is None or run_secs <= limit_secs,
            f"oldest open message {oldest_secs:.1f} s",
            f"see `acktree open`: no message should be open for more than {limit_secs or 0:,.0f} s, which is "
            "twice the message timeout for each attempt, and the pauses of its retries",
        )  # fmt: skip


def _longest_open_secs(spout: Mapping[str, Any], default_secs: float) -> float | None:
    """After how long a message of a spout is stuck; None if an older driver does not say how it retries.

    Args:
        spout: What the graph says of it.
        default_secs: The message timeout of spouts without one of their own.
    """
    attempts, pauses_secs = spout.get("retry_attempts"), spout.get("retry_pauses_secs")
    if spout["retry"] is not None and attempts is None:
        return None
    timeout_secs = float(spout.get("message_timeout_secs") or default_secs)
    longest_secs = LATE * timeout_secs * (attempts or 1) + (pauses_secs or 0.0)
    max_age_secs = spout.get("retry_max_age_secs")
    return longest_secs if max_age_secs is None else min(longest_secs, max_age_secs + LATE * timeout_secs)
