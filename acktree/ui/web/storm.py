"""Storm's REST answers, made of snapshots: the same fields with the same types.

What has no meaning here is a constant: memory and CPU are 0, since Spark shares them out. ``failed`` contains
what timed out, as in Storm; ``timedOut`` beside it is ours.

Source: Storm's ``UIHelpers`` and its page "Storm UI REST API".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from acktree.core.stats.counters import ACKER
from acktree.ui.snapshot import STORM_WINDOWS, Snapshot
from acktree.ui.web.sources import Seen
from acktree.ui.web.storm_components import acker_numbers, own_acker_numbers
from acktree.ui.web.storm_rows import (
    FIRST_PORT,
    SCHEDULER,
    Row,
    about_error,
    all_tasks,
    debugged,
    decimal,
    duration,
    encoded,
    failed_of,
    partitions_of,
    pretty,
    resources,
    tasks_of,
)
from acktree.ui.web.storm_visualization import visualization_init

_SHORT_ERROR: Final = 200


def cluster_summary(all_seen: Iterable[Seen], version: str, user: str, uptime_secs: int) -> Row:
    """``cluster/summary``."""
    snapshots = [seen.snapshot for seen in all_seen]
    slots = sum(map(partitions_of, snapshots))
    tasks = sum(map(all_tasks, snapshots))
    return {
        "user": user,
        "stormVersion": version,
        "stormVersionInfo": {"version": version, "revision": "", "branch": "", "date": ""},
        "nimbusUptime": duration(uptime_secs),
        "supervisors": len({snapshot.host for snapshot in snapshots}),
        "topologies": len(snapshots),
        "slotsTotal": slots,
        "slotsUsed": slots,
        "slotsFree": 0,
        "executorsTotal": tasks,
        "tasksTotal": tasks,
        "totalMem": 0.0,
        "totalCpu": 0.0,
        "availMem": 0.0,
        "availCpu": 0.0,
        "fragmentedMem": 0.0,
        "fragmentedCpu": 0.0,
        "memAssignedPercentUtil": "0.0",
        "cpuAssignedPercentUtil": "0.0",
        "schedulerDisplayResource": SCHEDULER,
        "bugtracker-url": None,
        "central-log-url": None,
    }


def nimbuses(version: str, host: str, port: int, uptime_secs: int) -> Row:
    """``nimbus/summary``: the page's own process."""
    return {
        "nimbuses": [
            {
                "host": host,
                "port": port,
                "status": "Leader",
                "version": version,
                "nimbusUpTime": duration(uptime_secs),
                "nimbusUpTimeSeconds": str(uptime_secs),
                "nimbusLogLink": "",
            }
        ]
    }


def supervisors(all_seen: Iterable[Seen]) -> Row:
    """``supervisor/summary``: one for each driver."""
    rows = []
    for snapshot in (seen.snapshot for seen in all_seen):
        slots = partitions_of(snapshot)
        rows.append(
            {
                "id": f"{snapshot.host}-{snapshot.pid}",
                "host": snapshot.host,
                "uptime": duration(snapshot.uptime_secs),
                "uptimeSeconds": snapshot.uptime_secs,
                "slotsTotal": slots,
                "slotsUsed": slots,
                "slotsFree": 0,
                "totalMem": 0.0,
                "totalCpu": 0.0,
                "usedMem": 0.0,
                "usedCpu": 0.0,
                "availMem": 0.0,
                "availCpu": 0.0,
                "version": snapshot.version,
                "blacklisted": False,
            }
        )
    return {
        "supervisors": rows,
        "schedulerDisplayResource": SCHEDULER,
        "logviewerPort": 0,
        "logviewerScheme": "http",
    }


def history(all_seen: Iterable[Seen]) -> Row:
    """``history/summary``: the runs that are known."""
    return {"topo-history": sorted(seen.snapshot.id for seen in all_seen)}


def topology_summary(seen: Seen) -> Row:
    """One topology of ``topology/summary``."""
    snapshot = seen.snapshot
    return {
        "id": snapshot.id,
        "encodedId": encoded(snapshot.id),
        "name": snapshot.topology,
        "owner": snapshot.user,
        "status": seen.status,
        "uptime": duration(snapshot.uptime_secs),
        "uptimeSeconds": snapshot.uptime_secs,
        "tasksTotal": all_tasks(snapshot),
        "workersTotal": partitions_of(snapshot),
        "executorsTotal": all_tasks(snapshot),
        "replicationCount": 1,
        "schedulerInfo": None,
        **resources(),
        "requestedGenericResources": "",
        "assignedGenericResources": "",
        "topologyVersion": None,
        "stormVersion": snapshot.version,
    }


def _window_of(snapshot: Snapshot, window: str) -> Row:
    """One row of ``topologyStats``, over all spouts for messages and all components for tuples.

    Without gates: what passes one is no new message, and its tuples are counted where they were emitted.
    """
    stats = snapshot.windows[window].stats
    spouts = [stats[name].total for name in snapshot.spouts]
    acked = sum(numbers.acked for numbers in spouts)
    senders = [component.total for name, component in stats.components.items() if name not in snapshot.gates]
    waited_ms = sum(numbers.acked * (numbers.complete_ms or 0.0) for numbers in spouts)
    return {
        "window": window,
        "windowPretty": pretty(window),
        "emitted": sum(numbers.emitted for numbers in senders),
        "transferred": sum(numbers.transferred for numbers in senders),
        "completeLatency": decimal(waited_ms / acked if acked else None),
        "acked": acked,
        "failed": sum(map(failed_of, spouts)),
        "timedOut": sum(numbers.timed_out for numbers in spouts),
    }


