"""What people and what its source call a message of a queue, its label and its key, read where its user says.

Rules of this file
------------------
1. A label is for people. A message from which none can be read has none, and goes on; what is raised while
   one is read or converted is reported: a function is user code, and so is the class of what it returns.
2. A key is read from the same places: a text, bytes or an integer as it is. Any other value is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from acktree import ConfigError

__all__ = ["KeyFrom", "LabelFrom", "MessageNames", "Names", "names_by_row"]

KeyFrom: TypeAlias = str | Callable[[Mapping[str, Any]], str | bytes | int | None]
"""Where a key is: a place by name, or a function of the emitted values by field."""
LabelFrom: TypeAlias = str | Callable[[Mapping[str, Any]], str | None]
"""Where a label is, likewise."""

_Name = TypeVar("_Name")
_BODY: Final = "body"
_WORDS: Final = (str, int, float, bytes)
"""Types of values that are labels; of others a message has none."""


class Names(NamedTuple):
    """What one message is called; None for what it has not."""

    label: str | None = None
    key: str | bytes | int | None = None


_NONE: Final = Names()


class MessageNames:
    """Reads labels and keys of a spout's messages.

    Args:
        where: The spout, for errors.
        label: Where the label is, in one of these forms; None: messages have none. ``"PLACE:NAME"`` is the
            entry of that name in the dict of a place. ``"body:FIELD"`` is that field of a body that is a JSON
            object. A property is named alone. Or a function of the values.
        key: Where the key is, likewise.
        dicts: The values that are dicts, or None where they cannot be read: by what a place is called, the
            field.
        body: The field that ``"body:FIELD"`` reads; None: there is none.
        properties: What messages have beside their values.

    Raises:
        ConfigError: Label or key is none of these.
    """

    def __init__(
        self,
        where: str,
        label: LabelFrom | None,
        key: KeyFrom | None,
        *,
        dicts: Mapping[str, str] | None = None,
        body: str | None = "body",
        properties: tuple[str, ...] = (),
    ) -> None:
        self._fields = {**(dicts or {}), **({} if body is None else {_BODY: body})}
        self._properties = properties
        for what, given in (("label", label), ("key", key)):
            if given is not None and not callable(given) and not self._knows(given):
                raise ConfigError(f"{what} is {given!r:.60}", where, f"give {self._forms()}")
        self._label, self._key = label, key
        self.are_wanted = label is not None or key is not None
        """Whether messages have a label or a key at all."""

    def of(
        self,
        values: Mapping[str, Any],
        report: Callable[[BaseException], None],
        properties: Mapping[str, object] | None = None,
    ) -> Names:
        """What one message is called.

        Args:
            values: What is emitted for it, by field.
            report: Given what was raised while a name was read.
            properties: What it has beside them.
        """
        if not self.are_wanted:
            return _NONE

        def read(source: LabelFrom | KeyFrom | None, as_name: Callable[[object], _Name]) -> _Name | None:
            try:
                return None if source is None else as_name(self._value(source, values, properties or {}))
            except Exception as error:  # noqa: BLE001  # user code, about what a publisher wrote
                report(error)
                return None

        return Names(read(self._label, _as_label), read(self._key, _as_key))

    def of_all(
        self,
        messages: Iterable[tuple[Mapping[str, Any], Mapping[str, object]]],
        report: Callable[[BaseException], None],
    ) -> list[Names] | None:
        """What each of several messages is called, from its values and properties. None: none has a name."""
        if not self.are_wanted:
            return None
        return [self.of(values, report, properties) for values, properties in messages]

    def _knows(self, given: object) -> bool:
        if not isinstance(given, str):
            return False
        place, _, name = given.partition(":")
        return given in self._properties or bool(name and place in self._fields)

    def _forms(self) -> str:
        forms = [f'"{place}:{"FIELD" if place == _BODY else "NAME"}"' for place in self._fields]
        forms += [f'"{each}"' for each in self._properties]
        return ", ".join([*forms, "or a function of the message"])

    def _value(
        self, source: LabelFrom | KeyFrom, values: Mapping[str, Any], properties: Mapping[str, object]
    ) -> object:
        if callable(source):
            return source(values)
        if source in self._properties:
            return properties.get(source)
        place, _, name = source.partition(":")
        value = values[self._fields[place]]
        if place != _BODY:
            return _entry(value or {}, name)
        try:
            body = json.loads(value or b"")
        except (ValueError, RecursionError):
            return None
        return body.get(name) if isinstance(body, dict) else None


def names_by_row(names: Sequence[Names] | None) -> dict[str, Any]:
    """The arguments of ``emit_batch`` that give each row its label and its key."""
    if names is None:
        return {}
    return {"labels": [each.label for each in names], "keys": [each.key for each in names]}


def _entry(values: Mapping[Any, Any], name: str) -> object:
    """A value by its name, which some clients return as bytes."""
    return values[name] if name in values else values.get(name.encode(errors="surrogateescape"))


# Copies of the plain type: a class of the user's own may raise wherever it is used later.
def _as_key(value: object) -> str | bytes | int | None:
    if isinstance(value, str):
        return str.__str__(value) or None
    if isinstance(value, bytes):
        return bytes(memoryview(value)) or None
    return value if type(value) is int else None


def _as_label(value: object) -> str | None:
    if isinstance(value, bytes):
        return bytes(memoryview(value)).decode(errors="backslashreplace") or None
    if isinstance(value, _WORDS) and not isinstance(value, bool):
        return str.__str__(str(value)) or None
    return None
