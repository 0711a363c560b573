"""``load``: a topology class, or the file of one, as a topology of acktree."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from acktree import AnyBolt, Bolt, BoltDeclarer, Spout, TopologyBuilder, errors, pystorm
from acktree.multilang import ShellBolt, ShellSpout
from acktree.multilang.framing import serializer_named
from acktree.multilang.loaded import LoadedTopology, config_of
from acktree.pystorm.bodies import refuse_bodies_that_do_not_run
from acktree.pystorm.hosted import HostedSpout, Program, tick_secs_of
from acktree.pystorm.hosted_async import hosted_bolt
from acktree.streamparse import project, thrift
from acktree.streamparse.aliases import is_installed
from acktree.streamparse.dsl import Topology
from acktree.streamparse.dsl.component import ComponentSpec
from acktree.streamparse.dsl.spout import ShellSpoutSpec
from acktree.streamparse.errors import SpecValueError

__all__ = ["load"]

_INSTALL: Final = ("acktree.streamparse.aliases", "install")
_TICKS: Final = "topology.tick.tuple.freq.secs"
_SERIALIZER: Final = "topology.multilang.serializer"
_PROCESS: Final = "acktree.process"
"""A setting: run a Python component as a child process."""
_LOG_PATH: Final = "pystorm.log.path"
"""A folder on Storm's machines. Here a component of Python logs to acktree's log, in a child process too."""
_RUN: Final = "from acktree.pystorm.run import main; main()"
_RUN_INSTALLED: Final = f"from acktree.streamparse import install; install(); {_RUN}"


def load(
    topology: type[Topology] | str | Path,
    *,
    name: str | None = None,
    environment: str | None = None,
    options: Mapping[str, Any] | None = None,
    replace: Mapping[str, Spout | AnyBolt] | None = None,
) -> LoadedTopology:
    """A topology of streamparse, for ``submit`` and ``LocalCluster``.

    Args:
        topology: The class, or the file that has it: ``topologies/x.py``, or ``topologies/x.py:Class``. With
            a file, ``install()`` is called, and the project's ``config.json`` is read if there is one.
        name: The topology's name. None: the file's, or the class's.
        environment: An environment of the project. None: the only one.
        options: Settings by Storm's dotted keys, which win over the project's and the topology's.
        replace: Spouts and bolts of acktree that take the place of components.

    Raises:
        TopologyError: A component cannot run here: it is written in Java, or is a child process.
        ConfigError: There is no such file, class or environment, or a setting has a value it cannot have.
    """
    settings_of_environment: Mapping[str, Any] = {}
    if isinstance(topology, type):
        kind, name = topology, name or topology.__name__
    else:
        path, _, class_name = str(topology).partition(":")
        file = Path(path)
        kind, name = project.topology_in(file, class_name or None), name or file.stem
        folder = file.absolute().parent.parent
        if environment is not None or (folder / "config.json").is_file():
            config = project.read_config(folder=folder)
            environment, settings_of_environment = project.environment_of(config, environment)
    settings = project.options_of(options, settings_of_environment, kind, name)
    return build(kind, name, settings, environment, replace or {})


def build(
    kind: type[Topology],
    name: str,
    settings: Mapping[str, Any],
    environment: str | None,
    replace: Mapping[str, Spout | AnyBolt],
) -> LoadedTopology:
    """A topology class with all its settings, as a topology of acktree."""
    specs = {str(spec.name): spec for spec in kind.specs}
    for key in replace:
        if key not in specs:
            what = f"there is no component {key!r} to replace"
            raise SpecValueError(what, f"load({kind.__name__}, replace=...)", errors.nearest(key, specs))
    builder = TopologyBuilder(name)
    has_children = False
    for key, spec in specs.items():
        own: dict[str, Any] = json.loads(spec.config)
        given: Any = replace.get(key) or _hosted(spec, kind, {**settings, **own}, _ticks(own))
        has_children |= isinstance(given, ShellBolt | ShellSpout)
        _refuse_silent_batches(spec, {**settings, **own})
        if key not in replace:
            _refuse_idle(spec.component_cls, f"class {kind.__name__}, component {key!r}")
        tasks = _tasks(spec, environment, kind)
        if key in kind.thrift_spouts:
            limits = own.get("topology.max.spout.pending"), own.get("topology.message.timeout.secs")
            builder.set_spout(key, given, tasks, max_spout_pending=limits[0], message_timeout_secs=limits[1])
        else:
            bolt = builder.set_bolt(key, given, tasks)
            for stream, grouping in spec.inputs.items():
                _group(bolt, stream, grouping, kind)
    config, ignored = config_of(settings, used=(_SERIALIZER,) if has_children else ())
    return LoadedTopology(name, builder.create_topology(), config, ignored)


def _hosted(
    spec: ComponentSpec,
    topology: type[Topology],
    conf: Mapping[str, Any],
    tick_secs: Any,
) -> Bolt | Spout:
    where = f"class {topology.__name__}, component {spec.name!r}"
    shell = spec.component_object.shell
    if shell is None:
        java = spec.component_object.java_object
        shown = "a serialized Java object" if java is None else f"the Java class {java.full_class_name}"
        raise SpecValueError(
            f"component {spec.name!r} is {shown}: acktree runs no JVM code", where,
            "write it in Python, or use acktree.connectors.kafka for a Kafka spout; "
            f"load(..., replace={{{spec.name!r}: spout}}) puts another component in its place",
        )  # fmt: skip
    outputs = {stream: info.output_fields for stream, info in spec.outputs.items()}
    setting = _setting(spec, topology)
    if not issubclass(spec.component_cls, (pystorm.Bolt, pystorm.Spout)):
        command = [str(shell.execution_command), *shlex.split(str(shell.script))]
        return _child(command, spec, outputs, conf, setting)
    if conf.get(_PROCESS):
        refuse_bodies_that_do_not_run(spec.component_cls, in_child=True)
        command = _command_of(spec.component_cls, where)
        if serializer_named(conf.get(_SERIALIZER)) == "msgpack":
            command[-1:-1] = ["-s", "msgpack"]
        here = {key: value for key, value in conf.items() if key != _LOG_PATH}
        child = _child(command, spec, outputs, here, setting)
        child.__name__ = spec.component_cls.__name__  # type: ignore[union-attr]  # shown in descriptions
        return child
    before = _INSTALL if is_installed() else None
    program = Program(spec.component_cls, conf, setting, before)
    if issubclass(spec.component_cls, pystorm.Spout):
        return HostedSpout(program, outputs)
    return hosted_bolt(program, outputs, tick_secs_of(spec.component_cls, {_TICKS: tick_secs}))


def _child(
    command: list[str],
    spec: ComponentSpec,
    outputs: Mapping[str, list[str]],
    conf: Mapping[str, Any],
    setting: Mapping[str, Any],
) -> ShellBolt | ShellSpout:
    """A component that is a child process. Its working folder is ``src``, as in a project."""
    serializer = serializer_named(conf.get(_SERIALIZER))
    if serializer is None:
        raise SpecValueError(
            f"there is no serializer {conf[_SERIALIZER]!r}", f"component {spec.name!r}, {_SERIALIZER}",
            "it is json or msgpack",
        )  # fmt: skip
    resources = "src" if Path("src").is_dir() else None
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    kind = ShellSpout if isinstance(spec, ShellSpoutSpec) else ShellBolt
    made = kind(command, outputs, resources=resources, settings=conf, env=env, serializer=serializer)
    made.tell_place(setting)
    if isinstance(made, ShellBolt):
        made.tick_secs = _ticks(json.loads(spec.config))
    return made


def _command_of(kind: type, where: str) -> list[str]:
    """The command that runs a Python class as a child."""
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        what = f"{kind.__qualname__} of {kind.__module__} cannot be imported by a child process"
        raise SpecValueError(what, f"{where}, {_PROCESS}", "define it in a module, at the top level")
    return [
        sys.executable,
        "-c",
        _RUN_INSTALLED if is_installed() else _RUN,
        f"{kind.__module__}.{kind.__name__}",
    ]


def _ticks(own: Mapping[str, Any]) -> Any:
    return own.get(_TICKS)


def _refuse_idle(kind: type, where: str) -> None:
    """Refuse a bolt that says nowhere what it does with a tuple."""
    if not issubclass(kind, pystorm.Bolt):
        return
    names = ["process"]
    if issubclass(kind, pystorm.BatchingBolt):
        names += ["process_batch", "process_batches"]
    if all(getattr(getattr(kind, name), "__module__", None) == pystorm.Bolt.__module__ for name in names):
        own = [name for name in dir(kind) if not hasattr(pystorm.TicklessBatchingBolt, name)]
        name = names[min(1, len(names) - 1)]
        close = errors.closest(name, own)
        meant = f"; did you mean that by {close!r}?" if close else ""
        parameters = "self, tup" if name == "process" else "self, key, tups"
        raise SpecValueError(
            f"class {kind.__name__} has no {name}(): each of its tuples would fail", where,
            f"write def {name}({parameters}){meant}",
        )  # fmt: skip


def _refuse_silent_batches(spec: ComponentSpec, settings: Mapping[str, Any]) -> None:
    kind = spec.component_cls
    if not issubclass(kind, pystorm.BatchingBolt) or issubclass(kind, pystorm.TicklessBatchingBolt):
        return
    if settings.get(_TICKS) is None and kind.tuples_between_batches is None:
        raise SpecValueError(
            f"no tick reaches the BatchingBolt {spec.name!r}: its batches would never be processed",
            f"component {spec.name!r}, config", f'write spec(config={{"{_TICKS}": 1}})',
        )  # fmt: skip


def _tasks(spec: ComponentSpec, environment: str | None, topology: type[Topology]) -> int:
    if not isinstance(spec.par, dict):
        return int(spec.par)
    if environment not in spec.par:
        shown = "no environment is named" if environment is None else f"none for {environment!r}"
        raise SpecValueError(
            f"par of {spec.name!r} is given for environments, and {shown}",
            f"class {topology.__name__}, component {spec.name!r}",
            f"name one: load(..., environment=...), or -e; {errors.nearest(environment or '', spec.par)}",
        )
    return int(spec.par[environment])


def _group(
    bolt: BoltDeclarer, stream: thrift.GlobalStreamId, grouping: thrift.Grouping, topology: type[Topology]
) -> None:
    source, name, kind = stream.componentId, stream.streamId, grouping.kind
    if kind in {"custom_object", "custom_serialized"}:
        raise SpecValueError(
            f"the grouping of {source}:{name} is written in Java", f"class {topology.__name__}",
            "derive a class from acktree.CustomGrouping, and give Grouping.custom(MyGrouping())",
        )  # fmt: skip
    if kind == "custom":
        bolt.custom_grouping(source, grouping.custom, stream=name)
    elif grouping.fields:
        bolt.fields_grouping(source, grouping.fields, stream=name)
    else:
        getattr(bolt, f"{'global' if kind == 'fields' else kind}_grouping")(source, stream=name)


def _setting(spec: ComponentSpec, topology: type[Topology]) -> dict[str, Any]:
    """The context of multilang's set-up, but for the ids of tasks."""
    targets: dict[str, dict[str, Any]] = {stream: {} for stream in spec.outputs}
    for other in topology.specs:
        for stream, grouping in other.inputs.items():
            if stream.componentId == spec.name:
                targets[stream.streamId][str(other.name)] = _shown(grouping)
    sources: dict[str, dict[str, Any]] = {}
    fields: dict[str, dict[str, list[str]]] = {}
    outputs = {other.name: other.outputs for other in topology.specs}
    for stream, grouping in spec.inputs.items():
        source, name = stream.componentId, stream.streamId
        sources.setdefault(source, {})[name] = _shown(grouping)
        fields.setdefault(source, {})[name] = outputs[source][name].output_fields
    return {
        "streams": list(spec.outputs),
        "stream->outputfields": {stream: info.output_fields for stream, info in spec.outputs.items()},
        "stream->target->grouping": targets,
        "source->stream->grouping": sources,
        "source->stream->fields": fields,
    }


def _shown(grouping: thrift.Grouping) -> dict[str, Any]:
    """A grouping as the set-up describes it: a global one is one of no fields."""
    if grouping.fields is not None:
        return {"type": "FIELDS", "fields": grouping.fields}
    return {"type": "CUSTOM_SERIALIZED" if grouping.kind == "custom" else grouping.kind.upper()}