def topology_page(seen: Seen, window: str, *, with_acker: bool = False) -> Row:
    """``topology/{id}``; ``sys=true`` shows ``__acker`` among the bolts."""
    snapshot = seen.snapshot
    bolts = [_bolt_row(snapshot, name, window) for name in snapshot.bolts]
    return topology_summary(seen) | {
        "user": snapshot.user,
        "window": window,
        "windowHint": pretty(window),
        "msgTimeout": snapshot.config.get("topology.message.timeout.secs"),
        "configuration": dict(snapshot.config),
        **debugged(snapshot),
        "schedulerDisplayResource": SCHEDULER,
        "topologyStats": [_window_of(snapshot, length) for length in STORM_WINDOWS],
        "spouts": [_spout_row(snapshot, name, window) for name in snapshot.sources],
        "bolts": [*bolts, *([_acker_row(snapshot, window)] if with_acker else [])],
        "workers": [_worker(snapshot, number) for number in range(partitions_of(snapshot))],
        **visualization_init(seen, with_acker=with_acker),
    }


def _last_error(snapshot: Snapshot, component: str) -> Row:
    errors = [error for error in snapshot.errors if error.component == component]
    last = errors[-1] if errors else None
    return {"lastError": "" if last is None else last.reason[:_SHORT_ERROR]} | about_error(snapshot, last)


def _spout_row(snapshot: Snapshot, name: str, window: str) -> Row:
    numbers, now = snapshot.windows[window].stats[name].total, snapshot.stats[name]
    return {
        "spoutId": name,
        "encodedSpoutId": encoded(name),
        "executors": tasks_of(snapshot, name),
        "tasks": tasks_of(snapshot, name),
        "emitted": numbers.emitted,
        "transferred": numbers.transferred,
        "acked": numbers.acked,
        "failed": failed_of(numbers),
        "completeLatency": decimal(numbers.complete_ms),
        **resources(),
        **_last_error(snapshot, name),
        "open": now.open or 0,
        "oldestOpenSeconds": now.oldest_open_secs,
        "awaitingRetry": now.awaiting_retry or 0,
        "timedOut": numbers.timed_out,
        "retried": numbers.retried,
        "deadLetters": numbers.dead_lettered,
        "lag": now.lag,
        "gateOf": snapshot.graph["components"][name].get("gate_of", ""),
        "superseded": numbers.superseded,
    }


def _bolt_row(snapshot: Snapshot, name: str, window: str) -> Row:
    numbers = snapshot.windows[window].stats[name].total
    return {
        "boltId": name,
        "encodedBoltId": encoded(name),
        "executors": tasks_of(snapshot, name),
        "tasks": tasks_of(snapshot, name),
        "emitted": numbers.emitted,
        "transferred": numbers.transferred,
        "acked": numbers.acked,
        "failed": numbers.failed,
        "executed": numbers.executed,
        "executeLatency": decimal(numbers.execute_ms),
        "processLatency": decimal(numbers.process_ms),
        "capacity": decimal(snapshot.capacity(snapshot.windows[window], name)),
        **resources(),
        **_last_error(snapshot, name),
        "held": snapshot.stats[name].held or 0,
        "oldestHeldSeconds": snapshot.stats[name].oldest_held_secs,
    }


def _acker_row(snapshot: Snapshot, window: str) -> Row:
    acker = snapshot.windows[window].stats.acker
    return {
        "boltId": ACKER,
        "encodedBoltId": encoded(ACKER),
        "executors": 1,
        "tasks": 1,
        **acker_numbers(snapshot, window),
        **resources(),
        **_last_error(snapshot, ACKER),
        "held": 0,
        "oldestHeldSeconds": None,
        **own_acker_numbers(acker, snapshot.acker),
    }


def _worker(snapshot: Snapshot, number: int) -> Row:
    tasks = {
        name: sum(task % partitions_of(snapshot) == number for task in about["task_ids"])
        for name, about in snapshot.graph["components"].items()
    }
    return {
        "supervisorId": f"{snapshot.host}-{snapshot.pid}",
        "host": snapshot.host,
        "port": FIRST_PORT + number,
        "topologyId": snapshot.id,
        "topologyName": snapshot.topology,
        "executorsTotal": sum(tasks.values()),
        "assignedMemOnHeap": 0.0,
        "assignedMemOffHeap": 0.0,
        "assignedCpu": 0.0,
        "componentNumTasks": {name: count for name, count in tasks.items() if count},
        "uptime": duration(snapshot.uptime_secs),
        "uptimeSeconds": snapshot.uptime_secs,
        "workerLogLink": "",
        "owner": snapshot.user,
    }


def workers_of(seen: Seen) -> Row:
    """``topology-workers/{id}``."""
    places = [
        {"host": seen.snapshot.host, "port": FIRST_PORT + number}
        for number in range(partitions_of(seen.snapshot))
    ]
    return {"hostPortList": places, "logviewerPort": 0, "logviewerScheme": "http"}


def lag(seen: Seen) -> Row:
    """``topology/{id}/lag``: of the spouts that report it."""
    rows = {}
    for name in seen.snapshot.sources:
        numbers = seen.snapshot.stats[name]
        if numbers.lag is not None:
            partitions = {
                partition: {"consumerCommittedOffset": 0, "logHeadOffset": waiting, "lag": waiting}
                for partition, waiting in (numbers.lag_by_partition or {"0": numbers.lag}).items()
            }
            kind = str(seen.snapshot.graph["components"][name]["class"])
            rows[name] = {"spoutId": name, "spoutType": kind, "spoutLagResult": {name: partitions}}
    return rows
