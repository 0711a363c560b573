"""Validates a declared topology.

Rules of this file
------------------
1. The first mistake is raised. The error names the component, quotes the call and gives the fix.
2. The order of the checks: each component alone, in the order declared; its inputs; the graph; and last,
   since it takes time, whether the user's objects can be pickled.
3. These checks are made nowhere else.

Source: Storm's ``StormCommon.validateStructure``, which checks a third of this. Storm checks a fields
grouping against the union of all the source's streams, and allows cycles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal

from acktree.bolt import AnyBolt, Bolt
from acktree.core.data import groupings
from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.groupings import CustomGrouping, Grouping
from acktree.core.ids import MAX_SPOUT_TASK
from acktree.core.spouts.retry import Retry
from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import TopologyError, nearest
from acktree.sink import Sink
from acktree.spout import Spout
from acktree.topology.component import Component, Subscription
from acktree.topology.declared import Declared, Input, shown
from acktree.topology.misspelt import refuse_misspelt
from acktree.topology.travel import check_travels
from acktree.topology.user_objects import (
    checked_concurrency,
    checked_latest_by,
    checked_object,
    checked_remembers,
    checked_streams,
    checked_tick_secs,
)

_WITHOUT_ARGUMENT: Final[Mapping[str, Grouping]] = {
    "shuffle_grouping": groupings.Shuffle(),
    "local_or_shuffle_grouping": groupings.LocalOrShuffle(),
    "none_grouping": groupings.NoneGrouping(),
    "global_grouping": groupings.Global(),
    "all_grouping": groupings.All(),
    "direct_grouping": groupings.Direct(),
}
_TO_ONE_TASK: Final = (
    groupings.Shuffle,
    groupings.LocalOrShuffle,
    groupings.NoneGrouping,
    groupings.Fields,
    groupings.PartialKey,
    groupings.Global,
)


def checked_components(name: object, declared: Sequence[Declared]) -> tuple[str, list[Component]]:
    """Convert the declarations to components, or raise the first mistake.

    Args:
        name: The topology's name, as given.
        declared: Every ``set_spout`` and ``set_bolt``, in the order written.

    Returns:
        The name, and the components sorted by id, with their tasks numbered.

    Raises:
        TopologyError: The first mistake. There is a test for each kind.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        what = f"the topology is called {name!r:.60}"
        raise TopologyError(
            what,
            f"TopologyBuilder({name!r:.60})",
            "give it a name: a string of printable characters, not empty",
        )
    by_id: dict[str, Declared] = {}
    for call in declared:
        by_id[_checked_id(call, by_id)] = call
    alone = {component_id: _component(component_id, call) for component_id, call in by_id.items()}
    read = {
        component_id: _with_inputs(alone[component_id], call, alone) for component_id, call in by_id.items()
    }
    components = _numbered([read[component_id] for component_id in sorted(read)], by_id)
    _refuse_half_direct(components, by_id)
    _refuse_cycle({component.id: component for component in components}, by_id)
    if not any(component.kind == "spout" for component in components):
        where = f"TopologyBuilder({name!r})"
        raise TopologyError(f"topology {name!r} has no spout", where, 'add one: set_spout("id", spout)')
    for component in components:
        call = by_id[component.id]
        check_travels(component.user_object, call.owner, str(call))
        for edge, written in zip(component.inputs, call.inputs, strict=True):
            if isinstance(edge.grouping, groupings.Custom):
                owner = f"the custom grouping of {call.name}"
                check_travels(edge.grouping.grouping, owner, f"{call}{written}")
    return name, components


