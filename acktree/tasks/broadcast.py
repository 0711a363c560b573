"""What the driver tells all partitions of a level in one micro-batch.

It is data of the micro-batch, so a second run sees the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from acktree.core.data.frames import Kind, WireRow


@dataclass(frozen=True, slots=True)
class OperatorOrder:
    """Operators' order: how many rows of a DataFrame are traced, and whose tuples are logged.

    Attributes:
        trace_rate: The share of messages that is traced, 0 to 1. Spout tasks draw it, and the source level
            of rows of a DataFrame.
        debug: Component -> the share of messages whose tuples it logs, 0 to 1; "" for all components that
            are not named.
    """

    trace_rate: float
    debug: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def logs(self, component: str) -> float:
        """The share of messages whose tuples a component logs."""
        return self.debug.get(component, self.debug.get("", 0.0))

    @property
    def debug_percents(self) -> dict[str, float]:
        """``debug`` as operators give it: percentages, 0 to 100."""
        return {component: round(100 * share, 6) for component, share in self.debug.items()}

    def to_bytes(self) -> bytes:
        """For the inbox and the wire; :meth:`from_bytes` reads it."""
        return json.dumps({"trace_rate": self.trace_rate, "debug": dict(self.debug)}).encode()

    @classmethod
    def from_bytes(cls, blob: bytes | memoryview) -> OperatorOrder:
        """Read what :meth:`to_bytes` wrote."""
        parts = json.loads(bytes(blob))
        return cls(float(parts["trace_rate"]), parts["debug"])


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The parts of one broadcast; a part that is not said is None or empty.

    Attributes:
        ticks: Bolt -> the interval in seconds of its tick that is due.
        order: Operators' order, while there is one.
        end: The number of the last inbox entry of the micro-batch. For the driver.
        is_first: Whether a run begins with the micro-batch. For the driver, and for levels with sinks.
    """

    ticks: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    order: OperatorOrder | None = None
    end: int | None = None
    is_first: bool = False

    def row(self, partition: int, level: int, clock_ms: int = 0) -> WireRow:
        """The row for one partition of a level."""
        parts: dict[str, Any] = {"ticks": dict(self.ticks)} if self.ticks else {}
        if self.order is not None:
            parts["order"] = self.order.to_bytes().decode()
        if self.end is not None:
            parts |= {"end": self.end, "is_first": self.is_first}
        elif self.is_first:
            parts["is_first"] = True
        return WireRow(
            partition, level, int(Kind.BROADCAST), source=-1, sequence=0, clock_ms=clock_ms,
            head=json.dumps(parts).encode(),
        )  # fmt: skip

    @classmethod
    def of(cls, rows: Iterable[WireRow]) -> Self:
        """What the rows of kind BROADCAST among some rows say together."""
        parts: dict[str, Any] = {}
        for row in rows:
            if row.kind == Kind.BROADCAST and row.head:
                parts |= json.loads(bytes(row.head))
        order = parts.get("order")
        return cls(
            parts.get("ticks", {}),
            None if order is None else OperatorOrder.from_bytes(order.encode()),
            parts.get("end"),
            parts.get("is_first", False),
        )
