"""Storm's REST answers about components: pages, numbers by stream, and the visualization."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from acktree.core.stats.numbers import Numbers
from acktree.ui.snapshot import STORM_WINDOWS, Snapshot
from acktree.ui.web.sources import Seen
from acktree.ui.web.storm_rows import (
    FIRST_PORT,
    SCHEDULER,
    Row,
    about_error,
    debugged,
    decimal,
    duration,
    encoded,
    failed_of,
    partitions_of,
    pretty,
    resources,
)

__all__ = ["component_page", "stream_metrics", "visualization", "visualization_init"]


def stream_metrics(seen: Seen, window: str) -> Row:
    """``topology/{id}/metrics``: by stream."""
    snapshot = seen.snapshot
    return {
        "window": window,
        "windowHint": pretty(window),
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
        "failed": _by_stream(streams, failed_of),
        "complete_ms_avg": _by_stream(streams, lambda numbers: decimal(numbers.complete_ms)),
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
        "executed_ms_avg": _by_stream(streams, lambda numbers: decimal(numbers.execute_ms), is_input=True),
        "process_ms_avg": _by_stream(streams, lambda numbers: decimal(numbers.process_ms), is_input=True),
    }


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
            ":port": FIRST_PORT,
            ":uptime_secs": snapshot.uptime_secs,
            ":transferred": sent,
        }
        nodes[name] = {
            ":type": about["kind"],
            ":capacity": decimal(snapshot.capacity(snapshot.windows[window], name)),
            ":latency": decimal(latency),
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
        "encodedId": encoded(name),
        "name": snapshot.topology,
        "executors": about["parallelism"],
        "tasks": about["parallelism"],
        **resources(),
        "schedulerDisplayResource": SCHEDULER,
        "topologyId": snapshot.id,
        "encodedTopologyId": encoded(snapshot.id),
        "topologyStatus": seen.status,
        "window": window,
        "windowHint": pretty(window),
        "componentType": about["kind"],
        **debugged(snapshot, name),
        "eventLogLink": "",
        "profilingAndDebuggingCapable": False,
        "profileActionEnabled": False,
        "profilerActive": [],
        "componentErrors": [
            about_error(snapshot, error) | {"error": error.traceback or error.reason}
            for error in reversed(errors)
        ],
    }
    return page | (_spout_page if about["kind"] == "spout" else _bolt_page)(snapshot, name, window)


def _spout_page(snapshot: Snapshot, name: str, window: str) -> Row:
    component = snapshot.windows[window].stats[name]
    return {
        "spoutSummary": [
            {"window": each, "windowPretty": pretty(each)}
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
        "completeLatency": decimal(numbers.complete_ms) if text else numbers.complete_ms or 0.0,
        "acked": numbers.acked,
        "failed": failed_of(numbers),
    }


def _bolt_page(snapshot: Snapshot, name: str, window: str) -> Row:
    chosen = snapshot.windows[window]
    component = chosen.stats[name]
    inputs, outputs = [], []
    for stream, numbers in component.streams.items():
        source, colon, read = stream.rpartition(":")
        if colon:
            where = {"component": source, "encodedComponentId": encoded(source), "stream": read}
            inputs.append(where | _input_numbers(numbers))
        else:
            sent = {"emitted": numbers.emitted, "transferred": numbers.transferred}
            outputs.append({"stream": stream} | sent)
    return {
        "boltStats": [
            {"window": each, "windowPretty": pretty(each)}
            | _bolt_numbers(
                snapshot.windows[each].stats[name].total, snapshot.capacity(snapshot.windows[each], name)
            )
            for each in STORM_WINDOWS
        ],
        "inputStats": inputs,
        "outputStats": outputs,
        "executorStats": [
            _executor(snapshot, task)
            | _bolt_numbers(numbers.total, snapshot.capacities(chosen, name).get(task, 0.0))
            for task, numbers in component.tasks.items()
        ],
    }


def _input_numbers(numbers: Numbers) -> Row:
    return {
        "executed": numbers.executed,
        "executeLatency": decimal(numbers.execute_ms),
        "processLatency": decimal(numbers.process_ms),
        "acked": numbers.acked,
        "failed": numbers.failed,
    }


def _bolt_numbers(numbers: Numbers, capacity: float) -> Row:
    sent = {"emitted": numbers.emitted, "transferred": numbers.transferred, "capacity": decimal(capacity)}
    return sent | _input_numbers(numbers)


def _executor(snapshot: Snapshot, task: int) -> Row:
    name = f"[{task}-{task}]"
    return {
        "id": name,
        "encodedId": encoded(name),
        "uptime": duration(snapshot.uptime_secs),
        "uptimeSeconds": snapshot.uptime_secs,
        "host": snapshot.host or socket.gethostname(),
        "port": FIRST_PORT + task % partitions_of(snapshot),
        "workerLogLink": "",
    }
