"""Where messages come from: the contracts of a spout and of its output collector.

Rules of this file
------------------
1. A spout lives in the process that called ``submit``: each of its tasks is a ``copy.deepcopy`` of the object
   given to ``set_spout``, with a thread of its own on which everything here is called.
2. The docstrings are the contract. A hook that is not overridden does nothing.
3. A message id makes a tuple tracked: the spout gets one verdict for each attempt of it, unless its run ends
   before, or the spout itself says that it is lost. A tuple without a message id gets none.

Source: Storm's ``ISpout``, ``IRichSpout`` and ``SpoutOutputCollector``. Departures: ``fail`` gets the reason;
messages can be emitted, acked and failed in batches; a spout can say that it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from acktree.core.data.fields import DEFAULT_STREAM, Outputs
from acktree.errors import ConnectorError, name_keywords_of_connector

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    import pyarrow as pa
    from numpy import integer
    from numpy.typing import NDArray

    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.spouts.open_messages import OpenMessages
    from acktree.core.tracking.verdicts import Failure

__all__ = ["EndOfStream", "MessageId", "Spout", "SpoutOutputCollector"]

MessageId: TypeAlias = Hashable
"""A spout's name for a message: a delivery tag, an offset, a position. Several messages with equal ids may be
open at once; each gets its own verdict."""


class EndOfStream(Exception):  # noqa: N818  # not an error, like StopIteration
    """Raised by ``next_tuple`` when there will never be another message. Acks and fails still arrive.

    When every spout has ended and every message has its verdict, the topology ends by itself.
    """


class Spout(ABC):
    """A source of messages.

    A spout needs at least ``outputs`` and ``next_tuple``. All calls of one task, from ``open`` to ``close``,
    are made on one thread, so no locks are needed. The object given to ``set_spout`` is itself never opened;
    each task works on a deep copy of it, so make connections in ``open``, not in ``__init__``.

    The order of calls: ``open``, ``activate``, then ``next_tuple`` again and again with verdicts in between,
    ``deactivate`` and ``activate`` when the operator asks for them, ``close``. An exception in ``open`` stops
    the topology; in any other hook it is reported, and the spout continues.

    A ``ConnectorError`` is treated alike in every hook. With ``can_retry`` it is reported once and the call
    is made again, after pauses that double from 0.1 s to 30 s; ``next_tuple`` waits until it succeeds.
    Without, it stops the topology.
    """

    outputs: Outputs = ()
    """The streams: fields of the default stream, a ``pyarrow.Schema``, or a mapping from stream to either."""

    redelivers: bool = True
    """Who delivers open messages again after the driver died. True: the queue, as brokers do; verdicts of an
    earlier run are discarded. False: acktree; open messages continue, and their verdicts are delivered to
    this spout."""

    remembers: Sequence[str] = ()
    """Attributes that are saved atomically with what was emitted. After a restart they are set before
    ``open`` is called: give them their first values in ``__init__`` and do not set them in ``open``. What
    ``open`` sets replaces the saved value, so that a position is lost; the log then has a warning."""

    own_dead_letters: bool = False
    """Whether the queue keeps what a ``Retry`` gives up. True: acktree writes no dead letter, and ``fail``
    with ``final`` must reject the message to the queue's own dead letters."""

    keep_alive_secs: float | None = None
    """``keep_alive`` is called at least once in this number of seconds. None: never. ``open`` may set it."""

    def __init_subclass__(cls, **more: object) -> None:
        """Let a connector of acktree's name a misspelt argument."""
        super().__init_subclass__(**more)
        name_keywords_of_connector(cls)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        """Prepare the task: keep the collector, connect.

        Called once for each task in one run of the driver, before all other hooks, on this task's own thread.
        The query is already running. May block: only this task waits for it. An exception stops the topology
        with its reason; after a ``ConnectorError`` with ``can_retry`` it is called again. When a checkpoint
        is resumed, the attributes in ``remembers`` are set before: do not set them here. With
        ``redelivers = False``, ``context.open_message_ids`` has the messages that an earlier run left open.
        acktree continues them: do not emit them again.
        """

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit what is ready, or return at once.

        Called again and again on this task's own thread, while fewer than ``max_spout_pending`` messages are
        open. Never called while ``ack`` or ``fail`` runs, before ``open``, while deactivated, or after
        ``close``. Do not block for long: verdicts for this task wait meanwhile. What it emitted before is
        handed over by another thread after half a second, unless the spout ``remembers`` something or has
        task hooks; then that waits too. If there is no message, emit
        nothing; the wait strategy sleeps. Raise EndOfStream when there will never be another message; acks
        and fails still arrive. Any other exception is reported, and ``next_tuple`` is called again after the
        wait strategy; tuples emitted before it are kept. A SpoutError has more settings: ``pause_secs`` is
        how long ``next_tuple`` is not called, and ``can_go_on=False`` stops the topology with that error.
        """

    def ack(self, message_id: MessageId) -> None:
        """Every tuple of this message's tree was acked: let the queue forget it.

        Same thread as ``next_tuple``, between two calls of it, never inside ``emit``. At most once a message
        in one run of the driver, and never after ``fail`` with ``failure.final``; after a restart the queue
        delivers open messages again, as new attempts. An ack that comes after the verdict TIMED_OUT is not
        delivered. Do not block for long. Still called while deactivated and after EndOfStream.
        """

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """A bolt failed this message or raised an exception, or it timed out: ``failure`` says which and why.

        Same thread as ``next_tuple``, between two calls of it. Without a ``Retry`` it is called at each
        failure, and nothing is emitted again automatically: a spout that does nothing here loses the message,
        as in Storm. With a ``Retry`` it is called once: ``failure.final`` is true, and the dead letter is
        already stored, unless the spout has ``own_dead_letters``. Emitting from here is allowed, also after
        EndOfStream, and makes a new message. Do not block for long.
        """

    def ack_batch(self, message_ids: Sequence[MessageId]) -> None:
        """Receive many acks in one call; override it if the queue can acknowledge in bulk.

        ``message_ids`` is a list; for messages emitted with an array of ids it is a sequence that
        ``numpy.asarray`` converts without a copy. Same thread and same guarantees as ``ack``, which this
        default calls for each, in the order given. If one call raises, the others are still made; the
        exceptions are raised at the end. A ``ConnectorError`` is raised at once: when acktree makes the call
        again, this goes on with the ack that raised.
        """
        _deliver(self, "ack", self.ack, message_ids)

    def fail_batch(self, failures: Sequence[tuple[MessageId, Failure]]) -> None:
        """Receive many failures in one call, as (message id, failure) pairs.

        Same thread and same guarantees as ``fail``, which this default calls for each, in the order given;
        what these calls raise is as in ``ack_batch``.
        """
        _deliver(self, "fail", lambda pair: self.fail(*pair), failures)

    def keep_alive(self, open_messages: OpenMessages) -> None:
        """Keep the connection and open messages alive: answer heartbeats, extend leases, commit.

        Called at least every ``keep_alive_secs`` from ``open`` to ``close``, in every state: while the spout
        is saturated, deactivated or at its end, and while a micro-batch runs. Same thread as ``next_tuple``,
        between two calls of any hook; a hook that blocks delays it. May emit, and may call
        ``collector.lost``.
        """

    def lag(self) -> int | Mapping[str, int] | None:
        """How many messages wait at the source; None if it is not known.

        Called every few seconds on the spout's thread; ``running.stats()`` shows the last answer. Return
        at once: prefer a number that was noted earlier to a request to the server.

        Returns:
            Their number; or by the name of each partition of the source how many wait there.
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
        """Release the resources that ``open`` acquired.

        Called once, last, on the same thread (Storm: on another), when the topology is killed or has ended.
        Not called when the process is killed, so correctness must not depend on it. May block for a few
        seconds.
        """


