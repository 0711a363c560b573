"""The topology class, which is checked when its class statement runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from acktree import errors
from acktree.pystorm import Component
from acktree.streamparse import thrift
from acktree.streamparse.dsl.bolt import JavaBoltSpec, ShellBoltSpec
from acktree.streamparse.dsl.component import ComponentSpec
from acktree.streamparse.dsl.spout import JavaSpoutSpec, ShellSpoutSpec
from acktree.streamparse.dsl.util import to_python_arg_list
from acktree.streamparse.errors import SpecKeyError, SpecTypeError, SpecValueError
from acktree.streamparse.thrift import GlobalStreamId, StormTopology

__all__ = ["Topology", "TopologyType"]

_FLUX = "org.apache.storm.flux.wrappers"


def _named_specs(
    name: str, inherited: list[ComponentSpec], body: Mapping[str, Any]
) -> dict[str, ComponentSpec]:
    specs = {str(spec.name): spec for spec in inherited if spec.name not in body}
    for attribute, spec in body.items():
        where = f"class {name}, attribute {attribute!r}"
        if isinstance(spec, Component):
            raise SpecTypeError(
                f"{attribute!r} is a component",
                where,
                f"write {attribute} = {type(spec).__name__}.spec(...)",
            )
        if not isinstance(spec, ComponentSpec):
            continue
        spec.name = spec.name or attribute
        if spec.name in specs:
            raise SpecValueError(f"there are two components {spec.name!r}", where, "give one another name=")
        specs[spec.name] = spec
    return specs


def _check_kind(name: str, spec: ComponentSpec) -> None:
    where = f"class {name}, component {spec.name!r}"
    if isinstance(spec, (JavaBoltSpec, ShellBoltSpec)):
        if not spec.inputs:
            raise SpecValueError(f"bolt {spec.name!r} has no input", where, "name one: spec(inputs=[words])")
    elif isinstance(spec, (JavaSpoutSpec, ShellSpoutSpec)):
        if not spec.outputs:
            fix = f'name its fields: {spec.component_cls.__name__}.outputs = ["word"]'
            raise SpecValueError(f"spout {spec.name!r} declares no output", where, fix)
    else:
        raise SpecTypeError(
            f"{spec!r:.60} is neither a bolt nor a spout", where, "call spec() of a class of one"
        )


def _check_inputs(name: str, spec: ComponentSpec, specs: Mapping[str, ComponentSpec]) -> None:
    """Check the inputs of a component; name those that were given as specs without a name."""
    where = f"class {name}, component {spec.name!r}, inputs"
    for stream, grouping in list(spec.inputs.items()):
        if isinstance(stream.componentId, ComponentSpec):
            del spec.inputs[stream]
            stream = GlobalStreamId(stream.componentId.name, stream.streamId)  # noqa: PLW2901  # the same, named
            spec.inputs[stream] = grouping
        if stream.componentId not in specs:
            known = errors.nearest(stream.componentId, specs)
            raise SpecKeyError(f"there is no component {stream.componentId!r}", where, known)
        outputs = specs[stream.componentId].outputs
        if stream.streamId not in outputs:
            what = f"component {stream.componentId!r} has no stream {stream.streamId!r}"
            raise SpecKeyError(what, where, errors.nearest(stream.streamId, outputs))
        fields = outputs[stream.streamId].output_fields
        for field in grouping.fields or ():
            if field not in fields:
                stream_name = f"{stream.componentId}:{stream.streamId}"
                what = f"{stream_name} has no field {field!r}, by which it is grouped"
                raise SpecValueError(what, where, errors.nearest(field, fields))


class TopologyType(type):
    """Checks a topology class, and makes its attributes ``specs``, ``thrift_bolts`` and so on."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> TopologyType:
        """Make the class.

        Raises:
            TypeError: An attribute is a component instead of a spec, or ``config`` is not a dict.
            ValueError: A name is there twice, a bolt has no input, a spout no output, or there is no spout.
            KeyError: An input does not exist.
        """
        inherited = [spec for base in reversed(bases) for spec in getattr(base, "specs", ())]
        specs = _named_specs(name, inherited, body)
        for spec in specs.values():
            _check_kind(name, spec)
            _check_inputs(name, spec, specs)
        spouts = {
            key: spec for key, spec in specs.items() if isinstance(spec, (JavaSpoutSpec, ShellSpoutSpec))
        }
        if bases and not spouts:
            raise SpecValueError(
                "a topology has no spout", f"class {name}", "add an attribute: words = MySpout.spec()"
            )
        config = body.setdefault(
            "config", {**next((base.config for base in bases if hasattr(base, "config")), {})}
        )
        if not isinstance(config, dict):
            raise SpecTypeError(f"config is {config!r:.60}", f"class {name}", "give a dict of settings")
        body["specs"] = list(specs.values())
        body["thrift_spouts"] = {
            key: thrift.SpoutSpec(spec.component_object, spec.common) for key, spec in spouts.items()
        }
        body["thrift_bolts"] = {
            key: thrift.Bolt(spec.component_object, spec.common)
            for key, spec in specs.items()
            if key not in spouts
        }
        body["thrift_topology"] = StormTopology(body["thrift_spouts"], body["thrift_bolts"])
        return super().__new__(mcs, name, bases, body)

    def __repr__(cls) -> str:
        return (
            f"<topology class {cls.__name__}: {', '.join(spec.name for spec in getattr(cls, 'specs', ()))}>"
        )


