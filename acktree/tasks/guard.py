"""Memory that was not declared is refused, where it is written, by the name of the attribute.

A bolt lives for one micro-batch; what it writes into itself would be gone with it, in silence. So after
``prepare`` its attributes are closed: rebinding one raises at once, and a built-in container that changed is
noticed after the tuple that changed it. Opaque objects are exempt: a client, a cache or a model may be opened
when it is first needed.

A container of up to :data:`WATCHED_CLOSELY` items (nested ones counted) is compared after each tuple; of a
larger one the length after each tuple, and the items when the frame is done.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from acktree.core.key_value_state import KeyValueState
from acktree.core.tuples import Tuple
from acktree.errors import MisuseError

WATCHED_CLOSELY: Final = 64
_CONTAINERS: Final = (list, dict, set, bytearray, deque)
_DATA: Final = (
    type(None), bool, int, float, complex, str, bytes, Decimal, tuple, frozenset, KeyValueState, Tuple, *_CONTAINERS,
)  # fmt: skip


@dataclass
class _Watched:
    value: Any
    before: Any
    length: int
    closely: bool


class Guard:
    """Watches over the attributes of one prepared bolt."""

    def __init__(self, bolt: object, remembers: Iterable[str], component: str) -> None:
        """Close the attributes of ``bolt`` that it does not remember.

        Raises nothing now; writing such an attribute raises MisuseError from then on.
        """
        self._component = component
        allowed = frozenset(remembers)
        self._watched = {
            name: _watch(value)
            for name, value in vars(bolt).items()
            if name not in allowed and isinstance(value, _CONTAINERS)
        }
        self.watches = bool(self._watched)
        _close(bolt, allowed, component)

    def check(self) -> None:
        """After a tuple: MisuseError when it changed a container that is not remembered."""
        for name, watched in self._watched.items():
            if len(watched.value) != watched.length or (watched.closely and watched.value != watched.before):
                self._refuse(name, watched)

    def check_all(self) -> None:
        """After a frame: the same for large containers, item by item."""
        for name, watched in self._watched.items():
            if watched.value != watched.before:
                self._refuse(name, watched)

    def _refuse(self, name: str, watched: _Watched) -> None:
        self._watched[name] = _watch(watched.value)  # one tuple is to blame for one change
        raise undeclared(name, self._component)


def undeclared(name: str, component: str) -> MisuseError:
    """The error for an attribute that changed and is not remembered."""
    return MisuseError(
        f"bolt {component!r} changed its attribute {name!r}, which it does not remember",
        f"component {component!r}: a bolt lives for one micro-batch, so the change would be lost",
        f"class attribute: remembers = [{name!r}], and set it in prepare(); or keep it in a local variable",
    )


def _watch(value: Any) -> _Watched:
    closely = _size(value, WATCHED_CLOSELY) <= WATCHED_CLOSELY
    return _Watched(value, copy.deepcopy(value) if closely else copy.copy(value), len(value), closely)


def _size(value: Any, enough: int) -> int:
    """How many items there are, nested ones included; stops counting past ``enough``."""
    count = len(value)
    inner = value.values() if isinstance(value, Mapping) else () if isinstance(value, bytearray) else value
    for item in inner:
        if count > enough:
            break
        if isinstance(item, _CONTAINERS):
            count += _size(item, enough)
        elif not isinstance(item, _DATA):
            return enough + 1  # copying it deeply might not be possible, or wise
    return count


def _close(bolt: object, allowed: frozenset[str], component: str) -> None:
    """Let assignments to attributes that are not allowed raise, by a subclass made for this object."""
    kind: type = type(bolt)

    def refuse_rebinding(self: Any, name: str, value: Any) -> None:
        if name not in allowed and isinstance(value, _DATA) and isinstance(getattr(self, name, None), _DATA):
            raise undeclared(name, component)
        kind.__setattr__(self, name, value)

    closed = type(kind.__name__, (kind,), {"__slots__": (), "__setattr__": refuse_rebinding, "__module__": kind.__module__})
    bolt.__class__ = closed