def _checked_id(call: Declared, earlier: Mapping[str, Declared]) -> str:
    component_id = call.id
    if not isinstance(component_id, str) or not component_id.strip() or not component_id.isprintable():
        raise call.mistake(
            f"a {call.kind} is called {component_id!r:.60}",
            "give it an id: a string of printable characters, not empty",
        )
    if component_id.startswith("__"):
        what = f"{call.name} has an id that begins with __"
        raise call.mistake(
            what, f"call it {component_id.strip('_') or call.kind!r}: those ids are acktree's own"
        )
    if ":" in component_id:
        what = f"{call.name} has an id with a colon"
        fix = f"call it {component_id.replace(':', '-')!r}: statistics write an input as component:stream"
        raise call.mistake(what, fix)
    if component_id in earlier:
        what = f"{call.kind} {component_id!r} has the id of another component"
        raise call.mistake(what, f"call one of them otherwise; the other is {earlier[component_id]}")
    return component_id


def _component(component_id: str, call: Declared) -> Component:
    """Check a component alone; returns it without inputs and task ids."""
    user_object = checked_object(call)
    tasks = call.parallelism
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 1:
        what = f"{call.owner} has parallelism {shown(tasks)}"
        raise call.mistake(what, "give a whole number of at least 1: it is the number of tasks")
    retry = call.retry
    if retry is not None and not isinstance(retry, Retry):
        what = f"retry of {call.owner} is {shown(retry)}"
        raise call.mistake(what, "give a policy: retry=Retry(max_attempts=5)")
    exactly_once = _checked_exactly_once(call, user_object)
    max_concurrency, threads = checked_concurrency(call, user_object)
    streams, remembers = dict[str, StreamDeclaration](), tuple[str, ...]()
    if isinstance(user_object, Spout | AnyBolt) and call.method != "set_sink":
        streams, remembers = checked_streams(call, user_object), checked_remembers(call, user_object)
        refuse_misspelt(call, user_object)
    return Component(
        id=component_id,
        kind=call.kind,
        is_dataframe=isinstance(user_object, DataFrameSpout),
        user_object=user_object,
        parallelism=tasks,
        task_ids=(),
        streams=streams,
        remembers=remembers,
        tick_secs=checked_tick_secs(call, user_object),
        execute_timeout_secs=_checked_execute_timeout(call),
        retry=retry,
        inputs=(),
        max_spout_pending=_checked_max_spout_pending(call),
        message_timeout_secs=_checked_message_timeout(call),
        told_columns=_told_columns(user_object),
        key_column=user_object.key if isinstance(user_object, DataFrameSpout) else None,
        label_column=user_object.label if isinstance(user_object, DataFrameSpout) else None,
        max_concurrency=max_concurrency,
        threads=threads,
        exactly_once=exactly_once,
        is_sink=call.method == "set_sink",
        latest_by=checked_latest_by(call, user_object),
    )


def with_bolt(component: Component, bolt: object) -> Component:
    """A bolt or sink of a topology with another object in its place, which must have the same outputs.

    Raises:
        TopologyError: The object is no bolt or sink, or has other outputs.
    """
    method: Literal["set_bolt", "set_sink"] = "set_sink" if component.is_sink else "set_bolt"
    declared = Declared(method, component.id, bolt, component.parallelism)
    if not component.is_sink:
        declared.settings["exactly_once"] = component.exactly_once
    other = _component(component.id, declared)
    fields, others = ({s.name: s.fields for s in one.streams.values()} for one in (component, other))
    if others != fields:
        what = f"{declared.owner} has the outputs {others}, and what it replaces has {fields}"
        raise declared.mistake(what, f"give it outputs = {fields}")
    check_travels(bolt, declared.owner, str(declared))
    return replace(
        component, user_object=bolt, streams=other.streams, remembers=other.remembers,
        tick_secs=other.tick_secs, max_concurrency=other.max_concurrency, threads=other.threads,
    )  # fmt: skip