class Topology(metaclass=TopologyType):
    """A topology: a class whose attributes are specs.

    A class that extends another one inherits its specs.

    Attributes:
        config: Settings of the topology.
        specs: The specs, in order.
        thrift_bolts: The bolts by name, as Storm's structures.
        thrift_spouts: The spouts by name, as Storm's structures.
        thrift_topology: Both.
    """

    specs: list[ComponentSpec]
    thrift_bolts: dict[str, thrift.Bolt]
    thrift_spouts: dict[str, thrift.SpoutSpec]
    thrift_topology: StormTopology
    config: dict[str, Any] = {}

    @classmethod
    def write(cls, stream: object) -> NoReturn:  # noqa: ARG003  # streamparse's signature
        """Refused: Thrift's form is for Storm's Nimbus."""
        _refuse_thrift(cls.__name__, "write")

    @classmethod
    def read(cls, stream: object) -> NoReturn:  # noqa: ARG003  # streamparse's signature
        """Refused: Thrift's form is for Storm's Nimbus."""
        _refuse_thrift(cls.__name__, "read")

    @classmethod
    def to_flux_dict(cls, name: str) -> dict[str, Any]:
        """The topology as a dict with the keys of a Flux file; empty parts are left out."""
        spouts = [_flux_component(spec) for spec in cls.specs if spec.name in cls.thrift_spouts]
        bolts = [_flux_component(spec) for spec in cls.specs if spec.name in cls.thrift_bolts]
        streams = [
            {
                "from": stream.componentId,
                "to": spec.name,
                "grouping": _flux_grouping(stream.streamId, grouping),
            }
            for spec in cls.specs
            for stream, grouping in spec.inputs.items()
        ]
        parts = {"name": name, "bolts": bolts, "spouts": spouts, "streams": streams}
        return {key: part for key, part in parts.items() if part}


def _refuse_thrift(name: str, method: str) -> NoReturn:
    raise SpecTypeError(
        f"{name}.{method}() is for Storm's Nimbus, which there is not", f"{name}.{method}(...)",
        "use to_flux_dict(name), or load(...).describe()",
    )  # fmt: skip


def _flux_component(spec: ComponentSpec) -> dict[str, Any]:
    about: dict[str, Any] = {"id": spec.name, "constructorArgs": []}
    shell, java = spec.component_object.shell, spec.component_object.java_object
    if shell is None:
        if java is None:
            raise SpecTypeError(
                f"component {spec.name!r} is a serialized Java object", "to_flux_dict()",
                "Flux knows none: name its class",
            )  # fmt: skip
        return about | {
            "className": java.full_class_name,
            "constructorArgs": to_python_arg_list(java.args_list),
        }
    is_bolt = isinstance(spec, ShellBoltSpec)
    about["className"] = f"{_FLUX}.bolts.FluxShellBolt" if is_bolt else f"{_FLUX}.spouts.FluxShellSpout"
    arguments: list[Any] = [[shell.execution_command, shell.script]]
    if not spec.outputs:
        arguments.append(["NONE_BUT_FLUX_WANTS_SOMETHING_HERE"])
    methods = []
    for stream, info in spec.outputs.items():
        if stream == "default":
            arguments.append(info.output_fields)
        else:
            methods.append({"name": "setNamedStream", "args": [stream, info.output_fields]})
    settings: dict[str, Any] = json.loads(spec.config)
    methods += [{"name": "addComponentConfig", "args": [key, value]} for key, value in settings.items()]
    return about | {"constructorArgs": arguments, "configMethods": methods, "parallelism": spec.par}


def _flux_grouping(stream: str, grouping: thrift.Grouping) -> dict[str, Any]:
    about: dict[str, Any] = {"streamId": stream, "type": grouping.kind.upper()}
    if grouping.fields is not None:
        return about | ({"args": grouping.fields} if grouping.fields else {"type": "GLOBAL"})
    if grouping.custom_object is not None:
        java = grouping.custom_object
        about["type"] = "CUSTOM"
        about["customClass"] = {
            "className": java.full_class_name, "constructorArgs": to_python_arg_list(java.args_list)
        }  # fmt: skip
    return about
