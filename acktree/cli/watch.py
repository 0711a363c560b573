"""Commands that look and change nothing: ``list``, ``show``, ``stats``, ``get-errors`` and ``open``."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from acktree.cli.answers import Answer, Commands, door_of, duration, limit, named, new_command, table
from acktree.core.stats.counters import GATE
from acktree.core.stats.numbers import AckerNumbers, ReportedError, TraceNumbers
from acktree.core.stats.table import key_lines
from acktree.errors import CheckpointError
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
from acktree.ui.known_names import MOST_OPEN
from acktree.ui.places import forget_gone
from acktree.ui.snapshot import ALL_TIME, RUN, WINDOWS, Snapshot, Window, plain

_ERRORS: Final = 20
_NEW_SECS: Final = 10.0
"""The least ``--timeout`` with which a busy driver is asked for new numbers."""
_MOST_AGE_SECS: Final = 5.0
"""Numbers of a running topology that are older come with their age."""
ACCOUNTS: Final = {RUN: "this run", ALL_TIME: "all runs"}
"""The accounts of a snapshot, as people read them."""


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_list = new_command(
        commands, "list", "your topologies on this machine", _list, names=False, waits=False
    )
    to_list.add_argument(
        "--all", action="store_true", help="also those that ended, or were stopped without an error"
    )
    new_command(commands, "show", "levels, tasks, streams and settings", _show)
    to_stats = new_command(commands, "stats", "the numbers of Storm's UI; of a stopped one the last", _stats)
    to_stats.add_argument(
        "--window", choices=WINDOWS, default=ALL_TIME,
        help="the last 10, 600, 10800 or 86400 seconds; :run is this run, :all-time all runs (the default)",
    )  # fmt: skip
    new_command(commands, "get-errors", "the last errors, with their tracebacks", _errors)
    to_open = new_command(commands, "open", "the oldest messages without a final verdict", _open)
    to_open.add_argument(
        "--limit", type=limit(MOST_OPEN), default=20, metavar="N",
        help=f"show at most N messages (default: 20, at most {MOST_OPEN:,})",
    )  # fmt: skip


def _list(options: Namespace) -> Answer:
    forget_gone(lambda entry: DoorClient(entry).is_answering())
    known = map(_line_of, found_topologies())
    lines = [line for line in known if line and (options.all or line["is_listed"])]
    for line in lines:
        del line["is_listed"]
    head = ("name", "status", "tasks", "workers", "uptime", "id", "checkpoint")
    rows = [
        (
            line["topology"], line["status"], line["tasks"], line["workers"],
            "" if line["uptime_secs"] is None else duration(line["uptime_secs"]),
            line["id"], line["checkpoint"],
        )
        for line in lines
    ]  # fmt: skip
    away = [
        f"{line['topology']}: {_how(spout, outage)}: {outage['reason']}"
        for line in lines
        for spout, outages in line["all_outages"].items()
        for outage in outages
    ]
    text = table(head, rows) if rows else "no topology is running"
    return Answer({"topologies": lines}, "\n".join([text, *away]))


def _how(source: str, outage: Mapping[str, Any]) -> str:
    of = f"{'gate' if source.startswith(GATE) else 'spout'} {source}"
    if outage.get("dependency"):
        return f"messages of {of} wait for {outage['dependency']}"
    return f"calls of {of} {'fail and are tried again' if outage['tries'] else 'do not return'}"


def _line_of(target: Found) -> dict[str, Any] | None:
    """The line of a topology in the list; it says so if the driver died."""
    entry, snapshot = target.entry, None
    if entry is None:
        return None
    with suppress(NobodyRunsError, DoorError, TimeoutError):
        snapshot = target.snapshot()
    status = status_of(entry, snapshot, is_running=target.is_running)
    components = {} if snapshot is None else snapshot.graph["components"]
    outages = snapshot.outages if snapshot and target.is_running else {}
    return {
        "topology": entry.topology,
        "id": entry.id,
        "status": status,
        "tasks": sum(about["parallelism"] for about in components.values()),
        "workers": 0 if snapshot is None else snapshot.graph["partitions"],
        "uptime_secs": snapshot.uptime_secs if snapshot and target.is_running else None,
        "checkpoint": entry.checkpoint,
        "pid": entry.pid,
        "outages": {spout: plain(each[0]) for spout, each in outages.items()},
        "all_outages": plain(outages),
        "is_listed": target.is_running or status in BADLY_ENDED,
    }


def _seen(options: Namespace) -> tuple[Found, Snapshot]:
    """The topology that is named, and its snapshot: now, or the last.

    Raises:
        CheckpointError: It has none.
    """
    target = find(options.topology)
    if target.is_running:
        has_time = options.timeout is None or options.timeout >= _NEW_SECS
        return target, door_of(target, options).snapshot(0 if has_time else 1)
    last = target.last_snapshot()
    if last is None and target.folder is None:
        raise CheckpointError(
            "its checkpoint is at a URL, so its numbers were in the memory of its driver",
            target.checkpoint,
            "ask while it runs",
        )
    if last is None:
        raise CheckpointError(
            "it has no numbers: it does not run, and no run of it has written a snapshot",
            target.checkpoint,
            "submit it; unless Config(control=False), its driver writes one every half minute and at its end",
        )
    return target, last


def _as_of(target: Found, snapshot: Snapshot) -> str:
    """A line that says what the numbers are of."""
    at = f"{datetime.fromtimestamp(snapshot.taken_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if target.is_running:
        age_secs = time.time() - snapshot.taken_ms / 1000
        old = f"  its driver has made no newer numbers: these are {age_secs:,.0f} s old"
        line = f"{snapshot.id}  {snapshot.status}  for {duration(snapshot.uptime_secs)}"
        return line + old if age_secs > _MOST_AGE_SECS else line
    if target.entry is not None and target.entry.id != snapshot.id:
        return f"{target.entry.id}  DIED  it left no numbers; those of {snapshot.id}, of {at}"
    status = status_of(target.entry, snapshot, is_running=False)
    return f"{snapshot.id}  {status}  nobody runs it; the last numbers, of {at}"


def _show(options: Namespace) -> Answer:
    found, snapshot = _seen(options)
    data = plain(snapshot) | {"is_running": found.is_running}
    for part in ("windows", "errors"):
        del data[part]
    data["held"] = _held(snapshot)
    default = _default_settings()
    changed = {key: value for key, value in snapshot.config.items() if default.get(key) != value}
    lines = [
        _as_of(found, snapshot),
        f"checkpoint {snapshot.checkpoint}, run {snapshot.run}, process {snapshot.pid} on {snapshot.host}",
        _described(snapshot),
        *(f"setting {key} = {value}" for key, value in sorted(changed.items())),
    ]
    lines += _held_lines(snapshot)
    if snapshot.stopped_by:
        lines.append(f"stopped by: {snapshot.stopped_by}")
    return Answer(data, "\n".join(lines))


def _described(snapshot: Snapshot) -> str:
    from acktree.topology.describe import Description  # noqa: PLC0415

    return str(Description(dict(snapshot.graph)))


def _default_settings() -> dict[str, Any]:
    from acktree.config import Config  # noqa: PLC0415

    return Config().to_mapping()


def _stats(options: Namespace) -> Answer:
    found, snapshot = _seen(options)
    window = snapshot.windows[options.window]
    data = {
        "topology": snapshot.topology,
        "id": snapshot.id,
        "status": status_of(found.entry, snapshot, is_running=found.is_running),
        "taken_ms": snapshot.taken_ms,
        "window": options.window,
        "secs": window.secs,
        "run": snapshot.run,
        "account": snapshot.account(),
        "accounts": snapshot.accounts,
        "gates": snapshot.gate_accounts,
        "components": plain(window.stats.components),
        "traces": plain(snapshot.stats.traces),
        "acker": plain(window.stats.acker),
        "workers_lost": window.stats.workers_lost,
        "keys": plain(snapshot.keys),
        "capacity": {bolt: snapshot.capacity(window, bolt) for bolt in snapshot.bolts},
    }
    of = ACCOUNTS.get(options.window, f"the last {options.window} s")
    covers = f"the numbers of {of}; they cover {window.secs:,.0f} s in which a driver ran:"
    lines = [_as_of(found, snapshot), covers, window.stats.table() + _lost(snapshot.stats.traces)]
    lines += [f"{ACCOUNTS[of]}: {account_line(account)}" for of, account in snapshot.accounts.items()]
    lines += [
        f"gates, {ACCOUNTS[of]}: {account_line(account)}" for of, account in snapshot.gate_accounts.items()
    ]
    lines += key_lines(snapshot.keys)
    lines += _held_lines(snapshot)
    lines += _not_asked_lines(window, "spout", snapshot.spouts)
    lines += _not_asked_lines(window, "gate", snapshot.gates)
    lines.append(_phases_line(window.stats.acker))
    if snapshot.has_acker:
        lines.append(_acker_line(window.stats.acker))
    return Answer(data, "\n".join(lines))


def account_line(account: Mapping[str, int | None]) -> str:
    """An account in one line, without what is not known."""
    return "  ".join(f"{what} {n:,}" for what, n in account.items() if n is not None)


def _not_asked_lines(window: Window, kind: str, spouts: Iterable[str]) -> Iterator[str]:
    """For how long each spout or gate was not asked for messages, and why; no line where it always was."""
    for spout in spouts:
        found = window.stats.components.get(spout)
        secs = {} if found is None else found.not_asked_secs
        said = ", ".join(f"{why.replace('_', ' ')} {each:,.1f} s" for why, each in secs.items() if each)
        if said:
            yield f"{kind} {spout} was not asked for messages: {said}"


def _phases_line(numbers: AckerNumbers) -> str:
    """Micro-batches, and where their time went, in one line."""
    count, phases = numbers.micro_batches, sorted(numbers.phase_secs.items(), key=lambda each: -each[1])
    times = ", ".join(f"{phase} {1000 * secs / max(1, count):,.1f}" for phase, secs in phases)
    return f"micro-batches: {count:,}" + (f"; ms of each on average: {times}" if times else "")


def _acker_line(acker: AckerNumbers) -> str:
    """The acker in one line."""
    counts = ", ".join(
        f"{what} {getattr(acker, what):,}" for what in ("inits", "acks", "fails", "resets", "late")
    )
    settle = "" if acker.settle_ms is None else f", {acker.settle_ms:.2f} ms a micro-batch"
    return f"__acker: {counts}, open roots {acker.open_roots:,}{settle}"


def _lost(traces: TraceNumbers) -> str:
    """A line of what was lost of traces and events; nothing if nothing was."""
    lost = {**traces.dropped, **{f"events {why}": n for why, n in traces.events_dropped.items()}}
    counts = ", ".join(f"{why} {count:,}" for why, count in lost.items() if count)
    return f"\n{traces.messages:,} traces recorded; lost: {counts}" if counts else ""


def _errors(options: Namespace) -> Answer:
    found, snapshot = _seen(options)
    lines, shown = [_as_of(found, snapshot)], set[tuple[str, ...]]()
    if len(snapshot.errors) > _ERRORS:
        lines.append(
            f"the last {_ERRORS} of the {len(snapshot.errors):,} that are kept; --json has all of these"
        )
    for error in snapshot.errors[-_ERRORS:]:
        at = f"{datetime.fromtimestamp(error.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        task = "" if error.task_id is None else f" task {error.task_id}"
        lines += [f"{at}  {error.component}{task}: {error.reason}"]
        traceback = _without_reason(error)
        below = ["its traceback is above"] if traceback and traceback in shown else traceback
        lines += [f"    {line}" for line in below]
        shown.add(traceback)
    if not snapshot.errors:
        lines.append("no errors")
    data = {"topology": snapshot.topology, "id": snapshot.id, "errors": plain(snapshot.errors)}
    return Answer(data, "\n".join(lines))


def _without_reason(error: ReportedError) -> tuple[str, ...]:
    """The lines of a traceback without the exception at its end, where that is the reason."""
    traceback, reason = (error.traceback or "").rstrip().splitlines(), error.reason.rstrip().splitlines()
    end = traceback[-len(reason) :] if reason else []
    if not end or end[1:] != reason[1:] or not _is_named(end[0], reason[0]):
        return tuple(traceback)
    return tuple(traceback[: -len(end)])


def _is_named(line: str, reason: str) -> bool:
    """Whether a line of a traceback is a reason, perhaps with the module of the exception before it."""
    module = line.removesuffix(reason)
    return line.endswith(reason) and (not module or (module.endswith(".") and " " not in module))


def _open(options: Namespace) -> Answer:
    door = door_of(find(options.topology), options)
    found, held = door.get("open", {"limit": options.limit}), _held(door.snapshot())
    messages, count = found["open"], found.get("count", 0)  # an older driver gives no count
    head = ("age s", "spout", "task", "message id", "root", "attempt", "state", "held by")
    names = ("root", "attempt", "state")
    rows = [
        (
            message["age_secs"], message["spout"], message["task_id"], named(message["message_id"], message),
            *(message[name] for name in names), _held_by(message),
        )
        for message in messages
    ]  # fmt: skip
    text = table(head, rows) if rows else "no message is open"
    if rows and len(rows) < count:
        more = "; the others are not handed over yet, or are rows of a DataFrame"  # they have no root
        if len(rows) == options.limit:
            more = "; further ones: a larger --limit" if options.limit < MOST_OPEN else ""
        text += f"\nthe oldest {len(rows):,} of {count:,}{more}"
    if held:
        of_tasks = [(each["bolt"], each["task_id"], each["held"], each["oldest_held_secs"]) for each in held]
        text += f"\n\ntuples held\n{table(('bolt', 'task', 'held', 'oldest s'), of_tasks)}"
    return Answer({"open": messages, "count": count, "held": held}, text)


def _held_by(message: Mapping[str, Any]) -> str:
    """Where an open message is, as far as it is known; an older driver does not say."""
    where = [
        f"{each['component']} task {each['task_id']}{_age(each['held_secs'], ' for')}"
        for each in message.get("held_by", ())
    ]
    if message.get("forgotten_by"):
        where.append(f"forgotten by {message['forgotten_by']}")
    return "; ".join(where)


def _held_lines(snapshot: Snapshot) -> list[str]:
    return [
        f"held by {row['bolt']} task {row['task_id']}: {row['held']:,}{_age(row['oldest_held_secs'])}"
        for row in _held(snapshot)
    ]


def _held(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The tasks of bolts that hold tuples over micro-batches."""
    return [
        {"bolt": bolt, "task_id": task, "held": each.held, "oldest_held_secs": each.oldest_held_secs}
        for bolt in snapshot.bolts
        for task, each in snapshot.stats[bolt].tasks.items()
        if each.held
    ]


def _age(secs: float | None, begin: str = ", the oldest for") -> str:
    return "" if secs is None else f"{begin} {duration(secs)}"
