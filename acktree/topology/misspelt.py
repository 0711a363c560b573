"""Refuses an attribute of a class whose name is nearly that of a setting: it would have no effect."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Final

from acktree.bolt import AnyBolt, ArrowBolt, BasicBolt, Bolt
from acktree.errors import closest
from acktree.spout import Spout
from acktree.topology.declared import Declared

_BASES: Final = (Spout, Bolt, BasicBolt, ArrowBolt)
_SIMILAR: Final = 0.85
"""The similarity of two names, from 0 to 1, from which one is taken for the other: one letter in seven."""


def refuse_misspelt(declared: Declared, user_object: Spout | AnyBolt) -> None:
    """Refuse ``max_concurency = 5`` in the body of a class.

    It is refused only if nothing suggests that it is the user's own attribute: the setting itself is not set,
    the value is of the setting's kind, the object does not remember it, and no method of the class names it.
    """
    base = next(known_base for known_base in _BASES if isinstance(user_object, known_base))
    settings = {
        name: value
        for cls in base.__mro__
        for name, value in vars(cls).items()
        if cls is not object and not name.startswith("_") and not callable(value)
    }
    users = [
        cls
        for cls in type(user_object).__mro__
        if cls not in base.__mro__ and not cls.__module__.startswith("acktree.")
    ]
    is_set = {*vars(user_object), *(name for cls in users for name in vars(cls))}
    used = {*user_object.remembers, *(name for cls in users for name in _names_in_methods(cls))}
    unset = [name for name in settings if name not in is_set]
    for cls in users:
        for name, value in vars(cls).items():
            if name.startswith("_") or name in settings or name in used:
                continue
            meant = closest(name, unset, _SIMILAR)
            if meant is not None and _is_of_kind(value, settings[meant]):
                what = f"{declared.owner} sets {name}, and has no such setting"
                fix = f"did you mean {meant!r}? If it is an attribute of your own, give it another name"
                raise declared.mistake(what, fix)


def _is_of_kind(value: object, default: object) -> bool:
    """Whether a value may be meant for the setting with this default."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, tuple):  # outputs, remembers; a pyarrow.Schema has names
        return isinstance(value, (list, tuple, Mapping)) or hasattr(value, "names")
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _names_in_methods(user_class: type) -> Iterator[str]:
    """The names that the methods of a class use: attributes, and globals too."""
    for value in vars(user_class).values():
        for call in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
            if inspect.isfunction(call):
                yield from _names_in(inspect.unwrap(call).__code__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
