"""Makes the objects that a Flux file defines, and finds the classes that it names.

Rules of this file
------------------
1. A class is named as ``module:Class``, ``module.Class``, or by the name of the Java class that it replaces.
2. A Java class that nothing replaces is refused by its name, with what to do.
3. An exception of a user's class is a FluxError with the line, and the exception as its cause.

Source: Storm's ``FluxBuilder``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from importlib import import_module
from typing import Any, Final, get_type_hints

from acktree import AcktreeError
from acktree.errors import nearest
from acktree.flux.definition import Bean
from acktree.flux.errors import FluxError, Place
from acktree.flux.java_names import CLASSES, advice_for, is_of_java
from acktree.flux.reader import Node
from acktree.texts import error_text

__all__ = ["Objects", "method_of", "naming"]

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True)
class Objects:
    """The objects of a topology by their ids.

    Attributes:
        classes: The Python class, or its name, for names of Java classes.
        by_id: What was made so far: references lead upwards.
        places: Where each component is defined, in the file or in those that it includes.
    """

    classes: Mapping[str, object]
    by_id: dict[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    def make(self, bean: Bean) -> Any:  # noqa: ANN401  # of any class
        """Make an object: its constructor or factory, then its properties, then its methods."""
        node = bean.entries["className"]
        found = self.class_named(node.text("className"), node.place)
        made = self._constructed(found, bean)
        for each in self._items(bean, "properties"):
            self._set(made, each, bean)
        for each in self._items(bean, "configMethods"):
            entries = each.entries(f"a config method of {bean.thing}", ("name", "args"))
            call = method_of(made, self._name(entries, each), each.place, bean.thing)
            self._call(call, entries.get("args"), each.place)
        return made

    def class_named(self, name: str, place: Place) -> Any:  # noqa: ANN401  # a class, or a function bolt
        """The class of a name. FluxError where there is none."""
        known = {**CLASSES, **self.classes}
        found = known.get(name, name)
        if not isinstance(found, str):
            return found
        if is_of_java(found):
            fix = advice_for(found) or (
                f"give the Python class that takes its place: --class {found}=module:Class, or "
                f"load(..., classes={{...}}); of the known ones, {nearest(found, known)}"
            )
            raise place.mistake(f"{found} is a Java class", fix)
        try:
            return _imported(found)
        except (ImportError, AttributeError, ValueError) as error:
            fix = "write package.module:Class of a class that this process can import"
            raise place.mistake(f"there is no class {found!r}: {error_text(error)}", fix) from error
        except Exception as error:
            what = f"{found} cannot be imported: {error_text(error)}"
            raise place.mistake(what, "correct the module") from error

    def argument(self, node: Node) -> Any:  # noqa: ANN401  # any value
        """An argument: the value, or the object that ``ref`` or ``reflist`` names."""
        value = node.value
        if isinstance(value, dict) and list(value) == ["ref"]:
            return self._referred(value["ref"])
        if isinstance(value, dict) and list(value) == ["reflist"]:
            return [self._referred(each) for each in value["reflist"].items("reflist")]
        return node.plain()

    def _referred(self, node: Node) -> object:
        name = node.text("ref")
        if name not in self.by_id:
            if name in self.places:
                raise self._not_yet_made(name, node.place)
            fix = f"of what is defined above this line, {nearest(name, self.by_id)}"
            raise node.place.mistake(f"there is no component {name!r}", fix)
        return self.by_id[name]

    def _not_yet_made(self, name: str, place: Place) -> FluxError:
        defined_at = self.places[name]
        if defined_at.file == place.file:
            return place.mistake(
                f"component {name!r} is defined below, in line {defined_at.line}", "move it up"
            )
        return place.mistake(
            f"component {name!r} is of an included file, {defined_at}, and those come after the file's own",
            f"move what refers to it to {defined_at.file}, below it, or define {name!r} in this file, above; "
            "spouts and bolts may refer to it",
        )

    def _constructed(self, found: Any, bean: Bean) -> Any:  # noqa: ANN401
        arguments, place = bean.entries.get("constructorArgs"), bean.place
        if "factory" in bean.entries:
            node = bean.entries["factory"]
            factory = method_of(found, node.text("factory"), node.place, bean.thing)
            return self._call(factory, bean.entries.get("factoryArgs"), node.place)
        if isinstance(found, type):
            return self._call(found, arguments, arguments.place if arguments else place)
        if arguments is not None and arguments.value:
            what = f"{bean.thing} is a {type(found).__name__}, which is made already"
            raise arguments.place.mistake(what, "leave constructorArgs out, or name a class")
        return found

    def _call(self, target: Callable[..., Any], given: Node | None, place: Place) -> Any:  # noqa: ANN401
        """Call what a user wrote: a map has keyword arguments, a list has others."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        if given is not None and isinstance(given.value, dict):
            keywords = {name: self.argument(node) for name, node in given.entries("arguments").items()}
        elif given is not None:
            positional = [self.argument(node) for node in given.items("arguments")]
        name = getattr(target, "__qualname__", None) or repr(target)
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):  # of some classes of Python's own
            signature = None
        with naming(place, name):
            if signature is None:
                return target(*positional, **keywords)
            try:
                bound = signature.bind(*positional, **keywords)
            except TypeError as error:
                what, fix = f"the arguments do not fit: {error}", f"they are {name}{signature}"
                raise place.mistake(what, fix) from error
            _enums_by_name(target, bound, place)
            return target(*bound.args, **bound.kwargs)

    def _set(self, made: object, node: Node, bean: Bean) -> None:
        entries = node.entries(f"a property of {bean.thing}", ("name", "value", "ref"))
        name = self._name(entries, node)
        if ("value" in entries) == ("ref" in entries):
            raise node.place.mistake(f"the property {name!r} needs a value or a ref", "give it one of them")
        value = entries["value"].plain() if "value" in entries else self._referred(entries["ref"])
        setters = [f"set_{_snake(name)}", f"set{name[:1].upper()}{name[1:]}"]
        setter = next((each for each in setters if callable(getattr(made, each, None))), None)
        attribute = next((each for each in (name, _snake(name)) if hasattr(made, each)), None)
        if name.startswith("_") or (setter is None and attribute is None):
            what = f"{type(made).__name__} has neither an attribute {name!r} nor a method {setters[0]!r}"
            raise node.place.mistake(what, nearest(name, _public(made)))
        with naming(node.place, f"the property {name!r}"):
            if setter is not None:
                getattr(made, setter)(value)
            else:
                setattr(made, str(attribute), value)

    @staticmethod
    def _name(entries: Mapping[str, Node], node: Node) -> str:
        if "name" not in entries:
            raise node.place.mistake("a name is missing here", "write name: ...")
        return entries["name"].text("name")

    @staticmethod
    def _items(bean: Bean, key: str) -> list[Node]:
        return bean.entries[key].items(f"{key} of {bean.thing}") if key in bean.entries else []


