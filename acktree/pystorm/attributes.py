"""What of a component is data: the attributes that are saved, and what becomes of them at a restart.

Rules of this file
------------------
1. An attribute that can be pickled is data, in ``__dict__`` and in ``__slots__``; ``remembers`` on the class
   names those that are. The others are *opaque*: they stay with the object. One that may hold data
   (:mod:`acktree.pystorm.holders`) is named by a warning, or refused if ``remembers`` names it.
2. What the set-up gives, such as ``context``, is not data as long as the component has not assigned another.
3. What ``initialize`` made is noted with the data. A restart may bring another configuration or other code:
   an attribute that was still as ``initialize`` had made it is as ``initialize`` makes it now. One that the
   component has changed is restored, at each restart from then on.
4. In doubt an attribute counts as changed: what was counted is worth more than what can be made again.
5. What cannot be saved whole is not saved: then nothing of the micro-batch may count.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from types import GeneratorType, MemberDescriptorType
from typing import Any, Final

from acktree import CheckpointError, ConfigError, MisuseError
from acktree.logs.loggers import logger
from acktree.pystorm.forms import NOT_ITS_FAULT, UnreadableError, form, pickled, pickled_and_read
from acktree.pystorm.holders import CONTAINERS, ClassBodies, may_be_data, shared_with
from acktree.texts import error_text, short_repr

__all__ = ["OF_CLASS", "Attributes", "names_remembered"]

OF_CLASS: Final = frozenset({"config", "outputs", "par", "remembers", "_current_tups"})
"""Attributes of classes that are read once, and those of the engine."""
_MUCH: Final = 1_000_000
_PREFIX: Final = "_acktree_"
"""What the names of acktree's own attributes begin with."""
_OF_ENGINE: Final = frozenset(
    {
        "_batch_lock", "_current_tups", "_pending_commands", "_pending_task_ids", "_reader_lock",
        "_source_tuple_types", "_writer_lock", "serializer",
    }
)  # fmt: skip
"""Attributes that ``Component`` and its subclasses make, and that are no data."""
_OF_SET_UP: Final = (
    "component_name", "context", "debug", "logger", "pid", "storm_conf", "task_id", "topology_name",
)  # fmt: skip
"""Those that a component may use for its own, since nothing reads them after the set-up."""
_MISSING: Final = object()
_NOT_HERE: Final = "not saved, and another one in each process that the task passes through"
_WAY_OUT: Final = (
    "Write defaultdict(int) or a function with a name in place of a lambda, leave a lock out by "
    "__getstate__, or name the attributes to keep on the class: remembers = [...]"
)


def names_remembered(kind: type) -> frozenset[str] | None:
    """The attributes that a component class names by ``remembers``; None for all.

    Raises:
        ConfigError: It is one text, or has something else than texts.
    """
    given = getattr(kind, "remembers", None)
    if not isinstance(given, str | list | tuple | set | frozenset):
        return None  # a program of pystorm's that has this name for something else
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"remembers is {given!r:.80}, and no list of names of attributes", f"class {kind.__name__}",
            f"write remembers = [{given!r:.80}]" if isinstance(given, str) else 'write remembers = ["name"]',
        )  # fmt: skip
    return frozenset(given)


