"""What a Flux file and its includes define, before anything is made of it.

Rules of this file
------------------
1. Every key is known, and each id stands once among the spouts, bolts and components of a file.
2. An include is a file of the folder of the file that names it, or of the working folder.
3. The includes of an included file have no effect, as in Storm; a circle of them is refused.

Source: Storm's ``FluxParser`` and ``TopologyDef``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acktree.errors import nearest
from acktree.flux.errors import Place
from acktree.flux.reader import Node, read_text, read_yaml
from acktree.flux.substitution import substitute
from acktree.logs.loggers import logger

__all__ = ["Bean", "Definition", "Reading", "bean"]

log = logger("acktree")

_BEAN: Final = (
    "id", "className", "constructorArgs", "properties", "configMethods", "factory", "factoryArgs",
)  # fmt: skip
_LOADS: Final = ("onHeapMemoryLoad", "offHeapMemoryLoad", "cpuLoad")
_COMPONENT: Final = (*_BEAN, "parallelism", "numTasks", "config", *_LOADS)
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "components": _BEAN,
    "spouts": _COMPONENT,
    "bolts": _COMPONENT,
    "workerHooks": _BEAN,
}
_TOP: Final = ("name", "config", "includes", *_KINDS, "streams", "topologySource")
_SOURCE: Final = (*_BEAN, "methodName")


@dataclass(frozen=True, slots=True)
class Bean:
    """An object that a file defines.

    Attributes:
        thing: What errors call it: ``the bolt 'count'``.
        place: Where it begins.
        entries: Its keys.
    """

    thing: str
    place: Place
    entries: Mapping[str, Node]


@dataclass(slots=True)
class Definition:
    """The parts of a file, with those of the files that it includes."""

    place: Place
    name: Node | None = None
    config: dict[str, Node] = field(default_factory=dict)
    beans: dict[str, dict[str, Bean]] = field(default_factory=lambda: {kind: {} for kind in _KINDS})
    streams: list[Node] = field(default_factory=list)
    source: Bean | None = None
    unset: list[tuple[Place, str]] = field(default_factory=list)
    """Placeholders without a value that are a whole text."""

    def include(self, other: Definition, *, override: bool) -> None:
        """Add the parts of an included file. Of two with the same name the first counts, or the other."""
        if other.name is not None and (override or self.name is None):
            self.name = other.name
        elif other.name is not None:
            log.warning("%s: the name of the included topology has no effect", other.name.place)
        for mine, others, thing in [
            (self.config, other.config, "setting"),
            *((self.beans[kind], other.beans[kind], kind) for kind in _KINDS),
        ]:
            _add(mine, others, thing, override=override)  # type: ignore[arg-type]  # of the same kind each
        self.streams += other.streams
        self.unset += other.unset
        self.source = self.source or other.source


def _add(mine: dict[str, Node | Bean], others: dict[str, Node | Bean], thing: str, *, override: bool) -> None:
    for name, value in others.items():
        if name in mine and not override:
            log.warning("%s: %s %r is kept as the including file has it", value.place, thing, name)
        else:
            mine[name] = value


def bean(node: Node, thing: str, known: tuple[str, ...] = _BEAN) -> Bean:
    """An object that a map defines."""
    entries = node.entries(thing, known)
    if "className" not in entries:
        raise node.place.mistake(f"{thing} has no className", "write className: package.module:Class")
    if "constructorArgs" in entries and entries["constructorArgs"].value and "factory" in entries:
        fix = "leave one of them out; arguments of a factory are its factoryArgs"
        raise entries["factory"].place.mistake(f"{thing} has both constructorArgs and a factory", fix)
    return Bean(thing, node.place, entries)


@dataclass(slots=True)
class Reading:
    """Reads a file and its includes.

    Attributes:
        properties: The values of placeholders.
        environment: The environment for them, or None.
    """

    properties: Mapping[str, str]
    environment: Mapping[str, str] | None

    def read(self, path: Path) -> Definition:
        """The definition in a file and its includes."""
        place = Place(str(path), 1)
        definition, includes = self._parts(path, place)
        for node in includes:
            include = node.entries("an include", ("file", "resource", "override"))
            included = _file_of(include, node, path)
            other, further = self._parts(included, include["file"].place)
            for each in further:
                named = each.entries("an include", ("file", "resource", "override"))
                target = _file_of(named, each, included)
                if target.resolve() in (path.resolve(), included.resolve()):
                    raise each.place.mistake(f"{target} includes itself in a circle", "leave this one out")
                log.warning("%s: an include of an included file has no effect, as in Storm", each.place)
            override = include.get("override")
            definition.include(other, override=override is not None and override.truth("override"))
        return definition

    def _parts(self, path: Path, named_at: Place) -> tuple[Definition, list[Node]]:
        """The definition of one file, and its includes."""
        source = substitute(read_text(path, named_at), self.properties, self.environment)
        for placeholder, line in source.missing:
            log.warning("%s:%d: %s has no value, and stays as it is", path, line, placeholder)
        root = read_yaml(source, str(path))
        entries = root.entries("the file", _TOP)
        definition = Definition(root.place, name=entries.get("name"))
        definition.unset = [*_whole(root, {placeholder for placeholder, _ in source.missing})]
        nothing = Node(root.place, None)
        definition.config = entries.get("config", nothing).entries("config")
        definition.streams = entries.get("streams", nothing).items("streams")
        ids: dict[str, Place] = {}
        for kind, known in _KINDS.items():
            for node in entries.get(kind, nothing).items(kind):
                _add_bean(definition.beans[kind], node, kind, known, ids)
        if "topologySource" in entries:
            definition.source = bean(entries["topologySource"], "the topologySource", _SOURCE)
        return definition, entries.get("includes", nothing).items("includes")


def _add_bean(
    beans: dict[str, Bean], node: Node, kind: str, known: tuple[str, ...], ids: dict[str, Place]
) -> None:
    word = {"workerHooks": "worker hook"}.get(kind, kind[:-1])
    entries = node.entries(f"a {word}", known)
    if "id" in entries:
        name = entries["id"].text("id")
    elif kind == "workerHooks":
        name = f"#{len(beans) + 1}"
    else:
        raise node.place.mistake(f"a {word} has no id", "write id: a-name")
    if name in ids:
        raise entries["id"].place.mistake(
            f"the id {name!r} is that of {ids[name]}, too", "rename one of them"
        )
    ids[name] = entries.get("id", node).place
    beans[name] = bean(node, f"the {word} {name!r}", known)


def _whole(node: Node, placeholders: Collection[str]) -> Iterator[tuple[Place, str]]:
    """The values that are one of these placeholders and nothing else."""
    if isinstance(node.value, (dict, list)):
        for each in node.value.values() if isinstance(node.value, dict) else node.value:
            yield from _whole(each, placeholders)
    elif node.value in placeholders:
        yield node.place, node.value


def _file_of(include: Mapping[str, Node], node: Node, including: Path) -> Path:
    """The file that an include names."""
    if "file" not in include:
        raise node.place.mistake("an include names no file", "write file: name.yaml")
    place, name = include["file"].place, include["file"].text("file")
    resource = include.get("resource")
    is_resource = resource is not None and resource.truth("resource")
    relative = Path(name.lstrip("/") if is_resource else name)
    roots = [including.parent] if is_resource else [including.parent, Path.cwd()]
    inside = [root / relative for root in roots if _is_inside(root / relative, root)]
    if not inside:
        fix = "name a file of the folder of this one, without .. and without links out of it"
        raise place.mistake(f"{name!r} is outside of the folder", fix)
    for file in inside:
        if file.is_file():
            return file
    others = [each.name for each in including.parent.glob("*.y*ml")] if including.parent.is_dir() else []
    raise place.mistake(f"there is no file {name!r}", nearest(name, others))


def _is_inside(file: Path, root: Path) -> bool:
    try:
        return file.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links, or a character that no name has
        return False
