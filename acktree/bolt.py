"""The contracts of bolts and of their output collectors.

Rules of this file
------------------
1. A bolt is pickled (cloudpickle) to the workers: ``__init__`` may only make picklable attributes; make all
   others in ``prepare``.
2. The docstrings are the contract. A hook that is not overridden does nothing.
3. A bolt does not see which micro-batch a call belongs to. Only the attributes in ``remembers`` are kept from
   one micro-batch to the next.

The kinds can be combined in one topology: :class:`Bolt` acks explicitly, :class:`BasicBolt` and the functions
of ``function_bolt.py`` ack automatically, :class:`ArrowBolt` reads and emits whole Arrow batches.

Source: Storm's ``IRichBolt``, ``IBasicBolt``, ``OutputCollector`` and ``BasicOutputCollector``. Difference:
an exception fails the tuple during which it was raised, and never ends the worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from acktree.core.data.fields import DEFAULT_STREAM, Outputs
from acktree.errors import Unavailable, name_keywords_of_connector

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay fast
    import pyarrow as pa

    from acktree.config import Config
    from acktree.core.data.context import TaskContext
    from acktree.core.data.tuples import Tuple

__all__ = [
    "AnyBolt",
    "ArrowBolt",
    "ArrowOutputCollector",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "OutputCollector",
]


BoltKind = Literal["by hand", "by itself", "batches"]
"""Whether a bolt acks by hand, is acked by itself, or takes whole batches."""

MOST_AT_ONCE: Final = 100
"""How many tuples of a task an asynchronous bolt executes at once, unless it sets ``max_concurrency``."""


class AnyBolt:
    """The common base of all bolts; derive from one of the three classes below.

    The calls for a task in a micro-batch are ``prepare``, ``tick`` when due, ``execute`` for each tuple,
    ``flush``, then ``cleanup``, all on one thread. A worker process serves many micro-batches, and a task may
    move to another process between two of them: an attribute is kept only if ``remembers`` names it. Changing
    any other attribute outside ``prepare`` is a MisuseError that fails the tuple and names the attribute. A
    bolt that overrides ``flush`` may change its attributes until then: ``flush`` leaves them as ``prepare``
    made them.

    In real time a task stays in its process, and its copy stays prepared from epoch to epoch, so that what
    ``prepare`` has opened is opened once; ``cleanup`` is called at the end. It is prepared anew after
    user code of the task has raised, and for each epoch where the bolt overrides ``flush``, is exactly once
    or concurrent, or where ``prepare`` asks for ``context.now_ms()`` or ``context.txid`` or adds a hook.
    """

    outputs: Outputs = ()
    """The streams: fields of the default stream, a ``pyarrow.Schema``, or a mapping from stream to either."""

    remembers: Sequence[str] = ()
    """Attributes that are kept between micro-batches, crashes and restarts. They are saved with the
    micro-batch, so a restart restores exactly the committed values. Of a ``KeyValueState`` and a
    ``ColumnState`` only what changed is saved, any other attribute as a whole."""

    remembers_per_task: bool = False
    """Whether each task is meant to remember for itself, whatever tuples it gets. If not, ``create_topology``
    warns of several tasks behind a shuffle: they would each remember a part of a total."""

    _acktree_kind: ClassVar[BoltKind]
    """The kind of its tasks, which its base class names."""

    def __init_subclass__(cls, **more: object) -> None:
        """Let a connector of acktree's name a misspelt argument."""
        super().__init_subclass__(**more)
        name_keywords_of_connector(cls)

    def cleanup(self) -> Awaitable[None] | None:
        """Release the resources that ``prepare`` acquired.

        Called after a task's last tuple of each micro-batch in which it was prepared, on the same thread. Not
        called when a worker is killed, so correctness must not depend on it. The remembered attributes are
        saved before: a change of one here is lost, and emitting, acking and failing raise MisuseError.
        ``report_error`` works, and an exception raised here is reported.
        """


