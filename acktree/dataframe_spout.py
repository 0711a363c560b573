"""A spout over the rows of a streaming DataFrame, which become tuples inside the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from acktree.acknowledger import Acknowledger
from acktree.errors import MisuseError, TopologyError, naming_keywords, nearest
from acktree.spout import MessageId, Spout, SpoutOutputCollector

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.spouts.open_messages import OpenMessages
    from acktree.core.tracking.verdicts import Failure

__all__ = ["DataFrameSpout"]


class DataFrameSpout(Spout):
    """Every row of a streaming Spark DataFrame is a message.

    The driver receives no rows, except, with a ``Retry``, those that fail or are open when their micro-batch
    ends.

    Args:
        streaming_df: A streaming DataFrame (``spark.readStream``...). Its columns are the fields.
        message_id: The column whose value is the message id, which the verdict names; or several columns,
            then the id is the tuple of their values. None: the rows are untracked, as any tuple that a spout
            emits without an id.
        acknowledger: Receives the verdicts, by message id. None: nothing does. Of an id that Python cannot
            represent it receives a substitute: the bytes of a text that is not UTF-8, Arrow's text of a date
            or time that is out of range. Columns of arrays, maps and structs are refused.
        key: A column of texts, bytes or integers that names the message, as ``key`` of ``emit``. A row whose
            key is ACKED before this one runs all the same, but what it stages in front of gates is dropped. A
            null is no key; an empty text fails its row. None: no keys.
        label: The column of what people call the message, as ``label`` of ``emit``: its dead letter, the log,
            and traces of its later attempts show it. A null is none. None: no labels.
        ends: Whether the source ends: once a micro-batch finds nothing new in it, the spout has ended, and
            with the last verdict the topology ends by itself. For files and tables that are complete when the
            topology starts. With several DataFrames, all end together. False: rows may come at any time.

    The rows become tuples inside the query; the verdicts go to the acknowledger, to the statistics and, with
    a ``Retry``, to the dead letters. Spark's source remembers its own position in the checkpoint. The rate of
    rows is set on the source (``maxOffsetsPerTrigger``, ``maxFilesPerTrigger``), not by
    ``max_spout_pending``.
    """

    redelivers = False
    acknowledger: Acknowledger | None = None
    """Receives the verdicts of the rows."""
    id_columns: tuple[str, ...] = ()
    """The columns of the message id; empty when rows are untracked."""
    key: str | None = None
    """The column of the key."""
    label: str | None = None
    """The column of the label."""

    @naming_keywords
    def __init__(
        self,
        streaming_df: object,
        message_id: str | Sequence[str] | None = None,
        acknowledger: Acknowledger | None = None,
        *,
        key: str | None = None,
        label: str | None = None,
        ends: bool = False,
    ) -> None:
        where = "DataFrameSpout(...)"
        columns = getattr(streaming_df, "columns", None)
        is_streaming = getattr(streaming_df, "isStreaming", None)
        if columns is None or is_streaming is None:
            what = f"{type(streaming_df).__name__} is no Spark DataFrame"
            raise TopologyError(what, where, "pass what spark.readStream...load() returns")
        if not is_streaming:
            fix = "make it with spark.readStream instead of spark.read; for fixed rows, use IterableSpout"
            raise TopologyError("the DataFrame is not a streaming one", where, fix)
        given = (
            [] if message_id is None else [message_id] if isinstance(message_id, str) else list(message_id)
        )
        for name in given:
            if name not in columns:
                what = f"message_id={name!r} is no column of the DataFrame"
                raise TopologyError(what, where, nearest(name, columns))
        if acknowledger is not None and not given:
            what = "an acknowledger is given, and no message_id to give it"
            raise TopologyError(what, where, 'name the column of the id: message_id="offset"')
        for argument, column in (("key", key), ("label", label)):
            if column is not None and column not in columns:
                what = f"{argument}={column!r:.60} is no column of the DataFrame"
                raise TopologyError(what, where, nearest(column, columns))
            if column is not None and not given:
                what = f"rows have a {argument} and no message_id, so nothing tells whether they were ACKED"
                raise TopologyError(what, where, 'name the column of the id: message_id="offset"')
        self.key, self.label = key, label
        self.streaming_df = streaming_df
        self.message_id = message_id
        self.id_columns = tuple(given)
        self.acknowledger = acknowledger
        self.keep_alive_secs = None if acknowledger is None else acknowledger.keep_alive_secs
        self.ends = ends
        self.outputs = list(columns)

    def next_tuple(self) -> None:
        """Never called: Spark reads the rows."""
        raise MisuseError(
            "next_tuple was called on a DataFrameSpout, whose rows only Spark can read",
            "DataFrameSpout.next_tuple",
            "run the topology with submit(); for LocalCluster, replace this spout by a FeederSpout",
        )

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Open the acknowledger."""
        if self.acknowledger is not None:
            self.acknowledger.open(config, context)
            self.keep_alive_secs = self.acknowledger.keep_alive_secs

    def ack_batch(self, message_ids: Sequence[MessageId]) -> None:
        """Pass them on to the acknowledger."""
        if self.acknowledger is not None:
            self.acknowledger.ack_batch(message_ids)

    def fail_batch(self, failures: Sequence[tuple[MessageId, Failure]]) -> None:
        """Pass them on to the acknowledger."""
        if self.acknowledger is not None:
            self.acknowledger.fail_batch(failures)

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        """Call the acknowledger's."""
        if self.acknowledger is not None:
            self.acknowledger.keep_alive()

    def close(self) -> None:
        """Close the acknowledger."""
        if self.acknowledger is not None:
            self.acknowledger.close()
