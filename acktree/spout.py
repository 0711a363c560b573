"""Where messages come from: the contract of a spout, and two spouts that are ready made.

Rules of this file
------------------
1. A spout lives in the process that called ``submit``: each of its tasks is a ``copy.deepcopy`` of the object
   given to ``set_spout``, with a thread of its own on which everything here is called.
2. The docstrings are the contract. A hook that is not overridden does nothing.
3. A message id makes a tuple tracked: exactly one verdict comes back for it. Without one nobody is told.

Source: Storm's ``ISpout``, ``IRichSpout`` and ``SpoutOutputCollector``. Departures: ``fail`` is told why;
messages may be emitted and answered in batches; a spout can say that it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from acktree.acknowledger import Acknowledger
from acktree.core.data.fields import DEFAULT_STREAM, Outputs, declare_streams
from acktree.errors import AcktreeError, MisuseError, SpoutError, TopologyError, naming_keywords, nearest
from acktree.texts import error_text

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    import pyarrow as pa
    from numpy import integer
    from numpy.typing import NDArray

    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.spouts.open_messages import OpenMessages
    from acktree.core.tracking.verdicts import Failure

__all__ = ["DataFrameSpout", "EndOfStream", "IterableSpout", "MessageId", "Spout", "SpoutOutputCollector"]

MessageId: TypeAlias = Hashable
"""What a spout calls its message by: a delivery tag, an offset, a position. Equal ids may be open at once;
each is answered for itself."""

_MOST_TRIES: Final = 8
"""So often an IterableSpout tries one position before it stops the topology."""
_FIRST_PAUSE_SECS: Final = 0.1
"""After its first failed try; twice as long after each further one."""


class EndOfStream(Exception):  # noqa: N818  # it says that all is well, as StopIteration does
    """Raised by ``next_tuple`` when there will never be more. Acks and fails go on arriving.

    When every spout has ended and every message has its verdict, the topology ends by itself.
    """


class Spout(ABC):
    """A source of messages.

    The least a spout has is ``outputs`` and ``next_tuple``. All calls of one task, from ``open`` to
    ``close``, are made on one thread, never two at once: no locks are needed. The object given to
    ``set_spout`` is itself never opened; each task works on a deep copy of it, so make connections in
    ``open``, not in ``__init__``.

    Its life is ``open``, ``activate``, then ``next_tuple`` again and again with verdicts in between,
    ``deactivate`` and ``activate`` as the operator says, ``close``. An exception in ``open`` stops the
    topology; in any other hook it is reported, and the spout goes on.

    A ``ConnectorError`` is treated alike in every hook. With ``can_retry`` it is reported once and the call
    is made again, after pauses that double from 0.1 s to 30 s; ``next_tuple`` waits until it succeeds.
    Without, it stops the topology.
    """

    outputs: Outputs = ()
    """The streams: fields of the default stream, a ``pyarrow.Schema``, or a mapping from stream to either."""

    redelivers: bool = True
    """Who brings back what was open when the driver died. True: the queue does, as brokers do, and verdicts
    of an earlier run are never told. False: we do; open messages go on, and their verdicts are told here."""

    remembers: Sequence[str] = ()
    """Attributes that are saved atomically with what was emitted. After a restart they are set before
    ``open`` is called: give them their first values in ``__init__`` and do not touch them in ``open``."""

    own_dead_letters: bool = False
    """Whether the queue keeps what a ``Retry`` gives up. True: acktree writes no dead letter, and ``fail``
    with ``final`` must reject the message to the queue's own dead letters."""

    keep_alive_secs: float | None = None
    """``keep_alive`` is called at least once in this number of seconds. None: never. ``open`` may set it."""

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        """Get ready: keep the collector, connect.

        Called once for each task in one run of the driver, first of all, on this task's own thread, when the
        query is already running. May block: nothing waits for it but this task. An exception stops the
        topology with its reason; after a ``ConnectorError`` with ``can_retry`` it is called again. What is in
        ``remembers`` is already there when the checkpoint is resumed. With ``redelivers = False``,
        ``context.open_message_ids`` names what an earlier run left open and acktree brings back: do not emit
        these again.
        """

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit what is ready, or return at once.

        Called again and again on this task's own thread, while fewer than ``max_spout_pending`` messages are
        open. Never called while ``ack`` or ``fail`` runs, before ``open``, while deactivated, or after
        ``close``. Do not block for long: verdicts for this task wait behind it. Idle? Emit nothing; the wait
        strategy sleeps. Raise EndOfStream when there will never be more; acks and fails still arrive. Any
        other exception is reported, and ``next_tuple`` is called again after the wait strategy: what was
        emitted before it stands. A SpoutError may say more: ``pause_secs`` is how long ``next_tuple`` is not
        called, and ``can_go_on=False`` stops the topology with that error.
        """

    def ack(self, message_id: MessageId) -> None:
        """Every tuple of this message's tree was acked: let the queue forget it.

        Same thread as ``next_tuple``, between two calls of it, never inside ``emit``. At most once a message
        in one run of the driver, and never after ``fail`` with ``failure.final``; after a restart a message
        that was open comes from the queue again, as a new attempt. An ack later than the message timeout
        never arrives here. Do not block for long. Still called while deactivated and after EndOfStream.
        """

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """A bolt failed this message, or raised over it, or it timed out: ``failure`` says which and why.

        Same thread as ``next_tuple``, between two calls of it. Without a ``Retry`` it is called at each
        failure and nothing is emitted again by itself: a spout that does nothing here loses the message, as
        in Storm. With a ``Retry`` it is called once, ``failure.final`` is true, and the dead letter is
        already safe. Emitting from here is allowed, also after EndOfStream, and makes a new message. Do not
        block for long.
        """

    def ack_batch(self, message_ids: Sequence[MessageId]) -> None:
        """Take many acks in one call; override it where the queue can be told in bulk.

        A list; of what was emitted with an array of ids a sequence that ``numpy.asarray`` takes as it is.
        Same thread and same promises as ``ack``, which this default calls for each, in the order given. When
        one raises, the others are told all the same; the exceptions are raised at the end.
        """
        tell_each(self.ack, ((message_id,) for message_id in message_ids))

    def fail_batch(self, failures: Sequence[tuple[MessageId, Failure]]) -> None:
        """Take many failures in one call, as (message id, failure) pairs.

        Same thread and same promises as ``fail``, which this default calls for each, in the order given. When
        one raises, the others are told all the same; the exceptions are raised at the end.
        """
        tell_each(self.fail, failures)

    def keep_alive(self, open_messages: OpenMessages) -> None:
        """Keep the connection and what is open alive: answer heartbeats, extend leases, commit.

        Called at least every ``keep_alive_secs`` from ``open`` to ``close``, in every state: while the spout
        is saturated, deactivated, at its end, and while a micro-batch runs. Same thread as ``next_tuple``,
        between two calls of any hook; a hook that blocks delays it. May emit, and may call
        ``collector.lost``.
        """

    def lag(self) -> int | None:
        """Say how many messages wait at the source, as far as it is known; None: not known.

        Called every few seconds on the spout's thread; ``running.stats()`` shows the last answer. Answer at
        once: a number that was noted elsewhere is better than a question to the server.
        """
        return None

    def activate(self) -> None:
        """Messages are wanted from now on.

        Called once after ``open``, and again each time the topology is activated after a ``deactivate``. Same
        thread.
        """

    def deactivate(self) -> None:
        """No messages are wanted until ``activate``: ``next_tuple`` is not called, ack and fail still are.

        Called each time the topology is deactivated, and before an orderly ``close``. Same thread.
        """

    def close(self) -> None:
        """Let go of what ``open`` took.

        Called once, last, on the same thread (Storm: on another), when the topology is killed or has ended.
        Never called when the process is killed: what must not be lost cannot wait for it. May block for a few
        seconds.
        """


class SpoutOutputCollector(ABC):
    """What a spout emits into. Given to ``open``; use it on the spout's own thread only, from any hook.

    ``wake`` alone may be called from any thread. ``emit`` never blocks and never calls ``ack`` or ``fail``:
    there is room when ``next_tuple`` is called.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
        *,
        attempt: int = 1,
    ) -> None:
        """Emit one tuple.

        Args:
            values: One value for each field of the stream, in order. Not to be changed afterwards.
            message_id: Any hashable value: the message is tracked and ``ack`` or ``fail`` is called with it.
                None: untracked, nobody is told. 0 and "" are ids. With ``redelivers = False`` it must survive
                pickle.
            stream: A stream of ``outputs``.
            attempt: The number of this delivery, from 1, where the queue counts them. ``tup.attempt`` and
                ``Retry`` go on from it. With a ``Retry``, a message whose attempt is above ``max_attempts``
                is given up without being run: its earlier attempts ended with their driver or connection.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, a value or id that cannot travel, a stream
                that is read by direct grouping, no message id although the spout has a ``Retry``, or an
                attempt below 1. Nothing was emitted then.
        """

    @abstractmethod
    def emit_direct(
        self,
        task_id: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
        *,
        attempt: int = 1,
    ) -> None:
        """Emit one tuple to one task that reads the stream by direct grouping; see ``context.task_ids``.

        Raises:
            MisuseError: As ``emit``, and for a task that does not read this stream by direct grouping.
                Nothing was emitted then.
        """

    @abstractmethod
    def emit_batch(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[MessageId] | NDArray[integer[Any]] | None = None,
        stream: str = DEFAULT_STREAM,
        *,
        attempts: Sequence[int] | NDArray[integer[Any]] | None = None,
    ) -> None:
        """Emit each row of a batch as a message of its own, with no Python object per row.

        Args:
            batch: Columns are the stream's fields, matched by name, in any order. Under declared types a
                value must fit as in ``emit``: what the type does not hold without loss is refused, and a text
                is no number. Metadata that begins with ``acktree`` is removed; views become plain columns.
            message_ids: One for each row, in order, none of them None; an integer array is kept as one, an
                array of floats is refused. None: all untracked, which
                a spout with a ``Retry`` may not emit.
            stream: A stream of ``outputs``.
            attempts: The number of this delivery of each row, as ``attempt`` of ``emit``. None: 1.

        Raises:
            MisuseError: As ``emit``, for other columns, for a value of any row that does not fit, and for ids
                that are not one for each row. Nothing was emitted then.

        A batch larger than ``max_spout_pending`` is admitted, alone.
        """

    def lost(self, message_ids: Iterable[MessageId] | None = None) -> None:
        """Say that the queue brings these messages back: their connection, lease or partition is gone.

        Args:
            message_ids: As they were emitted; of equal ids all. None: all that this task has open.

        They are not open any more when this returns, so there is room at once. No verdict, retry or dead
        letter of them follows, also not for those that waited for a retry. Bolts may still work on them.
        """

    def wake(self) -> None:
        """Let the spout be asked again at once instead of after the wait strategy. From any thread."""

    @abstractmethod
    def report_error(self, exception: BaseException) -> None:
        """Record an exception with this component's errors. Fails nothing; many in a row are throttled."""

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """How many messages of this task have no verdict yet, those that wait for a retry included."""


