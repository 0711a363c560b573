"""The metrics that user code of a task registers: made for the task, and read when something is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from time import perf_counter
from types import MappingProxyType
from typing import Any

from acktree.core.data.context import TaskServices
from acktree.core.data.instruments import Increment, Instruments
from acktree.errors import HookError
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text


def task_services(resources: Mapping[str, Any] = MappingProxyType({})) -> TaskServices:
    """What the context of a new task calls. Its metrics may be used by any thread.

    Args:
        resources: What worker hooks have set in this process.
    """
    return TaskServices(Instruments(perf_counter, Lock()), resources)


def grown_metrics(services: TaskServices, report: Callable[[Exception], None]) -> dict[str, Increment]:
    """What the metrics of a task grew by since this was called last.

    Args:
        services: Of the task. The ``read`` of its gauges is called here: for a bolt by its task at the end of
            a micro-batch, for a spout by the driver's thread that commits one or asks for the numbers.
        report: Takes what the ``read`` of a gauge raised.
    """
    for gauge in services.instruments.gauges():
        had_raised, gauge.has_raised = gauge.has_raised, False
        try:
            gauge.look()
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            gauge.has_raised = True
            if had_raised:
                continue
            report(
                HookError(
                    f"the read of gauge {gauge.name!r} raised: {error_text(error)}",
                    "context.register_gauge()",
                    "correct what the exception says; the gauge keeps its last value",
                )
            )
    return services.instruments.taken()
