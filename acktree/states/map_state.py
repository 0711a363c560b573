"""Map and snapshot states, by the rules of Trident.

Rules of this file
------------------
1. ``begin_commit(txid)`` and ``commit(txid)`` frame a batch. A key that the batch itself has written is read
   and updated by its current value, whatever number is stored. For other keys the mode decides.
2. Plain: the value is stored alone. An update counts each time.
3. Transactional: ``[txid, value]``. A key with the number of the batch was written by an earlier attempt: it
   is left alone. So a batch that comes again must hold the same tuples.
4. Opaque: ``[txid, value, value before]``. A key with the number of the batch is updated from the value
   before; so a batch may come again with other tuples. A key with a later number is an error.
5. Without a batch (txid None) the current value is read and updated.
6. A key or value that is refused fails alone: the others are written, and then the error is raised.
7. Values are stored as JSON. One that JSON would return as another value is refused.

A batch updates each key in one call: group its tuples first. A key that only an abandoned attempt of a batch
has written keeps what that attempt wrote, as in Trident.

Source: Storm's ``TransactionalMap``, ``OpaqueMap``, ``NonTransactionalMap``, ``CachedBatchReadsMap`` and
``OpaqueValue``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from acktree.errors import CheckpointError, ConfigError, MisuseError

__all__ = ["MapBacking", "MapState", "MemoryMap", "Mode", "RefusedKeysError", "SnapshotState"]

Mode = Literal["plain", "transactional", "opaque"]
Update = Callable[[Any], Any]
"""Makes a value of the one before; None: there is none."""

_LENGTHS: Final[Mapping[Mode, int]] = {"transactional": 2, "opaque": 3}
"""How many parts a stored value has, by the mode."""
_LONGEST_KEY: Final = 700
"""Letters of a key as JSON: MySQL's index takes no more."""
_LONGEST_VALUE: Final = 1 << 26
_SNAPSHOT: Final = "$GLOBAL$"
"""The key of a snapshot's value, Trident's. A map's keys are JSON, so none is equal to it."""


class MapBacking(ABC):
    """Where a map's values are stored: texts by texts."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> Sequence[str | None]:
        """The text of each key; None where there is none."""

    @abstractmethod
    def put(self, texts: Mapping[str, str | None]) -> None:
        """Store texts by their keys, all of them or none. None: the key is removed."""

    @property
    def where(self) -> str:
        """What errors call it."""
        return type(self).__name__


class MemoryMap(MapBacking):
    """A map in the memory of the process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def get(self, keys: Sequence[str]) -> Sequence[str | None]:
        return [self._texts.get(key) for key in keys]

    def put(self, texts: Mapping[str, str | None]) -> None:
        for key, text in texts.items():
            if text is None:
                self._texts.pop(key, None)
            else:
                self._texts[key] = text


class RefusedKeysError(MisuseError):
    """A call had keys that were refused. The others were written.

    Args:
        refused: What was raised for each key that was refused, by its index in the call.
        values: What the call would have returned; None for keys that were refused.
        where: The state.
    """

    def __init__(self, refused: Mapping[int, Exception], values: Sequence[Any], where: str) -> None:
        first = next(iter(refused.values()))
        fix = first.fix if isinstance(first, MisuseError) else "correct the function, or what it is given"
        words = first.what if isinstance(first, MisuseError) else f"{type(first).__name__}: {first!s:.200}"
        super().__init__(f"{len(refused)} of {len(values)} keys are refused; the first: {words}", where, fix)
        self.refused, self.values = refused, values

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refused, self.values, self.where)


class _Stored(NamedTuple):
    """What is stored of a key.

    Attributes:
        txid: The batch that wrote it.
        value: The value.
        before: The value before that batch.
        is_own: Whether the batch that reads it has written it.
    """

    txid: int | None
    value: Any
    before: Any = None
    is_own: bool = False


