"""What of a component is data: the attributes that are saved, and what becomes of them at a restart.

Rules of this file
------------------
1. An attribute that can be pickled is data; ``remembers`` on the class names those that are. The others are
   *opaque*: they stay with the object. One that may be data is named by a warning, or refused if
   ``remembers`` names it.
2. What ``initialize`` made is noted with the data. A restart may bring another configuration or other code:
   an attribute that was still as ``initialize`` had made it is as ``initialize`` makes it now. One that the
   component has changed is restored.
3. In doubt an attribute counts as changed: what was counted is worth more than what can be made again.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from acktree import CheckpointError, MisuseError
from acktree.texts import error_text, short_repr

__all__ = ["CONTAINERS", "Attributes"]

CONTAINERS: Final = (list, dict, set, deque, bytearray)
_MUCH: Final = 1_000_000
_SMALL: Final = 4096
"""Up to how many bytes what ``initialize`` made is noted as it is, and not as a digest."""
_OF_ENGINE: Final = frozenset(
    {
        "_batch_lock", "_closed", "_current_tups", "_pending_commands", "_pending_task_ids", "_rdb_signal",
        "_reader_lock", "_source_tuple_types", "_writer_lock", "component_name", "context", "debug", "logger",
        "pid", "serializer", "storm_conf", "task_id", "topology_name",
    }
)  # fmt: skip
"""Attributes that ``Component`` and its subclasses make, and that are no data."""
_PLAIN: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})
_PLAIN_CONTAINERS: Final = frozenset({list, tuple, set, frozenset})
_OF_PYTHON: Final = Path(sysconfig.get_paths()["stdlib"])
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_WAY_OUT: Final = (
    "Write defaultdict(int) or a function with a name in place of a lambda, leave a lock out by "
    "__getstate__, or name the attributes to keep on the class: remembers = [...]"
)


class Attributes:
    """The attributes of a component object.

    Args:
        component: The object.
        only: Those that ``remembers`` names; None for all.

    Attributes:
        made: What ``initialize`` made, in the form in which it goes with the data.
    """

    def __init__(self, component: Any, only: Iterable[str] | None) -> None:
        self.made = b""
        self._component = component
        self._only = None if only is None else frozenset(only)
        self._opaque: set[str] = set()
        self._warned: set[str] = set()
        self._own: dict[str, bytes | str] = {}

    def note_made(self, *, is_first: bool) -> None:
        """Note what ``initialize`` has made.

        Args:
            is_first: Whether the task has no other object in this run: only that one warns.

        Raises:
            MisuseError: An attribute that ``remembers`` names cannot be saved.
        """
        have = vars(self._component)
        for name in self._names():
            try:
                pickled = _pickled(have[name])
            except Exception as error:
                self._leave_out(name, error, warns=is_first)
                if self._only is not None:
                    raise self._refused(name, error) from error
            else:
                self._own[name] = _noted(pickled)
        self.made = pickle.dumps(self._own)

    def data(self) -> tuple[bytes, MisuseError | None]:
        """The attributes that can be pickled, in one pickle; and the error if one cannot that was named."""
        have, refused = vars(self._component), None
        names = [name for name in self._names() if name not in self._opaque]
        try:
            data = _pickled({name: have[name] for name in names})
        except Exception:  # noqa: BLE001  # user code runs in here
            for name in names:
                try:
                    _pickled(have[name])
                except Exception as error:  # noqa: BLE001  # as above
                    self._leave_out(name, error, warns=True)
            names = [name for name in names if name not in self._opaque]
            data = _pickled({name: have[name] for name in names})
        if self._only is not None and self._opaque:
            refused = self._refused(min(self._opaque))
        if len(data) > _MUCH:
            self.warn(
                "its attributes", f"take {len(data):,} bytes, which are written whole when one changes: "
                "name those to keep by the class attribute remembers = [...]",
            )  # fmt: skip
        return data, refused

    def restore(self, data: bytes, made: bytes | None, *, is_restart: bool) -> None:
        """Set the data as they were saved. What the component had deleted is deleted.

        Args:
            data: What :meth:`data` returned.
            made: What ``initialize`` made of the object that was saved; None: it was not noted.
            is_restart: Whether an earlier run has saved it.

        Raises:
            CheckpointError: The data cannot be read by today's code.
        """
        saved = self._read(data)
        before: dict[str, bytes | str] = pickle.loads(made) if made else {}
        have = vars(self._component)
        for name in self._names():
            # Else it is new in the code, or its like could not be saved.
            is_over = name in before or name not in self._own
            if is_over and name not in saved and name not in self._opaque and _can_be_pickled(have[name]):
                del have[name]
        if is_restart:
            saved = {name: value for name, value in saved.items() if self._is_restored(name, value, before)}
        elif made is not None:
            self.made = made
        have.update(saved)

    def warn(self, name: str, what: str) -> None:
        """Warn of an attribute, once."""
        if name not in self._warned:
            self._warned.add(name)
            self._component.logger.warning("component %r: %s %s", self._component.component_name, name, what)

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = pickle.loads(data)
        except Exception as error:
            name = self._component.component_name
            raise CheckpointError(
                f"what the attributes of component {name!r} were cannot be read: {error_text(error)}",
                f"component {name!r}, task {self._component.task_id}: a class was renamed, moved or changed",
                "let the old name lead to the new class (Old = New, in the old module), or give up what the "
                f"component remembers: acktree reset-state CHECKPOINT --component {name}",
            ) from error
        return {name: value for name, value in saved.items() if self._only is None or name in self._only}

    def _is_restored(self, name: str, value: object, before: Mapping[str, bytes | str]) -> bool:
        """Whether an attribute is taken from the checkpoint at a restart, rather than from ``initialize``."""
        was, now, have = before.get(name), self._own.get(name), vars(self._component)
        if was is None:
            return True
        try:
            pickled = _pickled(value)
        except Exception:  # noqa: BLE001  # user code runs in here
            return True
        if _is_like(was, _noted(pickled)):
            return now is not None and _is_like(was, now)  # as it was: sharing between attributes is kept
        if name in have and not (now is not None and _is_like(was, now)):
            self._component.logger.warning(
                "%s.%s is %s from the checkpoint, initialize now makes %s",
                self._component.component_name, name, short_repr(value), short_repr(have[name]),
            )  # fmt: skip
        return True

    def _leave_out(self, name: str, error: Exception, *, warns: bool) -> None:
        """Save an attribute no more."""
        self._opaque.add(name)
        if self._own.pop(name, None) is not None:
            self.made = pickle.dumps(
                {key: form for key, form in pickle.loads(self.made).items() if key != name}
            )
        if warns and _may_be_data(vars(self._component)[name]):
            self.warn(
                name, f"is not saved, for it cannot be pickled ({error_text(error)}). So each process that "
                f"the task passes through has its own, and after a restart it is new. {_WAY_OUT}",
            )  # fmt: skip

    def _refused(self, name: str, error: Exception | None = None) -> MisuseError:
        why = "" if error is None else f": {error_text(error)}"
        return MisuseError(
            f"attribute {name!r} cannot be pickled, so it cannot be saved, and remembers names it{why}",
            f"component {self._component.component_name!r}, class {type(self._component).__name__}",
            f"{_WAY_OUT}, without {name!r}",
        )

    def _names(self) -> list[str]:
        names = vars(self._component).keys() - _OF_ENGINE
        return sorted(names if self._only is None else names & self._only)


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _can_be_pickled(value: object) -> bool:
    try:
        _pickled(value)
    except Exception:  # noqa: BLE001  # user code runs in here
        return False
    return True


def _noted(pickled: bytes) -> bytes | str:
    """A pickle, or the digest of a large one."""
    return pickled if len(pickled) <= _SMALL else hashlib.blake2b(pickled).hexdigest()


def _is_like(one: bytes | str, other: bytes | str) -> bool:
    """Whether two values are the same. The pickles of two equal sets may differ."""
    if one == other:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return False
    try:
        first, second = pickle.loads(one), pickle.loads(other)
        return type(first) is type(second) and _is_plain(first) and _is_plain(second) and first == second
    except Exception:  # noqa: BLE001  # a class that is no longer there, or a list that holds itself
        return False


def _is_plain(value: object) -> bool:
    """Whether ``==`` compares all of a value: a class of the user's may leave something out."""
    if type(value) in _PLAIN_CONTAINERS:
        return all(map(_is_plain, value))  # type: ignore[call-overload]  # it is a container
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return type(value) in _PLAIN


def _may_be_data(value: object) -> bool:
    """Whether a value is a container or of a user's class, rather than a library's connection or lock."""
    if isinstance(value, (*CONTAINERS, tuple, frozenset)):
        return True
    name = type(value).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or name == "__main__":
        return True
    if file is None or name.partition(".")[0] == "acktree":
        return False
    return _OF_PYTHON not in Path(file).parents and _PACKAGES.isdisjoint(Path(file).parts)