def _checked_exactly_once(call: Declared, user_object: object) -> bool:
    if call.method == "set_sink":
        if "set_execute_timeout_secs" in call.settings:
            what = f"{call.owner} has an execute timeout, and writes all rows of a micro-batch in one call"
            raise call.mistake(what, "set a timeout of the sink's client")
        return True
    exactly_once = call.settings.get("exactly_once", False)
    if not isinstance(exactly_once, bool):
        raise call.mistake(f"exactly_once of {call.owner} is {shown(exactly_once)}", "give True or False")
    is_sink = isinstance(user_object, Sink)
    if call.kind == "bolt" and call.retry is not None and not exactly_once:
        what = f"{call.owner} has a retry, and no messages of its own"
        other = f"add it with set_sink({call.id!r}, ...)" if is_sink else "add exactly_once=True"
        raise call.mistake(what, f"give the retry to the spout, or {other}")
    if exactly_once and isinstance(user_object, Bolt):
        what = f"{call.owner} is a Bolt, which acks when it likes, and cannot be exactly-once"
        fix = "derive it from BasicBolt or ArrowBolt, which ack by themselves"
        if is_sink:
            fix = f"add it with set_sink({call.id!r}, ...), which writes each row once"
        raise call.mistake(what, fix)
    return exactly_once


def _told_columns(user_object: object) -> tuple[str, ...]:
    if isinstance(user_object, DataFrameSpout) and user_object.acknowledger is not None:
        return user_object.id_columns
    return ()


def _checked_max_spout_pending(call: Declared) -> int | None:
    most = call.settings.get("max_spout_pending")
    if most is None:
        return None
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        what = f"max_spout_pending of {call.owner} is {shown(most)}"
        fix = "give a whole number, 0 for any number; leave it out for Config(max_spout_pending=...)"
        raise call.mistake(what, fix)
    return most


def _checked_message_timeout(call: Declared) -> float | None:
    secs = call.settings.get("message_timeout_secs")
    if secs is None:
        return None
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 < secs < math.inf:
        what = f"message_timeout_secs of {call.owner} is {shown(secs)}"
        fix = "give it seconds, more than 0; leave it out for Config(message_timeout_secs=...)"
        raise call.mistake(what, fix)
    return float(secs)


def _checked_execute_timeout(call: Declared) -> float | None:
    """The execute timeout that was chained to the bolt, if any."""
    method = "set_execute_timeout_secs"
    if method not in call.settings:
        return None
    secs = call.settings[method]
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 < secs < math.inf:
        what = f"the execute timeout of {call.owner} is {shown(secs)}"
        fix = "give it seconds, more than 0; leave it out for Config(execute_timeout_secs=...)"
        raise TopologyError(what, f"{call}.{method}({shown(secs)})", fix)
    return float(secs)


def _with_inputs(alone: Component, call: Declared, components: Mapping[str, Component]) -> Component:
    """Check the inputs of a component, and add them to it."""
    if alone.kind == "bolt" and not call.inputs:
        what = f"{call.owner} reads no stream"
        sources = [other for other in sorted(components) if other != alone.id and components[other].streams]
        likely = sources[0] if len(sources) == 1 else "id"
        raise call.mistake(what, f"chain a grouping to it: {call}.shuffle_grouping({likely!r})")
    inputs: list[Subscription] = []
    for written in call.inputs:
        source = _checked_source(call, written, components)
        stream = _checked_stream(call, written, source)
        if any((edge.source, edge.stream) == (source.id, stream) for edge in inputs):
            what = f"{call.owner} reads stream {stream!r} of {source.id!r} twice"
            fix = "keep one of the two; for two copies of each tuple, add a second bolt of the same class"
            raise call.mistake(what, fix, written)
        grouping = _checked_grouping(call, written, source.streams[stream].fields)
        gate = _checked_gate(alone, call, written)
        is_gated = source.exactly_once or (alone.exactly_once and gate)
        if is_gated and not isinstance(grouping, _TO_ONE_TASK):
            what = f"{call.owner} reads {source.id!r} through a gate, and not by a grouping to one task"
            fix = "use shuffle, fields, partial key or global grouping: a tuple has one fate for each reader"
            raise call.mistake(what, fix, written)
        missing = [name for name in alone.latest_by if name not in source.streams[stream].fields]
        if missing:
            what = f"{call.owner} keeps the latest row by {missing[0]!r}, which {source.id!r} does not emit"
            emitted = ", ".join(source.streams[stream].fields)
            raise call.mistake(what, f"name fields of the stream: {emitted}; or emit the key, too", written)
        inputs.append(Subscription(alone.id, source.id, stream, grouping, gate))
    fields = {components[edge.source].streams[edge.stream].fields for edge in inputs}
    if alone.is_sink and len(fields) > 1:
        what = f"{call.owner} reads streams with other fields than each other"
        raise call.mistake(what, "give each of them a sink of its own, or emit the same fields")
    return replace(alone, inputs=tuple(inputs))


