"""Messages that operators watch: their next attempts are traced, whatever the rate is.

Spout tasks ask for them at each hand-over. The names are not stored: what was handed over while a message was
watched has a mark, and a run that ends forgets them.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acktree.core.spouts.pending import MessageIds
from acktree.errors import MisuseError
from acktree.tasks.spouts.keys.labels import HasLabel, id_of, label_of
from acktree.texts import kept_label, searched_id, short_repr

MOST_WATCHED: Final = 100
"""How many messages can be watched at a time."""
WATCH_SECS: Final = 300.0
"""How long a message is watched unless the operator says how long."""
MOST_WATCH_SECS: Final = 86_400.0

_PLAIN: Final = frozenset({int, str, bytes})
"""Ids of exactly these types are looked up as they are."""
_QUOTES: Final = ("'", '"', "b'", 'b"')
"""The text of a plain id that has blanks begins with one of them."""
_MOST_SHOWN: Final = 200
"""No id of such a type is shown with more characters."""
_WHERE: Final = "traces.watch()"


def _monotonic_ms() -> int:
    return int(monotonic() * 1000)


class _Watch(NamedTuple):
    """A watched message: its id, or a text that stands for it, and until when it is watched."""

    message_id: object
    until_ms: int


class WatchedNames:
    """The messages that are watched at one time. Immutable.

    Attributes:
        until_ms: When the first of them is not watched any more.
    """

    def __init__(self, watched: Iterable[_Watch]) -> None:
        """Make it from one message or more."""
        self._values: set[object] = set()
        self._texts: set[str] = set()
        self._is_inexact = False
        self.until_ms = min(watch.until_ms for watch in watched)
        for watch in watched:
            self._add(watch.message_id)
        self._starts = frozenset(text.rpartition(" ")[0] for text in self._texts if "..." in text)

    def _add(self, message_id: object) -> None:
        self._texts.add(searched_id(message_id))
        if type(message_id) in _PLAIN:
            self._values.add(message_id)
        if isinstance(message_id, str):  # maybe what `acktree open` shows
            self._texts |= {message_id, kept_label(message_id)}
            self._values |= _shown_as(message_id)
            # It may be the text of an id of a plain type that was shortened, or whose blanks were.
            is_quoted = message_id.startswith(_QUOTES)
            self._is_inexact |= "..." in message_id or (is_quoted and " " in message_id)

    def among(self, message_ids: MessageIds) -> npt.NDArray[np.bool_]:
        """Which of some message ids are watched, shape (n,)."""
        ids = message_ids.tolist() if isinstance(message_ids, np.ndarray) else message_ids
        return np.fromiter((self._has(message_id) for message_id in ids), np.bool_, len(ids))

    def _has(self, message_id: object) -> bool:
        if isinstance(message_id, HasLabel):
            if label_of(message_id) in self._texts:
                return True
            message_id = id_of(message_id)
        if type(message_id) in _PLAIN and (not self._is_inexact or message_id in self._values):
            return message_id in self._values
        shown = short_repr(message_id)
        if shown in self._texts:
            return True
        return shown in self._starts and searched_id(message_id) in self._texts  # of a long id the whole repr


class WatchedIds:
    """The messages that operators watch in one run. Any thread may use it.

    Args:
        clock_ms: The time, from any moment on.
    """

    def __init__(self, clock_ms: Callable[[], int] = _monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._watches: dict[tuple[type, str], _Watch] = {}
        self._names: WatchedNames | None = None

    def add(self, message_ids: Iterable[object], secs: float) -> None:
        """Watch messages from now on. One that is watched already is watched until the new time is over.

        Raises:
            MisuseError: No ids, too many, or no such time; nothing is watched then that was not.
        """
        if isinstance(message_ids, (str, bytes)) or not isinstance(message_ids, Iterable):
            raise MisuseError(f"{message_ids!r:.60} is no list of message ids", _WHERE, "give a list")
        ids = [*message_ids]
        if not ids or any(message_id is None for message_id in ids):
            raise MisuseError(
                "a message without an id cannot be watched" if ids else "there is no message id",
                _WHERE, "give ids as the spout emits them, or as `acktree open` shows them",
            )  # fmt: skip
        if not 0 < secs <= MOST_WATCH_SECS:
            raise MisuseError(
                f"{secs!r:.40} is no time to watch", f"{_WHERE}, secs=",
                f"give more than 0 seconds, up to {MOST_WATCH_SECS:,.0f}",
            )  # fmt: skip
        now_ms = self._clock_ms()
        with self._lock:
            watches = self._still(now_ms)
            watches |= {
                (type(message_id), searched_id(message_id)): _Watch(
                    message_id, now_ms + max(1, round(secs * 1000))
                )
                for message_id in ids
            }
            if len(watches) > MOST_WATCHED:
                raise MisuseError(
                    f"{len(watches):,} messages would be watched, and {MOST_WATCHED} can be at a time",
                    _WHERE,
                    "name fewer, or wait until those that are watched are over: see traces.watched",
                )
            self._set(watches)

    @property
    def names(self) -> WatchedNames | None:
        """What is watched now; None for nothing. Spout tasks ask at each hand-over."""
        names = self._names
        if names is None or self._clock_ms() < names.until_ms:
            return names
        with self._lock:
            self._set(self._still(self._clock_ms()))
            return self._names

    @property
    def secs_left(self) -> Mapping[str, float]:
        """The ids that are watched, as named or as ``acktree open`` shows them, and for how long.

        Of ids whose texts are the same, such as 7 and "7", texts are shown as ``acktree open`` shows them.
        """
        now_ms = self._clock_ms()
        with self._lock:
            watches = self._still(now_ms).values()
        secs_by_id: dict[str, float] = {}
        for watch in sorted(watches, key=lambda watch: isinstance(watch.message_id, str)):
            text = next(text for text in _texts_of(watch.message_id) if text not in secs_by_id)
            secs_by_id[text] = (watch.until_ms - now_ms) / 1000
        return secs_by_id

    def _still(self, now_ms: int) -> dict[tuple[type, str], _Watch]:
        return {key: watch for key, watch in self._watches.items() if now_ms < watch.until_ms}

    def _set(self, watches: dict[tuple[type, str], _Watch]) -> None:
        self._watches = watches
        self._names = WatchedNames(watches.values()) if watches else None


def _texts_of(message_id: object) -> Iterator[str]:
    """Texts for an id, the usual one first: as it was named, or as ``acktree open`` shows it."""
    yield message_id if isinstance(message_id, str) else short_repr(message_id)
    text = searched_id(message_id)
    yield text
    for number in count(2):  # two types may have one repr
        yield f"{text} ({type(message_id).__name__} {number})"


def _shown_as(text: str) -> set[object]:
    """The id of a plain type that is shown as a text, if there is one."""
    if len(text) > _MOST_SHOWN:
        return set()
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return set()
    return {value} if type(value) in _PLAIN and repr(value) == text else set()