class _WaitingBolt(AnyBolt):
    """The settings of bolts that may execute several tuples at once, because they wait for other services.

    A bolt does so if its ``execute`` is an ``async def``, or if it sets ``threads``. Its tuples begin in the
    order in which their sender emitted them, and end in any order. What each of them emits, acks and fails
    takes effect when all tuples of the task have ended, in the first order again. A tuple that takes longer
    than the execute timeout fails with ``ExecuteTimeoutError``: a coroutine is cancelled; a thread that
    blocks is left behind, and what it does later has no effect.

    Between two ``await`` no other tuple of the task runs. With threads, a tuple that touches a remembered
    attribute has all of them to itself until ``execute`` ends.
    """

    max_concurrency: int | None = None
    """Of a bolt with ``async def execute``: how many tuples of a task are executed at once. None: 100.
    ``prepare``, ``tick``, ``flush`` and ``cleanup`` may be ``async def`` too. They all run on one event loop,
    which is kept until the process ends."""

    threads: int | None = None
    """How many tuples of a task are executed at once, each on a thread. None: one after another, on the main
    thread. The threads are kept until the process ends. Other hooks run on the main thread."""


class Bolt(_WaitingBolt, ABC):
    """A bolt that anchors and acks explicitly; for joins, windows and other bolts that hold tuples."""

    _acktree_kind = "by hand"

    tick_secs: float | None = None
    """How often ``tick`` is called, by the micro-batch's clock. None: ``Config.tick_tuple_freq_secs``."""

    def prepare(
        self, config: Config, context: TaskContext, collector: OutputCollector
    ) -> Awaitable[None] | None:
        """Prepare the task: keep the collector, set the initial values of the remembered attributes.

        Called before the first tuple of a task, possibly again in every micro-batch and in another process.
        Saved values of remembered attributes are set *after* it, and replace the initial values. Do not open
        connections here each time: open them at first use, or with ``context.cached(key, factory)``, which
        keeps them until the process ends. It may block, but the micro-batch waits. An exception fails every
        tuple of the task in this micro-batch; in the next micro-batch ``prepare`` is called again.
        """

    @abstractmethod
    def execute(self, tup: Tuple) -> Awaitable[None] | None:
        """Process one tuple: emit, and ack or fail it, now or in a later call. It may be an ``async def``.

        Called once for each tuple, in the order in which its sender emitted them. It may block, up to
        the execute timeout; the micro-batch waits, and no tuple times out meanwhile. A tuple that is neither
        acked nor failed stays open until its message times out; store it in a remembered attribute to ack it
        in a later micro-batch. An exception fails only ``tup``, even after its ack; tuples emitted and
        attributes changed before it are kept. A micro-batch may run again from the saved attributes: effects
        outside acktree may repeat.
        """

    def tick(self, tup: Tuple) -> Awaitable[None] | None:
        """Handle a tick: flush, expire, or ack held tuples.

        Called for each task at most once per micro-batch, before its tuples, when ``tick_secs`` have passed
        since the last call; the first call is after one interval. ``tup`` belongs to no message: anchoring to
        it and acking it have no effect. An exception is reported and fails no tuple.
        """

    def flush(self, collector: OutputCollector) -> Awaitable[None] | None:
        """Finish the micro-batch: write a batch, commit a transaction, ack held tuples.

        Called once for a task and micro-batch in which the task had a tuple or a tick, after the last of them
        and before the remembered attributes are saved. It may emit, ack and fail; ``collector`` is the one
        that ``prepare`` got. An exception is reported, and fails every tuple of this micro-batch that is
        still open; earlier emits, acks and changes of attributes are kept, and a tuple held from an earlier
        micro-batch stays held. A tuple that is left open stays open, as after ``execute``. May block; there
        is no time limit. Not called if ``prepare`` raised. The micro-batch may run again.
        """


