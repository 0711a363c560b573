"""The guard: refuses changes to attributes of a bolt that are not listed in ``remembers``.

A bolt object exists for one micro-batch, so a change to such an attribute would be lost without an error.
After ``prepare`` the attributes are checked: assigning to one raises at once, and a change inside a built-in
container, of the object or of its class, is found after the tuple that made it. What came from
``context.cached`` may be changed. Other objects are not checked, also inside containers: a bolt may open a
client, a cache or a model when it first needs it.

A bolt that overrides ``flush`` may change its attributes until then: its attributes are compared once, after
``flush``, with what ``prepare`` left.

A container of up to :data:`WATCHED_CLOSELY` items, nested items included, is compared after each tuple. For a
larger one the length is compared after each tuple, and the items at the end of the frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from acktree.core.data.context import is_cached
from acktree.core.data.tuples import Tuple
from acktree.core.state.stored_state import StoredState
from acktree.errors import MisuseError
from acktree.system.stopped_by import pass_on

WATCHED_CLOSELY: Final = 64
_CONTAINERS: Final = (list, dict, set, bytearray, deque, StoredState)
_DATA: Final = (
    *(type(None), bool, int, float, complex, str, bytes, tuple, frozenset, Tuple, *_CONTAINERS),
    *(Decimal, Fraction, date, time, timedelta, UUID, Enum),
)
"""Types that hold data; assigning a value of another type is allowed, since it may be a client."""
_CONTRACT: Final = {"outputs", "remembers"}


class Guard:
    """Checks the attributes of one prepared bolt."""

    def __init__(self, bolt: object, remembers: Iterable[str], component: str) -> None:
        """Begin to check the attributes of ``bolt`` that are not in ``remembers``.

        From now on an assignment to such an attribute raises MisuseError.
        """
        self._component = component
        allowed = frozenset(remembers)
        self._watched = {
            name: _Watched.of(value)
            for name, value in _attributes(bolt)
            if name not in allowed and _can_change(value) and not is_cached(value)
        }
        self.watches = bool(self._watched)
        self._take_stock()
        _close(bolt, allowed, component)

    def _take_stock(self) -> None:
        """Collect in lists what is compared after each tuple, so that one comparison covers all of it."""
        closely = [watched for watched in self._watched.values() if watched.closely]
        self._values = [watched.value for watched in closely]
        self._before = [watched.before for watched in closely]
        self._large = [watched.value for watched in self._watched.values() if not watched.closely]
        self._lengths = [*map(len, self._large)]

    def may_have_changed(self) -> bool:
        """Whether :meth:`check` may find a change. Called after each tuple, so it must be fast."""
        try:
            return self._values != self._before or (
                bool(self._large) and [*map(len, self._large)] != self._lengths
            )
        except BaseException as error:  # noqa: BLE001  # an item was replaced by one that cannot be compared: an array
            pass_on(error)
            return True

    def check(self) -> None:
        """Called after a tuple: raises MisuseError if it changed a container that is not remembered."""
        self._check(thoroughly=False)

    def check_all(self) -> None:
        """Called after a frame: the same, and large containers are compared item by item."""
        self._check(thoroughly=True)

    def _check(self, *, thoroughly: bool) -> None:
        changed = [
            name for name, watched in self._watched.items() if watched.has_changed(thoroughly=thoroughly)
        ]
        for name in changed:  # report each change once, for the tuple that made it
            self._watched[name] = _Watched.of(self._watched[name].value)
        if changed:
            self._take_stock()
            raise undeclared(changed[0], self._component)


@dataclass(frozen=True, eq=False)
class _Watched:
    """A container and its snapshot: ``before`` copies it and the containers in it, and shares the rest."""

    value: Sized
    before: object
    length: int
    closely: bool

    @classmethod
    def of(cls, value: Sized) -> _Watched:
        seen: dict[int, int] = {}
        before = _copy(value, seen)
        return cls(value, before, len(value), sum(seen.values()) <= WATCHED_CLOSELY)

    def has_changed(self, *, thoroughly: bool) -> bool:
        if len(self.value) != self.length:
            return True
        if not (self.closely or thoroughly):
            return False
        try:
            return bool(self.value != self.before)
        except BaseException as error:  # noqa: BLE001  # an item was replaced by one that cannot be compared: an array
            pass_on(error)
            return True


class FlushGuard(Guard):
    """For a bolt that overrides ``flush``: compares once, after it, and then every attribute that is data."""

    def __init__(self, bolt: object, remembers: Iterable[str], component: str) -> None:
        """Note the attributes as ``prepare`` left them; assigning to them is allowed."""
        self._bolt, self._component = bolt, component
        self._allowed = frozenset(remembers)
        self.watches = False
        before = self._data()
        self._opaque = {name for name, value in before.items() if not isinstance(value, _DATA)}
        data = {name: value for name, value in before.items() if name not in self._opaque}
        self._kept = {name: _copy(value, {}) for name, value in data.items()}

    def check_all(self) -> None:
        """After a frame or tick: nothing, since ``flush`` is still to come."""

    def check_flushed(self) -> None:
        """After ``flush``: MisuseError when an attribute is not as ``prepare`` left it."""
        for name, value in self._data().items():
            if isinstance(value, _DATA) and name not in self._opaque and not self._is_as_before(name, value):
                raise _not_restored(name, self._component)

    def _data(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in _attributes(self._bolt)
            if name not in self._allowed and not is_cached(value)
        }

    def _is_as_before(self, name: str, value: object) -> bool:
        before = self._kept.get(name)
        try:
            return value is before or bool(_copy(value, {}) == before)
        except BaseException as error:  # noqa: BLE001  # holds something that cannot be compared: an array
            pass_on(error)
            return False


def _not_restored(name: str, component: str) -> MisuseError:
    return MisuseError(
        f"bolt {component!r} changed its attribute {name!r}, which it does not remember, "
        "and flush() did not restore it",
        f"component {component!r}: a bolt lives for one micro-batch, so the change would be lost",
        f"write what {name!r} holds and empty it in flush(); or class attribute: remembers = [{name!r}]",
    )


def _copy(value: Any, seen: dict[int, int]) -> Any:  # noqa: ANN401  # a user's attribute
    """Copy the containers in a value; other objects are shared. ``seen``: id of a container -> its length."""
    if not isinstance(value, (*_CONTAINERS, tuple)) or id(value) in seen:
        return value  # no container, or a container that contains itself and equals itself
    seen[id(value)] = len(value)
    if isinstance(value, dict | StoredState):
        return {key: _copy(item, seen) for key, item in value.items()}
    if isinstance(value, set):
        return set(value)
    if isinstance(value, bytearray):
        return bytes(value)
    items = [_copy(item, seen) for item in value]
    if isinstance(value, deque):
        return deque(items)
    return tuple(items) if isinstance(value, tuple) else items


def _can_change(value: object) -> bool:
    """Whether a value is a mutable container, or a tuple with one in it."""
    if isinstance(value, tuple):
        return any(map(_can_change, value))
    return isinstance(value, _CONTAINERS)


def _attributes(bolt: object) -> Iterator[tuple[str, Any]]:
    """The attributes of a bolt object, then those of the user's classes; each name once."""
    names: set[str] = set()
    for holder in (bolt, *type(bolt).__mro__):
        if isinstance(holder, type) and holder.__module__.partition(".")[0] in {"acktree", "abc", "builtins"}:
            continue
        for name, value in vars(holder).items():
            if name not in names and name not in _CONTRACT and not name.startswith("__"):
                names.add(name)
                yield name, value


