"""The steps after which a driver dies in the tests, by the names that docs/crash-windows.md gives them."""

from __future__ import annotations

POINTS = (
    "emitted",
    "handed over",
    "before the offsets",
    "offsets logged",
    "state committed",
    "in the sink",
    "judged",
    "logged",
    "sink returned",
    "commit logged",
    "chunks deleted",
    "in the mailbox",
    "delivered",
    "recorded",
)