class Attributes:
    """The attributes of a component object that was set up.

    Args:
        component: The object.
        only: Those that ``remembers`` names; None for all.
        name: The component's id.
        task: Its task.

    Attributes:
        made: What ``initialize`` made, in the form in which it goes with the data.
    """

    def __init__(self, component: Any, only: frozenset[str] | None, name: str, task: int) -> None:
        self.made = b""
        self._component, self._only = component, only
        self._name, self._task = name, task
        self._logger = logger(f"pystorm.component.{name}")
        self._slots = _slots_of(type(component))
        have = self._have()
        self._set_up: dict[str, object] = {name: have[name] for name in _OF_SET_UP if name in have}
        self._apart = component, have.get("storm_conf"), have.get("context")
        self._bodies = ClassBodies(type(component), OF_CLASS)
        self._opaque: dict[str, tuple[str, object]] = {}
        """Why an attribute is not saved, and what it was then."""
        self._warned: set[str] = set()
        self._starts: dict[str, tuple[str, bool]] = {}
        """The form of what ``initialize`` made, and whether an earlier run has changed it."""
        self._own: set[str] = set()
        """What ``initialize`` made of this object."""
        self._data = b""

    def note_made(self, *, is_first: bool) -> None:
        """Note what ``initialize`` has made.

        Args:
            is_first: Whether the task has no other object in this run: only what that one notes is saved.

        Raises:
            MisuseError: An attribute that ``remembers`` names cannot be saved.
        """
        have = self._have()
        for name in self._names(have):
            try:
                data = pickled_and_read(have[name], self._component)
            except Exception as error:
                _raise_if_passing(error)
                self._leave_out(name, have[name], error)
                if self._only is not None:
                    raise self._refused(name, error) from error
            else:
                self._own.add(name)
                self._starts[name] = _form_of(data) if is_first else "", False
        self.made = _packed(self._starts)

    def warn_of_opaque(self) -> None:
        """Warn of each attribute that may be data, or shares data, and is not saved."""
        have = self._have()
        saved = [(name, have[name]) for name in self._names(have) if name not in self._opaque]
        for name in sorted(have.keys() - dict(saved).keys() - _OF_ENGINE):
            if issubclass(type(have[name]), (GeneratorType, io.IOBase)):  # not isinstance: a proxy may raise
                self.warn(
                    name, "is a generator or an open file: each process that the task passes through has "
                    "its own, at its own position; keep a position in an attribute of its own",
                )  # fmt: skip
        for name, (why, value) in sorted(self._opaque.items()):
            self._warn_of(name, value, why, saved)
        for name in self._bodies.kept_by_descriptors:
            self.warn(
                name, f"is kept by its descriptor and {_NOT_HERE}: a descriptor can keep it in __dict__"
            )
        if isinstance(self._component, CONTAINERS):
            self.warn("its class", f"derives from a container, whose items are {_NOT_HERE}")

    def _warn_of(self, name: str, value: object, why: str, saved: Iterable[tuple[str, object]]) -> None:
        if may_be_data(value, self._component):
            self.warn(
                name, f"is not saved, for {why}. So each process that the task passes through has its own, "
                f"and after a restart it is new. {_WAY_OUT}",
            )  # fmt: skip
            return
        other = shared_with(value, saved, *self._apart)
        if other is not None:
            self.warn(
                name, f"is not saved, for {why}, and holds a part of {other}, which is saved: where the task "
                f"goes on in another process, the two are apart. Let it look up self.{other} when it is used",
            )  # fmt: skip

    def data(self) -> bytes:
        """The attributes that are data, in one pickle.

        Raises:
            MisuseError: One that ``remembers`` names cannot be pickled.
            BaseException: They cannot be saved, so nothing of this micro-batch may count.
        """
        have = self._have()
        names = [name for name in self._names(have) if not self._is_opaque(name, have)]
        try:
            data = pickled_and_read({name: have[name] for name in names}, self._component, self._data)
        except Exception:  # noqa: BLE001  # user code runs in here
            for name in names:
                try:
                    pickled_and_read(have[name], self._component)
                except Exception as error:
                    _raise_if_passing(error)
                    self._leave_out(name, have[name], error)
                    if self._only is not None:
                        raise self._refused(name, error) from error
                    self._warn_of(name, have[name], self._opaque[name][0], ())
            names = [name for name in names if not self._is_opaque(name, have)]
            data = pickled_and_read({name: have[name] for name in names}, self._component, self._data)
        self._data = data
        for name in names:
            self._opaque.pop(name, None)
        for name in sorted((self._only or frozenset()) - have.keys()):
            self.warn(
                name, "is named by remembers, and the component has no such attribute: nothing is saved"
            )
        for name in self._bodies.changed():
            self.warn(name, f"was changed on the class, where it is {_NOT_HERE}: assign to self")
        if len(data) > _MUCH:
            self.warn(
                "its attributes", f"take {len(data):,} bytes, which are written whole when one changes: "
                "name those to keep by the class attribute remembers = [...]",
            )  # fmt: skip
        return data

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
        before = _unpacked(made)
        have = self._have()
        for name in self._names(have):
            # Else it is new in the code, or its like could not be saved.
            is_over = name in before or name not in self._own
            if is_over and name not in saved and name not in self._opaque and _can_be_pickled(have[name]):
                self._take_away(name)
        if is_restart:
            saved = {name: value for name, value in saved.items() if self._is_restored(name, value, before)}
            self.made = _packed(self._starts)
        elif made is not None:
            self._starts, self.made = before, made
        for name, value in saved.items():
            self._give(name, value)
            self._opaque.pop(name, None)  # it is data, also where initialize now makes what is not
        self._data = data

    def warn(self, name: str, what: str) -> None:
        """Warn of an attribute, once."""
        if name not in self._warned:
            self._warned.add(name)
            self._logger.warning("component %r: %s %s", self._name, name, what)

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = pickle.loads(data)
        except Exception as error:
            raise CheckpointError(
                f"what the attributes of component {self._name!r} were cannot be read: {error_text(error)}",
                f"component {self._name!r}, task {self._task}: a class was renamed, moved or changed",
                "let the old name lead to the new class (Old = New, in the old module), or give up what the "
                f"component remembers: acktree reset-state CHECKPOINT --component {self._name}",
            ) from error
        return {name: value for name, value in saved.items() if self._only is None or name in self._only}

    def _is_restored(self, name: str, value: object, before: Mapping[str, tuple[str, bool]]) -> bool:
        """Whether an attribute is taken from the checkpoint at a restart, rather than from ``initialize``."""
        now, _ = self._starts.get(name, ("", False))
        saved = _form_of(pickled(value)) if _can_be_pickled(value) else ""
        if name not in before:
            self._starts[name] = now, not saved or saved != now
            return True
        was, has_changed = before[name]
        if saved and saved == was and not has_changed:
            return now == was  # as it was: sharing between attributes is kept
        self._starts[name] = now, True
        have = self._have()
        if name in have and not (now and now in {was, saved}):
            self._logger.warning(
                "%s.%s is %s from the checkpoint, initialize now makes %s",
                self._name, name, *_told_apart(value, have[name]),
            )  # fmt: skip
        return True

    def _is_opaque(self, name: str, have: Mapping[str, object]) -> bool:
        """Whether an attribute is not saved, and is still what it was when that was found."""
        return name in self._opaque and self._opaque[name][1] is have[name]

    def _leave_out(self, name: str, value: object, error: Exception) -> None:
        """Save an attribute no more."""
        is_pickled = isinstance(error, UnreadableError)
        why = str(error) if is_pickled else f"it cannot be pickled ({error_text(error)})"
        self._opaque[name] = why, value
        self._own.discard(name)
        if self._starts.pop(name, None) is not None:
            self.made = _packed(self._starts)

    def _refused(self, name: str, error: Exception) -> MisuseError:
        return MisuseError(
            f"attribute {name!r} cannot be pickled, so it cannot be saved, and remembers names it: "
            f"{error_text(error)}",
            f"component {self._name!r}, class {type(self._component).__name__}",
            f"{_WAY_OUT}, without {name!r}",
        )

    def _names(self, have: Mapping[str, object]) -> list[str]:
        """The attributes that are data if they can be pickled."""
        return sorted(
            name
            for name in have
            if name not in _OF_ENGINE
            and not name.startswith(_PREFIX)
            and (self._only is None or name in self._only)
            and have[name] is not self._set_up.get(name, _MISSING)
        )

    def _have(self) -> dict[str, Any]:
        """All attributes of the object."""
        have = dict(vars(self._component))
        for name, slot in self._slots.items():
            try:
                have[name] = slot.__get__(self._component)
            except AttributeError:  # it has no value
                continue
        return have

    def _give(self, name: str, value: object) -> None:
        if name in self._slots:
            self._slots[name].__set__(self._component, value)
        else:
            vars(self._component)[name] = value

    def _take_away(self, name: str) -> None:
        """Delete an attribute; one of the set-up is as that had made it."""
        if name in self._set_up:
            self._give(name, self._set_up[name])
        elif name in self._slots:
            self._slots[name].__delete__(self._component)
        else:
            del vars(self._component)[name]


