"""Objects of the user that a setting names by their class: Storm's way to write them in a file."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from acktree.errors import ConfigError
from acktree.texts import error_text

__all__ = ["named_objects", "names_of_classes"]


def named_objects(value: object, where: str) -> object:
    """The value of a setting, with an object in the place of each name of a class.

    Args:
        value: A name, a sequence of names and objects, or None for none. Anything else is returned as it is.
        where: The key of the setting, for errors.

    Raises:
        ConfigError: A class cannot be imported, or not be made without arguments.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, list | tuple):
        return value
    return tuple(_made(each, where) if isinstance(each, str) else each for each in value)


def names_of_classes(objects: Iterable[object]) -> list[str]:
    """The name of the class of each object: ``package.module.Class``."""
    return [f"{type(each).__module__}.{type(each).__qualname__}" for each in objects]


def _made(name: str, where: str) -> object:
    module, _, kind = name.rpartition(".")
    try:
        return getattr(import_module(module), kind)()
    except Exception as error:
        raise ConfigError(
            f"no object of class {name} can be made: {error_text(error)}",
            where,
            "write package.module.Class of a class that this process can import and that takes no arguments",
        ) from error
