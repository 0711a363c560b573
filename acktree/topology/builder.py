"""The topology builder: Storm's ``TopologyBuilder`` with Python's keywords.

Rules of this file
------------------
1. The declaring calls check nothing, so components may be declared in any order. ``create_topology`` checks
   the whole topology and raises the first mistake, with the call that contains it and the fix.
2. ``create_topology`` may be called again; a topology never changes after it was created.

Source: Storm's ``TopologyBuilder``, ``BoltDeclarer`` and ``InputDeclarer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from acktree.bolt import AnyBolt
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.groupings import CustomGrouping
from acktree.core.spouts.retry import Retry
from acktree.errors import TopologyError, ending_at_caller, naming_keywords
from acktree.logs.loggers import logger
from acktree.sink import Sink
from acktree.spout import Spout
from acktree.topology.declared import Declared, Input
from acktree.topology.gates import with_gates
from acktree.topology.hints import hints
from acktree.topology.model import Topology
from acktree.topology.validate import checked_components

log = logger("acktree")


class TopologyBuilder:
    """Declares a topology.

    Args:
        name: The name of the topology in logs, the UI and error texts.

        builder = TopologyBuilder("word-count")
        builder.set_spout("lines", Lines(), retry=Retry(max_attempts=5))
        builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("lines")
        builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", ["word"])
        topology = builder.create_topology()
    """

    def __init__(self, name: str) -> None:
        self._name: object = name
        self._declared: list[Declared] = []

    def __repr__(self) -> str:
        return f"TopologyBuilder({self._name!r:.60}, {len(self._declared)} components)"

    @naming_keywords
    def set_spout(
        self,
        id: str,
        spout: Spout,
        parallelism: int = 1,
        retry: Retry | None = None,
        *,
        max_spout_pending: int | None = None,
        message_timeout_secs: float | None = None,
    ) -> SpoutDeclarer:
        """Add a spout.

        Args:
            id: The id by which other components refer to it; without ``__`` at the start and without a colon.
            spout: An instance; each task uses a deep copy of it, in the process that calls ``submit``.
            parallelism: Number of tasks, each with its own thread.
            retry: The policy for failed messages. None: the spout's ``fail`` is called at each failure, as in
                Storm.
            max_spout_pending: How many messages of each task of this spout may be open, in place of
                ``Config(max_spout_pending=...)``. 0: any number.
            message_timeout_secs: After how long a message of this spout is TIMED_OUT, in place of
                ``Config(message_timeout_secs=...)``.
        """
        declared = Declared("set_spout", id, spout, parallelism, retry)
        declared.settings["max_spout_pending"] = max_spout_pending
        declared.settings["message_timeout_secs"] = message_timeout_secs
        self._declared.append(declared)
        return SpoutDeclarer(f"set_spout({id!r}, ...)")

    @naming_keywords
    def set_bolt(
        self,
        id: str,
        bolt: AnyBolt,
        parallelism: int = 1,
        *,
        exactly_once: bool = False,
        retry: Retry | None = None,
    ) -> BoltDeclarer:
        """Add a bolt; declare its inputs with the grouping methods of the result.

        Args:
            id: The id by which other components refer to it; without ``__`` at the start and without a colon.
            bolt: An instance of Bolt, BasicBolt or ArrowBolt, or a function with ``@bolt``; each task uses a
                pickled copy of it.
            parallelism: Number of tasks.
            exactly_once: A tuple goes to this bolt when every message that it hangs on is ACKED, as a message
                of its own. What the bolt remembers of it and what it emits for it commit together, or leave
                no trace. Not for a Bolt, which acks by itself.
            retry: The policy for such messages. None: ``Retry(max_attempts=5)``.
        """
        declared = Declared("set_bolt", id, bolt, parallelism, retry)
        declared.settings["exactly_once"] = exactly_once
        self._declared.append(declared)
        return BoltDeclarer(declared)

    @naming_keywords
    def set_sink(
        self, id: str, sink: Sink, parallelism: int = 1, *, retry: Retry | None = None
    ) -> BoltDeclarer:
        """Add a sink that writes each tuple once; declare its inputs as those of a bolt.

        A tuple goes to it when every message that it hangs on is ACKED. See ``docs/exactly-once.md``.

        Args:
            id: The id by which errors and statistics refer to it.
            sink: An instance of ``Sink``, such as ``SqlSink``; each task uses a pickled copy of it.
            parallelism: Number of tasks. Each writes in a transaction of its own.
            retry: The policy for rows that the sink refuses. None: ``Retry(max_attempts=5)``. With
                ``Retry(5, final=(ConnectorError,))`` a refused row is given up at once.
        """
        declared = Declared("set_sink", id, sink, parallelism, retry)
        self._declared.append(declared)
        return BoltDeclarer(declared)

    @ending_at_caller
    def create_topology(self) -> Topology:
        """Validate the topology, number its tasks, and return it.

        Tasks are numbered from 1, with components sorted by id as plain strings, as in Storm. Unlike in
        Storm, the acker has no task id.

        Bolts are pickled and spouts are copied once, to check that it is possible. The log warns where rows
        of one key come to several tasks of a bolt that remembers, or of a sink that keeps the latest row.

        Raises:
            TopologyError: The first mistake found, with the call that contains it and the fix.
        """
        name, components = checked_components(self._name, self._declared)
        for what, where, fix in hints(self._declared, components):
            log.warning("topology=%s %s (%s). To mend it, %s", name, what, where, fix)
        components = with_gates(components)
        subscriptions = tuple(edge for component in components for edge in component.inputs)
        return Topology(name, {component.id: component for component in components}, subscriptions)


class BoltDeclarer:
    """Declares the inputs and settings of a bolt. Every method returns the same declarer, for chaining.

    Each grouping adds one input. ``component`` is the id of a spout or bolt, declared before or after;
    ``stream`` is one of its output streams. A bolt may read many streams, each with one grouping.

    ``gate=False`` is for an input of an exactly-once bolt that asks questions. Its tuples come at once, in
    the tree of their message, and read what the bolt remembers; what they change in it is undone. What is
    emitted for them stays in their tree, and goes on at once. For them ``flush`` is not called.
    """

    def __init__(self, declared: Declared) -> None:
        self._declared = declared

    def __repr__(self) -> str:
        return f"BoltDeclarer({self._declared!s:.80})"

    @naming_keywords
    def set_execute_timeout_secs(self, secs: float) -> BoltDeclarer:
        """Set an execute timeout for this bolt, which overrides ``Config(execute_timeout_secs=...)``.

        Args:
            secs: The time after which a call of ``execute`` (``execute_batch`` of an ArrowBolt) is
                interrupted and its tuple fails. More than 0. The last call counts.
        """
        self._declared.settings["set_execute_timeout_secs"] = secs
        return self

    @naming_keywords
    def shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """Any task, evenly; in the same partition where the level allows it."""
        return self._add(Input("shuffle_grouping", component, stream, gate=gate))

    @naming_keywords
    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """The same as ``shuffle_grouping``, which is local where possible."""
        return self._add(Input("local_or_shuffle_grouping", component, stream, gate=gate))

    @naming_keywords
    def none_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """Any task; the same as ``shuffle_grouping``."""
        return self._add(Input("none_grouping", component, stream, gate=gate))

    @naming_keywords
    def fields_grouping(
        self, component: str, fields: Sequence[str], stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """Equal values of these fields to the same task, on every run, machine and Python hash seed."""
        return self._add(Input("fields_grouping", component, stream, fields, gate))

    @naming_keywords
    def partial_key_grouping(
        self, component: str, fields: Sequence[str], stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """Equal values of these fields to the less used of two tasks: for very unevenly distributed keys."""
        return self._add(Input("partial_key_grouping", component, stream, fields, gate))

    @naming_keywords
    def global_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """All tuples to the bolt's lowest task."""
        return self._add(Input("global_grouping", component, stream, gate=gate))

    @naming_keywords
    def all_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """A copy to every task; the message is acked when all copies are."""
        return self._add(Input("all_grouping", component, stream, gate=gate))

    @naming_keywords
    def direct_grouping(
        self, component: str, stream: str = DEFAULT_STREAM, *, gate: bool | None = None
    ) -> BoltDeclarer:
        """Only tuples that the source sends to a task with ``emit_direct``."""
        return self._add(Input("direct_grouping", component, stream, gate=gate))

    @naming_keywords
    def custom_grouping(
        self,
        component: str,
        grouping: CustomGrouping,
        stream: str = DEFAULT_STREAM,
        *,
        gate: bool | None = None,
    ) -> BoltDeclarer:
        """The tasks that an instance of the user's own grouping chooses."""
        return self._add(Input("custom_grouping", component, stream, grouping, gate))

    def _add(self, read: Input) -> BoltDeclarer:
        self._declared.inputs.append(read)
        return self


class SpoutDeclarer:
    """The result of ``set_spout``. It has no grouping methods, since a spout reads no stream."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __repr__(self) -> str:
        return f"SpoutDeclarer({self._where:.80})"

    if not TYPE_CHECKING:  # a type checker must see that there is no such method

        def __getattr__(self, name: str) -> NoReturn:
            """Raise TopologyError, not AttributeError, for a grouping that is chained to a spout."""
            if not name.endswith("_grouping"):
                raise AttributeError(name)
            what = f"a spout is given an input, by {name}"
            fix = "chain it to the bolt that reads: set_bolt(...)." + name + "(...)"
            raise TopologyError(what, f"{self._where}.{name}(...)", fix)
