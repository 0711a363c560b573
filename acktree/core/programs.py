"""What a value's class is called if no other process can import it, and which class has that name now.

Such are the classes and functions of the main program, classes made in functions, and those of modules that
are registered with cloudpickle. Other processes are sent their definitions, as cloudpickle writes them. A
value that is read by a later run must not bring its definition along: beside the class that the program has
now there would be a second one, and no member of an Enum would equal itself. So a value names its class, and
holds the definition for the run that wrote it.

What a value holds (a *reference*) is a tuple of plain values, a persistent id of its pickle::

    (process, number, module, name, is_main, definition)

    process, number   the driver's process, and how many topologies it had planned: the run
    module, name      as ``import`` and ``getattr`` find it. The module of the main program is called as
                      ``acktree run`` and ``python -m`` call it, never ``__main__``, unless it has no file
    is_main           whether it is of the main program
    definition        by cloudpickle; None if it cannot be pickled

Rules of this file
------------------
1. Within one run a reference means the very class of its definition, as cloudpickle knows it again.
2. In any later run it means the class that the program has under that name. Where there is none, it is
   refused. A function is code alone: one that is gone is read as it was written.
3. A process that runs no topology and has no class of that name reads the definition. It writes what it was
   given: ``rebalance`` needs no program.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from io import BytesIO
from pathlib import PurePath
from pickle import PicklingError, loads
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

import cloudpickle

from acktree.errors import CheckpointError

Reference: TypeAlias = tuple[str, int, str, str, bool, bytes | None]
_Key: TypeAlias = tuple[str, str]

_MAIN: Final = "__main__"
_NO_FILE: Final = "<dynamic-code>"
"""cloudpickle's name for the file of any code that it pickles."""
_MEMOIZED: Final = b"\x94"
"""What follows the name of a module in a pickle of protocol 5."""
_MOST_BYTES: Final = 1 << 16
"""A longer definition is not sent to workers ahead of the values: it holds data of the program."""
_MOST_CLASSES: Final = 4096
"""Classes that are kept by their definitions: a bolt may make a new one for each tuple."""


