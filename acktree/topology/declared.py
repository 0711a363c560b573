"""What was written to the builder, word for word: nothing checked, nothing changed.

The checks come in ``create_topology``, where all of it is known, and can quote the call that they are about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from acktree.core.data.fields import DEFAULT_STREAM
from acktree.errors import TopologyError

__all__ = ["Declared", "Input", "code_name", "shown"]


@dataclass(frozen=True, slots=True)
class Input:
    """One grouping call.

    Attributes:
        method: ``"fields_grouping"`` and so on.
        source: The component named, whatever it is.
        stream: The stream named, whatever it is.
        argument: The fields or the custom grouping, for the methods that take one.
    """

    method: str
    source: object
    stream: object
    argument: object = None

    def __str__(self) -> str:
        given = [shown(self.source)]
        if self.method in ("fields_grouping", "partial_key_grouping", "custom_grouping"):
            given.append(shown(self.argument))
        if self.stream != DEFAULT_STREAM:
            given.append(f"stream={shown(self.stream)}")
        return f".{self.method}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Declared:
    """One ``set_spout`` or ``set_bolt`` call, with the groupings chained to it so far.

    Attributes:
        method: ``"set_spout"`` or ``"set_bolt"``.
        id: The id given, whatever it is.
        user_object: The spout or bolt given, whatever it is.
        parallelism: The parallelism given, whatever it is.
        retry: The retry given to a spout, whatever it is.
        inputs: Grows as groupings are chained.
        settings: What was chained to it that is the component's own, by method, whatever it is.
    """

    method: Literal["set_spout", "set_bolt"]
    id: object
    user_object: object
    parallelism: object = 1
    retry: object = None
    inputs: list[Input] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [shown(self.id), shown(self.user_object)]
        if self.parallelism != 1 or isinstance(self.parallelism, bool):
            given.append(f"parallelism={shown(self.parallelism)}")
        if self.retry is not None:
            given.append(f"retry={shown(self.retry)}")
        return f"{self.method}({', '.join(given)})"

    @property
    def kind(self) -> Literal["spout", "bolt"]:
        """``"spout"`` or ``"bolt"``, by the method that was called."""
        return "spout" if self.method == "set_spout" else "bolt"

    @property
    def name(self) -> str:
        """How an error speaks of it: ``bolt 'count'``."""
        return f"{self.kind} {self.id!r}"

    @property
    def owner(self) -> str:
        """The same with its class: ``bolt 'count' (Count)``."""
        return f"{self.name} ({code_name(self.user_object)})"

    def mistake(self, what: str, fix: str, written: Input | None = None) -> TopologyError:
        """The error to raise about this call, or about a grouping that is chained to it."""
        return TopologyError(what, f"{self}{written or ''}", fix)


def shown(value: object) -> str:
    """A value as it may have been written: a class by its name, an object as its constructor's call."""
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, set, dict)):
        return f"{value!r:.60}"
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"{type(value).__name__}(...)"


def code_name(value: object) -> str:
    """What the author would search for: the name of a class, or of a function under ``@bolt``."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__