class MapState:
    """Values by key, updated by batches.

    Args:
        backing: Where they are stored.
        mode: What is stored beside each value: see ``acktree.states``.

    A key is a text, a number, a boolean, None, or a tuple of these. A value is what JSON returns as it was:
    texts, finite numbers, booleans, None, and lists and dicts of these.

    >>> counts = MapState(MemoryMap())
    >>> counts.begin_commit(1)
    >>> counts.multi_update(["the", "man"], [lambda count: (count or 0) + 2] * 2)
    [2, 2]
    >>> counts.begin_commit(1)  # it comes again, with another count
    >>> counts.multi_update(["the"], [lambda count: (count or 0) + 3])
    [3]
    >>> counts.commit(1)
    >>> counts.get("the"), counts.get("moon")
    (3, None)
    """

    def __init__(self, backing: MapBacking, mode: Mode = "opaque") -> None:
        if mode not in ("plain", *_LENGTHS):
            fix = 'give "plain", "transactional" or "opaque"'
            raise ConfigError(f"mode is {mode!r}", f"MapState({backing.where}, ...)", fix)
        self._backing, self._mode = backing, mode
        self._txid: int | None = None
        self._written: dict[str, _Stored] = {}
        self._removed: dict[str, int | None] = {}

    def begin_commit(self, txid: int | None) -> None:
        """Begin a batch.

        Args:
            txid: The number of the micro-batch; None for no batch.
        """
        self._end(txid)

    def commit(self, txid: int | None) -> None:  # noqa: ARG002  # Trident's signature
        """End a batch. All that it wrote is stored already."""
        self._end(None)

    def get(self, key: Any) -> Any:  # noqa: ANN401  # any key and value of the user
        """The value of a key; None if it has none."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        """The value of each key.

        Raises:
            RefusedKeysError: Some keys cannot be keys; ``values`` has the values of the others.
        """
        call = _Call(keys, self._where)
        stored = self._read(call.names.values())
        for index, name in call.names.items():
            call.values[index] = self._current(stored.get(name))
        return call.done()

    def multi_update(self, keys: Sequence[Any], functions: Sequence[Update]) -> list[Any]:
        """Update the value of each key by a function of the value before. Returns the new values.

        Raises:
            RefusedKeysError: Some keys, functions or values are refused. The others are written.
        """
        if len(keys) != len(functions):
            what = f"there are {len(keys)} keys and {len(functions)} functions"
            raise MisuseError(what, f"{self._where}, multi_update", "give a function for each key")
        call = _Call(keys, self._where)
        stored = self._read(call.names.values())
        new: dict[str, _Stored] = {}
        for index, name in call.names.items():
            found = new.get(name, stored.get(name))
            if found is not None and self._mode == "transactional" and self._is_again(found):
                call.values[index] = found.value
                continue
            try:
                value = functions[index](self._current(found))
                _to_json(value, f"a value of {keys[index]!r:.60}")
            except CheckpointError:
                raise
            except Exception as error:  # noqa: BLE001  # of the user's function or value: it fails this key
                call.refused[index] = error
            else:
                new[name] = self._updated(found, value)
                call.values[index] = value
        self._write(new)
        return call.done()

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the value of each key.

        Raises:
            RefusedKeysError: Some keys or values are refused. The others are written.
        """
        if len(keys) != len(values):
            what = f"there are {len(keys)} keys and {len(values)} values"
            raise MisuseError(what, f"{self._where}, multi_put", "give a value for each key")
        self.multi_update(keys, [_always(value) for value in values])

    def remove(self, keys: Iterable[Any]) -> None:
        """Remove keys. If the batch comes again, an opaque state has their values again.

        Raises:
            RefusedKeysError: Some cannot be keys. The others are removed.
        """
        call = _Call(list(keys), self._where)
        names = set(call.names.values())
        if self._mode == "plain":
            self._backing.put(dict.fromkeys(names))
        else:
            stored = self._read(names)
            self._write({name: self._updated(found, None) for name, found in stored.items()})
            self._removed |= dict.fromkeys(stored, self._txid)
        call.done()

    @property
    def _where(self) -> str:
        return f"MapState({self._backing.where}, mode={self._mode!r})"

    def _end(self, txid: int | None) -> None:
        """Begin a batch, or end one. A removed key is forgotten when no earlier batch can come again."""
        self._written.clear()
        self._txid = txid
        over = [
            name
            for name, removed in self._removed.items()
            if txid is not None and (removed is None or removed < txid)
        ]
        for name in over:
            del self._removed[name]
        texts = zip(over, self._backing.get(over), strict=True) if over else ()
        gone = [name for name, text in texts if text is not None and self._parsed(text).value is None]
        if gone:
            self._backing.put(dict.fromkeys(gone))

    def _read(self, names: Iterable[str]) -> dict[str, _Stored]:
        """What is stored of keys that have a value. What the batch has written counts as stored."""
        unique = list(dict.fromkeys(names))
        texts = zip(unique, self._backing.get(unique), strict=True) if unique else ()
        return {
            name: self._written.get(name) or self._parsed(text) for name, text in texts if text is not None
        }

    def _write(self, new: Mapping[str, _Stored]) -> None:
        if new:
            self._backing.put({name: self._text(stored) for name, stored in new.items()})
            self._written |= new
            for name in new:
                self._removed.pop(name, None)

    def _parsed(self, text: str) -> _Stored:
        plain = json.loads(text)
        if self._mode == "plain":
            return _Stored(None, plain)
        if not isinstance(plain, list) or len(plain) != _LENGTHS[self._mode]:
            what = f"a stored value is not one of mode {self._mode!r}: {text:.60}"
            raise ConfigError(what, self._where, "give the mode that it was written with, or an empty map")
        return _Stored(*plain)

    def _text(self, stored: _Stored) -> str:
        plain = stored.value if self._mode == "plain" else list(stored[: _LENGTHS[self._mode]])
        return json.dumps(plain, separators=(",", ":"))

    def _current(self, found: _Stored | None) -> Any:  # noqa: ANN401
        """The value that the batch reads and updates."""
        if found is None:
            return None
        return found.before if self._mode == "opaque" and self._is_again(found) else found.value

    def _is_again(self, found: _Stored) -> bool:
        """Whether an earlier attempt of the batch has written it.

        Raises:
            CheckpointError: A later batch has.
        """
        if found.is_own or self._txid is None or found.txid is None:
            return False
        if self._mode == "opaque" and found.txid > self._txid:
            what = f"batch {self._txid} comes after batch {found.txid} has been stored"
            fix = "give the topology the checkpoint that wrote this state, or an empty state"
            raise CheckpointError(what, self._where, fix)
        return found.txid == self._txid

    def _updated(self, found: _Stored | None, value: object) -> _Stored:
        """What is stored after an update."""
        if found is None:
            before = None
        else:
            before = found.before if found.is_own or self._is_again(found) else found.value
        return _Stored(self._txid, value, before, is_own=True)