def _code_with_file(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """What cloudpickle says of code, with its file, which 3.1.3 leaves out: tracebacks show the line."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == _NO_FILE else part for part in arguments)


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles as cloudpickle does; code keeps the name of its file."""

    dispatch_table = ChainMap({CodeType: _code_with_file}, cloudpickle.Pickler.dispatch_table)


class _Definitions(CodePickler):
    """Pickles classes as cloudpickle does, with their qualified names and the aliases of enums."""

    def __init__(self, file: BytesIO, seen: list[object]) -> None:
        super().__init__(file, protocol=5)
        self._seen = seen

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401  # what pickle gives and takes
        reduced = super().reducer_override(value)
        if type(reduced) is not tuple or not by_value(value):
            return reduced
        self._seen.append(value)
        return _completed(value, *reduced) if isinstance(value, type) else reduced


class _Bounded(BytesIO):
    """Ends a pickler that writes more than this."""

    def write(self, part: Any) -> int:  # noqa: ANN401  # bytes, or a buffer
        if self.tell() + len(part) > _MOST_BYTES:
            raise PicklingError("too much data")
        return super().write(part)


def _completed(kind: type, make: Any, arguments: tuple[Any, ...], state: Any, *rest: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What cloudpickle says of a class, with what it leaves out."""
    attributes, slots = state
    aliases = getattr(kind, "__members__", None)
    if make is cloudpickle.cloudpickle._make_skeleton_enum and aliases:  # noqa: SLF001  # it has no other name
        arguments = (*arguments[:3], {name: member.value for name, member in aliases.items()}, *arguments[4:])
        attributes = {name: value for name, value in attributes.items() if name not in aliases}
    return make, arguments, (attributes | {"__qualname__": kind.__qualname__}, slots), *rest


def by_value(value: object) -> bool:
    """Whether a class or function goes with its definition: no other process can import it."""
    if not isinstance(value, type | FunctionType) or value.__module__ == "builtins":
        return False
    if value.__module__ == _MAIN or value.__module__ in cloudpickle.list_registry_pickle_by_value():
        return True
    return _found_in(sys.modules.get(value.__module__), value.__qualname__) is not value


def is_named(value: object) -> TypeGuard[type | FunctionType]:
    """Whether a reference can stand for it: closures and lambdas have no name to be found by."""
    return isinstance(value, type) or (isinstance(value, FunctionType) and "<" not in value.__qualname__)


def definition_pickle(value: object, seen: list[object] | None = None) -> bytes:
    """A value with its classes, for a process of this run. Raises what pickle raises.

    Args:
        seen: Is given the classes and functions that were pickled by value.
    """
    return _dumped(value, BytesIO(), [] if seen is None else seen)


def definitions_in(value: object) -> list[object]:
    """The classes and functions that are pickled by value with an object, in the first 64 KiB of it."""
    seen: list[object] = []
    with suppress(Exception):  # pickling runs user code, and what it holds may be unpicklable
        _dumped(value, _Bounded(), seen)
    return seen


def files_of(seen: Iterable[object]) -> set[str]:
    """The files of the functions among what was pickled by value, as their code names them."""
    return {function.__code__.co_filename for function in seen if isinstance(function, FunctionType)}


def _dumped(value: object, file: BytesIO, seen: list[object]) -> bytes:
    pickler = _Definitions(file, seen)
    pickler.dump(value)
    return file.getvalue()


@dataclass(frozen=True)
class Program:
    """The program of one run.

    Attributes:
        process: A random name of the driver's process; empty where no topology runs.
        number: How many topologies the process had planned before.
        main: What the module of the main program is called.
        is_imported: Whether processes can import it.
        definitions: (module, name) -> the definition of each class that has one; ``__main__`` is the main
            program's module.
    """

    process: str
    number: int
    main: str
    is_imported: bool
    definitions: Mapping[_Key, bytes]
    known: dict[_Key, object] = field(default_factory=dict, compare=False, repr=False)
    """What names mean in this process, as far as it was asked."""

    @classmethod
    def of(cls, process: str, number: int, seen: Iterable[object]) -> Program:
        """The program of this process.

        Args:
            seen: What its topology uses and is pickled by value, however it is called.
        """
        main, is_imported = _main_module()
        known = _named_in(main)
        for module in cloudpickle.list_registry_pickle_by_value():
            known |= _named_in(sys.modules.get(module))
        made: dict[_Key, dict[int, object]] = {}
        others = filter(by_value, vars(main).values()) if main and is_imported else ()  # under another name
        for value in filter(is_named, (*seen, *others)):
            module = _MAIN if is_imported and value.__module__ == _name_of(main) else value.__module__
            made.setdefault((module, value.__qualname__), {})[id(value)] = value
        alone = {key: value for key, values in made.items() if len(values) == 1 for value in values.values()}
        known = alone | known
        if is_imported:  # workers import it
            known = {key: value for key, value in known.items() if by_value(value)}
        definitions = {key: short for key, value in known.items() if (short := _short_definition(value))}
        return cls(
            process, number, main=_name_of(main), is_imported=is_imported, definitions=definitions,
            known=known,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return Program, (self.process, self.number, self.main, self.is_imported, self.definitions)

    def find(self, module: str, name: str, *, is_main: bool) -> object | None:
        """What has this name in the program; None for nothing."""
        key = (_MAIN if is_main or module == self.main else module, name)
        if key not in self.known and key in self.definitions:
            self.known[key] = _defined(self.definitions[key])
        if key in self.known:
            return self.known[key]
        if is_main and not self.is_imported and module in (self.main, _MAIN):
            return None
        return _imported(self.main if is_main and self.is_imported else module, name)

    def definition(self, key: _Key, value: object) -> bytes | None:
        """The definition that the driver has sent of a class, if it is this class."""
        key = (_MAIN if key[0] == self.main else key[0], key[1])
        known = key in self.definitions and self.find(*key, is_main=key[0] == _MAIN) is value
        return self.definitions[key] if known else None


class _Process:
    """What this process knows: the program of its topology, and the classes that it has read or written."""

    program: Program | None = None
    main: ModuleType | None = None
    needle: bytes | None = None
    classes: dict[bytes, object] = {}  # one for the process
    references: WeakKeyDictionary[Any, Reference] = WeakKeyDictionary()


def enter(program: Program) -> None:
    """From now on this process reads and writes values of a run of this program."""
    _Process.program = program
    _Process.needle = None if program.is_imported else program.main.encode() + _MEMOIZED


def run_module(main: ModuleType) -> None:
    """Take an imported module for the main program, as ``acktree run`` does."""
    _Process.main = main


def current() -> Program:
    """The program of the topology that this process runs; without one, what is in its main module."""
    if _Process.program is not None:
        return _Process.program
    main, is_imported = _main_module()
    return Program("", 0, main=_name_of(main), is_imported=is_imported, definitions={}, known=_named_in(main))


def reference_to(value: Any, *, must_travel: bool) -> Reference:  # noqa: ANN401  # a class or a function
    """What stands for a class or function that is pickled by value.

    Args:
        must_travel: Whether another process may read it in this run.

    Raises:
        Exception: It must travel, and has no definition: what pickle raised.
    """
    reference = _Process.references.get(value)
    program = _Process.program
    if (
        reference is not None
        and (program is None or reference[0] == program.process)
        and (reference[-1] is not None or not must_travel)
    ):
        return reference
    program = program or current()
    is_main = value.__module__ == _MAIN
    key = (value.__module__, value.__qualname__)
    definition = program.definition(key, value)
    if definition is None:
        try:
            definition = definition_pickle(value)
        except Exception:
            if must_travel:
                raise
    reference = (
        program.process, program.number, program.main if is_main else key[0], key[1], is_main, definition
    )  # fmt: skip
    if definition is not None:
        _keep(definition, value)
    _Process.references[value] = reference
    return reference


def read(reference: Reference) -> object:
    """What a reference means in this process.

    Raises:
        CheckpointError: The program has no class of that name.
    """
    process, number, module, name, is_main, definition = reference
    program = current()
    is_ours = process == program.process
    if definition is not None and ((is_ours and number >= program.number) or not process):
        return _defined(definition)
    known = program.find(module, name, is_main=is_main) if program.process else _loaded(program, reference)
    if known is not None:
        return known
    if definition is not None and (is_ours or not program.process):
        value = _defined(definition)
        _Process.references.setdefault(value, reference)
        return value
    if definition is not None and isinstance(value := _defined(definition), FunctionType):
        return value
    raise gone(module, name, is_main=is_main)


def main_named(module: str, name: str) -> object | None:
    """What a pickle means by a name in this module, if it is the main program's; None for other modules.

    Raises:
        CheckpointError: The program has nothing of that name.
    """
    main, is_imported = _main_module()
    program = _Process.program
    main_name = _name_of(main) if program is None else program.main
    is_imported = is_imported if program is None else program.is_imported
    if module != _MAIN and (is_imported or module != main_name):
        return None
    program = program or current()
    named = program.find(main_name, name, is_main=True)
    if named is None and _name_of(main) == main_name:
        named = _found_in(main, name)
    if named is None and program.process and (module == _MAIN or module not in sys.modules):
        raise gone(main_name, name, is_main=True)
    return named


def may_be_named_in(pickles: bytes) -> bool:
    """Whether a pickle, or several, may name the main program's module as a process that imports it does."""
    needle = _Process.needle if _Process.program is not None else _needle(*_main_module())
    return needle is not None and needle in pickles


def same_name(value: type | FunctionType | BuiltinFunctionType) -> str:
    """A name of a class or function that is the same in any form in which a program is run."""
    module = _name_of(_main_module()[0]) if value.__module__ == _MAIN else value.__module__
    return f"{module}.{value.__qualname__}"


def gone(module: str, name: str, *, is_main: bool) -> CheckpointError:
    """The error for a name that means nothing, or several things, in the program."""
    where = f"the main program ({module})" if is_main and module != _MAIN else "the main program"
    return CheckpointError(
        f"a stored value needs {name!r} of {where if is_main else f'module {module!r}'}, "
        "and this program has no such class, or several",
        "what an earlier run of the topology remembered or sent",
        f"define {name!r} there again, at the top level of the file, or give the topology a new checkpoint; "
        "see docs/running.md, classes of the main program",
    )


def _loaded(program: Program, reference: Reference) -> object | None:
    """What has this name in a process that runs no topology. It imports nothing: that may run a program."""
    _, _, module, name, is_main, _ = reference
    if is_main and module in (program.main, _MAIN) and (_MAIN, name) in program.known:
        return program.known[_MAIN, name]
    return _found_in(sys.modules.get(module), name)


def _defined(definition: bytes) -> Any:  # noqa: ANN401  # a class or a function
    earlier = _Process.classes.get(definition)
    return _keep(definition, loads(definition)) if earlier is None else earlier


def _keep(definition: bytes, value: object) -> object:
    if len(_Process.classes) >= _MOST_CLASSES:
        _Process.classes.clear()
    return _Process.classes.setdefault(definition, value)


def _short_definition(value: object) -> bytes | None:
    with suppress(Exception):  # pickling runs user code, and what a class uses may be unpicklable
        definition = _dumped(value, _Bounded(), [])
        _keep(definition, value)
        return definition
    return None


def _main_module() -> tuple[ModuleType | None, bool]:
    """The module of the main program, and whether processes can import it."""
    if _Process.main is not None:
        return _Process.main, True
    return sys.modules.get(_MAIN), False


def _needle(main: ModuleType | None, is_imported: bool) -> bytes | None:  # noqa: FBT001  # as _main_module() says
    return None if is_imported else _name_of(main).encode() + _MEMOIZED


def _name_of(main: ModuleType | None) -> str:
    """What ``acktree run`` and ``python -m`` call a main program; ``__main__`` for a notebook or a prompt."""
    if main is not None and main.__name__ != _MAIN:
        return main.__name__
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return PurePath(file).stem if isinstance(file, str) and file.endswith(".py") else _MAIN


def _named_in(module: object) -> dict[_Key, object]:
    """The classes and functions of a module, by (module, name); those of a main program as ``__main__``'s."""
    if not isinstance(module, ModuleType):
        return {}
    own = _MAIN if module is _main_module()[0] else module.__name__
    return {(own, value.__qualname__): value for value in _definitions_in(module, module.__name__)}


def _definitions_in(holder: ModuleType | type, module: str) -> Iterator[type | FunctionType]:
    prefix = f"{holder.__qualname__}." if isinstance(holder, type) else ""
    for name, value in list(vars(holder).items()):
        if not is_named(value) or value.__module__ != module or value.__qualname__ != f"{prefix}{name}":
            continue
        if isinstance(value, type):
            yield value
            yield from _definitions_in(value, module)
        elif not prefix:
            yield value


def _imported(module: str, name: str) -> object | None:
    with suppress(Exception, SystemExit):  # user code
        return _found_in(import_module(module), name)
    return None


def _found_in(module: object, name: str) -> object | None:
    with suppress(Exception):  # a module may be any object, and __getattr__ is user code
        member: object = reduce(getattr, name.split("."), module)
        return member
    return None
