"""Our own REST: what the page shows and orders, made of snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from acktree.core.stats.counters import ACKER, Counters
from acktree.core.stats.numbers import AckerNumbers, ComponentStats, Numbers, TaskStats
from acktree.core.stats.statistics import Stats
from acktree.core.stats.user_metrics import UserMetric
from acktree.topology.layout import layout, natural
from acktree.ui.snapshot import ALL_TIME, RECENT, VERDICTS, Window, plain
from acktree.ui.web.sources import Seen

Row = dict[str, Any]
_VERDICTS: Final = ("acked", "failed", "timed_out")
_SENT: Final = ("inits", "acks", "fails", "resets")
_PERCENTS: Final = (50, 90, 99)


def overview(all_seen: Iterable[Seen]) -> str:
    """All topologies, a few numbers of each component, as JSON: what the event stream sends."""
    return f'{{"topologies":[{",".join(map(_line, all_seen))}]}}'


def _line(seen: Seen) -> str:
    """A topology in the overview, as JSON; made once of one that is stopped."""
    made = _STOPPED.get(seen)
    if made is None:
        made = json.dumps(_row(seen), separators=(",", ":"))
        if not seen.is_running:
            _STOPPED[seen] = made
    return made


_STOPPED: Final[WeakKeyDictionary[Seen, str]] = WeakKeyDictionary()


def _row(seen: Seen) -> Row:
    snapshot = seen.snapshot
    names = snapshot.graph["components"]
    return {
        "id": snapshot.id,
        "name": snapshot.topology,
        "status": seen.status,
        "is_running": seen.is_running,
        "uptime_secs": snapshot.uptime_secs,
        "taken_ms": snapshot.taken_ms,
        "run": snapshot.run,
        "batch_id": snapshot.batch_id,
        "checkpoint": snapshot.checkpoint,
        "tasks": sum(about["parallelism"] for about in names.values()),
        "account": snapshot.account(),
        "gates": snapshot.gate_account(),
        "all_time": {what: snapshot.total(what, ALL_TIME) for what in VERDICTS}
        | {"workers_lost": snapshot.windows[ALL_TIME].stats.workers_lost},
        "workers_lost": snapshot.stats.workers_lost,
        "dead_letters": plain(snapshot.dead_letters),
        "debug": plain(snapshot.debug) if seen.is_running else {},
        "acker_now": _acker_now(seen) if snapshot.has_acker else None,
        "errors": len(snapshot.errors),
        "components": {name: _now(seen, name) for name in sorted(names, key=natural)},
    }


def _now(seen: Seen, name: str) -> Row:
    """What the graph and the table show of a component: rates of the last seconds, and what is open.

    What nobody runs has rates of 0: its last seconds are long over.
    """
    snapshot = seen.snapshot
    window = (
        snapshot.windows[RECENT] if seen.is_running else Window(0.0, Stats.of(Counters(), components=[name]))
    )
    total = snapshot.stats[name]
    recent = window.stats[name].total
    busy = snapshot.windows["600"]
    return {
        "kind": snapshot.graph["components"][name]["kind"],
        "gate_of": snapshot.graph["components"][name].get("gate_of"),
        "tasks": snapshot.graph["components"][name]["parallelism"],
        "rates": {
            what: window.rate(name, what)
            for what in ("emitted", "transferred", "executed", "acked", "failed", "timed_out")
        },
        "total": plain(total.total),
        "capacity": snapshot.capacity(window, name),
        "capacity_600": snapshot.capacity(busy, name),
        "execute_ms": recent.execute_ms,
        "process_ms": recent.process_ms,
        "complete_ms": recent.complete_ms,
        "inputs": _read(window, name),
        "held": total.held,
        "oldest_held_secs": total.oldest_held_secs,
        "awaiting_retry": total.awaiting_retry,
        "not_asked_secs": plain(total.not_asked_secs),
        "open": total.open,
        "oldest_open_secs": total.oldest_open_secs,
        "lag": total.lag,
        "lag_by_partition": dict(total.lag_by_partition),
        "outage": plain(total.outage) if seen.is_running else None,
        "outages": plain(total.outages) if seen.is_running else [],
        "errors": sum(error.component == name for error in snapshot.errors),
    }


def _acker_now(seen: Seen) -> Row:
    """What the graph shows of the acker: rates of the last seconds, and what is open."""
    snapshot = seen.snapshot
    window = snapshot.windows[RECENT]
    acker = window.stats.acker if seen.is_running else AckerNumbers()
    inputs = {
        stream: count / window.secs if window.secs > 0 else 0.0 for stream, count in acker.received.items()
    }
    return {
        "kind": "acker",
        "tasks": 1,
        "rates": {"executed": sum(inputs.values())},
        "inputs": inputs,
        "capacity": _share_of_acker(acker, window.secs),
        "settle_ms": acker.settle_ms,
        "open_roots": snapshot.acker.open_roots,
        "total": {what: getattr(snapshot.stats.acker, what) for what in (*_VERDICTS, *_SENT, "late")},
        "errors": 0,
    }


def _share_of_acker(acker: AckerNumbers, secs: float) -> float:
    """The share of the time that the acker took."""
    took_ms = (acker.settle_ms or 0.0) * sum(acker.settle_spread.values())
    return took_ms / 1000 / secs if secs > 0 else 0.0


def _read(window: Window, name: str) -> dict[str, float]:
    """Tuples a second that a bolt executes, by input: ``component:stream``."""
    streams = window.stats[name].streams
    return {
        stream: numbers.executed / window.secs if window.secs > 0 else 0.0
        for stream, numbers in streams.items()
        if ":" in stream
    }


def topology(seen: Seen) -> Row:
    """One topology: its graph with places to draw at, settings, errors, and where the time goes."""
    snapshot = seen.snapshot
    columns = layout(snapshot.graph)
    return _row(seen) | {
        "graph": plain(snapshot.graph),
        "places": {name: list(place) for name, place in columns.items()},
        "config": plain(snapshot.config),
        "errors": plain(snapshot.errors[-20:]),
        "acker": plain(snapshot.acker),
        "inbox": plain(snapshot.inbox),
        "keys": plain(snapshot.keys),
        "batch_ms": plain(snapshot.batch_ms),
        "host": snapshot.host,
        "pid": snapshot.pid,
        "user": snapshot.user,
        "version": snapshot.version,
        "began_ms": snapshot.began_ms,
        "stopped_by": plain(snapshot.stopped_by),
    }


def acker(seen: Seen, window: str) -> Row:
    """``__acker`` in one window."""
    snapshot = seen.snapshot
    chosen = snapshot.windows[window]
    numbers = chosen.stats.acker
    return {
        "id": snapshot.id,
        "topology": snapshot.topology,
        "name": ACKER,
        "about": {"kind": "acker"},
        "window": window,
        "secs": chosen.secs,
        "acker": plain(numbers) | {"open_roots": snapshot.acker.open_roots},
        "next_deadline_ms": snapshot.acker.next_deadline_ms,
        "capacity": _share_of_acker(numbers, chosen.secs),
        "latencies": {
            "settle": _percentiles(numbers.settle_spread),
            "batch": _percentiles(numbers.batch_spread),
        },
    }


def component(seen: Seen, name: str, window: str) -> Row:
    """One component in one window: tasks, streams and errors. KeyError for one that is not there."""
    snapshot = seen.snapshot
    about = snapshot.graph["components"][name]
    chosen = snapshot.windows[window]
    numbers = chosen.stats[name]
    return {
        "id": snapshot.id,
        "topology": snapshot.topology,
        "name": name,
        "about": plain(about),
        "window": window,
        "secs": chosen.secs,
        "now": _now(seen, name),
        "total": plain(numbers.total),
        "failed_by": plain(numbers.failed_by),
        "capacity": snapshot.capacity(chosen, name),
        "streams": plain(numbers.streams),
        "tasks": {
            task: plain(_task(numbers, task).total)
            | {"capacity": snapshot.capacities(chosen, name).get(task, 0.0)}
            | _held(_task(snapshot.stats[name], task))
            | {"not_asked_window": plain(_task(numbers, task).not_asked_secs)}
            for task in about["task_ids"]
        },
        "inputs": [plain(edge) for edge in snapshot.graph["subscriptions"] if edge["subscriber"] == name],
        "latencies": _latencies(numbers),
        "metrics": {key: _metric(metric) for key, metric in snapshot.stats[name].metrics.items()},
        "errors": [plain(error) for error in reversed(snapshot.errors) if error.component == name],
    }


def _task(numbers: ComponentStats, task: int) -> TaskStats:
    """The numbers of one task; those of one that has counted nothing are 0."""
    return numbers.tasks.get(task) or TaskStats(Numbers(), {})


def _held(known: TaskStats) -> Row:
    """The tuples that a task holds over micro-batches, and for how long a spout's was not asked."""
    return {
        "held": known.held,
        "oldest_held_secs": known.oldest_held_secs,
        "not_asked_secs": plain(known.not_asked_secs),
    }


