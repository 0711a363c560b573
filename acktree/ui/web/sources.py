"""The topologies that the page shows, and their last snapshots: asked once for all who read."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from threading import Lock

from acktree.errors import AcktreeError, MisuseError
from acktree.logs import logger
from acktree.ui.client import DoorError, Found, NobodyRunsError, find, found_topologies, status_of
from acktree.ui.snapshot import Snapshot

__all__ = ["Seen", "Sources", "UnknownTopologyError"]

log = logger("acktree")

_FRESH_SECS = 0.9
_USABLE_SECS = 5.0
"""While somebody asks the drivers, others have the last answers, unless they are older."""
_NEVER = -1e9
_DOOR_SECS = 3.0
"""How long one driver may hold up what is shown of all."""


class UnknownTopologyError(LookupError):
    """The page knows no topology of this id or name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A topology and its last snapshot.

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


class Sources:
    """The topologies of this user.

    Args:
        checkpoints: Checkpoints that are shown too, whether a driver has been seen on them or not.
    """

    def __init__(self, checkpoints: Iterable[str] = ()) -> None:
        self._checkpoints = tuple(checkpoints)
        self._lock = Lock()
        self._last: tuple[float, tuple[Seen, ...]] = (_NEVER, ())
        self._not_found: set[str] = set()
        self._shared: tuple[object, dict[Hashable, bytes]] = (None, {})

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
                seen = (seen for seen in map(_seen, self._found()) if seen)
                last = tuple(sorted(seen, key=lambda one: (not one.is_running, one.snapshot.topology)))
                self._last = time.monotonic(), last
            return last

    def running(self) -> list[Seen]:
        """Those whose driver answers."""
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

    def shared(self, asked: Hashable, made: Callable[[], bytes]) -> bytes:
        """An answer that is made once for all who ask for it between two questions to the drivers.

        Args:
            asked: All that it depends on, except what the drivers answer.
            made: Makes it; called in the thread that asks. Nothing is kept of a call that raises.
        """
        self.all()
        now = self._last  # a new object whenever the drivers were asked, also where there are none
        if self._shared[0] is not now:
            self._shared = now, {}
        _, answers = self._shared
        if asked not in answers:
            answers[asked] = made()
        return answers[asked]

    def forget(self) -> None:
        """Ask the drivers again at the next call: an order may have changed their answers."""
        with self._lock:
            self._last = _NEVER, self._last[1]

    def _found(self) -> list[Found]:
        known = {found.checkpoint: found for found in found_topologies()}
        for named in self._checkpoints:
            try:
                found = find(named)
            except AcktreeError as error:  # it is shown as soon as it is there; all others are shown now
                if named not in self._not_found:
                    log.warning("page: %s", error)
                self._not_found.add(named)
                continue
            known.setdefault(found.checkpoint, found)
        return list(known.values())


def _seen(found: Found) -> Seen | None:
    is_silent = False
    if found.is_running:
        try:
            door = replace(found.door, timeout_secs=_DOOR_SECS)
            return Seen(found, door.snapshot(), is_running=True)
        except (DoorError, TimeoutError):
            is_silent = True
        except NobodyRunsError:  # it has just stopped
            pass
    last = found.last_snapshot()
    return None if last is None else Seen(found, last, is_running=False, is_silent=is_silent)
