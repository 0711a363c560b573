"""Where the work is done: the contracts of the bolts and of what they emit into.

Rules of this file
------------------
1. A bolt travels: it is pickled (cloudpickle) to the workers, so ``__init__`` keeps what pickles, and
   ``prepare`` makes what does not.
2. The docstrings are the contract. A hook that is not overridden does nothing.
3. Which micro-batch a call belongs to is nothing a bolt can see; only what it ``remembers`` outlives one.

The four kinds mix in one topology: :class:`Bolt` acks by hand, :class:`BasicBolt` and :func:`bolt` ack by
themselves, :class:`ArrowBolt` takes and gives whole Arrow batches.

Source: Storm's ``IRichBolt``, ``IBasicBolt``, ``OutputCollector`` and ``BasicOutputCollector``. Departure:
any exception fails the tuple it was raised over, never the worker.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

from acktree.core.data.fields import DEFAULT_STREAM, Outputs
from acktree.errors import MisuseError, TopologyError

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
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
    "FunctionBolt",
    "OutputCollector",
    "bolt",
]


class AnyBolt:
    """What every bolt has; derive from one of the three below.

    Life of a task in a micro-batch: ``prepare``, ``tick`` if it is due, ``execute`` for each tuple,
    ``flush``, ``cleanup``. All calls are made on one thread, never two at once. A worker process serves many
    micro-batches, and a task may move between processes from one to the next: an attribute lives on only if
    ``remembers`` names it. Changing any other attribute outside ``prepare`` is a MisuseError that fails the
    tuple and names the attribute. A bolt that overrides ``flush`` may change its attributes until then:
    ``flush`` leaves them as ``prepare`` made them.
    """

    outputs: Outputs = ()
    """The streams: fields of the default stream, a ``pyarrow.Schema``, or a mapping from stream to either."""

    remembers: Sequence[str] = ()
    """Attributes that live on between micro-batches, crashes and restarts. They are saved with the
    micro-batch, so exactly what was committed comes back; a ``KeyValueState`` is saved by changed key,
    anything else whole."""

    def cleanup(self) -> None:
        """Let go of what ``prepare`` took.

        Called after a task's last tuple of each micro-batch in which it was prepared, on the same thread;
        never when a worker is killed, so nothing may need it. What is remembered was saved before: emitting,
        acking and failing raise MisuseError here, and a change of a remembered attribute is not kept.
        ``report_error`` works, and what this raises is reported.
        """


class Bolt(AnyBolt, ABC):
    """A bolt that anchors and acks by hand; for joins, windows and whatever holds tuples for a while."""

    tick_secs: float | None = None
    """How often ``tick`` is called, by the micro-batch's clock. None: ``Config.tick_tuple_freq_secs``."""

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        """Get ready: keep the collector, give what is remembered its first value.

        Called before the first tuple of a task, possibly again in every micro-batch and in another process;
        what is remembered is set *after* it, and replaces what it set. Connections are dear here: make them
        at first use, or with ``context.cached(key, factory)``, which keeps them for the life of the process.
        May block, but the micro-batch waits. An exception fails every tuple that the task is given in this
        micro-batch; in the next it is prepared anew.
        """

    @abstractmethod
    def execute(self, tup: Tuple) -> None:
        """Work on one tuple: emit, and sooner or later ack or fail it.

        Called once for each tuple, in the order in which its sender emitted them. May block; the micro-batch
        waits, and no tuple times out meanwhile. A tuple that is neither acked nor failed stays open, over any
        number of micro-batches, until its message times out; keep it in something remembered to ack it later.
        An exception fails ``tup``, also after its ack, and it alone; what was emitted or remembered before
        stands. A micro-batch may run again, from the memory before it: effects outside acktree may repeat.
        """

    def tick(self, tup: Tuple) -> None:
        """Time has passed: flush, expire, look after held tuples.

        Called for each task at most once a micro-batch, before its tuples, when ``tick_secs`` have passed
        since the last call; the first comes after one interval. ``tup`` belongs to no message: anchoring to
        it and acking it change nothing. An exception is reported and fails nothing.
        """

    def flush(self, collector: OutputCollector) -> None:
        """Finish what this micro-batch brought: write a batch, commit a transaction, ack what was held.

        Called once for a task and micro-batch in which the task was given a tuple or a tick, after the last
        of them and before what it remembers is saved. It may emit, ack and fail; ``collector`` is the one
        that ``prepare`` was given. An exception fails every tuple of this micro-batch that is still open, and
        is reported; what was emitted, acked or remembered before stands, and a tuple held from an earlier
        micro-batch stays held. A tuple that is left open stays open, as after ``execute``. May block; there
        is no time limit. Not called where ``prepare`` raised. The micro-batch may run again.
        """


