"""Plain classes with the names of Storm's Thrift structures in streamparse. Nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Bolt",
    "ComponentCommon",
    "ComponentObject",
    "GlobalStreamId",
    "Grouping",
    "JavaObject",
    "JavaObjectArg",
    "NullStruct",
    "ShellComponent",
    "SpoutSpec",
    "StormTopology",
    "StreamInfo",
]


@dataclass(frozen=True)
class NullStruct:
    """Stands for a grouping without parameters."""


@dataclass
class JavaObjectArg:
    """An argument of a Java constructor; one attribute is set."""

    int_arg: int | None = None
    long_arg: int | None = None
    string_arg: str | None = None
    bool_arg: bool | None = None
    binary_arg: bytes | None = None
    double_arg: float | None = None


@dataclass
class JavaObject:
    """A Java class and what it is constructed with."""

    full_class_name: str
    args_list: Sequence[JavaObjectArg]


@dataclass
class ShellComponent:
    """The command of a child process and its arguments."""

    execution_command: str
    script: str


@dataclass
class ComponentObject:
    """What a component is; one attribute is set."""

    serialized_java: bytes | None = None
    shell: ShellComponent | None = None
    java_object: JavaObject | None = None


@dataclass
class StreamInfo:
    """The fields of a stream, and whether it is direct."""

    output_fields: list[str] = field(default_factory=list)
    direct: bool = False


@dataclass(unsafe_hash=True)
class GlobalStreamId:
    """A stream of a component. Equal if both are."""

    componentId: Any  # noqa: N815  # Storm's
    streamId: str = "default"  # noqa: N815  # Storm's


@dataclass(repr=False)
class Grouping:
    """A grouping; one attribute is set."""

    fields: list[str] | None = None
    shuffle: NullStruct | None = None
    all: NullStruct | None = None
    none: NullStruct | None = None
    direct: NullStruct | None = None
    custom_object: JavaObject | None = None
    custom_serialized: bytes | None = None
    local_or_shuffle: NullStruct | None = None
    custom: Any = None

    @property
    def kind(self) -> str:
        """The name of the attribute that is set."""
        return next(name for name, value in vars(self).items() if value is not None)

    def __repr__(self) -> str:
        value = getattr(self, self.kind)
        return self.kind.upper() if isinstance(value, NullStruct) else f"{self.kind}({value!r})"


@dataclass
class ComponentCommon:
    """What every component has."""

    inputs: Mapping[GlobalStreamId, Grouping]
    streams: Mapping[str, StreamInfo]
    parallelism_hint: Any
    json_conf: str


@dataclass
class Bolt:
    """A bolt of a topology."""

    bolt_object: ComponentObject
    common: ComponentCommon


@dataclass
class SpoutSpec:
    """A spout of a topology."""

    spout_object: ComponentObject
    common: ComponentCommon


@dataclass
class StormTopology:
    """The spouts and bolts of a topology, by name."""

    spouts: Mapping[str, SpoutSpec]
    bolts: Mapping[str, Bolt]
    state_spouts: Mapping[str, Any] = field(default_factory=dict)
