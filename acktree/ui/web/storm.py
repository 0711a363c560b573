"""Storm's REST answers, made of snapshots: the same fields with the same types.

What has no meaning here is a constant: memory and CPU are 0, since Spark shares them out. ``failed`` contains
what timed out, as in Storm; ``timedOut`` beside it is ours.

Source: Storm's ``UIHelpers`` and its page "Storm UI REST API".
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from acktree.core.stats.statistics import Numbers, ReportedError
from acktree.ui.snapshot import ALL_TIME, STORM_WINDOWS, Snapshot
from acktree.ui.web.sources import Seen

__all__ = [
    "cluster_summary",
    "component_page",
    "duration",
    "history",
    "lag",
    "nimbuses",
    "stream_metrics",
    "supervisors",
    "topology_page",
    "topology_summary",
    "visualization",
    "visualization_init",
    "workers_of",
]

Row = dict[str, Any]
_SCHEDULER: Final = False
_FIRST_PORT: Final = 6700
_SHORT_ERROR: Final = 200
_RESOURCES: Final = (
    "requestedMemOnHeap", "requestedMemOffHeap", "requestedTotalMem", "requestedCpu",
    "assignedMemOnHeap", "assignedMemOffHeap", "assignedTotalMem", "assignedCpu",
)  # fmt: skip
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


def duration(secs: float) -> str:
    """A time as Storm writes it: ``1d 2h 3m 4s``, leading units left out."""
    left, parts = int(secs), list[str]()
    for unit, size in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join([*parts, f"{left}s"])


def _decimal(value: float | None) -> str:
    return f"{value or 0.0:.3f}"


def _pretty(window: str) -> str:
    return "All time" if window == ALL_TIME else duration(int(window))


def _encoded(text: str) -> str:
    return quote(text, safe="")


def _failed(numbers: Numbers) -> int:
    return numbers.failed + numbers.timed_out


def _tasks(snapshot: Snapshot, component: str) -> int:
    return int(snapshot.graph["components"][component]["parallelism"])


def _all_tasks(snapshot: Snapshot) -> int:
    return sum(_tasks(snapshot, name) for name in snapshot.graph["components"])


def _partitions(snapshot: Snapshot) -> int:
    return int(snapshot.graph["partitions"])


def cluster_summary(all_seen: Iterable[Seen], version: str, user: str, uptime_secs: int) -> Row:
    """``cluster/summary``."""
    snapshots = [seen.snapshot for seen in all_seen]
    slots = sum(map(_partitions, snapshots))
    tasks = sum(map(_all_tasks, snapshots))
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
        "schedulerDisplayResource": _SCHEDULER,
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
        slots = _partitions(snapshot)
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
        "schedulerDisplayResource": _SCHEDULER,
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
        "encodedId": _encoded(snapshot.id),
        "name": snapshot.topology,
        "owner": snapshot.user,
        "status": seen.status,
        "uptime": duration(snapshot.uptime_secs),
        "uptimeSeconds": snapshot.uptime_secs,
        "tasksTotal": _all_tasks(snapshot),
        "workersTotal": _partitions(snapshot),
        "executorsTotal": _all_tasks(snapshot),
        "replicationCount": 1,
        "schedulerInfo": None,
        **_resources(),
        "requestedGenericResources": "",
        "assignedGenericResources": "",
        "topologyVersion": None,
        "stormVersion": snapshot.version,
    }


def _resources() -> Row:
    return dict.fromkeys(_RESOURCES, 0.0)


def _window_of(snapshot: Snapshot, window: str) -> Row:
    """One row of ``topologyStats``, over all spouts for messages and all components for tuples."""
    stats = snapshot.windows[window].stats
    spouts = [stats[name].total for name in snapshot.spouts]
    acked = sum(numbers.acked for numbers in spouts)
    waited_ms = sum(numbers.acked * (numbers.complete_ms or 0.0) for numbers in spouts)
    return {
        "window": window,
        "windowPretty": _pretty(window),
        "emitted": sum(component.total.emitted for component in stats.components.values()),
        "transferred": sum(component.total.transferred for component in stats.components.values()),
        "completeLatency": _decimal(waited_ms / acked if acked else None),
        "acked": acked,
        "failed": sum(map(_failed, spouts)),
        "timedOut": sum(numbers.timed_out for numbers in spouts),
    }


def topology_page(seen: Seen, window: str) -> Row:
    """``topology/{id}``."""
    snapshot = seen.snapshot
    return topology_summary(seen) | {
        "user": snapshot.user,
        "window": window,
        "windowHint": _pretty(window),
        "msgTimeout": snapshot.config.get("topology.message.timeout.secs"),
        "configuration": dict(snapshot.config),
        "debug": bool(snapshot.config.get("topology.debug", False)),
        "samplingPct": 10,
        "schedulerDisplayResource": _SCHEDULER,
        "topologyStats": [_window_of(snapshot, each) for each in STORM_WINDOWS],
        "spouts": [_spout_row(snapshot, name, window) for name in snapshot.spouts],
        "bolts": [_bolt_row(snapshot, name, window) for name in snapshot.bolts],
        "workers": [_worker(snapshot, number) for number in range(_partitions(snapshot))],
        "visualizationTable": visualization_init(snapshot)["visualizationTable"],
    }


def _last_error(snapshot: Snapshot, component: str) -> Row:
    errors = [error for error in snapshot.errors if error.component == component]
    last = errors[-1] if errors else None
    return {"lastError": "" if last is None else last.reason[:_SHORT_ERROR]} | _about_error(snapshot, last)


def _about_error(snapshot: Snapshot, error: ReportedError | None) -> Row:
    at = None if error is None else error.at_ms // 1000
    return {
        "errorTime": at,
        "errorLapsedSecs": None if at is None else max(0, snapshot.taken_ms // 1000 - at),
        "errorHost": "" if error is None else snapshot.host,
        "errorPort": None if error is None else _FIRST_PORT,
        "errorWorkerLogLink": "",
    }


def _spout_row(snapshot: Snapshot, name: str, window: str) -> Row:
    numbers, now = snapshot.windows[window].stats[name].total, snapshot.stats[name]
    return {
        "spoutId": name,
        "encodedSpoutId": _encoded(name),
        "executors": _tasks(snapshot, name),
        "tasks": _tasks(snapshot, name),
        "emitted": numbers.emitted,
        "transferred": numbers.transferred,
        "acked": numbers.acked,
        "failed": _failed(numbers),
        "completeLatency": _decimal(numbers.complete_ms),
        **_resources(),
        **_last_error(snapshot, name),
        "open": now.open or 0,
        "oldestOpenSeconds": now.oldest_open_secs,
        "timedOut": numbers.timed_out,
        "lag": now.lag,
    }


def _bolt_row(snapshot: Snapshot, name: str, window: str) -> Row:
    numbers = snapshot.windows[window].stats[name].total
    return {
        "boltId": name,
        "encodedBoltId": _encoded(name),
        "executors": _tasks(snapshot, name),
        "tasks": _tasks(snapshot, name),
        "emitted": numbers.emitted,
        "transferred": numbers.transferred,
        "acked": numbers.acked,
        "failed": numbers.failed,
        "executed": numbers.executed,
        "executeLatency": _decimal(numbers.execute_ms),
        "processLatency": _decimal(numbers.process_ms),
        "capacity": _decimal(snapshot.windows[window].capacity(name)),
        **_resources(),
        **_last_error(snapshot, name),
    }


def _worker(snapshot: Snapshot, number: int) -> Row:
    tasks = {
        name: sum(task % _partitions(snapshot) == number for task in about["task_ids"])
        for name, about in snapshot.graph["components"].items()
    }
    return {
        "supervisorId": f"{snapshot.host}-{snapshot.pid}",
        "host": snapshot.host,
        "port": _FIRST_PORT + number,
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
        {"host": seen.snapshot.host, "port": _FIRST_PORT + number}
        for number in range(_partitions(seen.snapshot))
    ]
    return {"hostPortList": places, "logviewerPort": 0, "logviewerScheme": "http"}


def stream_metrics(seen: Seen, window: str) -> Row:
    """``topology/{id}/metrics``: by stream."""
    snapshot = seen.snapshot
    return {
        "window": window,
        "windowHint": _pretty(window),
        "spouts": [_spout_metrics(snapshot, name, window) for name in snapshot.spouts],
        "bolts": [_bolt_metrics(snapshot, name, window) for name in snapshot.bolts],
    }


def _by_stream(
    streams: Mapping[str, Numbers], value: Callable[[Numbers], object], *, is_input: bool = False
) -> list[Row]:
    rows = []
    for stream, numbers in streams.items():
        source, colon, name = stream.rpartition(":")
        if is_input == bool(colon):
            row: Row = {"stream_id": name, "value": value(numbers)}
            rows.append(row | ({"component_id": source} if is_input else {}))
    return rows


def _spout_metrics(snapshot: Snapshot, name: str, window: str) -> Row:
    streams = snapshot.windows[window].stats[name].streams
    return {
        "id": name,
        "emitted": _by_stream(streams, lambda numbers: numbers.emitted),
        "transferred": _by_stream(streams, lambda numbers: numbers.transferred),
        "acked": _by_stream(streams, lambda numbers: numbers.acked),
        "failed": _by_stream(streams, _failed),
        "complete_ms_avg": _by_stream(streams, lambda numbers: _decimal(numbers.complete_ms)),
    }


def _bolt_metrics(snapshot: Snapshot, name: str, window: str) -> Row:
    streams = snapshot.windows[window].stats[name].streams
    return {
        "id": name,
        "emitted": _by_stream(streams, lambda numbers: numbers.emitted),
        "transferred": _by_stream(streams, lambda numbers: numbers.transferred),
        "acked": _by_stream(streams, lambda numbers: numbers.acked, is_input=True),
        "failed": _by_stream(streams, lambda numbers: numbers.failed, is_input=True),
        "executed": _by_stream(streams, lambda numbers: numbers.executed, is_input=True),
        "executed_ms_avg": _by_stream(streams, lambda numbers: _decimal(numbers.execute_ms), is_input=True),
        "process_ms_avg": _by_stream(streams, lambda numbers: _decimal(numbers.process_ms), is_input=True),
    }


def lag(seen: Seen) -> Row:
    """``topology/{id}/lag``: of the spouts that report it."""
    rows = {}
    for name in seen.snapshot.spouts:
        waiting = seen.snapshot.stats[name].lag
        if waiting is not None:
            partition = {"consumerCommittedOffset": 0, "logHeadOffset": waiting, "lag": waiting}
            kind = str(seen.snapshot.graph["components"][name]["class"])
            rows[name] = {"spoutId": name, "spoutType": kind, "spoutLagResult": {name: {"0": partition}}}
    return rows


def _plain_name(text: str) -> str:
    return "s" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in text)


def visualization_init(snapshot: Snapshot) -> Row:
    """``topology/{id}/visualization-init``: the streams, four in a row."""
    streams = sorted({edge["stream"] for edge in snapshot.graph["subscriptions"]})
    cells = [{"stream": name, "sani-stream": _plain_name(name), "checked": True} for name in streams]
    rows = [{":row": cells[at : at + 4]} for at in range(0, len(cells), 4)]
    return {"visualizationTable": rows}


def visualization(seen: Seen, window: str) -> Row:
    """``topology/{id}/visualization``."""
    snapshot = seen.snapshot
    nodes = {}
    for name, about in snapshot.graph["components"].items():
        component = snapshot.windows[window].stats[name]
        is_spout = about["kind"] == "spout"
        latency = component.total.complete_ms if is_spout else component.total.process_ms
        sent = {
            each: {
                stream: numbers.transferred
                for stream, numbers in snapshot.windows[each].stats[name].streams.items()
                if ":" not in stream
            }
            for each in STORM_WINDOWS
        }
        place = {
            ":host": snapshot.host,
            ":port": _FIRST_PORT,
            ":uptime_secs": snapshot.uptime_secs,
            ":transferred": sent,
        }
        nodes[name] = {
            ":type": about["kind"],
            ":capacity": _decimal(snapshot.windows[window].capacity(name)),
            ":latency": _decimal(latency),
            ":transferred": component.total.transferred,
            ":stats": [place],
            ":inputs": [
                {
                    ":component": edge["source"],
                    ":stream": edge["stream"],
                    ":sani-stream": _plain_name(edge["stream"]),
                    ":grouping": edge["grouping"].partition(" ")[0],
                }
                for edge in snapshot.graph["subscriptions"]
                if edge["subscriber"] == name
            ],
        }
    return nodes


def component_page(seen: Seen, name: str, window: str) -> Row:
    """``topology/{id}/component/{c}``. KeyError for an unknown component."""
    snapshot = seen.snapshot
    about = snapshot.graph["components"][name]
    errors = [error for error in snapshot.errors if error.component == name]
    page = {
        "user": snapshot.user,
        "id": name,
        "encodedId": _encoded(name),
        "name": snapshot.topology,
        "executors": about["parallelism"],
        "tasks": about["parallelism"],
        **_resources(),
        "schedulerDisplayResource": _SCHEDULER,
        "topologyId": snapshot.id,
        "encodedTopologyId": _encoded(snapshot.id),
        "topologyStatus": seen.status,
        "window": window,
        "windowHint": _pretty(window),
        "componentType": about["kind"],
        "debug": bool(snapshot.config.get("topology.debug", False)),
        "samplingPct": 10,
        "eventLogLink": "",
        "profilingAndDebuggingCapable": False,
        "profileActionEnabled": False,
        "profilerActive": [],
        "componentErrors": [
            _about_error(snapshot, error) | {"error": error.traceback or error.reason}
            for error in reversed(errors)
        ],
    }
    return page | (_spout_page if about["kind"] == "spout" else _bolt_page)(snapshot, name, window)


def _spout_page(snapshot: Snapshot, name: str, window: str) -> Row:
    component = snapshot.windows[window].stats[name]
    return {
        "spoutSummary": [
            {"window": each, "windowPretty": _pretty(each)}
            | _spout_numbers(snapshot.windows[each].stats[name].total, text=False)
            for each in STORM_WINDOWS
        ],
        "outputStats": [
            {"stream": stream} | _spout_numbers(numbers) for stream, numbers in component.streams.items()
        ],
        "executorStats": [
            _executor(snapshot, task) | _spout_numbers(numbers.total)
            for task, numbers in component.tasks.items()
        ],
    }


def _spout_numbers(numbers: Numbers, *, text: bool = True) -> Row:
    return {
        "emitted": numbers.emitted,
        "transferred": numbers.transferred,
        "completeLatency": _decimal(numbers.complete_ms) if text else numbers.complete_ms or 0.0,
        "acked": numbers.acked,
        "failed": _failed(numbers),
    }


def _bolt_page(snapshot: Snapshot, name: str, window: str) -> Row:
    chosen = snapshot.windows[window]
    component = chosen.stats[name]
    inputs, outputs = [], []
    for stream, numbers in component.streams.items():
        source, colon, read = stream.rpartition(":")
        if colon:
            where = {"component": source, "encodedComponentId": _encoded(source), "stream": read}
            inputs.append(where | _input_numbers(numbers))
        else:
            sent = {"emitted": numbers.emitted, "transferred": numbers.transferred}
            outputs.append({"stream": stream} | sent)
    return {
        "boltStats": [
            {"window": each, "windowPretty": _pretty(each)}
            | _bolt_numbers(snapshot.windows[each].stats[name].total, snapshot.windows[each].capacity(name))
            for each in STORM_WINDOWS
        ],
        "inputStats": inputs,
        "outputStats": outputs,
        "executorStats": [
            _executor(snapshot, task) | _bolt_numbers(numbers.total, chosen.task_capacity(name, task))
            for task, numbers in component.tasks.items()
        ],
    }


def _input_numbers(numbers: Numbers) -> Row:
    return {
        "executed": numbers.executed,
        "executeLatency": _decimal(numbers.execute_ms),
        "processLatency": _decimal(numbers.process_ms),
        "acked": numbers.acked,
        "failed": numbers.failed,
    }


def _bolt_numbers(numbers: Numbers, capacity: float) -> Row:
    sent = {"emitted": numbers.emitted, "transferred": numbers.transferred, "capacity": _decimal(capacity)}
    return sent | _input_numbers(numbers)


def _executor(snapshot: Snapshot, task: int) -> Row:
    name = f"[{task}-{task}]"
    return {
        "id": name,
        "encodedId": _encoded(name),
        "uptime": duration(snapshot.uptime_secs),
        "uptimeSeconds": snapshot.uptime_secs,
        "host": snapshot.host or socket.gethostname(),
        "port": _FIRST_PORT + task % _partitions(snapshot),
        "workerLogLink": "",
    }