class SnapshotState:
    """One value, updated by batches.

    Args:
        backing: Where it is stored: under Trident's key ``$GLOBAL$``, so a map may be there too.
        mode: As of :class:`MapState`.
    """

    def __init__(self, backing: MapBacking, mode: Mode = "opaque") -> None:
        self._map = MapState(_Snapshot(backing), mode)

    def begin_commit(self, txid: int | None) -> None:
        """Begin a batch."""
        self._map.begin_commit(txid)

    def commit(self, txid: int | None) -> None:
        """End a batch."""
        self._map.commit(txid)

    def get(self) -> Any:  # noqa: ANN401  # the user's
        """The value; None if there is none."""
        return self._map.get(None)

    def update(self, function: Update) -> Any:  # noqa: ANN401
        """Update the value by a function of the one before. Returns the new value."""
        return self._map.multi_update([None], [function])[0]

    def set(self, value: Any) -> None:  # noqa: ANN401
        """Set the value."""
        self._map.multi_put([None], [value])


class _Snapshot(MapBacking):
    """A backing of which one key is used."""

    def __init__(self, backing: MapBacking) -> None:
        self._backing = backing

    def get(self, keys: Sequence[str]) -> Sequence[str | None]:
        return self._backing.get([_SNAPSHOT for _ in keys])

    def put(self, texts: Mapping[str, str | None]) -> None:
        self._backing.put(dict(zip([_SNAPSHOT], texts.values(), strict=True)))

    @property
    def where(self) -> str:
        return self._backing.where


