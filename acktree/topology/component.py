"""One spout or bolt of a finished topology, and one edge between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.groupings import Grouping
from acktree.core.spouts.retry import Retry

Kind: TypeAlias = Literal["spout", "bolt"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """An edge: a bolt reads a stream. A bolt has at most one for each stream.

    Attributes:
        subscriber: Id of the bolt that reads.
        source: Id of the component that emits.
        stream: The stream of ``source``.
        grouping: Chooses the bolt's task for each tuple.
        gate: False if the tuples are questions to an exactly-once bolt. No gate is in front of such an input,
            unless the source is exactly-once itself.
        answers_only: Whether the subscriber gets here only what the source emits for questions. All other
            tuples come to it through a gate, by a subscription of their own.
    """

    subscriber: str
    source: str
    stream: str
    grouping: Grouping
    gate: bool = True
    answers_only: bool = False


@dataclass(frozen=True, slots=True)
class Component:
    """A spout or bolt of a topology, with its tasks and inputs.

    Attributes:
        id: As given to ``set_spout`` or ``set_bolt``.
        kind: ``"spout"`` or ``"bolt"``.
        is_dataframe: Whether it is a ``DataFrameSpout``: Spark reads its rows, and its task never emits.
        user_object: The user's spout or bolt itself, not a copy: copy it for each task, never call its hooks.
            None in a plan, which is sent to workers without it.
        parallelism: Number of tasks.
        task_ids: Their ids in the topology, ascending.
        streams: Stream id -> declaration, in the order declared; empty for a bolt that emits nothing.
        remembers: Attributes that are kept between micro-batches; empty for a stateless bolt.
        tick_secs: The bolt's own tick interval. None: the configured one.
        execute_timeout_secs: The bolt's own limit of one call of ``execute``. None: the configured one.
        retry: A spout's policy for failed messages. None: ``fail`` is called at each failure.
        inputs: The subscriptions of a bolt, in the order declared; empty for a spout.
        max_spout_pending: A spout's own limit of open messages for each task; 0: none. None: the configured
            one.
        message_timeout_secs: A spout's own message timeout. None: the configured one.
        told_columns: Columns of a DataFrame that make the message id of its rows, which its ``Acknowledger``
            is told; empty without one.
        key_column: The column of a DataFrame that is the key of its rows. None: they have none.
        label_column: The column that is their label. None: they have none.
        max_concurrency: How many tuples of a task an asynchronous bolt executes at once. None for any other
            component.
        threads: How many tuples of a task a bolt executes at once, each on a thread. None for any other
            component.
        exactly_once: Whether it is a bolt with gates in front and behind: see ``topology/gates.py``.
        is_sink: Whether it is a ``Sink``, behind gates too, and not a bolt.
        latest_by: Of a sink, and the gates in front of it: the fields of a row's key, if the latest row with
            a key counts; else empty.
        gated: Of a gate the component whose tuples it lets through. None for any other component.
    """

    id: str
    kind: Kind
    is_dataframe: bool
    user_object: Any
    parallelism: int
    task_ids: tuple[int, ...]
    streams: Mapping[str, StreamDeclaration]
    remembers: tuple[str, ...]
    tick_secs: float | None
    execute_timeout_secs: float | None
    retry: Retry | None
    inputs: tuple[Subscription, ...]
    max_spout_pending: int | None = None
    message_timeout_secs: float | None = None
    told_columns: tuple[str, ...] = ()
    key_column: str | None = None
    label_column: str | None = None
    max_concurrency: int | None = None
    threads: int | None = None
    exactly_once: bool = False
    is_sink: bool = False
    latest_by: tuple[str, ...] = ()
    gated: str | None = None

    def __repr__(self) -> str:
        tasks = f"tasks {self.task_ids[0]} to {self.task_ids[-1]}" if self.task_ids else "no tasks"
        return f"Component({self.kind} {self.id!r:.60}, {tasks})"

    @property
    def at_once(self) -> int:
        """How many tuples of a task are executed at once, at most."""
        return self.threads or self.max_concurrency or 1

    @property
    def is_concurrent(self) -> bool:
        """Whether it is a bolt that executes several tuples of a task at once."""
        return self.max_concurrency is not None or self.threads is not None
