"""The contract of sinks that write each row once.

Rules of this file
------------------
1. The docstrings are the contract; ``acktree.testing.check_sink`` checks it against a real server.
2. A sink writes rows and a *mark* in one transaction. The mark says what the rows were, so a second run of a
   micro-batch finds it, and writes nothing.

Source: the two-phase commit sinks of Flink, without a transaction that stays open between two checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay fast
    import pyarrow as pa

    from acktree.config import Config
    from acktree.core.data.context import TaskContext

__all__ = ["Sink"]


class Sink(ABC):
    """A sink that writes the rows of each micro-batch once, whatever dies.

    A sink is pickled (cloudpickle) to the workers: ``__init__`` may only make picklable attributes. A task
    opens it in the first micro-batch of a run, and in each that has rows for the task, possibly in another
    process each time, asks for the last mark, writes at most one batch, and closes it.

    The *writer* of a mark is the task: ``context.checkpoint_id``, ``context.component_id`` and
    ``context.task_id``. A writer has one mark. Another writer's marks are its own, also where both write into
    one table.

    Attributes:
        latest_by: The fields that are the key of a row, if a row takes the place of an earlier one with its
            key. Then no row is written after a newer one: what was refused, or could not be written, waits
            while a newer row with its key is open; when that is ACKED it is ACKED too, and never written.
            Newer is what passed the gate later; each input has a gate of its own. None: each row counts.
    """

    latest_by: Sequence[str] | None = None

    @abstractmethod
    def open(self, config: Config, context: TaskContext) -> None:
        """Prepare the task. Keep connections with ``context.cached(key, factory)``."""

    @abstractmethod
    def last_mark(self) -> bytes | None:
        """The mark of the last batch that this writer has written; None for none.

        Raises:
            ConnectorError: The server cannot be used. In the first attempt of a micro-batch its rows wait, as
                where ``write`` raises ``Unavailable``. Else they may be written, and the task asks until it
                gets an answer; without ``can_retry`` it fails.
        """

    @abstractmethod
    def write(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str]:
        """Write rows and their mark in one transaction: after a crash either all of it is there, or nothing.

        * The mark is the last mark already: MUST write nothing, and return what the write with this mark has
          returned. The rows may then be others, or none.
        * The last mark is another one than this object has seen, in ``last_mark`` or its own last ``write``:
          MUST write nothing, and raise ConnectorError. Another process runs this task: this one is abandoned.
        * A row that cannot be written MUST fail alone: it is in the result, the others are written. What is
          returned is part of the transaction.

        Args:
            batch: The rows, with the fields of the input stream.
            mark: At most 1,000 bytes, never empty.

        Returns:
            Why rows are refused, by their index in the batch.

        Raises:
            Unavailable: The server cannot be used, and it is certain that nothing was written: no transaction
                could be begun, or it was rolled back. The rows wait, without using up attempts. The same for
                a ConnectorError whose ``nothing_written`` is True.
            ConnectorError: The server cannot be used, and it is not known whether the rows were written, as
                where a connection is lost in a commit. The task asks for the last mark before it goes on.
        """

    def close(self) -> None:
        """Release what ``open`` acquired. Not called when a worker is killed."""