def _checked_gate(alone: Component, call: Declared, written: Input) -> bool:
    """Whether an input has a gate where there may be one."""
    if written.gate is None:
        return True
    if not isinstance(written.gate, bool):
        raise call.mistake(f"gate of {call.owner} is {shown(written.gate)}", "give True or False", written)
    if not alone.exactly_once:
        what = f"{call.owner} has an input with gate={written.gate}, and is not exactly-once"
        fix = "leave gate out: its tuples come at once; or declare it with set_bolt(..., exactly_once=True)"
        raise call.mistake(what, fix, written)
    if alone.is_sink and not written.gate:
        what = f"{call.owner} has an input without a gate, and a sink writes each tuple once"
        raise call.mistake(what, "leave gate out; to write at least once, use set_bolt", written)
    return written.gate


def _checked_source(call: Declared, written: Input, components: Mapping[str, Component]) -> Component:
    if not isinstance(written.source, str):
        what = f"{call.owner} reads from {shown(written.source)}, which is no component's id"
        raise call.mistake(what, "give the id, a string, that set_spout or set_bolt was given", written)
    source = components.get(written.source)
    if source is None:
        others = [other for other in components if other != call.id]
        what = f"{call.owner} reads from {written.source!r}, which is no component"
        raise call.mistake(what, nearest(written.source, others), written)
    return source


def _checked_stream(call: Declared, written: Input, source: Component) -> str:
    if isinstance(written.stream, str) and written.stream in source.streams:
        return written.stream
    class_name = type(source.user_object).__name__
    if not source.streams:
        what = f"{call.owner} reads from {source.id!r}, which declares no output"
        raise call.mistake(what, f'name the fields that it emits: {class_name}.outputs = ["field"]', written)
    declared = ", ".join(map(repr, source.streams))
    what = (
        f"{call.owner} reads stream {written.stream!r:.60} of {source.id!r}, which declares only {declared}"
    )
    fix = f"{nearest(written.stream, source.streams)}; or add the stream to {class_name}.outputs"
    raise call.mistake(what, fix, written)


def _checked_grouping(call: Declared, written: Input, fields: Sequence[str]) -> Grouping:
    if written.method == "custom_grouping":
        return groupings.Custom(_checked_custom(call, written))
    if written.method == "fields_grouping":
        return groupings.Fields(_checked_key(call, written, fields))
    if written.method == "partial_key_grouping":
        return groupings.PartialKey(_checked_key(call, written, fields))
    return _WITHOUT_ARGUMENT[written.method]


def _checked_custom(call: Declared, written: Input) -> CustomGrouping:
    grouping = written.argument
    if isinstance(grouping, type):
        what = f"the custom grouping of {call.owner} is the class {grouping.__name__}, not an instance of it"
        raise call.mistake(
            what, f"make one: .custom_grouping({written.source!r}, {grouping.__name__}())", written
        )
    if not isinstance(grouping, CustomGrouping):
        what = f"the custom grouping of {call.owner} is {shown(grouping)}, which is no CustomGrouping"
        fix = "derive a class from CustomGrouping, with choose_tasks(task_id, values), and give an instance"
        raise call.mistake(what, fix, written)
    return grouping


