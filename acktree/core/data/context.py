"""What user code of a task is given: its context (Storm's ``TopologyContext``), and the hooks it may add."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from acktree.core.data.instruments import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    Instruments,
    MeterMetric,
    TimerMetric,
)
from acktree.errors import MisuseError, nearest

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay fast
    from acktree.core.data.hooks import (
        BoltAckInfo,
        BoltExecuteInfo,
        BoltFailInfo,
        EmitInfo,
        SpoutAckInfo,
        SpoutFailInfo,
    )

_T = TypeVar("_T")

# One per process, on purpose: a worker process lives for many micro-batches, a bolt object does not.
_Key = tuple[str, str, str, Hashable]
"""Checkpoint, topology, component, and the user's key."""
_cached: dict[_Key, Any] = {}
_inherited: list[Mapping[_Key, Any]] = []


def forget_inherited() -> None:
    """Empty the cache of ``cached``. Called in a forked child, which must not use its parent's connections.

    The parent's objects are kept alive in ``_inherited``: a finaliser in the child could close a socket that
    both processes share, and thereby the parent's connection.
    """
    _inherited.append(dict(_cached))
    _cached.clear()


def forget_cached(checkpoint_id: str, topology: str) -> None:
    """Let ``cached`` make its objects anew for a topology that is over, and whose name may come again.

    The objects are kept alive: nobody has closed them, and a client that is collected unclosed warns.
    """
    keys = [key for key in _cached if key[:2] == (checkpoint_id, topology)]
    _inherited.append({key: _cached.pop(key) for key in keys})


def is_cached(value: object) -> bool:
    """Whether a value is one that ``cached`` returned: it stays as it is changed."""
    return any(value is cached for cached in tuple(_cached.values()))


@dataclass(slots=True)
class Clock:
    """A time that its owner sets, and the number of a micro-batch.

    Attributes:
        now_ms: The time, in milliseconds since 1970; in a ``LocalCluster`` since its start.
        txid: Of a bolt or sink: the number of the micro-batch.
        was_read: Whether user code has asked for one of them.
    """

    now_ms: int = 0
    txid: int | None = None
    was_read: bool = False


class TaskHook:
    """Watches the tasks of a topology. Override what you need; the other methods do nothing.

    Register it for all tasks by ``Config(task_hooks=[MyHook()])``, or for one by
    ``context.add_task_hook(MyHook())`` in ``prepare`` or ``open``. Each task has a copy of its own, which
    lives as long as the task's spout or bolt: of a bolt one micro-batch. Hooks of bolts run in workers, and
    run again when Spark runs a task again: what must be exact is counted by ``context.register_counter``.

    ``bolt_execute`` is called when ``execute`` has returned or raised. What the tuples of a frame emitted,
    acked and failed is reported after the frame: first the emits, then acks and fails, in the order of the
    tuples. A hook that raises is reported and fails nothing. A hook must not change what it is given.
    """

    def prepare(self, config: Any, context: TaskContext) -> None:  # noqa: ANN401  # a Config, of a room above
        """Called before the hooks of the spout or bolt.

        Args:
            config: The :class:`Config` of the topology, without passwords.
            context: The task's context.
        """

    def emit(self, info: EmitInfo) -> None:
        """Called for each tuple emitted, once it is known which tasks get it. Ticks are not seen."""

    def spout_ack(self, info: SpoutAckInfo) -> None:
        """Called for each message acked, after the spout's ``ack``."""

    def spout_fail(self, info: SpoutFailInfo) -> None:
        """Called for each attempt that failed or timed out; with a ``Retry`` before the next attempt."""

    def bolt_execute(self, info: BoltExecuteInfo) -> None:
        """Called for each tuple when ``execute`` has returned or raised."""

    def bolt_ack(self, info: BoltAckInfo) -> None:
        """Called for each tuple acked."""

    def bolt_fail(self, info: BoltFailInfo) -> None:
        """Called for each tuple failed; alone where ``execute`` was not called, since ``prepare`` raised."""

    def cleanup(self) -> None:
        """Called after ``cleanup`` of the bolt or ``close`` of the spout."""


