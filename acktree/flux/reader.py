"""Reads YAML to plain values, each with its place in the file. Safe for any file.

Rules of this file
------------------
1. Texts, numbers, booleans, null, dates, lists and maps alone: a tag that names anything else is refused.
2. The size, the depth and the number of values with aliases written out are bounded.
3. A key that stands twice in a map is refused.

Source: YAML 1.1, as Storm's SnakeYAML reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acktree.errors import installing, nearest
from acktree.flux.errors import Place
from acktree.flux.substitution import Substituted

if TYPE_CHECKING:
    import yaml

__all__ = ["Node", "read_text", "read_yaml"]

MOST_BYTES: Final = 1 << 18
"""The size of the largest file."""
_MOST_NODES: Final = 50_000
"""The most values of a file, each alias counted as all that it stands for."""
_MOST_DEEP: Final = 40
_YAML: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(f"{_YAML}{name}" for name in ("bool", "float", "int", "null", "str", "timestamp"))
_MERGE: Final = f"{_YAML}merge"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a file.

    Attributes:
        place: Where it begins.
        value: A scalar, a list of nodes, or a dict of nodes by their keys.
    """

    place: Place
    value: Any

    def plain(self) -> Any:  # noqa: ANN401  # any value of YAML
        """The value in Python's own types."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def items(self, thing: str) -> list[Node]:
        """Its items. FluxError where it is no list; null is an empty one."""
        return list(self._of(list, thing, "a list") or ())

    def entries(self, thing: str, known: Iterable[str] | None = None) -> dict[str, Node]:
        """Its entries. FluxError where it is no map, or has a key that is not known; null is an empty one."""
        entries: dict[Any, Node] = self._of(dict, thing, "a map") or {}
        names = None if known is None else tuple(known)
        for key, node in entries.items():
            if not isinstance(key, str):
                raise node.place.mistake(f"the key {key!r} of {thing} is not a text", "put it in quotes")
            if names is not None and key not in names:
                raise node.place.mistake(f"{thing} has no key {key!r}", nearest(key, names))
        return entries

    def text(self, thing: str) -> str:
        """Its text. FluxError where it is another value, or empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.place.mistake(f"{thing} is {self._shown()}, and must be a text", "put it in quotes")
        return self.value

    def whole(self, thing: str) -> int:
        """Its number. FluxError where it is not a whole number."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.place.mistake(f"{thing} is {self._shown()}", "give it a whole number")
        return self.value

    def truth(self, thing: str) -> bool:
        """Its boolean. FluxError where it is another value."""
        if not isinstance(self.value, bool):
            raise self.place.mistake(f"{thing} is {self._shown()}", "give it true or false")
        return self.value

    def _of(self, kind: type, thing: str, wanted: str) -> Any:  # noqa: ANN401  # of that type
        if self.value is not None and not isinstance(self.value, kind):
            raise self.place.mistake(f"{thing} is {self._shown()}", f"give it {wanted}")
        return self.value

    def _shown(self) -> str:
        names = {dict: "a map", list: "a list", type(None): "null"}
        return names.get(type(self.value)) or f"{self.value!r:.60}"


def read_text(file: Path, place: Place) -> str:
    """The text of a file: UTF-8, or Latin-1 where it is not.

    Raises:
        FluxError: It cannot be read, is no plain file, or is too large.
    """
    try:
        if file.exists() and not file.is_file():
            raise place.mistake(f"{file} is not a plain file", "name a file")
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise place.mistake(f"{file} cannot be read: {reason}", "name a file that can be read") from error
    if len(content) > MOST_BYTES:
        raise place.mistake(f"{file} has more than {MOST_BYTES:,} bytes", "divide it by includes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def read_yaml(source: Substituted, file: str) -> Node:
    """The value of a file.

    Raises:
        FluxError: It is not valid, or not safe: see the rules of this file.
        ModuleNotFoundError: The extra is not installed.
    """
    try:
        import yaml  # noqa: PLC0415  # an extra, which is needed from here on
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"a Flux file is YAML, and PyYAML is not installed: {installing('flux')}", name=missing.name
        ) from missing
    first, loader = Place(file, 1), None
    try:
        loader = yaml.SafeLoader(source.text)
        root = loader.get_single_node()
        return Node(first, None) if root is None else _Walk(source.lines, file).node(root, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, source.lines[min(mark.line, len(source.lines) - 1)]) if mark else first
        raise place.mistake(f"this is not valid YAML: {error.problem or error.context}", _HINT) from error
    except yaml.reader.ReaderError as error:
        line = source.text.count("\n", 0, error.position)
        place = Place(file, source.lines[line])
        raise place.mistake("a character is not allowed in YAML", "write it as an escape") from error
    except RecursionError:
        line = 0 if loader is None else loader.line
        raise Place(file, source.lines[line]).mistake(*_TOO_DEEP) from None
    finally:
        if loader is not None:
            loader.dispose()


_HINT: Final = "correct it there; a text with special characters, such as a placeholder, belongs in quotes"
_TOO_DEEP: Final = (
    f"values are nested more than {_MOST_DEEP} deep, or one contains itself", "write them flat",
)  # fmt: skip


@dataclass(slots=True)
class _Walk:
    """Makes nodes of those of PyYAML.

    Attributes:
        lines: The line of the file of each line of the text.
        file: The name of the file.
        count: How many nodes it has made.
    """

    lines: tuple[int, ...]
    file: str
    count: int = 0

    def node(self, node: yaml.Node, depth: int) -> Node:
        place = Place(self.file, self.lines[min(node.start_mark.line, len(self.lines) - 1)])
        self.count += 1
        if depth > _MOST_DEEP:
            raise place.mistake(*_TOO_DEEP)
        if self.count > _MOST_NODES:
            what = f"the file has more than {_MOST_NODES:,} values, with its aliases written out"
            raise place.mistake(what, "leave out aliases of aliases")
        if node.id == "mapping" and node.tag == f"{_YAML}map":
            return Node(place, self._map(node.value, depth + 1))
        if node.id == "sequence" and node.tag == f"{_YAML}seq":
            return Node(place, [self.node(each, depth + 1) for each in node.value])
        return Node(place, self._scalar(node, place))

    def _map(self, pairs: Iterable[tuple[yaml.Node, yaml.Node]], depth: int) -> dict[Any, Node]:
        entries: dict[Any, Node] = {}
        merged: dict[Any, Node] = {}
        for key_node, value_node in pairs:
            place = Place(self.file, self.lines[min(key_node.start_mark.line, len(self.lines) - 1)])
            value = self.node(value_node, depth)
            if key_node.tag == _MERGE:
                merged = _merged(value) | merged
                continue
            if key_node.id != "scalar":
                raise place.mistake("a key is a list or a map", "write a text as key")
            key = self._scalar(key_node, place)
            if key in entries:
                raise place.mistake(f"the key {key!r} stands twice in this map", "leave one of them out")
            entries[key] = Node(place, value.value)
        return merged | entries

    def _scalar(self, node: yaml.Node, place: Place) -> object:
        if node.tag not in _TAGS:
            shown = node.tag.replace(_YAML, "!!")
            raise place.mistake(
                f"the tag {shown} is refused: only plain values are read",
                "leave it out; className makes objects",
            )
        from yaml.constructor import ConstructorError, SafeConstructor  # noqa: PLC0415  # see read_yaml

        try:
            value: object = SafeConstructor().construct_object(node)
            return value
        except (ConstructorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise place.mistake(f"{node.value!r:.60} is not a valid value", "put it in quotes") from error


def _merged(value: Node) -> dict[Any, Node]:
    """The entries that ``<<`` brings: of a map, or of a list of maps, of which the first counts."""
    maps = value.value if isinstance(value.value, list) else [value]
    found: dict[Any, Node] = {}
    for each in reversed(maps):
        found |= each.entries("the value of <<")
    return found