class BasicBolt(_WaitingBolt, ABC):
    """The usual bolt: it anchors every emit to its input, and acks when ``execute`` returns.

    An exception fails the tuple instead, with its traceback.

        class Split(BasicBolt):
            outputs = ["word"]

            def execute(self, tup, collector):
                for word in tup["line"].split():
                    collector.emit([word])
    """

    _acktree_kind = "by itself"

    tick_secs: float | None = None
    """How often ``tick`` is called, by the micro-batch's clock. None: ``Config.tick_tuple_freq_secs``."""

    def prepare(self, config: Config, context: TaskContext) -> Awaitable[None] | None:
        """Prepare the task: set the initial values of the remembered attributes.

        Called before the first tuple of a task, possibly again in every micro-batch and in another process.
        Saved values of remembered attributes are set *after* it, and replace the initial values. Open
        connections at first use, or with ``context.cached(key, factory)``. The micro-batch waits for it. An
        exception fails every tuple of the task in this micro-batch; in the next one ``prepare`` is called
        again.
        """

    @abstractmethod
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> Awaitable[None] | None:
        """Process one tuple; return to ack it, raise to fail it. It may be an ``async def``.

        Called once for each tuple, in the order in which its sender emitted them. It may block, up to
        the execute timeout; the micro-batch waits, and no tuple times out meanwhile. Tuples emitted and
        attributes changed before an exception are kept, but the message is failed. Do not store the tuple: it
        is acked when this returns.
        """

    def tick(self, tup: Tuple, collector: BasicOutputCollector) -> Awaitable[None] | None:
        """Handle a tick: flush or expire.

        Called for each task at most once per micro-batch, before its tuples, when ``tick_secs`` have passed
        since the last call. Emitted tuples belong to no message. An exception is reported and fails no tuple.
        """

    def flush(self, collector: BasicOutputCollector) -> Awaitable[None] | None:
        """Finish the micro-batch: write a batch, commit a transaction.

        If a class overrides this, its tuples are acked when ``flush`` has returned, not before. So a sink may
        collect values in ``execute`` and write them here: if that raises, every tuple of this micro-batch
        that did not fail before is FAILED with the exception.

        Called once for a task and micro-batch in which the task had a tuple or a tick, after the last of them
        and before the remembered attributes are saved. Tuples that it emits are not anchored: no verdict
        waits for them. An emitted value that cannot be sent counts as an exception of ``flush``. May block;
        there is no time limit. Not called if ``prepare`` raised. The micro-batch may run again.
        """


class ArrowBolt(AnyBolt, ABC):
    """A bolt over whole Arrow batches: no Python object per tuple.

    It has no tick.

        class Split(ArrowBolt):
            outputs = pa.schema([("word", pa.string())])

            def execute_batch(self, batch, collector):
                words = pc.split_pattern(batch["line"], " ")
                out = pa.record_batch({"word": pc.list_flatten(words)})
                collector.emit_batch(out, parents=pc.list_parent_indices(words))
    """

    _acktree_kind = "batches"

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Prepare the task: set the initial values of the remembered attributes. As :class:`BasicBolt`."""

    @abstractmethod
    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> Unavailable | None:
        """Process the tuples of one batch; return to ack all except those passed to ``fail_rows``.

        If it returns :class:`Unavailable`, the messages of the batch wait, as if it was raised.

        Called with one or more rows of one stream, in the order in which their sender emitted them. The
        number of rows is not specified: tuples of one message may come in several batches. An exception fails
        the whole batch; tuples emitted and attributes changed before it are kept. It may block, up to the
        execute timeout; the micro-batch waits, and no tuple times out.

        A field without a declared type has the type that Arrow infers for the values of the batch. Values
        without a common type, such as a date and a number, come in several batches; a value that Arrow cannot
        represent fails its tuple.
        """

    def flush(self, collector: ArrowOutputCollector) -> None:
        """Finish the micro-batch, as for :class:`BasicBolt`.

        If a class overrides this, rows are acked when ``flush`` has returned. ``emit_batch`` takes
        ``parents=None`` here, and ``fail_rows`` is refused: there is no input batch. To fail, raise.
        """


class _Collector(ABC):
    """The common base of all collectors."""

    @abstractmethod
    def report_error(self, exception: BaseException) -> None:
        """Record an exception with this component's errors. Fails no tuple; frequent errors are throttled."""