def _refuse_hook(hook: TaskHook) -> NoReturn:
    raise MisuseError(
        f"a task hook was added too late, or where there is no task: {type(hook).__name__}",
        "context.add_task_hook()",
        "add it in open() of a spout or prepare() of a bolt, or for all tasks by Config(task_hooks=[...])",
    )


class TaskServices:
    """What a :class:`TaskContext` calls.

    Attributes:
        instruments: The metrics that the task registers.
        resources: What worker hooks have set in this process, by name.
        add_hook: Takes a hook. Refuses it unless the task replaces this while user code may add some.
    """

    def __init__(
        self,
        instruments: Instruments | None = None,
        resources: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Refuse hooks until the task allows them.

        Args:
            instruments: The metrics; None where they are not read.
            resources: What worker hooks have set.
        """
        self.resources = resources
        self.instruments = instruments or Instruments()
        self.add_hook: Callable[[TaskHook], None] = _refuse_hook

    def __reduce__(self) -> tuple[type[TaskServices], tuple[()]]:
        """A copy belongs to no task: it refuses hooks, and its metrics are not read."""
        return TaskServices, ()

    def close(self) -> None:
        """From now on no hook is added: ``open`` or ``prepare`` has returned."""
        self.add_hook = _refuse_hook


@dataclass(frozen=True)
class TaskContext:
    """The identity of a task: its component, its id and index, and the tasks of the topology.

    Attributes:
        topology_name: Name given to the builder.
        component_id: Id given to ``set_spout`` or ``set_bolt``.
        task_id: This task's number in the topology, from 1.
        task_index: This task's index among its component's tasks, from 0.
        tasks: The task ids of every component, ascending.
        open_message_ids: Of a spout with ``redelivers = False``: the ids of the messages that an earlier run
            left open. acktree recovers them and delivers their verdicts; the spout must not emit them again.
        max_spout_pending: Of a spout: how many messages of this task may be open; None: any number.
        checkpoint_id: The same for all tasks of a checkpoint and in each run on it, another for another
            checkpoint: it distinguishes what a task leaves at a server from what others leave.
        run_id: The same for all tasks of a run, another for each run, also of one checkpoint: it names what
            is to end with the run.
        input_fields: Of a bolt: the fields of each stream that it reads, by (component, stream).
        is_sink: Whether the component was given to ``set_sink``. An object may be a bolt, too.
    """

    topology_name: str
    component_id: str
    task_id: int
    task_index: int
    tasks: Mapping[str, tuple[int, ...]]
    open_message_ids: tuple[Hashable, ...] = ()
    max_spout_pending: int | None = None
    checkpoint_id: str = ""
    run_id: str = ""
    input_fields: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    is_sink: bool = False
    _clock: Clock = field(default_factory=Clock, repr=False, compare=False)
    _services: TaskServices = field(default_factory=TaskServices, repr=False, compare=False)

    def now_ms(self) -> int:
        """The time, in milliseconds since 1970.

        In a bolt: the clock of the micro-batch, which is fixed while the micro-batch runs, and the same
        when it runs again. In a spout: the driver's clock at the last call of a hook. A ``LocalCluster``
        begins at 0, and its clock moves with ``advance``.
        """
        self._clock.was_read = True
        return self._clock.now_ms

    @property
    def txid(self) -> int | None:
        """Of a bolt or sink: the number of the micro-batch in the checkpoint, for ``acktree.states``.

        It grows, and is the same when the micro-batch runs again. None for a spout.
        """
        self._clock.was_read = True
        return self._clock.txid

    def task_ids(self, component: str) -> tuple[int, ...]:
        """The tasks of a component, ascending.

        Raises:
            KeyError: The topology has no such component.
        """
        try:
            return self.tasks[component]
        except KeyError:
            what = f"topology {self.topology_name!r} has no component {component!r}"
            raise KeyError(f"{what}: {nearest(component, self.tasks)}") from None

    def add_task_hook(self, hook: TaskHook) -> None:
        """Let a hook watch this task. Its ``prepare`` is called at once.

        Raises:
            MisuseError: ``open`` of the spout or ``prepare`` of the bolt has returned, or it is no TaskHook.
        """
        if not isinstance(hook, TaskHook):
            raise MisuseError(
                f"{hook!r:.60} is not a task hook",
                f"component {self.component_id!r}, context.add_task_hook()",
                "give an instance of a class that extends acktree.TaskHook",
            )
        self._services.add_hook(hook)

    def resource(self, name: str) -> Any:  # noqa: ANN401  # what a hook has set
        """What a :class:`WorkerHook` has set in this process. For bolts: spouts run in the driver.

        Raises:
            MisuseError: No worker hook has set it here.
        """
        known = self._services.resources
        if name not in known:
            raise MisuseError(
                f"there is no resource {name!r}",
                f"component {self.component_id!r}, context.resource()",
                f"set it in start() of a WorkerHook, by context.set_resource(); {nearest(name, known)}",
            )
        return known[name]

    def register_counter(self, name: str) -> CounterMetric:
        """The counter of this name, made at the first call: a number that only grows.

        A metric belongs to this task. Its value is sent with the micro-batch, so it is exact when a task runs
        again, and goes on after a restart on the same checkpoint. ``stats()["split"].metrics["lines"]`` reads
        it.

        Raises:
            MisuseError: The name is no text of 1 to 200 printable characters, belongs to a metric of another
                kind, or is one more than a topology may have.
        """
        return self._services.instruments.counter(name)

    def register_gauge(self, name: str, read: Callable[[], float] | None = None) -> GaugeMetric:
        """A gauge: a number that is set. See :meth:`register_counter`.

        Args:
            name: Its name.
            read: Is asked for the value: of a bolt at the end of each micro-batch, of a spout when the
                numbers are read and before each commit, on any thread. It must return at once. None: the
                value is set by ``set``.
        """
        return self._services.instruments.gauge(name, read)

    def register_meter(self, name: str) -> MeterMetric:
        """A meter: a counter with rates over 1, 5 and 15 minutes. See :meth:`register_counter`."""
        return self._services.instruments.meter(name)

    def register_timer(self, name: str) -> TimerMetric:
        """A timer: durations in milliseconds. See :meth:`register_counter`."""
        return self._services.instruments.timer(name)

    def register_histogram(self, name: str) -> HistogramMetric:
        """A histogram of whole numbers. See :meth:`register_counter`."""
        return self._services.instruments.histogram(name)

    def cached(self, key: Hashable, factory: Callable[[], _T]) -> _T:
        """The object that ``factory`` made for ``key`` at the first call in this process.

        For objects that are expensive to make and may be shared by the tasks of a component: connections,
        models, tables. ``prepare`` may run in every micro-batch, but a worker process is reused. Do not store
        state here: other processes do not have it. A level that runs again after a worker died runs in a
        forked child, which calls ``factory`` itself and gets no object of its parent. If two threads make the
        first call at the same time, ``factory`` may run twice; both get the same object, and the other object
        is dropped. A topology in a ``LocalCluster`` gets objects of its own, whatever its name.

        What it returns may be changed, also by a bolt that keeps it in an attribute: a dict as a cache of
        answers, for example. Bound it: nobody else empties it.
        """
        full_key = (self.checkpoint_id, self.topology_name, self.component_id, key)
        if full_key not in _cached:
            _cached.setdefault(full_key, factory())
        return _cached[full_key]  # type: ignore[no-any-return]  # what factory made
