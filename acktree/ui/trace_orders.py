"""The order to trace more: another share of all messages, or those that an operator names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acktree.errors import ConfigError
from acktree.tasks.spouts.watched_ids import WATCH_SECS
from acktree.traces.traces import Traces
from acktree.ui.known_names import read_order

__all__ = ["carry_out"]


def carry_out(traces: Traces, given: Mapping[str, Any], most_per_sec: float | None) -> dict[str, Any]:
    """Carry out an order; returns what holds now.

    Args:
        traces: Those of the topology, which runs.
        given: ``rate``; or ``message_ids`` and perhaps ``secs``.
        most_per_sec: The bound of the settings.

    Raises:
        ConfigError: It names neither a rate nor messages, or both.
        MisuseError: There is no such share, these cannot be watched, or not for such a time.
    """
    read = read_order("trace", given)
    rate, message_ids, secs = (read.get(name) for name in ("rate", "message_ids", "secs"))
    if (rate is None) is (message_ids is None):
        what = "neither a rate nor message ids" if rate is None else "a rate and message ids"
        fix = 'give one of them: {"rate": 0.01}, or {"message_ids": ["line-7"], "secs": 300}'
        raise ConfigError(f"the order has {what}", "trace", fix)
    if message_ids is not None:
        traces.watch(message_ids, WATCH_SECS if secs is None else secs)
        return {"done": True, "watched": dict(traces.watched)}
    if secs is not None:
        raise ConfigError("a rate holds until the run ends", "trace, secs=", "leave secs out")
    traces.rate = read["rate"]
    return {"done": True, "rate": traces.rate, "most_per_sec": most_per_sec if 0 < traces.rate < 1 else None}
