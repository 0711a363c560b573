"""What hooks are called with, and worker hooks. ``TaskHook`` is beside the context, in ``context.py``.

Source: Storm's ``ITaskHook`` and its info classes. Differences: system tuples are not seen, a hook that
raises fails nothing, and of an ``ArrowBolt`` the info holds a batch.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay fast
    import pyarrow as pa

    from acktree.core.data.tuples import Tuple
    from acktree.core.tracking.verdicts import Failure


@dataclass(frozen=True, slots=True)
class EmitInfo:
    """What a task emitted.

    Attributes:
        values: The values of the tuple; None for a batch.
        stream: The stream.
        task_id: The task that emitted it.
        out_tasks: The tasks that it was sent to, ascending. None for a spout's message: groupings choose its
            tasks later, in a worker; with ``emit_direct`` the named task is here.
        batch: What an ``ArrowBolt`` emitted, n rows; None for a tuple.
        count: How many tuples it is: 1, or n.
    """

    values: tuple[Any, ...] | None
    stream: str
    task_id: int
    out_tasks: tuple[int, ...] | None
    batch: pa.RecordBatch | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class SpoutAckInfo:
    """A message that was acked.

    Attributes:
        message_id: As the spout gave it.
        spout_task_id: The task that emitted it.
        complete_latency_ms: From its first emit to the verdict; None where messages are not tracked.
    """

    message_id: Any
    spout_task_id: int
    complete_latency_ms: float | None


@dataclass(frozen=True, slots=True)
class SpoutFailInfo:
    """An attempt of a message that failed or timed out.

    Attributes:
        message_id: As the spout gave it.
        spout_task_id: The task that emitted it.
        fail_latency_ms: From its first emit to the verdict.
        failure: Why.
    """

    message_id: Any
    spout_task_id: int
    fail_latency_ms: float | None
    failure: Failure


@dataclass(frozen=True, slots=True)
class BoltExecuteInfo:
    """A tuple, or a batch of tuples, for which ``execute`` has returned or raised.

    Attributes:
        tup: The tuple; None for an ``ArrowBolt``.
        task_id: The task that executed it.
        latency_ms: How long ``execute`` took.
        batch: What an ``ArrowBolt`` executed, n rows; None for a tuple.
        count: How many tuples it is: 1, or n.
    """

    tup: Tuple | None
    task_id: int
    latency_ms: float | None
    batch: pa.RecordBatch | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class BoltAckInfo:
    """A tuple, or tuples of a batch, that were acked.

    Attributes:
        tup: The tuple; None for an ``ArrowBolt``.
        task_id: The task that acked it.
        latency_ms: From the start of its ``execute`` to the ack. None for a tuple that was acked during the
            ``execute`` of another one, or later.
        batch: Of an ``ArrowBolt`` the acked rows, n rows; None for a tuple.
        count: How many tuples it is: 1, or n.
    """

    tup: Tuple | None
    task_id: int
    latency_ms: float | None
    batch: pa.RecordBatch | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class BoltFailInfo:
    """A tuple, or tuples of a batch, that failed: by the bolt, or because it raised.

    Attributes:
        tup: The tuple; None for an ``ArrowBolt``.
        task_id: The task in which it failed.
        latency_ms: From the start of its ``execute`` to the fail; None as of :class:`BoltAckInfo`.
        batch: Of an ``ArrowBolt`` the failed rows, n rows; None for a tuple.
        count: How many tuples it is: 1, or n.
    """

    tup: Tuple | None
    task_id: int
    latency_ms: float | None
    batch: pa.RecordBatch | None = None
    count: int = 1


class WorkerContext:
    """What a :class:`WorkerHook` is started with.

    Attributes:
        topology_name: Name given to the builder.
    """

    def __init__(self, topology_name: str, resources: MutableMapping[str, Any]) -> None:
        self.topology_name, self._resources = topology_name, resources

    def set_resource(self, name: str, resource: object) -> None:
        """Let the tasks of this process find an object by ``context.resource(name)``."""
        self._resources[name] = resource


class WorkerHook:
    """Is started once in each Python worker process, before its first bolt: Storm's ``IWorkerHook``.

    Register it by ``Config(worker_hooks=[MyHook()])``. Spark starts and ends worker processes as it likes; a
    process that runs after a worker died is another one. In a ``LocalCluster`` it is started once.
    """

    def start(self, config: Any, context: WorkerContext) -> None:  # noqa: ANN401  # a Config, of a room above
        """Called first. What it raises is reported, and bolts run nevertheless.

        Args:
            config: The :class:`Config` of the topology, without passwords.
            context: Takes what tasks share.
        """

    def shutdown(self) -> None:
        """Called when the process ends in order; not when it is killed."""
