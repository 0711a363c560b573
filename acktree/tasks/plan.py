"""A topology made ready to run: where every task lives, and user code as bytes.

The plan is sent to every worker. It holds no live user object: each task unpickles its own copy of its bolt,
so that nothing is shared by accident, in ``LocalCluster`` as on a cluster.
"""

from __future__ import annotations

import hashlib
import linecache
import pickle
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Final

import numpy as np

from acktree.bolt import BasicBolt, Bolt
from acktree.config import Config
from acktree.core.data.context import Clock, TaskContext, TaskHook, TaskServices
from acktree.core.data.hooks import WorkerHook
from acktree.core.programs import Program, definition_pickle, definitions_in, enter, files_of
from acktree.core.runs import Small
from acktree.errors import ConfigError
from acktree.tasks.hook_calls import Reported
from acktree.tasks.worker_hooks import WorkerHooks
from acktree.texts import error_text
from acktree.topology.levels import Level, host
from acktree.topology.model import Component, Topology

COMBINED_FROM: Final = 16
"""The number of partitions from which there is a combining stage. With fewer it costs more than it saves: see
``docs/decisions/0024-deltas-are-combined-from-16-partitions-up.md``."""
LATE: Final = 2
"""After how many message timeouts a tuple is late, and for `acktree health` an attempt is stuck."""
_LONGEST_SOURCE: Final = 1 << 20
"""In characters."""
_PROCESS: Final = secrets.token_hex(8)
_planned = count(1)
PARTITIONS_PER_COMBINER: Final = 8
"""How many partitions there are for each combining task: it does a fraction of what a level's task does, and
each level sends it one row from every partition."""