@contextmanager
def naming(place: Place, name: str) -> Iterator[None]:
    """Make an exception of a user's code an error with its line."""
    try:
        yield
    except FluxError:
        raise
    except AcktreeError as error:
        raise place.mistake(error.what, error.fix) from error
    except Exception as error:
        raise place.mistake(f"{name} raises {error_text(error)}", "correct the arguments here") from error


def _imported(name: str) -> Any:  # noqa: ANN401  # a class, or whatever the module has
    module, colon, inner = name.replace("$", ".").partition(":")
    if colon:
        return reduce(getattr, inner.split("."), import_module(module))
    parts = module.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:end])
        try:
            found = import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise  # it is there, and needs another one
            continue
        return reduce(getattr, parts[end:], found)
    raise ModuleNotFoundError(f"no module {module!r}")


def method_of(owner: Any, name: str, place: Place, thing: str) -> Any:  # noqa: ANN401
    """A public method by Java's spelling of its name or by Python's."""
    for each in (name, _snake(name)):
        found = None if each.startswith("_") else getattr(owner, each, None)
        if callable(found):
            return found
    raise place.mistake(f"{thing} has no method {name!r}", nearest(_snake(name), _public(owner)))


def _public(owner: object) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def _snake(name: str) -> str:
    """Python's spelling of a name of Java.

    >>> _snake("withBatchSize")
    'with_batch_size'
    """
    return _HUMP.sub("_", name).lower()


def _enums_by_name(target: Callable[..., Any], bound: inspect.BoundArguments, place: Place) -> None:
    """Replace texts by members, where a parameter is annotated with an Enum."""
    try:
        hints = get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    except Exception:  # noqa: BLE001  # an annotation that names what is not there says nothing
        return
    for name, value in bound.arguments.items():
        kind = hints.get(name)
        if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
            if value not in kind.__members__:
                what = f"{kind.__name__} has no member {value!r}"
                raise place.mistake(what, nearest(value, kind.__members__))
            bound.arguments[name] = kind[value]
