"""The topologies that the page shows, and their last snapshots: asked once for all who read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from acktree.errors import AcktreeError, MisuseError
from acktree.logs.loggers import logger
from acktree.ui.client import DoorClient, DoorError, Found, NobodyRunsError, find, found_topologies, status_of
from acktree.ui.snapshot import Snapshot

log = logger("acktree")

_FRESH_SECS: Final = 0.9
_USABLE_SECS: Final = 5.0
"""While somebody asks the drivers, others have the last answers, unless they are older."""
_NEVER: Final = -1e9
_DOOR_SECS: Final = 3.0
"""How long one driver may hold up what is shown of all."""


class UnknownTopologyError(LookupError):
    """The page knows no topology of this id or name."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Seen:
    """A topology and its last snapshot. That of a stopped one is the same object until it changes.

    Attributes:
        is_running: Whether its driver answered.
        is_silent: Whether a driver listens, and did not answer in time.
    """

    found: Found
    snapshot: Snapshot
    is_running: bool
    is_silent: bool = False

    @property
    def status(self) -> str:
        """Storm's word; DIED for a driver that was killed, UNKNOWN for one that does not answer."""
        if self.is_silent:
            return "UNKNOWN"
        return status_of(self.found.entry, self.snapshot, is_running=self.is_running)


_Written = tuple[Found, tuple[int, int] | None]
"""A stopped topology, and when its last snapshot was written."""


class Sources:
    """The topologies of this user.

    Args:
        checkpoints: Checkpoints that are shown too, whether a driver has been seen on them or not.
    """

    def __init__(self, checkpoints: Iterable[str] = ()) -> None:
        self._checkpoints = tuple(checkpoints)
        self._lock = Lock()
        self._last: tuple[float, tuple[Seen, ...]] = (_NEVER, ())
        self._has_looked = False
        self._not_found: set[str] = set()
        self._stopped: dict[_Written, Seen] = {}

    def all(self) -> tuple[Seen, ...]:
        """All that are known, those that run first, then by name. Asks drivers at most once a second.

        Between two questions it returns the same object, by which a caller knows that nothing is new.
        """
        usable_secs = _USABLE_SECS if self._lock.locked() else _FRESH_SECS
        at, last = self._last
        if time.monotonic() - at < usable_secs:
            return last
        with self._lock:
            at, last = self._last
            if time.monotonic() - at >= _FRESH_SECS:
                seen = self._seen()
                last = tuple(sorted(seen, key=lambda one: (not one.is_running, one.snapshot.topology)))
                self._last, self._has_looked = (time.monotonic(), last), True
            return last

    def has_looked(self) -> bool:
        """Whether the topologies were asked once. The first who wants to know asks them, others do not wait.

        Raises:
            ConfigError: They cannot be asked: other users have rights in the folder for sockets, for example.
        """
        if not self._has_looked and not self._lock.locked():
            self.all()
        return self._has_looked

    def is_newest(self, seen: tuple[Seen, ...]) -> bool:
        """Whether :meth:`all` would return these again now, without asking."""
        at, last = self._last
        return seen is last and time.monotonic() - at < _FRESH_SECS

    def running(self) -> list[Seen]:
        """The topologies whose driver answers."""
        return [seen for seen in self.all() if seen.is_running]

    def one(self, named: str) -> Seen:
        """The topology of an id or a name.

        Raises:
            UnknownTopologyError: There is none.
            MisuseError: There are several.
        """
        known = self.all()
        matching = [seen for seen in known if seen.snapshot.id == named]
        matching = matching or [seen for seen in known if seen.snapshot.topology == named]
        chosen = [seen for seen in matching if seen.is_running] or matching
        if not chosen:
            raise UnknownTopologyError(f"there is no topology {named!r}")
        if len(chosen) > 1:
            raise MisuseError(
                f"{len(chosen)} topologies are called {named!r}",
                ", ".join(seen.snapshot.checkpoint for seen in chosen),
                "name one by its id, or on the command line by its checkpoint",
            )
        return chosen[0]

    def forget(self) -> None:
        """Ask the drivers again at the next call: an order may have changed their answers."""
        with self._lock:
            self._last = _NEVER, self._last[1]

    def _seen(self) -> list[Seen]:
        """All of which there is a snapshot. Stopped ones are read again only if they change."""
        seen, stopped = [], {}
        for found in self._found():
            if found.is_running:
                asked = _asked(found)
                if asked is not None:
                    seen.append(asked)
                    continue
                found = replace(found, is_running=False)  # noqa: PLW2901  # it has stopped meanwhile
            written = found, found.last_snapshot_written()
            read = self._stopped.get(written) or _read(found)
            if read is not None:
                stopped[written] = read
        self._stopped = stopped
        return [*seen, *stopped.values()]

    def _found(self) -> list[Found]:
        known = {target.checkpoint: target for target in found_topologies()}
        for named in self._checkpoints:
            try:
                target = find(named)
            except AcktreeError as error:  # it is shown as soon as it is there; all others are shown now
                if named not in self._not_found:
                    log.warning("page: %s", error)
                self._not_found.add(named)
                continue
            known.setdefault(target.checkpoint, target)
        return list(known.values())


def door_of(target: Found) -> DoorClient:
    """A driver's socket, for a question that holds up others. NobodyRunsError where no driver answers."""
    return replace(target.door, timeout_secs=_DOOR_SECS)


def _asked(target: Found) -> Seen | None:
    """What a driver answers; None where nobody runs the topology any more."""
    try:
        return Seen(target, door_of(target).snapshot(), is_running=True)
    except (DoorError, TimeoutError):
        last = target.last_snapshot()
        return None if last is None else Seen(target, last, is_running=False, is_silent=True)
    except NobodyRunsError:
        return None


def _read(target: Found) -> Seen | None:
    last = target.last_snapshot()
    return None if last is None else Seen(target, last, is_running=False)
