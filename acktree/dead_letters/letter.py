"""One message that was given up, with its payload and its story."""

from __future__ import annotations

from dataclasses import dataclass

from acktree.core.values import batch_from_bytes, decode_rows
from acktree.core.verdicts import FailureCause, FailureKind

__all__ = ["DeadLetter"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will not be tried again by itself, as it was after its last attempt.

    Equal when all parts are equal, ``id`` included. Holding, comparing, printing or listing one runs no user
    code: the payload stays bytes until ``values`` is asked for.
    """

    id: int | None
    """Its number in the store: ascending, gaps allowed, never used twice. None before it is stored."""
    topology: str
    spout: str
    """The component id of the spout that emitted it."""
    task_id: int
    """The task of that spout."""
    stream: str
    root: int
    """The root id of the last attempt: what makes storing it twice harmless."""
    message_id_repr: str
    """``repr`` of the user's message id. The id itself may be a handle of a connection that is gone."""
    fields: tuple[str, ...]
    payload: bytes
    """The emitted values as Arrow IPC: a batch of one row."""
    reason: str
    """Of the last failure, as are all parts down to ``traceback``."""
    kind: FailureKind
    cause: FailureCause
    component: str | None
    """Where it failed; None when nobody knows, as for most timeouts."""
    exception_type: str | None
    """Qualified name, as ``builtins.ValueError``; None when no exception was raised."""
    traceback: str | None
    attempts: int
    """How often it was tried, the first time included."""
    first_emitted_ms: int
    """When the spout emitted it; milliseconds since 1970, UTC, as all times here."""
    dead_ms: int
    """When it was given up."""
    redriven_ms: int | None = None
    """When it was last sent again on somebody's word; None when it never was."""

    @property
    def values(self) -> list[object]:
        """What the spout emitted, one value per field, decoded anew at each call.

        Values that Arrow does not know were pickled, and are unpickled here: their classes must be
        importable, and whoever can write to the store's file can run code in this process.

        Raises:
            MisuseError: A value cannot be unpickled in this process.
        """
        (row,) = decode_rows(batch_from_bytes(self.payload))
        return list(row)