class SpoutOutputCollector(ABC):
    """The collector of a spout, given to ``open``.

    Any thread may call it, at any time until the spout is closed; only ``lost`` is for the spout's own.
    ``emit`` never blocks and never calls ``ack`` or ``fail``: there is room when ``next_tuple`` is called.
    Other threads are not held back: ``max_spout_pending`` does not bound what they emit. They may emit while
    the spout is deactivated. Messages of one thread keep their order within a stream.

    What a spout ``remembers`` is saved with what was emitted. If other threads emit, set these attributes in
    a hook and after the emit: what was emitted since comes again after a crash, and nothing is lost.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
        *,
        attempt: int = 1,
        trace: bool | str = False,
        label: str | None = None,
        key: str | bytes | int | None = None,
    ) -> None:
        """Emit one tuple.

        Args:
            values: One value for each field of the stream, in order. What is changed later is not sent.
            message_id: Any hashable value: the message is tracked and ``ack`` or ``fail`` is called with it.
                None: untracked, without a verdict. 0 and "" are ids. With ``redelivers = False`` it must
                survive pickle.
            stream: A stream of ``outputs``.
            attempt: The number of this delivery, from 1, where the queue counts them. ``tup.attempt`` and
                ``Retry`` continue from it. With a ``Retry``, a message whose attempt is above
                ``max_attempts`` is given up without being run: its earlier attempts ended with their driver
                or connection.
            trace: True: this message is traced, at any rate above 0. Or the text of a W3C ``traceparent``
                header that came with it: the message is traced if its sampled flag is set, and exported as
                part of that trace. Its retries are traced like it. Another text changes nothing.
            label: What people call the message, such as "order-17": dead letters, traces and the log show it,
                and it can be searched there. At most 200 characters are kept; those that cannot be printed
                are escaped. None or "": none.
            key: What the source calls the message, in each of its deliveries: an order number, an event id. A
                message whose key was ACKED within ``Config(key_retention_secs=...)`` is acked at once, and
                does not run. While another one with its key is open, it waits: if that one is ACKED, it is
                acked too; if that one is given up, or fails without a ``Retry``, it runs in its place. A key
                belongs to one spout. None: no key.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, a value or id that cannot be encoded, a
                stream that is read by direct grouping, no message id although the spout has a ``Retry`` or it
                is to be traced or has a label or a key, a label that is no text, a key that is empty or of
                another type, a key although there are no ackers, or an attempt below 1; or the spout
                is closed. Nothing was emitted then.
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
        trace: bool | str = False,
        label: str | None = None,
        key: str | bytes | int | None = None,
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
        keys: Sequence[str | bytes | int | None] | NDArray[Any] | pa.Array | None = None,
        labels: Sequence[str | None] | NDArray[Any] | pa.Array | None = None,
    ) -> None:
        """Emit each row of a batch as a message, with no Python object per row.

        Args:
            batch: Columns are the stream's fields, matched by name, in any order. If types are declared,
                values must fit as in ``emit``: a value that the type cannot hold without loss is refused, and
                a text is no number. Metadata that begins with ``acktree`` is removed; views become plain
                columns. Memory that is written later is copied.
            message_ids: One for each row, in order, none of them None; an integer array is kept as one, an
                array of floats is refused. None: all untracked, which
                a spout with a ``Retry`` may not emit.
            stream: A stream of ``outputs``.
            attempts: The number of this delivery of each row, as ``attempt`` of ``emit``. None: 1.
            keys: The key of each row, as ``key`` of ``emit``, or None in its place. None: no keys.
            labels: The label of each row, as ``label`` of ``emit``, likewise.

        Raises:
            MisuseError: As ``emit``, for other columns, for types that Arrow cannot write and read, for a
                value of any row that does not fit, and for ids that are not one for each row. Nothing was
                emitted then.

        A batch larger than ``max_spout_pending`` is admitted, alone.
        """

    def lost(self, message_ids: Iterable[MessageId] | None = None) -> None:
        """Report that the queue delivers these messages again: their connection, lease or partition is gone.

        Args:
            message_ids: As they were emitted; all messages with an equal id are meant. None: all open
                messages of this task.

        They are no longer open when this returns, so there is room at once. They get no verdict, retry or
        dead letter, also not those that waited for a retry. Bolts may still process them.

        Raises:
            MisuseError: Another thread than the spout's own calls it.
        """

    def wake(self) -> None:
        """End the wait strategy's pause, so that ``next_tuple`` is called at once. From any thread."""

    @abstractmethod
    def report_error(self, exception: BaseException) -> None:
        """Record an exception with this component's errors. Fails nothing; frequent errors are throttled."""

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """How many messages of this task have no verdict yet, including those that wait for a retry."""


def _deliver(spout: Spout, name: str, hook: Callable[..., None], items: Iterable[Any]) -> None:
    own = own_delivery.get()
    if own is not None and own[0] is spout:
        own[1](name, hook, items)
    else:
        call_each(hook, items)


def call_each(hook: Callable[..., None], items: Iterable[Any]) -> None:
    """Call a hook for every item, also after one of the calls raised; then raise what was raised."""
    raised: list[Exception] = []
    for item in items:
        try:
            hook(item)
        except ConnectorError:
            raise  # its caller makes the call again
        except Exception as exception:  # noqa: BLE001  # user code may raise anything; it is raised below
            raised.append(exception)
    if len(raised) == 1:
        raise raised[0]
    if raised:
        raise ExceptionGroup(f"the verdicts of {len(raised)} messages could not be delivered", raised)


own_delivery: Final[
    ContextVar[tuple[Spout, Callable[[str, Callable[..., None], Iterable[Any]], None]] | None]
] = ContextVar("own_delivery", default=None)
"""While the engine delivers verdicts: the spout, and how a hook of it, by name, is called for each verdict.
The engine knows which were taken in a try before this one, and which are lost."""