class BasicBolt(AnyBolt, ABC):
    """The bolt that most people write: it anchors every emit to its input, and acks when execute returns.

    An exception fails the tuple instead, with its traceback.

        class Split(BasicBolt):
            outputs = ["word"]

            def execute(self, tup, collector):
                for word in tup["line"].split():
                    collector.emit([word])
    """

    tick_secs: float | None = None
    """How often ``tick`` is called, by the micro-batch's clock. None: ``Config.tick_tuple_freq_secs``."""

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Get ready; give what is remembered its first value. The collector comes with each call.

        Called before the first tuple of a task, possibly again in every micro-batch and in another process;
        what is remembered is set *after* it, and replaces what it set. Make connections at first use, or with
        ``context.cached(key, factory)``. The micro-batch waits for it. An exception fails every tuple that
        the task is given in this micro-batch; in the next it is prepared anew.
        """

    @abstractmethod
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Work on one tuple; return to ack it, raise to fail it.

        Called once for each tuple, in the order in which its sender emitted them. May block; the micro-batch
        waits, and no tuple times out meanwhile. What was emitted or remembered before an exception stands,
        but the message is failed. Keep no tuple: it is done when this returns.
        """

    def tick(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Time has passed: flush, expire.

        Called for each task at most once a micro-batch, before its tuples, when ``tick_secs`` have passed
        since the last call. What it emits belongs to no message. An exception is reported and fails nothing.
        """

    def flush(self, collector: BasicOutputCollector) -> None:
        """Finish what this micro-batch brought: write a batch, commit a transaction.

        Where a class overrides this, its tuples are acked when ``flush`` has returned and not before. So a
        sink may collect values in ``execute`` and write them here: if that raises, every tuple of this
        micro-batch that did not fail before is FAILED with the exception.

        Called once for a task and micro-batch in which the task was given a tuple or a tick, after the last
        of them and before what it remembers is saved. What it emits hangs on no message: whatever becomes of
        it, no verdict waits for it. An emitted value that cannot be sent counts as an exception of ``flush``.
        May block; there is no time limit. Not called where ``prepare`` raised. The micro-batch may run again.
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

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Get ready; give what is remembered its first value. As for :class:`BasicBolt`."""

    @abstractmethod
    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        """Work on the tuples of one batch; return to ack them, but for those given to ``fail_rows``.

        Called with one or more rows of one stream, in the order in which their sender emitted them; how many
        is not promised: one message's may come in several batches. An exception fails the whole batch; what
        was emitted or remembered before stands. May block; the micro-batch waits, and nothing times out.
        """

    def flush(self, collector: ArrowOutputCollector) -> None:
        """Finish what this micro-batch brought, as for :class:`BasicBolt`.

        Where a class overrides this, rows are acked when ``flush`` has returned. ``emit_batch`` takes
        ``parents=None`` here, and ``fail_rows`` is refused: there is no input batch. To fail, raise.
        """


class _Collector(ABC):
    """What all collectors can do."""

    @abstractmethod
    def report_error(self, exception: BaseException) -> None:
        """Record an exception with this component's errors. Fails nothing; many in a row are throttled."""


class OutputCollector(_Collector):
    """What a :class:`Bolt` emits into and acks with; use it on the bolt's own thread, inside its hooks."""

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
            values: One value for each field of the stream, in order. Not to be changed afterwards.
            anchors: The input tuple, or several, whose messages are not done before this one is. The same
                tuple twice counts once. None: not anchored, whatever becomes of it.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, an anchor that was acked or failed
                already, or a stream that somebody reads by direct grouping. Nothing was emitted then.
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
        """This tuple is done, in whichever micro-batch it came. Once, and after the emits anchored to it.

        Raises:
            MisuseError: It was acked or failed already.
        """

    @abstractmethod
    def fail(self, tup: Tuple, reason: str = "") -> None:
        """This tuple cannot be done: its messages are FAILED, with this reason. Once.

        Raises:
            MisuseError: It was acked or failed already.
        """

    @abstractmethod
    def reset_timeout(self, tup: Tuple) -> None:
        """Start the message timeout of this tuple's messages anew: for work that is slow but alive."""


class BasicOutputCollector(_Collector):
    """What a :class:`BasicBolt` emits into, anchored to the tuple at hand. Valid during the call."""

    @abstractmethod
    def emit(self, values: Sequence[object], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple, anchored to the input (in ``tick``: to nothing).

        Args:
            values: One value for each field of the stream, in order. Not to be changed afterwards.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream, wrong number of values, or a stream that somebody reads by direct
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
        """Start the message timeout of the current tuple's messages anew: for work that is slow but alive."""


class ArrowOutputCollector(_Collector):
    """What an :class:`ArrowBolt` emits into. Valid during the call."""

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
            batch: Columns are the stream's fields, matched by name, in any order. Under declared types a
                value must fit as in ``emit``; if one of a row does not, the row's parent fails, and no other.
                Metadata that begins with ``acktree`` is removed, and views become plain columns.
            parents: For each output row the input row it is anchored to: integers, shape (rows of
                ``batch``,); a list, numpy array or Arrow array, in any order, with repeats. None: not
                anchored; said aloud, since forgetting it would ack what was never done.
            stream: A stream of ``outputs``.

        Raises:
            MisuseError: Undeclared stream, other columns than its fields, or parents that are too few, too
                many or not rows of the input. Nothing was emitted then.
        """

    @abstractmethod
    def fail_rows(self, rows: Sequence[int] | pa.Array, reason: str = "") -> None:
        """Fail these rows of the input, instead of acking them when ``execute_batch`` returns.

        A row given twice is failed once, with the first reason.

        Args:
            rows: Numbers of rows, or a mask: a boolean for each row of the input, True for those that fail. A
                list, numpy array or Arrow array.

        Raises:
            MisuseError: A number that is no row of the input, a mask of another length, a null, a float.
        """


class FunctionBolt(BasicBolt):
    """What :func:`bolt` makes of a function. Calling it calls the function, as a test would."""

    def __init__(self, function: Callable[[Tuple], object], outputs: Outputs = ()) -> None:
        self.function = function
        self.outputs = outputs
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, tup: Tuple) -> Any:  # noqa: ANN401  # whatever the function returns
        """What the function returns for a tuple."""
        return self.function(tup)

    def __repr__(self) -> str:
        return f"@bolt {self.__name__}"

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every list of values that the function yields or returns; None is nothing.

        A generator's values are emitted as it yields them, so those before an exception stand.
        """
        returned = self.function(tup)
        if returned is None:
            return
        # The type that it nearly always has comes first: to ask an ABC takes longer.
        if isinstance(returned, str) or not isinstance(returned, (GeneratorType, Iterable)):
            raise self._no_values("returned", returned)
        emit = collector.emit
        for values in returned:
            if type(values) is not list and not isinstance(values, (list, tuple)):
                raise self._no_values("gave", values)
            emit(values)

    def _no_values(self, did: str, value: object) -> MisuseError:
        return MisuseError(
            f"{self!r} {did} {value!r:.80}, which is not a list of values",
            f"the function {self.__name__}",
            "yield a list with one value for each field (`yield [word]`), or return a list of such lists",
        )


def bolt(
    function: None = None, /, *, outputs: Outputs = ()
) -> Callable[[Callable[[Tuple], object]], FunctionBolt]:
    """Make a bolt of a function or generator that takes a tuple and yields lists of values.

    Args:
        function: Nothing; here so that a bare ``@bolt`` can be told how to be written.
        outputs: As ``Bolt.outputs``; values go to the default stream. Empty: the function emits nothing.

    BasicBolt's rules: what it gives is anchored to the tuple, which is acked when the function is done and
    failed when it raises. The function may yield, return a list of value lists, or return None.

        @bolt(outputs=["word"])
        def split(tup):
            for word in tup["line"].split():
                yield [word]

        builder.set_bolt("split", split).shuffle_grouping("lines")

    Raises:
        TopologyError: ``@bolt`` without parentheses, a class, an ``async def``, or a function that does not
            take one argument.
    """
    if function is not None:
        _refuse(
            "@bolt is used without parentheses",
            function,
            'write @bolt(outputs=["field"]); @bolt() if it emits nothing',
        )

    def make(function: Callable[[Tuple], object]) -> FunctionBolt:
        if isinstance(function, type) or not callable(function):
            _refuse(
                "@bolt is put on something that is no function",
                function,
                "derive a class from BasicBolt instead",
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            _refuse(
                "@bolt is put on an async function, which nobody would await",
                function,
                "write `def` without `async`",
            )
        try:
            inspect.signature(function).bind(None)
        except ValueError:
            pass  # a builtin that tells nobody what it takes
        except TypeError:
            what = f"the function takes {inspect.signature(function)}, and is called with one tuple"
            _refuse(what, function, "write it as def name(tup): ...")
        return FunctionBolt(function, outputs)

    return make


def _refuse(what: str, function: object, fix: str) -> NoReturn:
    name = getattr(function, "__qualname__", repr(function))
    raise TopologyError(what, f"@bolt above {name}", fix)
