"""What people call a message of a queue: from a header, a field of its body, a property, or by a function.

Rules of this file
------------------
1. A label is for people. A message from which none can be read has none, and goes on; what a function raises
   is reported.
2. A key is read from the same places: a text, bytes or an integer as it is. Any other value is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from acktree import ConfigError

__all__ = ["MessageLabel"]

_HEADER: Final = "header"
_BODY: Final = "body"
_WORDS: Final = (str, int, float, bytes)
"""Types of values that are labels; of others a message has none."""


class MessageLabel:
    """Reads the labels of a spout's messages.

    Args:
        label: ``"header:NAME"``, ``"body:FIELD"``, one of ``properties``, or a function of the values.
        where: The spout, for errors.
        properties: What its queue's messages have beside values.
        what: The name of the argument, for errors.
        body: The field that ``"body:FIELD"`` reads.

    Raises:
        ConfigError: It is none of these.
    """

    def __init__(
        self,
        label: str | Callable[[Mapping[str, Any]], object],
        where: str,
        properties: Sequence[str] = (),
        what: str = "label",
        *,
        body: str = "body",
    ) -> None:
        self._body = body
        self._call = label if callable(label) else None
        self._place, _, self._name = (label if isinstance(label, str) else "").partition(":")
        is_named = self._place in (_HEADER, _BODY) and bool(self._name)
        if self._call is None and not is_named and label not in properties:
            forms = ", ".join(['"header:NAME"', '"body:FIELD"', *(f'"{each}"' for each in properties)])
            raise ConfigError(
                f"{what} is {label!r:.60}", where, f"give {forms}, or a function of the message"
            )

    def of(
        self,
        values: Mapping[str, Any],
        properties: Mapping[str, object],
        report: Callable[[BaseException], None],
    ) -> str | None:
        """The label of one message; None for none.

        Args:
            values: What is emitted for it, by field: with the body and ``headers`` where these are read.
            properties: What it has beside them.
            report: Given what the function raised.
        """
        return _text(self._value(values, properties, report))

    def key_of(
        self,
        values: Mapping[str, Any],
        properties: Mapping[str, object],
        report: Callable[[BaseException], None],
    ) -> str | bytes | int | None:
        """The key of one message, from where the label would be; None for none."""
        value = self._value(values, properties, report)
        if isinstance(value, str | bytes):
            return value or None
        return value if type(value) is int else None

    def _value(
        self,
        values: Mapping[str, Any],
        properties: Mapping[str, object],
        report: Callable[[BaseException], None],
    ) -> object:
        if self._call is None:
            return self._read(values, properties)
        try:
            return self._call(values)
        except Exception as error:  # noqa: BLE001  # user code, about what a publisher wrote
            report(error)
            return None

    def _read(self, values: Mapping[str, Any], properties: Mapping[str, object]) -> object:
        if self._place == _HEADER:
            return (values["headers"] or {}).get(self._name)
        if self._place != _BODY:
            return properties.get(self._place)
        try:
            body = json.loads(values[self._body])
        except (ValueError, RecursionError):
            return None
        return body.get(self._name) if isinstance(body, dict) else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace") or None
    return str(value) or None if isinstance(value, _WORDS) and not isinstance(value, bool) else None
