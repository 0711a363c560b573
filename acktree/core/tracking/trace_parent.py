"""The parent of a trace that began outside, as a ``traceparent`` header says it.

Source: W3C "Trace Context", version 00 of the header.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_HEADER: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED: Final = 1


class TraceParent(NamedTuple):
    """A span outside that a message belongs to.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        is_sampled: Whether that trace is recorded.
    """

    trace_id: int
    span_id: int
    is_sampled: bool

    @classmethod
    def of(cls, header: str) -> TraceParent | None:
        """Read a header; None if it is none, as the standard wants it: it may come from anywhere.

        >>> TraceParent.of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is_sampled
        True
        >>> TraceParent.of("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is None
        True
        """
        match = _HEADER.fullmatch(header)
        if match is None or (header.startswith("00") and len(header) > _LENGTH):
            return None
        trace_id, span_id, flags = (int(part, 16) for part in match.groups())
        return cls(trace_id, span_id, bool(flags & _SAMPLED)) if trace_id and span_id else None

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


_LENGTH: Final = 55
"""Of a header of version 00; later versions may have more behind it."""