class IterableSpout(Spout):
    """The items of anything that can be iterated again from the start; the message id is the position.

    Args:
        factory: A function that returns an iterable (``lambda: open("words.txt")``), or an iterable that
            starts anew each time (a list, a range). It must give the same items each time: after a restart
            the spout skips what it has emitted. Of several tasks, task i takes the positions p with
            ``p % tasks == i``.
        outputs: Fields of the default stream. With one field an item may be the value itself; an item that is
            a list or tuple is always the list of values.

    One item per ``next_tuple``; EndOfStream after the last. Nothing is lost when the driver dies: the
    position is remembered, and the messages that were open are brought back by acktree.

    No item is skipped. When an item cannot be read or does not fit the fields, the error is reported, and
    after a pause the items are read anew from the start, up to the same position: at most 8 tries at one
    position, with pauses from 0.1 s that double. After the last the topology stops with a SpoutError that
    names the position. To skip what cannot be read, catch the exception inside the iterable and yield
    something else; open a text file with ``errors="replace"``, so that a bad byte does not stop it.
    """

    redelivers = False
    remembers = ("position",)

    @naming_keywords
    def __init__(self, factory: Callable[[], Iterable[object]] | Iterable[object], outputs: Outputs) -> None:
        where = "IterableSpout(...)"
        given: object = factory  # what a caller without a type checker may have passed
        if isinstance(given, Iterator):
            what = f"{type(given).__name__} can be iterated only once, and a restart has to begin again"
            raise TopologyError(
                what, where, "pass a list, or a function that makes it: lambda: read_lines(path)"
            )
        if not callable(given) and not isinstance(given, Iterable):
            what = f"{given!r} can neither be iterated nor called"
            raise TopologyError(what, where, "pass a list, or a function that returns an iterable")
        streams = declare_streams(outputs, where)
        if set(streams) != {DEFAULT_STREAM}:
            what = f"an IterableSpout emits to stream 'default' alone, and is given {sorted(streams)}"
            raise TopologyError(what, where, 'name the fields of an item: outputs=["line"]')
        self.factory = factory
        self.outputs = outputs
        self.position = 0
        """The first position that this task has not dealt with."""
        self._one_field = len(streams[DEFAULT_STREAM].fields) == 1
        self._items: Iterable[object] | None = None
        self._reader: Iterator[object] | None = None
        self._reader_at = 0
        self._tries = 0

    def __repr__(self) -> str:
        return f"IterableSpout({self.factory!r:.40}, outputs={self.outputs!r:.30}, position={self.position})"

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Note which positions are this task's; nothing is read before ``next_tuple``."""
        self._collector = collector
        self._index, self._count = context.task_index, len(context.task_ids(context.component_id))

    def next_tuple(self) -> None:
        """Emit the next item of this task's, with its position as message id.

        Raises:
            EndOfStream: There is no further item.
            SpoutError: The item cannot be read or emitted: it is tried again after a pause; the last try
                stops the topology.
        """
        start = self.position + (self._index - self.position) % self._count
        try:
            self._emit_item(start)
        except EndOfStream:
            raise
        except Exception as error:
            # A generator that raised is at its end, and a file that did is anywhere: neither is asked again.
            self._reader = None
            self._tries += 1
            raise self._not_emitted(start, error) from error
        self._tries = 0
        self.position = start + 1

    def _emit_item(self, start: int) -> None:
        if self._reader is None or self._reader_at != start:
            self._reader, self._reader_at = islice(self._fresh_items(), start, None, self._count), start
        try:
            item = next(self._reader)
        except StopIteration:
            raise EndOfStream from None
        self._reader_at += self._count
        self._collector.emit(self._values_of(item, start), message_id=start)

    def _fresh_items(self) -> Iterable[object]:
        """The items from the start; an iterator that was half read would give others."""
        items = self.factory() if callable(self.factory) else self.factory
        if isinstance(items, Iterator) and items is self._items:
            raise SpoutError(
                "the function gave the same iterator a second time, which does not begin again",
                "IterableSpout(factory)",
                "make a new iterator at each call: lambda: open(path), lambda: read_lines(path)",
            )
        self._let_go()
        self._items = items
        return items

    def close(self) -> None:
        """Close what the function opened."""
        self._let_go()

    def _let_go(self) -> None:
        if callable(self.factory) and isinstance(self._items, Iterator) and hasattr(self._items, "close"):
            with suppress(Exception):  # a generator's own `finally`: its items are not asked for any more
                self._items.close()
        self._items = self._reader = None

    def _not_emitted(self, position: int, error: Exception) -> SpoutError:
        is_last = self._tries >= _MOST_TRIES
        follows = "the topology stops" if is_last else "it is tried again"
        return SpoutError(
            f"item {position} was not emitted, try {self._tries} of {_MOST_TRIES}, {follows}: "
            f"{error.what if isinstance(error, AcktreeError) else error_text(error)}",
            f"IterableSpout, position {position}, or one before it that had to be read again",
            "mend the source, and submit again on the same checkpoint: it goes on at this position; to skip "
            "what cannot be read, catch the exception inside the iterable",
            can_go_on=not is_last,
            pause_secs=_FIRST_PAUSE_SECS * 2 ** (self._tries - 1),
        )

    def _values_of(self, item: object, position: int) -> Sequence[object]:
        if isinstance(item, (list, tuple)):
            return item
        if self._one_field:
            return [item]
        raise SpoutError(
            f"item {position} is {item!r:.80}, which is no list of values for the fields {self.outputs!r}",
            f"IterableSpout, position {position}",
            "yield a list or tuple with one value for each field",
        )


