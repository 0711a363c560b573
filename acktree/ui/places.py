"""Where drivers' sockets are, and how a topology is found by its name or its checkpoint.

Each driver writes an entry, a small JSON file, into the user's runtime folder, and the same into its
checkpoint. The socket is in the runtime folder too: a path of a socket has at most 107 bytes, and the path of
a checkpoint may be longer. An entry stays after the end of its driver, so that a stopped topology is found.

Rules of this file
------------------
1. A folder in which other users may write or look is refused.
2. An entry says where to look, and never what is true: whether somebody runs a topology, its socket says.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Final

from acktree.errors import ConfigError
from acktree.system.private_files import Disk, make_private_folder, xdg_folder

POINTER: Final = "control.json"
"""The entry's file in the checkpoint."""
SNAPSHOT: Final = "snapshot.json"
"""The last snapshot's file in the checkpoint."""
_LONGEST_SOCKET: Final = 100
"""Linux takes 107 bytes, macOS 103."""
_MOST_BYTES: Final = 65_536
_ENTRY: Final = re.compile(r"[0-9a-f]{16}\.json")
"""The files of entries in the runtime folder; one that is being written has another name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the driver of a topology listens, or listened.

    Attributes:
        id: Name, run and the second in which the run began.
        checkpoint: The folder or URL.
        socket: The path of the Unix socket.
    """

    topology: str
    id: str
    checkpoint: str
    socket: str
    pid: int
    host: str
    began_ms: int

    def to_json(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @property
    def folder(self) -> Path | None:
        """The checkpoint's folder; None where it is at a URL."""
        return None if "://" in self.checkpoint else Path(self.checkpoint)


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's own folder for sockets and entries, made if it is missing.

    ``$XDG_RUNTIME_DIR/acktree`` if that is set and exists, else ``acktree`` in ``$XDG_STATE_HOME`` or
    ``~/.local/state``.

    Raises:
        ConfigError: It cannot be made, or other users have rights in it.
    """
    folder = _wanted_folder(environment)
    try:
        make_private_folder(folder)
        is_private = _is_private(folder)
    except OSError as error:
        raise ConfigError(
            f"the folder for sockets cannot be made: {error}",
            str(folder),
            "set XDG_RUNTIME_DIR to a folder of your own, or Config(control=False)",
        ) from error
    if not is_private:
        raise ConfigError(
            "other users have rights in the folder for sockets",
            str(folder),
            f"chown it to yourself and run: chmod 700 {folder}",
        )
    return folder


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user has rights in a folder. OSError if it is not there."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _wanted_folder(environment: Mapping[str, str]) -> Path:
    possible = _possible_folders(environment)
    if not possible:
        raise ConfigError(
            "there is no place for sockets: this user has no home", "HOME", "set XDG_RUNTIME_DIR"
        )
    return possible[0]


def _possible_folders(environment: Mapping[str, str]) -> list[Path]:
    """Where the runtime folder may be, the one to use first.

    A driver that cron or a service started has no ``XDG_RUNTIME_DIR``, and the shell of its user has one.
    """
    runtime, state = xdg_folder("XDG_RUNTIME_DIR", environment), xdg_folder("XDG_STATE_HOME", environment)
    found = [runtime] if runtime is not None and runtime.is_dir() else []
    if state is not None:
        found.append(state)
    else:
        with suppress(RuntimeError):  # there is no home
            found.append(Path.home() / ".local" / "state")
    return [folder / "acktree" for folder in found]


def key_of(checkpoint: str) -> str:
    """What files of a checkpoint's driver are called in the runtime folder."""
    return blake2b(checkpoint.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def socket_path(folder: Path, key: str) -> Path:
    """Where the socket of a driver goes: the runtime folder, or a short new folder where that is too long."""
    wanted = folder / f"{key}.sock"
    if len(os.fsencode(wanted)) <= _LONGEST_SOCKET:
        return wanted
    return Path(tempfile.mkdtemp(prefix="acktree-", dir=_short_folder())) / "s"


def _short_folder() -> str | None:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_SOCKET // 2 else "/tmp"  # noqa: S108  # mkdtemp makes it private


def remove_socket(path: Path) -> None:
    """Delete a socket, and the folder that was made for it alone. Never raises."""
    with suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
            if path.name == "s":
                path.parent.rmdir()


def peer_user(connection: socket.socket) -> int | None:
    """The user at the other end of a Unix socket; None where the system does not tell (macOS)."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, size))
    return int(uid)


def write_entry(entry: Entry, file: Path, disk: Disk) -> None:
    """Write an entry, whole or not at all."""
    disk.replace(file, entry.to_json())


def read_entry(file: Path) -> Entry | None:
    """An entry; None where there is none that can be read."""
    try:
        with file.open("rb") as opened:
            given = json.loads(opened.read(_MOST_BYTES))
        names = {field.name: field.type for field in fields(Entry)}
        entry = Entry(**{name: given[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    types = {"int": int, "str": str}
    is_sound = all(isinstance(getattr(entry, name), types[str(kind)]) for name, kind in names.items())
    return entry if is_sound else None


def entries() -> Iterator[Entry]:
    """The entries of this user's topologies, running or not, in the order of their names."""
    newest: dict[str, Entry] = {}
    for file in _entry_files():
        entry = read_entry(file)
        if entry is not None:
            other = newest.get(entry.checkpoint, entry)
            newest[entry.checkpoint] = max(entry, other, key=lambda each: each.began_ms)
    yield from sorted(newest.values(), key=lambda entry: (entry.topology, entry.checkpoint))


def forget_gone(is_answering: Callable[[Entry], bool]) -> None:
    """Delete entries and sockets of checkpoints that are not there any more, if no driver answers."""
    for file in _entry_files():
        with suppress(OSError):
            entry = read_entry(file)
            if entry is None or (
                entry.folder is not None and not entry.folder.is_dir() and not is_answering(entry)
            ):
                if entry is not None:
                    remove_socket(Path(entry.socket))
                file.unlink(missing_ok=True)


def _entry_files() -> Iterator[Path]:
    """The files of all entries, in each of the folders that a driver of this user may have chosen."""
    chosen = runtime_folder()
    for folder in _possible_folders(os.environ):
        files: list[Path] = []
        with suppress(OSError):
            if folder == chosen or _is_private(folder):
                files = [file for file in folder.iterdir() if _ENTRY.fullmatch(file.name)]
        yield from files
