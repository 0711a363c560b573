"""Specs: what a topology class says of a component."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from acktree import errors
from acktree.streamparse import thrift
from acktree.streamparse.dsl.stream import Grouping, Stream
from acktree.streamparse.dsl.util import to_java_arg
from acktree.streamparse.errors import SpecKeyError, SpecTypeError, SpecValueError
from acktree.streamparse.thrift import (
    ComponentCommon,
    ComponentObject,
    GlobalStreamId,
    JavaObject,
    ShellComponent,
    StreamInfo,
)

__all__ = ["ComponentSpec", "JavaComponentSpec", "ShellComponentSpec"]


class ComponentSpec:
    """A component of a topology, with its inputs and outputs.

    Args:
        component_cls: Its class.
        name: Its id; None: the name of the attribute that it is assigned to.
        inputs: Specs and streams, or a dict from these to groupings.
        par: The number of its tasks; or a dict with the number in each environment. None: its class's.
        config: Settings of the component. None: its class's.
        outputs: Names of fields of the default stream, and ``Stream`` objects. None: its class's.

    Attributes:
        component_object: The command, or the Java class.
        common: The same as Storm's structures have it.
    """

    component_object: ComponentObject

    def __init__(
        self,
        component_cls: Any,
        name: str | None = None,
        inputs: Any = None,
        par: Any = None,
        config: Any = None,
        outputs: Any = None,
    ) -> None:
        self.component_cls, self.name = component_cls, name
        self._where = f"{component_cls.__name__}.spec({'' if name is None else f'name={name!r}, '}...)"
        self.par = self._checked_par(component_cls.par if par is None else par)
        self.config = self._json(component_cls.config if config is None else config)
        self.outputs = self._streams(component_cls.outputs if outputs is None else outputs)
        self.inputs = self._groupings(inputs)
        self.common = ComponentCommon(self.inputs, self.outputs, self.par, self.config)

    def _checked_par(self, par: object) -> Any:
        for environment, tasks in par.items() if isinstance(par, dict) else [("", par)]:
            if not isinstance(environment, str) or not isinstance(tasks, int) or isinstance(tasks, bool):
                raise SpecTypeError(
                    f"par is {par!r:.60}", self._where,
                    'give a number of tasks, or one for each environment: {"prod": 5, "beta": 1}',
                )  # fmt: skip
            if tasks < 1:
                raise SpecValueError(f"par is {par!r:.60}", self._where, "give 1 or more tasks")
        return par

    def _json(self, config: object) -> str:
        if config is not None and not isinstance(config, dict):
            raise SpecTypeError(f"config is {config!r:.60}", self._where, "give a dict of settings")
        return json.dumps(config or {})

    def _streams(self, outputs: object) -> dict[str, StreamInfo]:
        if not isinstance(outputs, list | tuple | None):
            raise SpecTypeError(
                f"outputs are {outputs!r:.60}", self._where, 'give a list of names: ["word", "count"]'
            )
        streams: dict[str, StreamInfo] = {}
        for output in outputs or ():
            if isinstance(output, Stream):
                streams[output.name] = StreamInfo(output.fields, output.direct)
            elif isinstance(output, str):
                streams.setdefault("default", StreamInfo()).output_fields.append(output)
            else:
                raise SpecTypeError(
                    f"outputs contain {output!r:.60}", self._where,
                    "give names of fields of the default stream, and Stream objects for others",
                )  # fmt: skip
        return streams

    def _groupings(self, inputs: object) -> dict[GlobalStreamId, thrift.Grouping]:
        if isinstance(inputs, ComponentSpec):
            inputs = [inputs]
        if not isinstance(inputs, dict | list | tuple | None):
            raise SpecTypeError(
                f"inputs are {inputs!r:.60}",
                self._where,
                "give a list of specs, or a dict from specs to groupings",
            )
        groupings: dict[GlobalStreamId, thrift.Grouping] = {}
        for source in inputs or ():
            stream = _stream_of(source)
            grouping = inputs[source] if isinstance(inputs, dict) else _usual(source)
            if stream is None or not isinstance(grouping, thrift.Grouping):
                what = (
                    f"inputs contain {source!r:.60}" if stream is None else f"a grouping is {grouping!r:.60}"
                )
                raise SpecTypeError(
                    what, self._where,
                    'name specs or their streams: {bolt["late"]: Grouping.fields("word")}',
                )  # fmt: skip
            groupings[stream] = grouping
        return groupings

    def __getitem__(self, stream: str) -> GlobalStreamId:
        """A stream of this component, to be named as an input."""
        if stream not in self.outputs:
            known = errors.nearest(stream, self.outputs)
            raise SpecKeyError(f"{self.name or self._where} has no stream {stream!r}", self._where, known)
        return GlobalStreamId(self.name or self, stream)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.component_cls.__name__}, name={self.name!r}, par={self.par!r})"


class JavaComponentSpec(ComponentSpec):
    """A component written in Java. It can be described, and not run."""

    def __init__(
        self,
        component_cls: Any,
        name: str | None = None,
        serialized_java: Any = None,
        full_class_name: str | None = None,
        args_list: Sequence[object] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(component_cls, name, **more)
        if serialized_java is not None:
            if not isinstance(serialized_java, bytes):
                what = f"serialized_java is {type(serialized_java).__name__}"
                raise SpecTypeError(what, self._where, "give bytes")
            self.component_object = ComponentObject(serialized_java=serialized_java)
            return
        if not full_class_name:
            raise SpecValueError("full_class_name is missing", self._where, "name the Java class")
        if not isinstance(args_list, list | tuple):
            raise SpecTypeError(f"args_list is {args_list!r:.60}", self._where, "give a list; [] for none")
        java = JavaObject(full_class_name, [to_java_arg(arg) for arg in args_list])
        self.component_object = ComponentObject(java_object=java)


class ShellComponentSpec(ComponentSpec):
    """A component that is a child process; a Python class is one by its command ``streamparse_run``."""

    def __init__(
        self,
        component_cls: Any,
        name: str | None = None,
        command: str | None = None,
        script: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(component_cls, name, **more)
        if not command:
            raise SpecValueError("command is missing", self._where, "name the program that is started")
        if script is None:
            raise SpecTypeError(
                "script is missing", self._where, 'give its arguments as one text; "" for none'
            )
        self.component_object = ComponentObject(shell=ShellComponent(command, script))


def _stream_of(source: object) -> GlobalStreamId | None:
    if isinstance(source, ComponentSpec):
        return GlobalStreamId(source.name or source, "default")
    return source if isinstance(source, GlobalStreamId) else None


def _usual(source: Any) -> thrift.Grouping:
    """The grouping of an input that names none."""
    streams: Mapping[str, StreamInfo] = source.outputs if isinstance(source, ComponentSpec) else {}
    is_direct = "default" in streams and streams["default"].direct
    return Grouping.DIRECT if is_direct else Grouping.SHUFFLE