@dataclass(frozen=True)
class Plan:
    """What the tasks of one run have in common.

    Attributes:
        topology: The topology, without its user objects.
        config: The topology's settings.
        partitions: How many partitions every level has; pinned by the checkpoint.
        is_tracking: Whether messages have verdicts: unless ``acker_executors`` is 0.
        run_salt: What root ids are mixed with; pinned by the checkpoint.
        pickles: Each bolt as it was given to ``set_bolt``.
        ticks: How often each bolt that has a ``tick`` is ticked, in seconds.
        import_path: The driver's ``sys.path``: what lies beside the program can be imported by workers.
        first_sequences: The first sequence of this run, for each spout task whose queue redelivers.
        has_payloads: Whether some spout is a DataFrame with a ``Retry`` or an ``Acknowledger``: level 0 then
            says what rows hold, or their ids.
        program: The classes that no worker can import, by their names.
        hooks: The task hooks as they were given, as bytes; empty for none.
        worker_hooks: The worker hooks, likewise.
        sources: By its file, the lines of code that no worker can import: a worker may be on another machine.
    """

    topology: Topology
    config: Config
    partitions: int
    is_tracking: bool
    run_salt: int
    pickles: Mapping[str, bytes]
    ticks: Mapping[str, float]
    import_path: tuple[str, ...]
    first_sequences: Mapping[int, int]
    has_payloads: bool
    program: Program
    hooks: bytes = b""
    worker_hooks: bytes = b""
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, topology: Topology, config: Config, partitions: int, run_salt: int, first_sequence: int = 0
    ) -> Plan:
        """Lay out a topology over a number of partitions. From now on this process reads values for it.

        Args:
            first_sequence: The first sequence of this run.
        """
        is_tracking = config.acker_executors != 0
        if not is_tracking and any(bolt.exactly_once for bolt in topology.bolts):
            raise ConfigError(
                "without ackers no verdict lets a tuple through the gate of an exactly-once bolt",
                "Config(acker_executors=0)",
                "leave acker_executors out, or declare the bolts without exactly_once",
            )
        seen: list[object] = []
        pickles = {bolt.id: definition_pickle(bolt.user_object, seen) for bolt in topology.bolts}
        bare = {name: replace(part, user_object=None) for name, part in topology.components.items()}
        stripped = replace(topology, components=bare)
        every = {bolt.id: _tick_secs(bolt, config) for bolt in topology.bolts}
        ticks = {name: secs for name, secs in every.items() if secs is not None}
        firsts = {
            task: first_sequence
            for spout in topology.spouts
            if getattr(spout.user_object, "redelivers", False)
            for task in spout.task_ids
        }
        hooks = _pickled_hooks(config.task_hooks, "task", seen)
        worker_hooks = _pickled_hooks(config.worker_hooks, "worker", seen)
        sources = _sources(files_of(seen))
        for spout in topology.spouts:
            seen += () if spout.is_dataframe else definitions_in(spout.user_object)
        program = Program.of(_PROCESS, next(_planned), seen)
        enter(program)
        config = replace(config, task_hooks=(), worker_hooks=(), metrics_consumers=())
        return cls(
            stripped, config, partitions, is_tracking, run_salt, pickles=pickles, ticks=ticks,
            import_path=tuple(sys.path), first_sequences=firsts,
            has_payloads=any(
                spout.is_dataframe and (spout.retry or spout.told_columns) for spout in topology.spouts
            ),
            program=program, hooks=hooks, worker_hooks=worker_hooks, sources=sources,
        )  # fmt: skip

    @property
    def max_traces_per_sec(self) -> float | None:
        """How many messages of one spout task are traced in a second by the rate; None for no limit."""
        most = self.config.max_traces_per_sec
        tasks = sum(len(spout.task_ids) for spout in self.topology.spouts if not spout.is_dataframe)
        return None if most is None else most / max(1, tasks)

    @property
    def max_retries_traced_per_sec(self) -> float | None:
        """How many attempts after the first of one spout task are traced in a second; None for no limit."""
        most = self.config.max_traces_per_sec
        tasks = sum(len(spout.task_ids) for spout in self.topology.spouts)
        return None if most is None else most / max(1, tasks)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The ladder, from the source level up; the acker is at its end."""
        return self.topology.levels(self.partitions)

    @cached_property
    def partition_of(self) -> Small:
        """Task -> the partition that hosts it, shape (the greatest task id + 1,)."""
        most = max((task for part in self.topology.components.values() for task in part.task_ids), default=0)
        hosts = [host(task, self.partitions) for task in range(most + 1)]
        return np.array(hosts, dtype=np.min_scalar_type(self.partitions))

    @cached_property
    def combiners(self) -> int:
        """How many combining tasks add up deltas before they go to the driver; 0 for none."""
        if not self.is_tracking or self.partitions < COMBINED_FROM:
            return 0
        return -(-self.partitions // PARTITIONS_PER_COMBINER)

    @cached_property
    def is_exact(self) -> bool:
        """Whether something is written exactly once: there is a sink, or an exactly-once bolt."""
        return any(part.is_sink or part.exactly_once for part in self.topology.components.values())

    @property
    def combining_level(self) -> int:
        """The ``level`` of rows for combining tasks: after the topology's levels."""
        return len(self.levels)

    @cached_property
    def level_of(self) -> Mapping[str, int]:
        """The level of every component; spouts are on level 0."""
        levels = {bolt: level.index for level in self.levels for bolt in level.bolts}
        return levels | {spout.id: 0 for spout in self.topology.spouts}

    def is_void(self, task: int, first_sequence: int) -> bool:
        """Whether tracked messages are of an earlier run, and their queue delivers them again.

        The driver has forgotten them, so their verdicts are not delivered. The plan is written once a
        run: every attempt of a micro-batch in this run gets the same answer.

        Args:
            task: Their spout task.
            first_sequence: The sequence of any of them: a chunk is of one run.
        """
        return first_sequence < self.first_sequences.get(task, 0)

    @property
    def tells_rows(self) -> bool:
        """Whether some spout is a DataFrame with an ``Acknowledger``."""
        return any(spout.told_columns for spout in self.topology.spouts)

    @property
    def trace_rate(self) -> float:
        """The share of messages that is traced until an operator names another one."""
        return self.config.trace_sample_rate if self.is_tracking else 0.0

    @property
    def timeout_ms(self) -> int | None:
        """The message timeout; None when messages never time out."""
        return round(self.config.message_timeout_secs * 1000) if self.config.enable_message_timeouts else None

    @cached_property
    def timeout_of(self) -> Mapping[int, int]:
        """Owner -> the message timeout of its own, in milliseconds: a spout task, or minus it for rows."""
        own = {
            task: round(spout.message_timeout_secs * 1000)
            for spout in self.topology.spouts
            if spout.message_timeout_secs is not None
            for task in spout.task_ids
        }
        return own | {-task: timeout_ms for task, timeout_ms in own.items()}

    @cached_property
    def longest_timeout_secs(self) -> float:
        """The longest message timeout of any spout and of the settings, whether or not messages time out."""
        own_secs = (timeout_ms / 1000 for timeout_ms in self.timeout_of.values())
        return max(self.config.message_timeout_secs, *own_secs, 0.0)

    def late_ms(self, clock_ms: int) -> int | None:
        """The moment before which a tuple is late; None when messages never time out.

        A tuple is late when it came longer ago than :data:`LATE` times the longest message timeout of any
        spout. Its messages have timed out, unless a bolt resets their timeouts.
        """
        if not self.config.enable_message_timeouts:
            return None
        default_secs = self.config.message_timeout_secs
        secs = [spout.message_timeout_secs or default_secs for spout in self.topology.spouts]
        return clock_ms - round(LATE * max(secs, default=default_secs) * 1000)

    def host(self, task: int) -> int:
        """The one partition in which a task runs."""
        return host(task, self.partitions)

    def hosted(self, component: Component, partition: int) -> tuple[int, ...]:
        """The tasks of a component that run in a partition, ascending."""
        return tuple(task for task in component.task_ids if self.host(task) == partition)

    def show_sources(self) -> None:
        """Let tracebacks of this process show the lines of code that it could not import."""
        for file, lines in self.sources.items():
            size = sum(map(len, lines))
            linecache.cache[file] = size, None, list(lines), file  # None: no file has to be there

    @cached_property
    def reported(self) -> Reported:
        """What hooks raised and was reported in this process."""
        return {}

    @cached_property
    def worker(self) -> WorkerHooks:
        """The worker hooks in this process."""
        return WorkerHooks(self.worker_hooks, self.config, self.topology.name)

    def task_hooks(self) -> tuple[TaskHook, ...]:
        """New copies of the task hooks, for one task. Raises what user code raises when it is unpickled."""
        if not self.hooks:
            return ()
        hooks: tuple[TaskHook, ...] = pickle.loads(self.hooks)
        return hooks

    def context(
        self,
        component: Component,
        task: int,
        clock: Clock,
        services: TaskServices | None = None,
    ) -> TaskContext:
        """The context of a task.

        Args:
            services: What its methods call. None where there is no task, as for a grouping.
        """
        index = component.task_ids.index(task)
        tasks, mark = self.topology.tasks, self.checkpoint_id
        known = self.topology.components
        fields = {
            (known[edge.source].gated or edge.source, edge.stream): tuple(
                known[edge.source].streams[edge.stream].fields
            )
            for edge in component.inputs
        }
        return TaskContext(
            self.topology.name, component.id, task, index, tasks, checkpoint_id=mark, run_id=self.run_id,
            input_fields=fields, is_sink=component.is_sink,
            _clock=clock, _services=services or TaskServices(),
        )  # fmt: skip

    @cached_property
    def checkpoint_id(self) -> str:
        """Made of the run salt, which cannot be computed from it: with the salt one could choose roots."""
        return hashlib.blake2b(str(self.run_salt).encode(), digest_size=8, person=b"checkpoint").hexdigest()

    @cached_property
    def run_id(self) -> str:
        """Another one in each run: each run is planned once, by a process whose name is random."""
        text = f"{self.checkpoint_id} {self.program.process} {self.program.number}"
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"run").hexdigest()


