"""The pickles of attributes, and whether two values are the same.

Rules of this file
------------------
1. Nothing is saved that cannot be read again: a pickle with objects of classes that may refuse is read once.
   One cannot refuse if Python itself makes its objects and fills their ``__dict__``, and calls no code of it.
2. Two values are the same if their *forms* are equal. A form is a digest of what a value pickles to after it
   was read from a pickle once, for a value that was made and its copy that was read may differ in bytes:
   a view of an array, a text that is interned. The items of a set are in an order of their own there.
3. What belongs to an event loop, such as an ``asyncio.Lock``, is no data, though Python pickles it until
   somebody has waited for it: in another process nobody would release it.
4. ``==`` decides nothing: it leaves out the order of a dict, and takes 1 for True and for 1.0.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
from contextlib import suppress
from typing import Any, Final

from acktree import ExecuteTimeoutError
from acktree.texts import error_text

__all__ = ["NOT_ITS_FAULT", "UnreadableError", "form", "pickled", "pickled_and_read"]

NOT_ITS_FAULT: Final = (ExecuteTimeoutError, MemoryError)
"""What is raised while a value is pickled or read, and says nothing of it."""
_KNOWN: Final = frozenset(
    {"builtins", "collections", "datetime", "decimal", "fractions", "numpy", "pandas", "uuid"}
)
"""Packages whose objects can be read wherever they could be pickled."""
_OF_OBJECT: Final = tuple(
    (name, getattr(object, name, None))
    for name in ("__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__", "__setattr__")
)
_READING: Final = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getattr__")
_PLAIN: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})
_SET_OPCODES: Final = (pickle.EMPTY_SET, pickle.FROZENSET)
_MUCH: Final = 1_000_000
_TOO_MUCH: Final = 20_000_000
"""Above so many bytes sets are not put in order, which takes seconds: they count as changed then."""


class UnreadableError(Exception):
    """What was pickled cannot be read."""


class _Noting(pickle.Pickler):
    """Notes the classes of all objects that are not of Python's own basic types."""

    def __init__(self, file: io.BytesIO, owner: object) -> None:
        super().__init__(file, protocol=5)
        self.kinds: set[type] = set()
        self._owner = owner

    def reducer_override(self, value: object) -> Any:
        if value is self._owner:
            raise pickle.PicklingError("it refers to the component itself, of which a copy would be made")
        kind = type(value)
        if kind not in self.kinds and _is_of_loop(kind):
            raise pickle.PicklingError(f"asyncio.{kind.__name__} belongs to the event loop of one process")
        self.kinds.add(kind)
        return NotImplemented

    @property
    def is_known(self) -> bool:
        """Whether all of them can be read."""
        tops = {kind.__module__.partition(".")[0] for kind in self.kinds}
        return tops <= _KNOWN or all(map(_is_known, self.kinds))


def _is_of_loop(kind: type) -> bool:
    """Whether it is a lock, an event, a queue or another of asyncio's that tasks wait for."""
    return any(base.__module__ == "asyncio.mixins" for base in kind.__mro__)


def _is_known(kind: type) -> bool:
    is_ours = kind.__module__.partition(".")[0] in _KNOWN or kind.__module__.startswith("acktree.")
    return is_ours or _is_read_by_python(kind)


def _is_read_by_python(kind: type) -> bool:
    """Whether no code of a class is called when one of its objects is read.

    It is asked for its hash if it is a key, for attributes that it has not yet, and for an attribute to be
    set if it has slots.
    """
    as_object = all(getattr(kind, name, None) is own for name, own in _OF_OBJECT)
    has_other = any(hasattr(kind, name) for name in _READING) or kind in copyreg.dispatch_table
    own_hash: Any = kind.__hash__
    return as_object and not has_other and (own_hash is None or own_hash is object.__hash__)


def pickled(value: object) -> bytes:
    """The pickle of a value."""
    return pickle.dumps(value, protocol=5)


def pickled_and_read(value: object, owner: object, before: bytes = b"") -> bytes:
    """The pickle of a value; it was read once, or holds only what can be read.

    Args:
        value: The value.
        owner: What has the value as an attribute, and cannot be pickled with it.
        before: A pickle that was read before.

    Raises:
        UnreadableError: It cannot be read. Whatever else is raised was raised by a class that it holds.
    """
    file = io.BytesIO()
    pickler = _Noting(file, owner)
    pickler.dump(value)
    data = file.getvalue()
    if data != before and not pickler.is_known:
        try:
            pickle.loads(data)
        except NOT_ITS_FAULT:
            raise
        except Exception as error:
            raise UnreadableError(f"its pickle cannot be read: {error_text(error)}") from error
    return data


def form(data: bytes) -> str:
    """The form of a value.

    Args:
        data: Its pickle.

    Raises:
        Exception: It has none: its classes raise.
    """
    value = pickle.loads(data)
    may_have_sets = len(data) <= _MUCH or any(opcode in data for opcode in _SET_OPCODES)
    if may_have_sets and len(data) <= _TOO_MUCH:
        with suppress(RecursionError):  # it is too deep for this pickler
            return _digest(_ordered(value))
    return _digest(pickled(value))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


_InPython: Any = pickle._Pickler  # noqa: SLF001  # the other one does not ask how a set is written


class _InOrder(_InPython):  # type: ignore[misc]  # it has no types
    """Writes the items of each set in one order, whatever happened to the set before."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, set | frozenset):
            return NotImplemented
        if {*map(type, value)} <= _PLAIN:  # their representations differ where they do, and take less time
            return type(value), (sorted(map(repr, value)), getattr(value, "__dict__", None))
        return type(value), (sorted(map(_ordered, value)), getattr(value, "__dict__", None))


def _ordered(value: object) -> bytes:
    file = io.BytesIO()
    _InOrder(file, protocol=5).dump(value)
    return file.getvalue()
