"""Which attributes that are not saved may hold data, or refer to what is saved.

A lock or a connection stays with its process, and that is right. A counter that does so counts for one
process alone. Python does not say which is which, so in doubt an object holds data: it is named by a warning.
"""

from __future__ import annotations

import dis
import gc
import logging
import pickle
import sys
import sysconfig
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final

__all__ = ["CONTAINERS", "ClassBodies", "may_be_data", "shared_with"]

CONTAINERS: Final = (list, dict, set, deque, bytearray)
_ATOMS: Final = (str, bytes, int, float, complex, bool, type(None))
_NO_HOLDERS: Final = (type, ModuleType, CodeType, logging.Logger)
"""What leads to everything, or to nothing that is a component's."""
_UNCHANGING: Final = (tuple, frozenset, FunctionType, MethodType, BuiltinFunctionType)
_RESOURCES: Final = (
    GeneratorType, logging.Handler, threading.Thread, threading.Event, threading.Barrier, weakref.ref
)  # fmt: skip
_CALLED: Final = (FunctionType, MethodType, BuiltinFunctionType, partial)
_IS_CLOSED_BY: Final = (
    "__aexit__", "__exit__", "aclose", "cancel", "close", "disconnect", "dispose", "quit", "release",
    "shutdown", "stop", "terminate", "wait",
)  # fmt: skip
"""What has one of these methods is let go of or waited for: a connection, a lock, a pool, a file, a task."""
_OF_PYTHON: Final = Path(sysconfig.get_paths()["stdlib"])
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_MANY: Final = 100
_MOST_REACHED: Final = 20_000
_MOST_SAVED: Final = 500_000


def may_be_data(value: Any, component: object, depth: int = 5) -> bool:
    """Whether a value that cannot be pickled may hold data.

    Args:
        value: The value.
        component: The object that it is an attribute of. Whatever refers to that finds what is restored.
        depth: How many functions and methods are looked into, one within the other.
    """
    if value is component or _is(value, *_NO_HOLDERS, *_ATOMS):
        return False
    is_queue = hasattr(type(value), "get_nowait")
    if is_queue or _is(value, Collection) or depth <= 0:
        return True
    if _is(value, *_CALLED):
        rebinds = _is(value, FunctionType) and _binds_anew(value)
        return rebinds or any(_is_held(each, component, depth) for each in _held_by(value))
    if _is_of_user(type(value)):
        return True
    is_resource = _is(value, *_RESOURCES) or any(hasattr(type(value), name) for name in _IS_CLOSED_BY)
    return not is_resource and not _is_of_acktree(type(value))


def shared_with(value: object, saved: Iterable[tuple[str, object]], *apart: object) -> str | None:
    """The name of a saved attribute of which a value that is not saved holds a part that can change.

    Args:
        value: The value.
        saved: The attributes that are saved.
        apart: What does not count: the component, its settings.
    """
    skipped: set[int] = set()
    component, *others = apart
    for other in others:
        skipped.update(map(id, _reached(other, {id(component)}, _MOST_REACHED)))
    skipped.add(id(component))
    held = {id(each) for each in _reached(value, skipped, _MOST_REACHED) if _can_change(each)}
    if not held:
        return None
    for name, each in saved:
        if any(id(part) in held for part in _reached(each, skipped, _MOST_SAVED)):
            return name
    return None


class ClassBodies:
    """What stands in the bodies of a component's classes: tasks of a process share it, and it is not saved.

    Args:
        kind: The class of the component.
        but: Names that say something to acktree.
    """

    def __init__(self, kind: type, but: Collection[str]) -> None:
        self._before = {
            (base, name): (value, _mark(value))
            for base in kind.__mro__
            if _is_of_user(base)
            for name, value in [*vars(base).items()]  # a pickle adds a name
            if name not in but and not name.startswith("__") and _stays_as_it_is(value)
        }
        self.kept_by_descriptors = sorted(
            name
            for base in kind.__mro__
            if _is_of_user(base)
            for name, each in [*vars(base).items()]
            if hasattr(type(each), "__set__") and _is_of_user(type(each)) and _has_containers(each)
        )

    def changed(self) -> list[str]:
        """The names that were assigned to, or whose objects have changed, if they are not large."""
        return [
            f"{base.__name__}.{name}"
            for (base, name), (value, mark) in self._before.items()
            if vars(base).get(name) is not value or mark != _mark(value)
        ]


def _stays_as_it_is(value: object) -> bool:
    """Whether something in the body of a class is a value, and no method or descriptor."""
    kind = type(value)
    is_value = _is(value, *CONTAINERS, *_ATOMS) or (_is_of_user(kind) and not _is(value, *_NO_HOLDERS))
    return is_value and not hasattr(kind, "__get__") and not hasattr(kind, "__set__")


def _mark(value: Any) -> object:
    """What changes with a container or an object of a user's class: its pickle; of a large one its length."""
    if _is(value, *_ATOMS) or (_is(value, *CONTAINERS) and len(value) > _MANY):
        return len(value) if _is(value, *CONTAINERS) else None
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # noqa: BLE001  # user code runs in here
        return len(value) if _is(value, *CONTAINERS) else None


def _has_containers(descriptor: object) -> bool:
    held = getattr(descriptor, "__dict__", {}).values()
    return any(_is(each, Collection) and not _is(each, *_ATOMS) for each in held)


def _is(value: object, *kinds: type) -> bool:
    """Whether a value is of a class. A proxy says that it is of another, or raises if it is asked."""
    return issubclass(type(value), kinds)


def _is_held(value: Any, component: object, depth: int) -> bool:
    """Whether something that a function holds may be data; a tuple is if an item is."""
    if _is(value, tuple, frozenset):
        return any(_is_held(each, component, depth) for each in value)
    return may_be_data(value, component, depth - 1)


def _held_by(function: Any) -> Iterator[object]:
    """What a function, a method or a partial holds beside its code and its module."""
    if _is(function, partial):
        yield from (function.func, *function.args, *function.keywords.values())
        return
    if not _is(function, FunctionType):
        yield from (function.__self__, getattr(function, "__func__", None))
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing was assigned
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()


def _binds_anew(function: FunctionType) -> bool:
    """Whether it assigns to a variable of the function around it: a counter, mostly."""
    free = set(function.__code__.co_freevars)
    return bool(free) and any(
        step.opname == "STORE_DEREF" and step.argval in free for step in dis.get_instructions(function)
    )


def _reached(value: Any, skipped: set[int], most: int) -> Iterator[object]:
    """All objects that a value leads to, itself first."""
    seen, todo = set(skipped), [value]
    while todo and len(seen) < most + len(skipped):
        each = todo.pop()
        if id(each) in seen or _is(each, *_NO_HOLDERS, *_ATOMS):
            continue
        seen.add(id(each))
        yield each
        if _is(each, FunctionType):
            todo += _held_by(each)  # not its module's names
        elif _is(each, weakref.ref):
            todo.append(each())
        else:
            todo += gc.get_referents(each)


def _can_change(value: object) -> bool:
    if _is(value, *_UNCHANGING):
        return False
    kind = type(value)
    has_slots = any("__slots__" in vars(each) for each in kind.__mro__)
    return _is(value, Collection) or bool(kind.__dictoffset__) or has_slots


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or kind.__module__ == "__main__":
        return True
    if file is None or _is_of_acktree(kind):
        return False
    return _OF_PYTHON not in Path(file).parents and _PACKAGES.isdisjoint(Path(file).parts)


def _is_of_acktree(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "acktree"