def undeclared(name: str, component: str) -> MisuseError:
    """The error for an attribute that changed and is not remembered."""
    return MisuseError(
        f"bolt {component!r} changed its attribute {name!r}, which it does not remember",
        f"component {component!r}: a bolt object exists for one micro-batch, so the change would be lost",
        f"class attribute: remembers = [{name!r}], and set it in prepare(); or keep it in a local variable",
    )


def _close(bolt: object, allowed: frozenset[str], component: str) -> None:
    """Make assignments to attributes that are not allowed raise, by a subclass of its class."""
    # Replace the key-sharing dict: with one, CPython 3.11 does not cache attribute lookups of this object,
    # which cost a tenth of the time of a small bolt.
    bolt.__dict__ = dict(vars(bolt))
    kind: Any = type(bolt)
    try:
        closed, size = _known_closed(kind, allowed, component)
    except TypeError:  # a metaclass whose classes have no hash
        closed, size = _closed(kind, allowed, component)
    if len(vars(closed)) != size:  # user code has set an attribute of its class: not for the next object
        closed, _ = _closed(kind, allowed, component)
    bolt.__class__ = closed


def _closed(kind: Any, allowed: frozenset[str], component: str) -> tuple[Any, int]:  # noqa: ANN401  # a class of the user's
    """The subclass, and how many attributes of its own it has."""
    assign = kind.__setattr__

    def refuse_rebinding(self: object, name: str, value: object) -> None:
        if name not in allowed and isinstance(value, _DATA) and isinstance(getattr(self, name, None), _DATA):
            raise undeclared(name, component)
        assign(self, name, value)

    body = {"__slots__": (), "__setattr__": refuse_rebinding, "__module__": kind.__module__}
    closed = type(kind.__name__, (kind,), body)
    return closed, len(vars(closed))


_known_closed = lru_cache(maxsize=1024)(_closed)
"""To make a class for each task and micro-batch takes as long as a small bolt's work."""