def _slots_of(kind: type) -> dict[str, MemberDescriptorType]:
    """The ``__slots__`` of a class and its bases."""
    return {
        name: each
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, each in vars(base).items()
        if isinstance(each, MemberDescriptorType)
    }


def _raise_if_passing(error: Exception) -> None:
    """Raise again what says nothing of a value: a thread changes it now, or memory or time is over."""
    if isinstance(error, NOT_ITS_FAULT) or "during iteration" in error_text(error):
        raise error


def _can_be_pickled(value: object) -> bool:
    try:
        pickled(value)
    except Exception as error:  # noqa: BLE001  # user code runs in here
        _raise_if_passing(error)
        return False
    return True


def _form_of(data: bytes) -> str:
    """The form of a pickled value; empty if it has none, and so is like no other."""
    try:
        return form(data)
    except Exception as error:  # noqa: BLE001  # user code runs in here
        _raise_if_passing(error)
        return ""


def _packed(starts: Mapping[str, tuple[str, bool]]) -> bytes:
    return pickle.dumps(dict(sorted(starts.items())))


def _unpacked(made: bytes | None) -> dict[str, tuple[str, bool]]:
    """What :func:`_packed` packed; of an earlier acktree nothing, so that all is restored."""
    found = pickle.loads(made) if made else {}
    return {name: start for name, start in found.items() if isinstance(start, tuple)}


def _told_apart(*values: Any) -> list[str]:
    """Short texts of values. Containers of which these are the same have their sizes behind them."""
    shown = [short_repr(value) for value in values]
    if len({*shown}) > 1 or not all(isinstance(value, CONTAINERS) for value in values):
        return shown
    return [f"{text} ({len(value):,} items)" for text, value in zip(shown, values, strict=True)]
