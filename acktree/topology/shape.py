"""The shape of a topology: the part of it that a checkpoint depends on. The next run is compared with it.

Rules of this file
------------------
1. A task id is permanent: memory, messages and dead letters are found by it. A component of the last run
   keeps its task ids; a new one gets ids that were never used.
2. A shape contains only what the contents of a checkpoint depend on: no code, no settings, no retry policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import BuiltinFunctionType
from typing import Any, Final

from acktree.core.data.groupings import Custom, CustomGrouping, Fields, Grouping, PartialKey
from acktree.core.data.hashing import stable_hash
from acktree.core.ids import MAX_SPOUT_TASK
from acktree.core.programs import is_named, same_name
from acktree.errors import CheckpointError
from acktree.spout import Spout
from acktree.topology.component import Component, Kind
from acktree.topology.model import Topology

_OF_HOSTS: Final = frozenset({"_given", "_held"})
"""Attributes of bolts that host a component of streamparse, or a child process."""
_ANY_TASK: Final = frozenset({"shuffle", "local_or_shuffle", "none"})


@dataclass(frozen=True)
class Input:
    """A subscription of a bolt.

    Attributes:
        source: The component that emits.
        stream: Its stream.
        grouping: The name of the grouping; ``shuffle`` for all groupings that may choose any task.
        fields: The fields of a fields or partial key grouping.
        custom: The class of a custom grouping, as ``module.Class``; empty for others, and in a shape of an
            earlier acktree.
        parameters: Its public attributes that can be compared, as ``name=hash``, sorted.
    """

    source: str
    stream: str
    grouping: str
    fields: tuple[str, ...] = ()
    custom: str = ""
    parameters: tuple[str, ...] = ()

    @property
    def choice(self) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
        """What decides to which tasks tuples go."""
        return self.grouping, self.fields, self.custom, self.parameters

    def as_known_in(self, before: Input) -> Input:
        """This part, reduced to what the shape of an earlier acktree says of it."""
        is_unknown = before.grouping == self.grouping == "custom" and not before.custom
        return replace(self, custom="", parameters=()) if is_unknown else self


@dataclass(frozen=True)
class Part:
    """One component.

    Attributes:
        tasks: Its task ids, ascending.
        remembers: Attributes that are saved, sorted.
        streams: Stream -> fields.
        inputs: The subscriptions of a bolt, sorted.
        redelivers: Whether a spout's queue delivers open messages again; True for a bolt.
        is_frame: Whether it is a ``DataFrameSpout``.
        retries: Whether a spout has a ``Retry``; its arguments may change from run to run.
    """

    kind: Kind
    tasks: tuple[int, ...]
    remembers: tuple[str, ...]
    streams: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...]
    redelivers: bool
    is_frame: bool
    retries: bool

    @property
    def is_hosted(self) -> bool:
        """Whether a bolt hosts a component of streamparse or a child: none of its attributes is by key."""
        return {*self.remembers} >= _OF_HOSTS

    @classmethod
    def of(cls, component: Component) -> Part:
        """The part of a component."""
        spout = component.user_object
        inputs = (Input(edge.source, edge.stream, *_choice_of(edge.grouping)) for edge in component.inputs)
        return cls(
            component.kind, component.task_ids, remembers=tuple(sorted(component.remembers)),
            streams={name: stream.fields for name, stream in component.streams.items()},
            inputs=tuple(sorted(inputs, key=lambda read: (read.source, read.stream))),
            redelivers=spout.redelivers if isinstance(spout, Spout) else True,
            is_frame=component.is_dataframe, retries=component.retry is not None,
        )  # fmt: skip

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Part:
        """Read what :meth:`Shape.to_json` wrote of one."""
        inputs = tuple(
            Input(
                one["source"],
                one["stream"],
                grouping=one["grouping"],
                fields=tuple(one["fields"]),
                custom=one.get("custom", ""),
                parameters=tuple(one.get("parameters", ())),
            )
            for one in read["inputs"]
        )
        return cls(
            read["kind"], tuple(read["tasks"]), remembers=tuple(read["remembers"]),
            streams={name: tuple(fields) for name, fields in read["streams"].items()}, inputs=inputs,
            redelivers=read["redelivers"], is_frame=read["is_frame"], retries=read["retries"],
        )  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """All components, and the levels on which Spark keeps their memory.

    Attributes:
        parts: Component id -> its part.
        state: The stateful bolts of each stateful level, from the source upwards: Spark finds their memory by
            this position. None while Spark keeps no memory; then any position is allowed.
        is_tracked: Whether messages have verdicts.
        tasks_given: The highest task id that any component ever had.
        name: The topology's name; None in a shape of an earlier acktree that did not store it.
    """

    parts: Mapping[str, Part]
    state: tuple[tuple[str, ...], ...] | None
    is_tracked: bool
    tasks_given: int
    name: str | None = None

    @classmethod
    def of(
        cls, topology: Topology, partitions: int, *, is_tracked: bool, before: Shape | None = None
    ) -> Shape:
        """The shape of a topology whose task ids are final (see :func:`numbered`)."""
        parts = {name: Part.of(component) for name, component in topology.components.items()}
        state = tuple(
            tuple(bolt for bolt in level.bolts if topology.components[bolt].remembers)
            for level in topology.levels(partitions)
            if level.stateful
        )
        last_task = max((task for part in parts.values() for task in part.tasks), default=0)
        last_task = max(last_task, before.tasks_given if before else 0)
        return cls(parts, state, is_tracked, last_task, topology.name)

    def to_json(self) -> dict[str, Any]:
        """The shape as JSON values; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Shape:
        """Read what :meth:`to_json` wrote."""
        state = read["state"]
        return cls(
            {name: Part.from_json(part) for name, part in read["parts"].items()},
            None if state is None else tuple(map(tuple, state)),
            read["is_tracked"],
            read["tasks_given"],
            read.get("name"),
        )

    def with_part(self, name: str, part: Part | None) -> Shape:
        """The shape with the part of one component replaced, or removed if ``part`` is None."""
        parts = {other: part_of_other for other, part_of_other in self.parts.items() if other != name}
        if part is None:
            return replace(self, parts=parts)
        return replace(self, parts=parts | {name: part}, tasks_given=max(self.tasks_given, *part.tasks))