class _Call:
    """A call for several keys.

    Attributes:
        names: The name of each key that can be one, by its index.
        values: What is returned.
        refused: What was raised for a key, by its index.
    """

    def __init__(self, keys: Sequence[object], where: str) -> None:
        self._where = where
        self.names: dict[int, str] = {}
        self.values: list[Any] = [None] * len(keys)
        self.refused: dict[int, Exception] = {}
        for index, key in enumerate(keys):
            try:
                self.names[index] = _name_of(key)
            except MisuseError as error:
                self.refused[index] = error

    def done(self) -> list[Any]:
        """The values. Raises RefusedKeysError if a key is refused."""
        if self.refused:
            raise RefusedKeysError(dict(sorted(self.refused.items())), self.values, self._where)
        return self.values


def _always(value: object) -> Update:
    return lambda _: value


def _name_of(key: object) -> str:
    """The key as JSON. Equal keys have the same name: 1 is 1.0, and no boolean."""
    try:
        text = _to_json(_as_list(key), "a key")
    except RecursionError:
        raise MisuseError("a key contains itself", "a state's key", _JSON_FIX) from None
    if len(text) > _LONGEST_KEY:
        what = f"a key has {len(text):,} letters as JSON, more than {_LONGEST_KEY}"
        raise MisuseError(what, f"the key {text:.60}", "give a shorter one, such as a hash of it")
    return text


def _as_list(key: object) -> object:
    """A tuple as a list, and a whole float as an integer: equal keys are equal as JSON."""
    if isinstance(key, tuple | list):
        return [_as_list(part) for part in key]
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, dict):
        raise MisuseError("a key is a dict", "a state's key", "give a tuple of texts and numbers")
    return key


def _to_json(value: object, name: str) -> str:
    """A value as JSON.

    Raises:
        MisuseError: JSON has no such value, or would return another one.
    """
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        is_same = _is_plain(value) or _are_equal(json.loads(text), value)
    except Exception as error:  # noqa: BLE001  # methods of the value raise what they like
        what = f"{name} is not JSON: {type(error).__name__}: {error!s:.100}"
        raise MisuseError(what, f"a {type(value).__name__}", _JSON_FIX) from None
    if not is_same:
        raise MisuseError(f"JSON would return {name} as another one", f"a {type(value).__name__}", _JSON_FIX)
    if len(text) > _LONGEST_VALUE:
        what = f"{name} has {len(text):,} letters as JSON, more than {_LONGEST_VALUE:,}"
        raise MisuseError(what, f"a {type(value).__name__}", "store it elsewhere, and its name here")
    return text


_JSON_FIX: Final = "give texts, finite numbers, booleans, None, and lists and dicts of these"


def _is_plain(value: object) -> bool:
    """Whether JSON returns a value as it is, if it is JSON at all."""
    kind = type(value)
    # Of a text, JSON joins two halves of a surrogate pair.
    return value is None or kind in (int, bool, float) or (kind is str and str.isascii(value))  # type: ignore[arg-type]


def _are_equal(returned: object, value: object) -> bool:
    """Whether a value that JSON returned is the same, types included."""
    if isinstance(value, dict):
        return (
            isinstance(returned, dict)
            and returned.keys() == value.keys()
            and all(_are_equal(returned[key], each) for key, each in value.items())
        )
    if isinstance(value, list):
        return isinstance(returned, list) and all(map(_are_equal, returned, value))
    return type(returned) is type(value) and returned == value