def _sources(files: Iterable[str]) -> dict[str, Sequence[str]]:
    """The lines of source files, also of a notebook's cells; without files that are unusually long."""
    lines_of = {file: linecache.getlines(file) for file in files}
    return {file: lines for file, lines in lines_of.items() if 0 < sum(map(len, lines)) <= _LONGEST_SOURCE}


def _pickled_hooks(hooks: tuple[TaskHook | WorkerHook, ...], kind: str, seen: list[object]) -> bytes:
    """The hooks as bytes; ConfigError when they cannot be pickled."""
    if not hooks:
        return b""
    try:
        pickled = definition_pickle(hooks, seen)
        pickle.loads(pickled)
    except Exception as error:
        raise ConfigError(
            f"a {kind} hook cannot be pickled: {error_text(error)}",
            f"Config({kind}_hooks=...)",
            "open connections and files in prepare() or start(), not in __init__()",
        ) from error
    return pickled


def _tick_secs(bolt: Component, config: Config) -> float | None:
    """The bolt's own word on its ticks, else the topology's if it has a ``tick`` to call."""
    if bolt.tick_secs is not None:
        return bolt.tick_secs
    tick = getattr(type(bolt.user_object), "tick", None)
    return config.tick_tuple_freq_secs if tick not in (None, Bolt.tick, BasicBolt.tick) else None