def _checked_key(call: Declared, written: Input, fields: Sequence[str]) -> tuple[str, ...]:
    names = written.argument
    what = f"the {written.method} of {call.owner}"
    if isinstance(names, str):
        fix = f"put it in a list: .{written.method}({written.source!r}, [{names!r}])"
        raise call.mistake(f"{what} is given {names!r}, a string and not a list", fix, written)
    if not isinstance(names, (list, tuple)):
        fix = f"list the fields: .{written.method}({written.source!r}, {list(fields)!r})"
        raise call.mistake(f"{what} is given {shown(names)}, which is no list of fields", fix, written)
    if not names:
        fix = f"list some of {list(fields)!r}; if it does not matter who gets what, use shuffle_grouping"
        raise call.mistake(f"{what} names no field", fix, written)
    for position, name in enumerate(names):
        if name not in fields:
            unknown = f"{what} names field {name!r:.60}, which the stream does not have"
            raise call.mistake(unknown, nearest(name, fields), written)
        if name in names[:position]:
            raise call.mistake(f"{what} names field {name!r} twice", "name it once", written)
    return tuple(names)


def _numbered(components: Sequence[Component], by_id: Mapping[str, Declared]) -> list[Component]:
    """The components with their tasks numbered from 1, in the order given."""
    numbered: list[Component] = []
    end = 1
    for component in components:
        first, end = end, end + component.parallelism
        if component.kind == "spout" and end - 1 > MAX_SPOUT_TASK:
            call = by_id[component.id]
            what = f"{call.owner} would have task {end - 1}, and a spout's tasks end at {MAX_SPOUT_TASK}"
            fix = "lower the parallelism of it or of the components whose ids come before its"
            raise call.mistake(what, fix)
        numbered.append(replace(component, task_ids=tuple(range(first, end))))
    return numbered


def _refuse_half_direct(components: Sequence[Component], by_id: Mapping[str, Declared]) -> None:
    """Refuse a stream that one bolt reads by direct grouping and another by another grouping."""
    first: dict[tuple[str, str], tuple[str, bool]] = {}
    for component in components:
        call = by_id[component.id]
        for edge, written in zip(component.inputs, call.inputs, strict=True):
            is_direct = isinstance(edge.grouping, groupings.Direct)
            other, was_direct = first.setdefault((edge.source, edge.stream), (component.id, is_direct))
            if is_direct is not was_direct:
                direct, plain = (component.id, other) if is_direct else (other, component.id)
                what = (
                    f"bolt {direct!r} reads stream {edge.stream!r} of {edge.source!r} by direct grouping, "
                    f"and bolt {plain!r} reads it otherwise: no emit could reach both"
                )
                fix = "declare a second stream in its outputs, emit to both, and let one of the bolts read it"
                raise call.mistake(what, fix, written)


def _refuse_cycle(components: Mapping[str, Component], by_id: Mapping[str, Declared]) -> None:
    """Refuse a topology with a cycle."""
    try:
        TopologicalSorter(
            {
                component.id: sorted({edge.source for edge in component.inputs})
                for component in components.values()
            }
        ).prepare()
    except CycleError as cycle:
        *way, _ = cycle.args[1]  # each component is read by the next one; the first is also the last
        start = way.index(min(way))
        way = [*way[start:], *way[:start]]
        path = " -> ".join(repr(name) for name in [*way, way[0]])
        reader = components[way[1 % len(way)]]
        edge = next(edge for edge in reader.inputs if edge.source == way[0])
        declared = by_id[reader.id]
        raise declared.mistake(
            f"the topology has a cycle: {path}",
            "remove one of these edges; for a loop, write to a queue and read it with a spout",
            declared.inputs[reader.inputs.index(edge)],
        ) from None