def _latencies(numbers: ComponentStats) -> Row:
    """How latencies are spread, in milliseconds; of a spout the histogram is of whole runs alone."""
    complete = numbers.complete_ms
    latencies = {
        "execute": _percentiles(numbers.execute_spread),
        "process": _percentiles(numbers.process_spread),
    }
    if complete:
        at = {str(percent): complete.percentile(percent) for percent in _PERCENTS}
        latencies["complete"] = {"count": complete.count, "is_below": False, "ms": at}
    return {name: each for name, each in latencies.items() if each is not None}


def _percentiles(spread: Mapping[int, int]) -> Row | None:
    """The percentiles of counts by binary digits of microseconds; None without counts."""
    count, at = sum(spread.values()), {}
    for percent in _PERCENTS:
        seen = 0
        for digits, n in sorted(spread.items()):
            seen += n
            if seen * 100 >= count * percent:
                at[str(percent)] = 2**digits / 1000
                break
    return {"count": count, "is_below": True, "ms": at} if count else None


def _metric(metric: UserMetric) -> Row:
    """A metric of the user's own, of all runs on the checkpoint; durations in milliseconds."""
    return {
        "kind": metric.kind,
        "count": metric.count,
        "value": plain(metric.value),
        "mean": plain(metric.mean),
        "p50": plain(metric.percentile(50)),
        "p99": plain(metric.percentile(99)),
        "rates": plain(metric.rates),
    }
