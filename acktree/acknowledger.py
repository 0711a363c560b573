"""The contract of an acknowledger, which receives the verdicts of a DataFrame's rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.tracking.verdicts import Failure

__all__ = ["Acknowledger"]


class Acknowledger:
    """Receives the verdicts of the rows of a ``DataFrameSpout``, by message id. Derive from it.

    It lives in the process that called ``submit``, and all its hooks are called on one thread: no locks are
    needed. The object given to the spout is itself called, not a copy. Only the ids reach the driver, not the
    rows.

    Verdicts are delivered when their micro-batch is committed, in batches, in the order of micro-batches.
    Each is delivered at least once: after a crash those that may not have been delivered are delivered again.
    A ``ConnectorError`` is treated as in a spout: with ``can_retry`` the call is made again after a pause,
    before later ones; without, it stops the topology. Any other exception is reported, and the verdicts count
    as delivered.
    """

    keep_alive_secs: float | None = None
    """``keep_alive`` is called at least once in this number of seconds. None: never. ``open`` may set it."""

    def open(self, config: Config, context: TaskContext) -> None:
        """Connect. Called once, before all other hooks.

        ``context.open_message_ids`` names the rows that an earlier run read and left without a verdict. May
        block. An exception stops the topology; after a ``ConnectorError`` with ``can_retry`` it is called
        again.
        """

    def open_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Note rows that stay open: their micro-batch is committed, and they have no verdict yet.

        They wait in a bolt, or for their next attempt. Called before the verdicts of that micro-batch are
        delivered. Rows that get their verdict in the micro-batch that read them are not among them.
        """

    def ack_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Every tuple of these rows' trees was acked: their source may forget them."""

    def fail_batch(self, failures: Sequence[tuple[Hashable, Failure]]) -> None:
        """These rows failed or timed out, as (message id, failure) pairs.

        With a ``Retry`` a row is in it once, when it was given up: ``failure.final`` is true, and its dead
        letter is stored. Without a ``Retry`` the row is not tried again, and has no dead letter.
        """

    def keep_alive(self) -> None:
        """Do what is due at intervals, such as a commit. Called at least every ``keep_alive_secs``."""

    def close(self) -> None:
        """Disconnect. Called once, last, in an orderly stop; never when the process is killed."""
