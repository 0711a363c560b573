"""The recorder of a run, and where its traces are exported to. OpenTelemetry is an optional dependency."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from acktree.config import Config
from acktree.errors import AcktreeError, ConfigError, installing
from acktree.logs.loggers import logger
from acktree.logs.private_urls import masked_text
from acktree.tasks.plan import Plan
from acktree.texts import error_text
from acktree.topology.model import Topology
from acktree.traces.recorder import Export, TraceRecorder
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.traces import FILE, Traces

log = logger("acktree")

_SYSTEMS: Final = {
    "kafka": "kafka",
    "kestrel": "kestrel",
    "nats": "nats",
    "rabbitmq": "rabbitmq",
    "redis": "redis",
    "sqs": "aws_sqs",
}
"""The module of a connector -> the name of its system in OpenTelemetry's conventions."""


def refuse_missing_exporter(config: Config, who: str) -> None:
    """Refuse settings that need the extra where it is not installed.

    Raises:
        ConfigError: OpenTelemetry's exporter is not installed.
    """
    if config.otlp_endpoint is None:
        return
    try:
        import acktree.traces.otlp  # noqa: F401, PLC0415  # the extra, which takes a third of a second
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed, and traces are to be exported",
            f"{who}(config=Config(otlp_endpoint=...))",
            f"{installing('otel')}; or leave otlp_endpoint out",
        ) from error
    except Exception as error:  # noqa: BLE001  # of the SDK, as in _export(), which logs a warning
        log.debug("OpenTelemetry cannot be imported: %s", error)


def recorder_of_run(
    folder: Path | None, plan: Plan, config: Config, now_ms: Callable[[], int], version: str
) -> TraceRecorder:
    """Make the recorder of a run.

    Args:
        folder: The checkpoint's; None: traces are kept in memory.
        config: The settings, with passwords.
        version: Of acktree.
    """
    store = None
    try:
        store = TraceStore(IN_MEMORY if folder is None else folder / FILE)
    except (AcktreeError, OSError, sqlite3.Error) as error:
        log.warning("topology=%s records no traces: %s", plan.topology.name, error)
    export = None if store is None else _export(config, plan.topology, store, version)
    return TraceRecorder(store, plan.trace_rate, plan.run_salt, now_ms, export=export)


def _export(config: Config, topology: Topology, store: TraceStore, version: str) -> Export | None:
    if config.otlp_endpoint is None:
        return None
    read, systems = Traces(store).get, messaging_systems(topology)
    try:
        from acktree.traces.otlp import TraceExport  # noqa: PLC0415  # the extra

        return TraceExport(config.otlp_endpoint, topology.name, read, systems, version)
    except Exception as error:  # noqa: BLE001  # of the SDK: an environment variable is wrong
        why = masked_text(error_text(error), config.otlp_endpoint)
        log.warning("topology=%s: no traces are exported: %s", topology.name, why)
        return None


def messaging_systems(topology: Topology) -> Mapping[str, str]:
    """Spout -> the messaging system that it reads, of those that a connector of acktree reads."""
    systems: dict[str, str] = {}
    for spout in topology.spouts:
        for kind in reversed(type(spout.user_object).__mro__):
            _, _, name = kind.__module__.partition("acktree.connectors.")
            system = _SYSTEMS.get(name.partition(".")[0])
            if system is not None:
                systems[spout.id] = system
    return systems