def numbered(topology: Topology, before: Shape) -> Topology:
    """The topology with its task ids: components of the last run keep theirs, new tasks get unused ids.

    A component with fewer tasks than before loses its last ids; one with more gets new ids.

    Raises:
        CheckpointError: A spout would get a task id that does not fit into a root id.
    """
    last_task = before.tasks_given
    components: dict[str, Component] = {}
    for name, component in topology.components.items():
        part = before.parts.get(name)
        had = part.tasks if part is not None else ()
        tasks = had[: component.parallelism]
        fresh = component.parallelism - len(tasks)
        tasks += tuple(range(last_task + 1, last_task + 1 + fresh))
        last_task += fresh
        if component.kind == "spout" and tasks[-1] > MAX_SPOUT_TASK:
            raise CheckpointError(
                f"spout {name!r} would get task id {tasks[-1]}, and a spout's highest is {MAX_SPOUT_TASK}: "
                f"{before.tasks_given} ids were used on this checkpoint, and none is reused",
                f"topology {topology.name!r}",
                "give it a new checkpoint",
            )
        components[name] = replace(component, task_ids=tasks)
    return replace(topology, components=components)


def _choice_of(grouping: Grouping) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
    if isinstance(grouping, Custom):
        return grouping.name, (), same_name(type(grouping.grouping)), _parameters_of(grouping.grouping)
    fields = grouping.fields if isinstance(grouping, Fields | PartialKey) else ()
    return ("shuffle" if grouping.name in _ANY_TASK else grouping.name), fields, "", ()


def _parameters_of(grouping: CustomGrouping) -> tuple[str, ...]:
    """The attributes of a custom grouping that decide about it and are the same in every run that has them.

    Not its pickle, which differs between runs of one program: sets, and code that was compiled again.
    """
    slots = (name for kind in type(grouping).__mro__ for name in _slots_of(kind))
    names = {*getattr(grouping, "__dict__", ()), *slots}
    public = sorted(name for name in names if not name.startswith("_") and hasattr(grouping, name))
    known = ((name, _stable(getattr(grouping, name))) for name in public)
    return tuple(f"{name}={text}" for name, text in known if text is not None)


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _stable(value: object) -> str | None:
    """A text that equal values have in every process; None where there is none."""
    if is_named(value) or (isinstance(value, BuiltinFunctionType) and value.__module__):
        return same_name(value)
    try:
        return f"{stable_hash(value):016x}"
    except Exception:  # noqa: BLE001  # no hash is known, or the user's own code raises
        return None
