"""Who is told the verdicts of a DataFrame's rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.tracking.verdicts import Failure

__all__ = ["Acknowledger"]


class Acknowledger:
    """Is told what became of the rows of a ``DataFrameSpout``, by their message ids. Derive from it.

    It lives in the process that called ``submit``, on one thread of its own: no locks are needed. The object
    given to the spout is itself called, not a copy. The ids alone reach the driver, not the rows.

    A verdict is told when its micro-batch is committed, in batches, in the order of micro-batches. Each is
    told at least once: after a crash those that may not have been told are told again. A ``ConnectorError``
    is treated as in a spout: with ``can_retry`` the call is made again after a pause, before later ones;
    without, it stops the topology. Any other exception is reported, and counts as told.
    """

    keep_alive_secs: float | None = None
    """``keep_alive`` is called at least once in this number of seconds. None: never. ``open`` may set it."""

    def open(self, config: Config, context: TaskContext) -> None:
        """Connect. Called once, first of all.

        ``context.open_message_ids`` names the rows that an earlier run read and left without a verdict. May
        block. An exception stops the topology; after a ``ConnectorError`` with ``can_retry`` it is called
        again.
        """

    def open_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Take note of rows that stay open: their micro-batch is committed, and they have no verdict yet.

        They wait in a bolt, or for their next attempt. Called before anything else is told of that
        micro-batch. Rows that get their verdict in the micro-batch that read them are not among them.
        """

    def ack_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Every tuple of these rows' trees was acked: their source may forget them."""

    def fail_batch(self, failures: Sequence[tuple[Hashable, Failure]]) -> None:
        """These rows failed or timed out, as (message id, failure) pairs.

        With a ``Retry`` a row is told once, when it was given up: ``failure.final`` is true, and its dead
        letter is safe. Without one it comes no more, and no dead letter is kept.
        """

    def keep_alive(self) -> None:
        """Do what is due at intervals, such as a commit. Called at least every ``keep_alive_secs``."""

    def close(self) -> None:
        """Disconnect. Called once, last, in an orderly stop; never when the process is killed."""
