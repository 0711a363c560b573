"""A dead letter: one message that was given up, with its payload and its failure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from acktree.core.data.reading import PartlyReadable, columns_of, decoded
from acktree.core.data.values import batch_from_bytes, decode_rows, pickled_fields
from acktree.core.tracking.origins import Origin
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.texts import printable


@dataclass(frozen=True, slots=True)
class Pickled:
    """A placeholder for a pickled value, which is not shown because unpickling it may run any code."""

    size_bytes: int

    def __repr__(self) -> str:
        return f"<pickled, {self.size_bytes} bytes>"


@dataclass(frozen=True, slots=True, repr=False)
class DeadLetter:
    """A message that was given up, as it was after its last attempt. It is not tried again automatically.

    Equal when all attributes are equal, ``id`` included. Comparing, printing or listing one runs no user
    code: the payload is bytes until ``values`` is read.
    """

    id: int | None
    """Its number in the store: ascending, with gaps, never reused. None before it is stored."""
    topology: str
    spout: str
    """The component id of the spout that emitted it."""
    task_id: int
    """The task of that spout."""
    stream: str
    root: int
    """The root id of the last attempt. With ``topology`` it identifies the letter, so it is stored once."""
    message_id_repr: str
    """``repr`` of the user's message id. The id itself may be a handle of a closed connection."""
    fields: tuple[str, ...]
    payload: bytes
    """The emitted values as Arrow IPC: a batch of one row."""
    reason: str
    """The reason of the last failure; the attributes down to ``traceback`` describe the same failure."""
    kind: FailureKind
    cause: FailureCause
    component: str | None
    """The component in which it failed; None when unknown, as for most timeouts."""
    exception_type: str | None
    """Qualified name, such as ``builtins.ValueError``; None when no exception was raised."""
    traceback: str | None
    attempts: int
    """The number of attempts, the first one included."""
    first_emitted_ms: int
    """When the spout emitted it; milliseconds since 1970, UTC, as all times here."""
    dead_ms: int
    """When it was given up."""
    redriven_ms: int | None = None
    """When it was last sent again with ``redrive``; None when it never was."""
    settled_ms: int | None = None
    """When the message that it was sent again as got its final verdict: acked, or given up again, as another
    letter. None until then. If its driver dies before, the next run sends the letter again."""
    label: str | None = None
    """What people call the message: the ``label`` that its spout gave; None if it gave none. Behind a gate
    the first label of its origins."""
    origins: tuple[Origin, ...] = ()
    """Behind a gate: the messages of spouts that the tuple hung on, through all gates that it has passed."""

    @property
    def values(self) -> list[object]:
        """The values that the spout emitted, one per field, decoded at each access.

        Values that Arrow cannot represent were pickled, and are unpickled here: their classes must be
        importable. Anyone who can write to the store can thus run code in this process.

        Raises:
            MisuseError: A value cannot be unpickled in this process.
        """
        (row,) = decode_rows(batch_from_bytes(self.payload))
        return list(row)

    @property
    def plain_values(self) -> dict[str, object]:
        """The values by field, with a ``Pickled`` placeholder for each pickled one. Unpickles nothing."""
        batch = batch_from_bytes(self.payload)
        pickled = pickled_fields(batch)
        columns = dict(zip(self.fields, map(decoded, columns_of(batch)), strict=False))
        cells = {
            name: (column.cells if isinstance(column, PartlyReadable) else column)[0]
            for name, column in columns.items()
        }
        return {
            name: Pickled(len(cells[name])) if name in pickled and cells[name] is not None else cells[name]
            for name in self.fields
        }

    @property
    def plain_origins(self) -> list[dict[str, str | None]]:
        """The origins as JSON has them."""
        return [origin._asdict() for origin in self.origins]

    def __repr__(self) -> str:
        """One line with the payload's size only: the payload may be large, and from an unknown sender."""
        message = f"{self.spout!r:.15}, message={self.message_id_repr:.15}, {self.reason!r:.30}"
        return f"DeadLetter({self.id}, {message}, <{len(self.payload)} bytes>)"

    def story(self) -> str:
        """All attributes as text of several lines. Unpickles nothing.

        Control characters are escaped: the text may come from an unknown sender.
        """
        where = f"in {self.component!r}" if self.component else "in an unknown component"
        after = f"after {self.attempts} attempt{'s' * (self.attempts != 1)}"
        redriven = "never" if self.redriven_ms is None else _utc(self.redriven_ms)
        if self.settled_ms is not None:
            redriven += f", and settled {_utc(self.settled_ms)}"
        lines = [
            f"dead letter {self.id} of topology {self.topology!r}",
            *([f"  label     {self.label}"] if self.label else []),
            f"  message   {self.message_id_repr} of {self.spout!r}, task {self.task_id}",
            *(f"  origin    {origin.message_id_repr} of {origin.spout!r}" for origin in self.origins),
            f"  stream    {self.stream!r}",
            f"  emitted   {_utc(self.first_emitted_ms)}",
            f"  given up  {_utc(self.dead_ms)}, {after}",
            f"  redriven  {redriven}",
            f"  {self.kind:<9} {self.cause}, {where}: {self.reason}",
            *(f"  {name} = {value!r}" for name, value in self.plain_values.items()),
            *(f"  {line}" for line in (self.traceback or "").splitlines()),
        ]
        return "\n".join(printable(line.expandtabs()) for line in lines)


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
