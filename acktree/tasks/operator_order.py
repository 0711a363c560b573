"""What operators order of a running topology.

It is data of each micro-batch, so a second run sees the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["OperatorOrder"]


@dataclass(frozen=True, slots=True)
class OperatorOrder:
    """How many messages are traced, and whose tuples are logged.

    Attributes:
        trace_rate: The share of messages that is traced, 0 to 1.
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
        given = json.loads(bytes(blob))
        return cls(float(given["trace_rate"]), given["debug"])