class DataFrameSpout(Spout):
    """Every row of a streaming Spark DataFrame is a message.

    The driver gets no row but, with a ``Retry``, those that fail or are open when their micro-batch ends.

    Args:
        streaming_df: A streaming DataFrame (``spark.readStream``...). Its columns are the fields.
        message_id: The column whose value is the message id, told in the verdict; or several columns, and the
            id is the tuple of their values. None: the rows are untracked, as any tuple that a spout emits
            without an id.
        acknowledger: Is told the verdicts, by message id. None: nobody is. An id that Python cannot represent
            is told as the bytes of a text that is not UTF-8, and as Arrow's text of a date or time that is
            out of range. Columns of arrays, maps and structs are refused.
        ends: The source ends: once a micro-batch finds nothing new in it, the spout has ended, and with the
            last verdict the topology ends by itself. For files and tables that are there when it starts.
            With several DataFrames, all of them end together. False: rows may come at any time.

    The rows become tuples inside the query; the verdicts go to the acknowledger, to the statistics and, with
    a ``Retry``, to the dead letters. Spark's source remembers its own position in the checkpoint. How fast
    rows come is set on the source (``maxOffsetsPerTrigger``, ``maxFilesPerTrigger``), not by
    ``max_spout_pending``.
    """

    redelivers = False
    acknowledger: Acknowledger | None = None
    """Is told the verdicts of the rows."""
    id_columns: tuple[str, ...] = ()
    """The columns of the message id; empty when rows are untracked."""

    @naming_keywords
    def __init__(
        self,
        streaming_df: object,
        message_id: str | Sequence[str] | None = None,
        acknowledger: Acknowledger | None = None,
        *,
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
            what = "an acknowledger is given, and no message_id to tell it"
            raise TopologyError(what, where, 'name the column of the id: message_id="offset"')
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
        """Tell the acknowledger."""
        if self.acknowledger is not None:
            self.acknowledger.ack_batch(message_ids)

    def fail_batch(self, failures: Sequence[tuple[MessageId, Failure]]) -> None:
        """Tell the acknowledger."""
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


def tell_each(tell: Callable[..., None], messages: Iterable[tuple[Any, ...]]) -> None:
    """Call ``tell`` for every message, also after one of the calls raised; then raise what was raised."""
    raised: list[Exception] = []
    for message in messages:
        try:
            tell(*message)
        except Exception as exception:  # noqa: BLE001  # user code may raise anything; it is raised below
            raised.append(exception)
    if len(raised) == 1:
        raise raised[0]
    if raised:
        raise ExceptionGroup(f"{len(raised)} messages could not be told their verdicts", raised)
