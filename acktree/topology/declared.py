"""The calls to the builder with their arguments, unchecked and unchanged.

``create_topology`` checks them when all calls are known, and quotes the call in its errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from acktree.core.data.fields import DEFAULT_STREAM
from acktree.errors import TopologyError


@dataclass(frozen=True, slots=True)
class Input:
    """One grouping call.

    Attributes:
        method: ``"fields_grouping"`` and so on.
        source: The given component, unchecked.
        stream: The given stream, unchecked.
        argument: The fields or the custom grouping, for the methods that take one.
        gate: The given ``gate``, unchecked. None: none was given.
    """

    method: str
    source: object
    stream: object
    argument: object = None
    gate: object = None

    def __str__(self) -> str:
        arguments = [shown(self.source)]
        if self.method in ("fields_grouping", "partial_key_grouping", "custom_grouping"):
            arguments.append(shown(self.argument))
        if self.stream != DEFAULT_STREAM:
            arguments.append(f"stream={shown(self.stream)}")
        if self.gate is not None:
            arguments.append(f"gate={shown(self.gate)}")
        return f".{self.method}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Declared:
    """One ``set_spout``, ``set_bolt`` or ``set_sink`` call, with the groupings chained to it so far.

    Attributes:
        method: The name of the call.
        id: The given id, unchecked.
        user_object: The given spout, bolt or sink, unchecked.
        parallelism: The given parallelism, unchecked.
        retry: The given retry, unchecked.
        inputs: The chained groupings so far.
        settings: Arguments of other chained methods, by method, unchecked.
    """

    method: Literal["set_spout", "set_bolt", "set_sink"]
    id: object
    user_object: object
    parallelism: object = 1
    retry: object = None
    inputs: list[Input] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = [shown(self.id), shown(self.user_object)]
        if self.parallelism != 1 or isinstance(self.parallelism, bool):
            arguments.append(f"parallelism={shown(self.parallelism)}")
        if self.retry is not None:
            arguments.append(f"retry={shown(self.retry)}")
        return f"{self.method}({', '.join(arguments)})"

    @property
    def kind(self) -> Literal["spout", "bolt"]:
        """``"spout"`` or ``"bolt"``, by the method that was called. A sink is a kind of bolt."""
        return "spout" if self.method == "set_spout" else "bolt"

    @property
    def name(self) -> str:
        """The name in errors: ``bolt 'count'``."""
        return f"{self.method.removeprefix('set_')} {self.id!r}"

    @property
    def owner(self) -> str:
        """The same with its class: ``bolt 'count' (Count)``."""
        return f"{self.name} ({code_name(self.user_object)})"

    def mistake(self, what: str, fix: str, written: Input | None = None) -> TopologyError:
        """The error to raise about this call, or about a grouping that is chained to it."""
        return TopologyError(what, f"{self}{written or ''}", fix)


def shown(value: object) -> str:
    """A value as source code may show it: a class by its name, an object as a constructor call."""
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, set, dict)):
        return f"{value!r:.60}"
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"{type(value).__name__}(...)"


def code_name(value: object) -> str:
    """The name in the user's code: of a class, or of a function with ``@bolt``."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__
