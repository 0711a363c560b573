"""Storm's REST answers about components: pages, and numbers by stream."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from acktree.core.stats.counters import ACKER, ACKER_ACK, ACKER_FAIL, ACKER_TASK
from acktree.core.stats.numbers import AckerNumbers, Numbers
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


def stream_metrics(seen: Seen, window: str, *, with_acker: bool = False) -> Row:
    """``topology/{id}/metrics``: by stream."""
    snapshot = seen.snapshot
    bolts = [_bolt_metrics(snapshot, name, window) for name in snapshot.bolts]
    return {
        "window": window,
        "windowHint": pretty(window),
        "spouts": [_spout_metrics(snapshot, name, window) for name in snapshot.sources],
        "bolts": [*bolts, *([_acker_metrics(snapshot, window)] if with_acker else [])],
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


def _acker_metrics(snapshot: Snapshot, window: str) -> Row:
    """``__acker`` in ``topology/{id}/metrics``. It acks each tuple that it is sent, as Storm's does."""
    acker = snapshot.windows[window].stats.acker

    def by_input(value: object = None) -> list[Row]:
        rows = []
        for received, count in acker.received.items():
            source, _, stream = received.rpartition(":")
            said = count if value is None else value
            rows.append({"stream_id": stream, "value": said, "component_id": source})
        return rows

    sent = [{"stream_id": stream, "value": count} for stream, count in sent_by_acker(acker).items()]
    latency = decimal(_ms_a_tuple(acker))
    return {
        "id": ACKER,
        "emitted": sent,
        "transferred": sent,
        "acked": by_input(),
        "failed": by_input(0),
        "executed": by_input(),
        "executed_ms_avg": by_input(latency),
        "process_ms_avg": by_input(latency),
    }


def sent_by_acker(acker: AckerNumbers) -> dict[str, int]:
    """The acker's verdicts by Storm's streams: what timed out counts as failed."""
    return {ACKER_ACK: acker.acked, ACKER_FAIL: acker.failed + acker.timed_out}


def _executed_by_acker(acker: AckerNumbers) -> int:
    return sum(acker.received.values())


def _ms_a_tuple(acker: AckerNumbers) -> float | None:
    """How long the acker took for a tuple that it was sent."""
    executed = _executed_by_acker(acker)
    return _settled_ms(acker) / executed if executed else None


def _settled_ms(acker: AckerNumbers) -> float:
    return (acker.settle_ms or 0.0) * sum(acker.settle_spread.values())


def acker_numbers(snapshot: Snapshot, window: str) -> Row:
    """The numbers of ``__acker`` in a window, as those of a bolt; and ours, in the words of our own REST."""
    chosen = snapshot.windows[window]
    acker = chosen.stats.acker
    sent, executed = sum(sent_by_acker(acker).values()), _executed_by_acker(acker)
    return {
        "emitted": sent,
        "transferred": sent,
        "capacity": decimal(_settled_ms(acker) / 1000 / chosen.secs if chosen.secs > 0 else None),
        "executed": executed,
        "executeLatency": decimal(_ms_a_tuple(acker)),
        "processLatency": decimal(_ms_a_tuple(acker)),
        "acked": executed,
        "failed": 0,
    }


def own_acker_numbers(acker: AckerNumbers, now: AckerNumbers) -> Row:
    """What Storm does not have of its acker, or only as streams; ``now`` is of the run."""
    counts = ("inits", "acks", "fails", "resets", "late")
    return {what: getattr(acker, what) for what in counts} | {
        "timedOut": acker.timed_out,
        "microBatches": acker.micro_batches,
        "settleLatency": decimal(acker.settle_ms),
        "openRoots": now.open_roots,
    }


def _acker_page(snapshot: Snapshot, _: str, window: str) -> Row:
    acker = snapshot.windows[window].stats.acker
    latency = decimal(_ms_a_tuple(acker))
    inputs = []
    for received, count in acker.received.items():
        source, _colon, stream = received.rpartition(":")
        where = {"component": source, "encodedComponentId": encoded(source), "stream": stream}
        said = {"executed": count, "executeLatency": latency, "processLatency": latency}
        inputs.append(where | said | {"acked": count, "failed": 0})
    return own_acker_numbers(acker, snapshot.acker) | {
        "boltStats": [
            {"window": length, "windowPretty": pretty(length)} | acker_numbers(snapshot, length)
            for length in STORM_WINDOWS
        ],
        "inputStats": inputs,
        "outputStats": [
            {"stream": stream, "emitted": count, "transferred": count}
            for stream, count in sent_by_acker(acker).items()
        ],
        "executorStats": [_executor(snapshot, ACKER_TASK) | acker_numbers(snapshot, window)],
    }


def component_page(seen: Seen, name: str, window: str) -> Row:
    """``topology/{id}/component/{c}``, ``__acker`` too. KeyError for an unknown component."""
    snapshot = seen.snapshot
    if name == ACKER and snapshot.has_acker:
        about: Mapping[str, Any] = {"kind": "bolt", "parallelism": 1}
    else:
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
    if name == ACKER:
        return page | _acker_page(snapshot, name, window)
    return page | (_spout_page if about["kind"] == "spout" else _bolt_page)(snapshot, name, window)


def _spout_page(snapshot: Snapshot, name: str, window: str) -> Row:
    component = snapshot.windows[window].stats[name]
    return {
        "spoutSummary": [
            {"window": length, "windowPretty": pretty(length)}
            | _spout_numbers(snapshot.windows[length].stats[name].total, text=False)
            for length in STORM_WINDOWS
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
            {"window": length, "windowPretty": pretty(length)}
            | _bolt_numbers(
                snapshot.windows[length].stats[name].total, snapshot.capacity(snapshot.windows[length], name)
            )
            for length in STORM_WINDOWS
        ],
        "inputStats": inputs,
        "outputStats": outputs,
        "executorStats": [
            _executor(snapshot, task)
            | _bolt_numbers(numbers.total, snapshot.capacities(chosen, name).get(task, 0.0))
            | {"held": numbers.held or 0, "oldestHeldSeconds": numbers.oldest_held_secs}
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
