"""Asks drivers through their sockets, and finds topologies by name, id or checkpoint."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from acktree.checkpoint.holding import holder_in, is_held
from acktree.checkpoint.location import location_of
from acktree.errors import AcktreeError, ConfigError, nearest
from acktree.logs.private_urls import masked_place
from acktree.system.private_files import DISK
from acktree.system.processes import is_alive
from acktree.ui.order_log import BY, SOCKET
from acktree.ui.places import POINTER, SNAPSHOT, Entry, entries, peer_user, read_entry
from acktree.ui.snapshot import Snapshot

_MOST_ANSWER: Final = 256 << 20
_NO_SUCH_FILE: Final = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO,
})  # fmt: skip


class NobodyRunsError(AcktreeError):
    """No driver runs the topology, or it has no door."""


class DoorError(AcktreeError):
    """The driver refused what it was asked.

    Attributes:
        status: The status of HTTP: 404 for what it does not have, 409 for what it cannot do now.
    """

    def __init__(self, what: str, where: str, fix: str, *, status: int = 400) -> None:
        super().__init__(what, where, fix)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    """A connection of HTTP to a Unix socket."""

    def __init__(self, path: str, timeout_secs: float) -> None:
        super().__init__("localhost", timeout=timeout_secs)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if peer_user(self.sock) not in (None, os.geteuid()):
            raise ConnectionRefusedError("the socket belongs to another user")


@dataclass(frozen=True, slots=True)
class DoorClient:
    """The client's side of a driver's socket. Each call is a connection of its own.

    Attributes:
        entry: Where the driver listens.
        timeout_secs: The longest wait for an answer.
        by: The door by which orders come, for the driver's log.
    """

    entry: Entry
    timeout_secs: float = 10.0
    by: str = SOCKET

    def is_answering(self) -> bool:
        """Whether a driver listens."""
        connection = socket.socket(socket.AF_UNIX)
        with connection:
            connection.settimeout(min(2.0, self.timeout_secs))
            try:
                connection.connect(self.entry.socket)
            except BlockingIOError:  # its queue of connections is full: it listens
                return True
            except OSError:
                return False
        return True

    def is_closing(self) -> bool:
        """Whether the driver answers no more, lives, and has not released the checkpoint."""
        is_here = self.entry.host == socket.gethostname() and is_alive(self.entry.pid, of_others=False)
        return is_here and Path(self.entry.socket).exists() and not self.is_answering()

    def snapshot(self, most_age_secs: float = 1.0) -> Snapshot:
        """The topology now; at most so old.

        Raises:
            NobodyRunsError: No driver answers.
            DoorError: It has no snapshot yet.
        """
        answer = self._ask("GET", "/v1/snapshot", {"most_age_secs": most_age_secs})
        try:
            return Snapshot.from_json(answer)
        except ValueError as error:
            raise DoorError(
                f"the driver has no snapshot: {error}", self.entry.id, "try again in a second"
            ) from error

    def get(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask a question."""
        return self._read(self._ask("GET", f"/v1/{path}", query or {}))

    def order(self, order: str, given: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Give an order; returns what came of it.

        Raises:
            NobodyRunsError: No driver answers.
            DoorError: It refused.
        """
        return self._read(self._ask("POST", f"/v1/{order}", given or {}))

    def _read(self, said: bytes) -> dict[str, Any]:
        """An answer. NobodyRunsError for half of one: the driver ended while it sent it."""
        try:
            return dict(json.loads(said))
        except (ValueError, TypeError) as error:
            raise nobody_runs(self.entry, error) from error

    def _ask(self, method: str, path: str, given: Mapping[str, object]) -> bytes:
        connection = _UnixConnection(self.entry.socket, self.timeout_secs)
        try:
            if method == "GET":
                query = {name: _in_query(value) for name, value in given.items() if value is not None}
                connection.request(method, f"{path}?{urlencode(query)}")
            else:
                body = json.dumps(given).encode()
                connection.request(method, path, body, {"Content-Type": "application/json", BY: self.by})
            answer = connection.getresponse()
            said = answer.read(_MOST_ANSWER)
        except (TimeoutError, BlockingIOError) as error:  # the latter where too many wait already
            raise TimeoutError(f"no answer from {self.entry.id} in {self.timeout_secs:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise nobody_runs(self.entry, error) from error
        finally:
            connection.close()
        if answer.status == http.client.OK:
            return said
        raise _refused(said, answer.status, self.entry)


@dataclass(frozen=True, slots=True)
class Found:
    """A topology that was found: its entry, and whether a driver answers.

    Attributes:
        folder: The checkpoint's folder; None where it is at a URL.
    """

    entry: Entry | None
    folder: Path | None
    is_running: bool

    @property
    def checkpoint(self) -> str:
        """The checkpoint's folder or URL."""
        if self.entry is not None:
            return self.entry.checkpoint
        return str(self.folder)

    @property
    def topology(self) -> str | None:
        """The topology's name; None where neither an entry nor a snapshot has it."""
        if self.entry is not None:
            return self.entry.topology
        last = self.last_snapshot()
        return None if last is None else last.topology

    @property
    def door(self) -> DoorClient:
        """The driver's socket.

        Raises:
            NobodyRunsError: No driver answers.
        """
        if self.entry is None or not self.is_running:
            raise nobody_runs(self.entry, None, self.folder)
        return DoorClient(self.entry)

    @property
    def door_is_closing(self) -> bool:
        """Whether its driver lives, answers no more, and has not released the checkpoint."""
        return self.entry is not None and not self.is_running and DoorClient(self.entry).is_closing()

    @property
    def is_elsewhere(self) -> bool:
        """Whether its last driver ran on another machine."""
        return self.entry is not None and self.entry.host != socket.gethostname()

    def last_snapshot(self) -> Snapshot | None:
        """What the checkpoint keeps of its last run; None if there is none."""
        if self.folder is None:
            return None
        with suppress(OSError, ValueError):
            return Snapshot.from_json((self.folder / SNAPSHOT).read_bytes())
        return None

    def last_snapshot_written(self) -> tuple[int, int] | None:
        """Which file the last snapshot is in, and when it was written; None if there is none."""
        if self.folder is None:
            return None
        with suppress(OSError):
            written = (self.folder / SNAPSHOT).stat()
            return written.st_ino, written.st_mtime_ns
        return None

    def snapshot(self) -> Snapshot | None:
        """The topology now; of a stopped one the last that was kept; None if there is none."""
        if self.is_running:
            with suppress(NobodyRunsError):  # it has just stopped
                return self.door.snapshot()
        return self.last_snapshot()


BADLY_ENDED: Final = frozenset({"DIED", "FAILED"})
"""Statuses of a topology that nobody has stopped and that has not come to its end."""


def status_of(entry: Entry | None, snapshot: Snapshot | None, *, is_running: bool) -> str:
    """Storm's word for a topology. DIED: its driver was killed. UNKNOWN: a driver that does not say.

    At a URL no snapshot is kept: a driver that was killed leaves its socket, and one that stops, KILLED,
    deletes it when it has released the checkpoint.

    Args:
        entry: What the last driver wrote when it began; None where there is none.
        snapshot: The last one; of an earlier run, if the last run was killed before it left one.
        is_running: Whether a driver answers.
    """
    if snapshot is None:
        if entry is None or is_running:
            return "UNKNOWN"
        if entry.folder is None and not Path(entry.socket).exists():
            return "STOPPED"
        return "KILLED" if DoorClient(entry).is_closing() else "DIED"
    is_earlier = entry is not None and entry.id != snapshot.id
    return "DIED" if not is_running and (is_earlier or snapshot.is_running) else snapshot.status


def found_topologies() -> Iterator[Found]:
    """All topologies of this user that are known here, running or not."""
    for entry in entries():
        yield Found(entry, entry.folder, DoorClient(entry).is_answering())


def find(named: str) -> Found:
    """The topology that somebody names.

    Args:
        named: A name, an id, or a checkpoint: a folder in which one is, or a URL.

    Raises:
        ConfigError: There is none, or several of that name.
    """
    folder = _checkpoint_at(named)
    if folder is not None:
        return _found_in(folder)
    known = list(entries())
    matching = [entry for entry in known if named in (entry.topology, entry.id, entry.checkpoint)]
    running = [entry for entry in matching if DoorClient(entry).is_answering()]
    chosen = running or matching
    if len(chosen) == 1:
        return Found(chosen[0], chosen[0].folder, bool(running))
    if chosen:
        places = ", ".join(entry.checkpoint for entry in chosen)
        has_ids = len({entry.id for entry in chosen}) == len(chosen)  # not if they began in the same second
        fix = f"name one by its checkpoint{' or its id' if has_ids else ''}"
        raise ConfigError(f"{len(chosen)} topologies are called {named!r}", places, fix)
    raise ConfigError(
        f"there is no topology and no checkpoint {masked_place(named)!r}",
        "topologies of this user on this machine",
        nearest(named, {entry.topology for entry in known})
        if known
        else "submit one, or name its checkpoint: none has run as this user on this machine",
    )


def _checkpoint_at(named: str) -> Path | None:
    try:
        where = location_of(named)
    except ConfigError:
        return None
    if not isinstance(where, Path):
        return None
    file = where / "acktree.json"
    try:
        # The folder may be readable, and its files not. It is not waited for who writes into a pipe.
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError:  # no file has such a name
        return None
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            return None
        fix = "ask as the driver's user" if error.errno == errno.EACCES else "mend that, and ask again"
        what = f"a checkpoint cannot be looked at: {error.strerror}"
        raise ConfigError(what, str(where), fix) from error
    try:
        return where if stat.S_ISREG(os.fstat(opened).st_mode) else None
    finally:
        os.close(opened)


def _found_in(folder: Path) -> Found:
    """What runs on a checkpoint, by the entry in it."""
    entry = read_entry(folder / POINTER)
    if entry is not None and not _is_of(entry, folder):
        entry = None
    if entry is not None and entry.host != socket.gethostname():
        return Found(entry, folder, is_running=False)
    return Found(entry, folder, entry is not None and DoorClient(entry).is_answering())


def _is_of(entry: Entry, folder: Path) -> bool:
    """Whether an entry is of the checkpoint that it is in: a copy of a checkpoint has the original's."""
    if entry.host != socket.gethostname():  # its paths are that machine's
        return True
    try:
        return Path(entry.checkpoint).samefile(folder)
    except OSError:  # it was moved
        return False


def nobody_runs(
    entry: Entry | None, error: BaseException | None = None, folder: Path | None = None
) -> NobodyRunsError:
    """The error for a topology whose driver does not answer, with what is known of it."""
    if entry is None:
        return NobodyRunsError(
            "no driver with a socket for operators runs this topology", str(folder),
            "start it: acktree run MODULE:NAME --checkpoint ...; with Config(control=False) it has no socket",
        )  # fmt: skip
    if entry.host != socket.gethostname():
        return NobodyRunsError(
            f"its driver ran on another machine, {entry.host}", entry.checkpoint, "run this command there"
        )
    if is_alive(entry.pid, of_others=False) and error is not None:
        what = f"process {entry.pid} of topology {entry.topology!r} does not answer: {error}"
        return NobodyRunsError(what, entry.socket, "see its log; it may be stopping")
    kept = "" if entry.folder is None else "; its last numbers: acktree stats"
    last = Found(entry, entry.folder, is_running=False).last_snapshot()
    why = f"process {entry.pid} is gone or has stopped it"
    if entry.folder is not None and is_held(entry.folder):
        holder = holder_in(entry.folder / "lock", DISK)
        return NobodyRunsError(
            f"topology {entry.topology!r} is starting or stopping: {holder}, holds its checkpoint",
            entry.checkpoint,
            "try again in some seconds; its log says what it does",
        )
    if last is not None and last.id == entry.id and last.status == "ENDED":
        return NobodyRunsError(
            f"topology {entry.topology!r} has ended: every message has its verdict",
            entry.checkpoint,
            f"none is needed; a submit with another checkpoint runs it anew{kept}",
        )
    if last is not None and last.id == entry.id and last.status == "FAILED":
        why = f"an error has stopped it: {last.stopped_by}"
    return NobodyRunsError(
        f"nobody runs topology {entry.topology!r}: {why}",
        entry.checkpoint,
        f"submit it again on this checkpoint{kept}",
    )


def _in_query(value: object) -> str:
    """A value as a text. ConfigError for one with a lone surrogate: an argument in another encoding."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text.encode("utf-8", "replace").decode() != text:
        raise ConfigError(f"{text!r:.60} is no text in UTF-8", "what was asked", "give it in UTF-8")
    return text


def _refused(said: bytes, status: int, entry: Entry) -> DoorError:
    parts: Sequence[str] = ("the driver refused", entry.id, "see its log")
    with suppress(ValueError, TypeError, AttributeError):
        given = json.loads(said)
        parts = tuple(
            str(given.get(name, other)) for name, other in zip(("error", "where", "fix"), parts, strict=True)
        )
    return DoorError(*parts, status=status)
