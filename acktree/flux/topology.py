"""``load``: a topology of acktree from a Flux file.

Source: Storm's ``FluxBuilder`` and ``Flux``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from acktree import BoltDeclarer, Config, ConfigError, Topology, TopologyBuilder, TopologyError
from acktree.errors import nearest
from acktree.flux.beans import Objects, method_of, naming
from acktree.flux.definition import Bean, Definition, Reading, bean
from acktree.flux.errors import Place
from acktree.flux.reader import Node, read_text
from acktree.flux.substitution import properties_in
from acktree.logs.loggers import logger
from acktree.multilang.loaded import LoadedTopology, config_of

__all__ = ["load"]

log = logger("acktree")

_GROUPINGS: Final = (
    "ALL", "CUSTOM", "DIRECT", "FIELDS", "GLOBAL", "LOCAL_OR_SHUFFLE", "NONE", "PARTIAL_KEY", "SHUFFLE",
)  # fmt: skip
_WITH_FIELDS: Final = ("FIELDS", "PARTIAL_KEY")
_OF_SPOUTS: Final = {
    "topology.max.spout.pending": "max_spout_pending",
    "topology.message.timeout.secs": "message_timeout_secs",
}
_TICKS: Final = "topology.tick.tuple.freq.secs"
_FOR_ALL: Final = "it holds for the whole topology; write it in the config of the file"
_OF_USER: Final = "components are not given it; pass it as a constructor argument or a property"
_BY_SPARK: Final = "Spark places tasks and gives them memory; set it up in the SparkSession"


def load(
    path: str | os.PathLike[str],
    *,
    properties: str | os.PathLike[str] | Mapping[str, str] | None = None,
    environment: bool = False,
    classes: Mapping[str, object] | None = None,
) -> LoadedTopology:
    """The topology of a Flux file, for ``submit`` and ``LocalCluster``.

    It imports and calls the classes that the file names.

    Args:
        path: The file.
        properties: A properties file, or its pairs: the values of ``${key}``.
        environment: Whether ``${ENV-NAME}`` is replaced by an environment variable.
        classes: Python classes, or their names ``module:Class``, for names of Java classes in the file.

    Raises:
        FluxError: The file or the topology is wrong; the error names file and line.
        ModuleNotFoundError: The extra ``acktree[flux]`` is not installed.
    """
    if properties is None or isinstance(properties, Mapping):
        values = dict(properties or {})
    else:
        values = properties_in(read_text(Path(properties), Place(str(properties), 1)))
    definition = Reading(values, os.environ if environment else None).read(Path(path))
    places = {name: each.place for name, each in definition.beans["components"].items()}
    return _Assembly(definition, Objects(dict(classes or {}), places=places)).loaded()


@dataclass(slots=True)
class _Assembly:
    """Makes a topology of a definition."""

    definition: Definition
    objects: Objects
    ignored: dict[str, str] = field(default_factory=dict)

    def loaded(self) -> LoadedTopology:
        config, ignored = self._config(self.definition.config)
        self.ignored |= ignored
        for key in ignored:
            if ignored[key] == _OF_USER:
                self._ignore(key, _OF_USER)
        if self.definition.source is not None:
            topology = self._of_source(self.definition.source, config)
        else:
            for name, each in self.definition.beans["components"].items():
                self._keep(name, each)
            topology = self._built()
        hooks = [self.objects.make(each) for each in self.definition.beans["workerHooks"].values()]
        if hooks:
            first = next(iter(self.definition.beans["workerHooks"].values()))
            config = _or_mistake(first.place, lambda: replace(config, worker_hooks=tuple(hooks)))
        unset = tuple(f"{place}: {text}" for place, text in self.definition.unset)
        return LoadedTopology(topology.name, topology, config, self.ignored, unset)

    def _built(self) -> Topology:
        definition = self.definition
        if definition.name is None:
            raise definition.place.mistake("the topology has no name", "write name: a-name at the top")
        builder = TopologyBuilder(definition.name.text("name"))
        for name, each in definition.beans["spouts"].items():
            self._add_spout(builder, name, each)
        bolts = {
            name: builder.set_bolt(name, self._bolt(name, each), _tasks(each))
            for name, each in definition.beans["bolts"].items()
        }
        for stream in definition.streams:
            self._add_stream(stream, bolts)
        try:
            return builder.create_topology()
        except TopologyError as error:
            raise self._place_of(error).mistake(error.what, error.fix) from error

    def _keep(self, name: str, each: Bean) -> Any:  # noqa: ANN401  # of any class
        if name in self.objects.by_id:
            raise each.place.mistake(f"two objects have the id {name!r}", "rename one of them")
        self.objects.by_id[name] = made = self.objects.make(each)
        return made

    def _add_spout(self, builder: TopologyBuilder, name: str, each: Bean) -> None:
        settings = self._own_settings(name, each, _OF_SPOUTS)
        limits = {_OF_SPOUTS[key]: value for key, value in settings.items()}
        builder.set_spout(name, self._keep(name, each), _tasks(each), **limits)

    def _bolt(self, name: str, each: Bean) -> Any:  # noqa: ANN401  # whatever was made is checked later
        bolt = self._keep(name, each)
        for value in self._own_settings(name, each, (_TICKS,)).values():
            if not hasattr(bolt, "tick"):
                what = f"{each.thing} has no tick()"
                raise each.entries["config"].place.mistake(what, f"leave {_TICKS} out, or add the method")
            bolt.tick_secs = value
        return bolt

    def _own_settings(
        self, name: str, each: Bean, known: Mapping[str, str] | tuple[str, ...]
    ) -> dict[str, Any]:
        """The settings of a component that hold for it alone; the others are checked, and have no effect."""
        for load_of in ("onHeapMemoryLoad", "offHeapMemoryLoad", "cpuLoad"):
            if load_of in each.entries:
                self._ignore(f"{name}: {load_of}", _BY_SPARK)
        nodes = each.entries["config"].entries(f"config of {each.thing}") if "config" in each.entries else {}
        config, ignored = self._config(nodes)
        for key in nodes:
            if key not in known:
                is_setting = key in config.to_mapping()
                self._ignore(f"{name}: {key}", ignored.get(key, _FOR_ALL if is_setting else _OF_USER))
        return {key: node.plain() for key, node in nodes.items() if key in known}

    def _config(self, nodes: Mapping[str, Node]) -> tuple[Config, dict[str, str]]:
        """The settings in a map, and the reasons for those without effect."""
        settings = {key: node.plain() for key, node in nodes.items()}
        for key, node in nodes.items():
            _or_mistake(node.place, lambda key=key: config_of({key: settings[key]}))  # type: ignore[misc]
        config, ignored = config_of(settings)
        of_user = settings.keys() - config.to_mapping().keys() - ignored.keys()
        return config, ignored | {key: _OF_USER for key in settings if key in of_user}

    def _ignore(self, setting: str, reason: str) -> None:
        self.ignored[setting] = reason
        tell = log.warning if reason == _OF_USER else log.info
        tell("%s has no effect: %s", setting, reason)

    def _add_stream(self, node: Node, bolts: Mapping[str, BoltDeclarer]) -> None:
        entries = node.entries("a stream", ("name", "from", "to", "grouping"))
        for key in ("from", "to", "grouping"):
            if key not in entries:
                raise node.place.mistake(f"a stream has no key {key!r}", f"write {key}: ...")
        source, target = entries["from"].text("from"), entries["to"].text("to")
        sources = [*self.definition.beans["spouts"], *bolts]
        if source not in sources:
            what = f"a stream comes from {source!r}, which is no spout or bolt"
            raise entries["from"].place.mistake(what, nearest(source, sources))
        if target not in bolts:
            what = f"a stream goes to {target!r}, which is no bolt"
            raise entries["to"].place.mistake(what, nearest(target, bolts))
        self._group(bolts[target], source, entries["grouping"])

    def _group(self, bolt: BoltDeclarer, source: str, node: Node) -> None:
        entries = node.entries("a grouping", ("type", "args", "streamId", "customClass"))
        if "type" not in entries:
            raise node.place.mistake("a grouping has no type", "write type: SHUFFLE")
        kind, place = entries["type"].text("type"), entries["type"].place
        if kind not in _GROUPINGS:
            raise place.mistake(f"there is no grouping {kind!r}", nearest(kind.upper(), _GROUPINGS))
        given: list[Any] = [source]
        if kind in _WITH_FIELDS:
            if "args" not in entries or not entries["args"].value:
                raise place.mistake(f"a {kind} grouping names no fields", "write args: [field]")
            given.append([each.text("a field") for each in entries["args"].items("args")])
        if kind == "CUSTOM":
            if "customClass" not in entries:
                raise place.mistake(
                    "a CUSTOM grouping has no customClass", "write customClass: {className: ...}"
                )
            given.append(self.objects.make(bean(entries["customClass"], "the customClass")))
        stream = entries["streamId"].text("streamId") if "streamId" in entries else "default"
        getattr(bolt, f"{kind.lower()}_grouping")(*given, stream=stream)

    def _place_of(self, error: TopologyError) -> Place:
        """The line of the stream or the component that a mistake of ``create_topology`` is about."""
        beans = {**self.definition.beans["spouts"], **self.definition.beans["bolts"]}
        for node in self.definition.streams:
            source, target = node.value["from"].value, node.value["to"].value
            if f"set_bolt({target!r}" in error.where and f"_grouping({source!r}" in error.where:
                return node.place
        named = (each for name, each in beans.items() if f"({name!r}" in error.where)
        return next((each.place for each in named), self.definition.place)

    def _of_source(self, source: Bean, config: Config) -> Topology:
        place = source.place
        for kind in ("spouts", "bolts"):
            for each in self.definition.beans[kind].values():
                raise each.place.mistake(f"a topologySource stands beside {kind}", "leave one of them out")
        if self.definition.streams:
            place = self.definition.streams[0].place
            raise place.mistake("a topologySource stands beside streams", "leave one of them out")
        for name, each in self.definition.beans["components"].items():
            self._keep(name, each)
        name = (
            source.entries["methodName"].text("methodName")
            if "methodName" in source.entries
            else "getTopology"
        )
        maker = method_of(self.objects.make(source), name, place, source.thing)
        given = [_settings_for(maker, config, self.definition.config)] if _takes_settings(maker) else []
        with naming(place, f"{name}()"):
            made = maker(*given)
        made = _or_mistake(place, made.create_topology) if isinstance(made, TopologyBuilder) else made
        if not isinstance(made, Topology):
            what = f"{name}() returns a {type(made).__name__}, and no topology"
            raise place.mistake(what, "return what create_topology() returns, or a TopologyBuilder")
        return made


def _or_mistake(place: Place, call: Callable[[], Any]) -> Any:  # noqa: ANN401  # what it returns
    """The result of a call; an error of acktree gets the place."""
    try:
        return call()
    except (ConfigError, TopologyError) as error:
        raise place.mistake(error.what, error.fix) from error


def _tasks(each: Bean) -> int:
    """The number of tasks: ``numTasks``, if it is given, counts."""
    for key in ("numTasks", "parallelism"):
        if key in each.entries:
            tasks = each.entries[key].whole(f"{key} of {each.thing}")
            if tasks >= 1:
                return tasks
            if key == "parallelism" or tasks != -1:
                what = f"{key} of {each.thing} is {tasks}"
                raise each.entries[key].place.mistake(what, "give it a whole number of at least 1")
    return 1


def _takes_settings(maker: Callable[..., Any]) -> bool:
    return bool(inspect.signature(maker).parameters)


def _settings_for(maker: Callable[..., Any], config: Config, nodes: Mapping[str, Node]) -> object:
    """What a method with one parameter gets: a Config where it is annotated so, else the plain settings."""
    parameter = next(iter(inspect.signature(maker).parameters.values()))
    if parameter.annotation in (Config, "Config", "acktree.Config"):
        return config
    return {key: node.plain() for key, node in nodes.items()}
