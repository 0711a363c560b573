"""Groupings: declare which tasks of a subscriber get a copy of a tuple. ``choosers.py`` chooses them.

Rules of this file
------------------
1. A grouping is a frozen declaration, without state.
2. To declare a topology imports no pyarrow, so this module does not either.

Source: Storm's ``grouping`` package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from acktree.core.data.context import TaskContext


class CustomGrouping(ABC):
    """The base class of users' groupings; pass an instance to ``custom_grouping``.

    It is pickled to the workers. Every source task has its own copy for each stream and subscriber.

    What a bolt remembers lies at the task that its tuples go to. So for a bolt with memory another grouping
    is refused at the next ``submit`` on that checkpoint: one of another class (module and name), or with
    other values of its public attributes. Of these, what a fields grouping could group by is compared, and
    classes and functions by their names; nothing else is, since a pickle differs from run to run. What may
    differ between runs and decides nothing, such as a time, belongs in an attribute that begins with ``_``.
    """

    def prepare(self, context: TaskContext, stream: str, target_task_ids: Sequence[int]) -> None:
        """Receive the target tasks.

        Called once on each copy before its first ``choose_tasks``. A new process or micro-batch may use a new
        copy, so attributes may start again at any micro-batch.

        Args:
            context: The task whose tuples are grouped.
            stream: The stream they are emitted on.
            target_task_ids: The tasks of the subscriber, ascending.
        """

    @abstractmethod
    def choose_tasks(self, task_id: int, values: Sequence[object]) -> list[int]:
        """Return the tasks that get a copy of one tuple.

        Called for each tuple in the order emitted. A task named twice gets two copies; with an empty list
        this subscriber gets none. An exception, or a task that is not a target, fails the tuple.
        Do not block. When a micro-batch runs again, the same tuples in the same order must be sent as before.

        Args:
            task_id: The task that emitted the tuple.
            values: Its values, in the order of the stream's fields.
        """


@dataclass(frozen=True)
class Grouping:
    """How the tuples of one stream are distributed to the tasks of one subscriber.

    Attributes:
        name: Storm's name.
        crosses: Whether its tuples may have to go to another partition, which needs a shuffle by Spark.
    """

    name: ClassVar[str]
    crosses: ClassVar[bool] = True


@dataclass(frozen=True)
class Shuffle(Grouping):
    """Any task, evenly."""

    name = "shuffle"
    crosses = False


@dataclass(frozen=True)
class LocalOrShuffle(Grouping):
    """The same as shuffle, which is local wherever the level allows it."""

    name = "local_or_shuffle"
    crosses = False


@dataclass(frozen=True)
class NoneGrouping(Grouping):
    """Any task: the same as shuffle, as in Storm."""

    name = "none"
    crosses = False


@dataclass(frozen=True)
class Fields(Grouping):
    """Equal values of these fields go to the same task, on every run and machine, with any hash seed."""

    name = "fields"
    fields: tuple[str, ...]


@dataclass(frozen=True)
class PartialKey(Grouping):
    """Each value of these fields has two candidate tasks, and goes to the one that was used less so far."""

    name = "partial_key"
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Global(Grouping):
    """All tuples go to the subscriber's lowest task."""

    name = "global"


@dataclass(frozen=True)
class All(Grouping):
    """Every task gets a copy."""

    name = "all"


@dataclass(frozen=True)
class Direct(Grouping):
    """The producer names the task in ``emit_direct``; there is nothing to choose."""

    name = "direct"


@dataclass(frozen=True)
class Custom(Grouping):
    """The tasks that the user's grouping returns."""

    name = "custom"
    grouping: CustomGrouping