class OutputCollector(_Collector):
    """The collector of a :class:`Bolt`; use it on the bolt's own thread, inside its hooks.

    Nothing checks that. For calls that wait, make ``execute`` an ``async def``, or give the bolt ``threads``:
    the collector of such a bolt keeps apart what each tuple emits.
    """

    @abstractmethod
    def emit(
        self,
        values: Sequence[object],
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit one tuple.

        Args:
            values: One value for each field of the stream, in order. What is changed later is not sent.
            anchors: One or several input tuples; their messages are not acked before this tuple is. The same
                tuple twice counts once. None: not anchored.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, an anchor that was acked or failed
                already, or a stream that a bolt reads by direct grouping. Nothing was emitted then.
        """

    @abstractmethod
    def emit_direct(
        self,
        task_id: int,
        values: Sequence[object],
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit one tuple to one task that reads the stream by direct grouping; see ``context.task_ids``.

        Raises:
            MisuseError: As ``emit``, and for a task that does not read this stream by direct grouping.
        """

    @abstractmethod
    def ack(self, tup: Tuple) -> None:
        """Ack a tuple of this or an earlier micro-batch; once, and after all emits anchored to it.

        Raises:
            MisuseError: It was acked or failed already.
        """

    @abstractmethod
    def fail(self, tup: Tuple, reason: str = "", *, exception: BaseException | None = None) -> None:
        """Fail a tuple, once: the verdict on its messages is FAILED, with this reason.

        Args:
            tup: The tuple.
            reason: Why; empty for the text of the exception.
            exception: What the bolt caught; ``failure.exception`` and ``Retry(final=...)`` get it.

        Raises:
            MisuseError: It was acked or failed already.
        """

    @abstractmethod
    def reset_timeout(self, tup: Tuple) -> None:
        """Restart the message timeout of this tuple's messages, for work that takes longer than it."""


class BasicOutputCollector(_Collector):
    """The collector of a :class:`BasicBolt`; anchors to the current tuple. Valid during the call."""

    @abstractmethod
    def emit(self, values: Sequence[object], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple, anchored to the input (in ``tick``: to nothing).

        Args:
            values: One value for each field of the stream, in order. What is changed later is not sent.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, or a stream that a bolt reads by direct
                grouping. Nothing was emitted then.
        """

    @abstractmethod
    def emit_direct(self, task_id: int, values: Sequence[object], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit one anchored tuple to one task that reads the stream by direct grouping.

        Raises:
            MisuseError: As ``emit``, and for a task that does not read this stream by direct grouping.
        """

    @abstractmethod
    def reset_timeout(self) -> None:
        """Restart the message timeout of the current tuple's messages, for work that takes longer than it."""


class ArrowOutputCollector(_Collector):
    """The collector of an :class:`ArrowBolt`. Valid during the call."""

    @abstractmethod
    def emit_batch(
        self,
        batch: pa.RecordBatch,
        parents: Sequence[int] | pa.Array | None,
        *,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit each row of a batch as a tuple.

        Args:
            batch: Columns are the stream's fields, matched by name, in any order. If types are declared,
                values must fit as in ``emit``; if a value does not fit, or is of a type that Arrow cannot
                write and read, only the parent of its row fails. Metadata that begins with ``acktree`` is
                removed, and views become plain columns. Memory that is written later is copied.
            parents: For each output row the input row it is anchored to: integers, shape (rows of
                ``batch``,); a list, numpy array or Arrow array, in any order, with repeats. None: not
                anchored. It has no default, because an omitted anchor would ack unprocessed messages.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream or one that a bolt reads by direct grouping, other columns than its
                fields, or parents that are too few, too many or not rows of the input. Nothing was emitted
                then.
        """

    @abstractmethod
    def fail_rows(self, rows: Sequence[int] | pa.Array, reason: str = "") -> None:
        """Fail these rows of the input, instead of acking them when ``execute_batch`` returns.

        A row given twice is failed once, with the first reason.

        Args:
            rows: Numbers of rows, or a mask: a boolean for each row of the input, True for those that fail. A
                list, numpy array or Arrow array.

        Raises:
            MisuseError: A number that is not a row of the input, a mask of another length, a null, a float.
        """
