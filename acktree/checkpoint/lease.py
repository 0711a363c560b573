"""Who may write to a checkpoint at a URL: the driver whose lease is the last one there.

A lock dies with its process; a file does not. So a driver says again and again that it lives, and one that
was not heard for :data:`SILENT_SECS` may be followed by another. Who was followed must not write any more,
and looks before each file that it puts.

::

    lease/000000000007    a lease: who holds it, and whether it was let go of; renewed by being written again

Rules of this file
------------------
1. Leases are numbered, and each number is given once: the file system makes a file of a new name for one of
   two drivers only. Whoever sees a higher number than its own has lost.
2. Times are the file system's own: when a file was last written, and when one is that is written now. No two
   machines' clocks are compared.
3. Silence alone costs nothing: a driver that slept and was not followed goes on.

What a lease cannot promise: a process that is stopped between its look and its write wakes up and writes one
file. It is the one file that it had in hand; see docs/running.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from acktree.errors import CheckpointError
from acktree.private_files import write_private

FOLDER: Final = "lease"
SILENT_SECS: Final = 30.0
"""A lease that was not renewed for this time is free."""
RENEW_SECS: Final = 5.0
"""So often it is renewed."""


class Remote(Protocol):
    """A folder at a URL. Names are relative to it. Whatever fails raises CheckpointError. Any thread may.

    Attributes:
        url: Its URL; it holds no secret.
    """

    url: str

    def make(self, name: str) -> None:
        """Make a folder that is its owner's alone, if it is not there."""

    def names(self, folder: str) -> dict[str, int]:
        """The files in a folder, and when each was last written: ms, by the file system's clock."""

    def exists(self, name: str) -> bool:
        """Whether a file is there."""

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""

    def get(self, name: str, file: Path) -> None:
        """Copy a file from there."""

    def put(self, file: Path, name: str) -> None:
        """Copy a file there, in the place of one that may be there; it is there whole or not at all."""

    def put_new(self, file: Path, name: str) -> bool:
        """The same, where none is there; False if one is. Of two that try at once one gets True."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease.

    Attributes:
        machine: One boot of one machine, and the process numbers that are seen there: where these are the
            same, a process number tells who is alive.
        folder: Its working copy.
    """

    host: str
    pid: int
    machine: str
    folder: str
    is_released: bool = False

    @classmethod
    def me(cls, folder: Path) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _machine(), str(folder))

    @property
    def is_dead(self) -> bool:
        """Whether it is known that it lives no more: only of this machine there is such knowledge."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # alive, and not ours
            return False
        return False

    def leave_nothing(self) -> None:
        """Delete the working copy of a dead process."""
        if Path(self.folder).name.startswith("acktree-"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Lease:
    """The lease of this process on one checkpoint."""

    def __init__(self, remote: Remote, folder: Path, number: int) -> None:
        """Hold a number; made by :meth:`take`."""
        self._remote, self._folder, self._number = remote, folder, number

    @classmethod
    def take(cls, remote: Remote, folder: Path) -> Lease:
        """Become the one who may write.

        Args:
            folder: The working copy that belongs to it.

        Raises:
            CheckpointError: Another driver runs on the checkpoint, or died too short a time ago.
        """
        remote.make(FOLDER)
        found = {int(name): changed_ms for name, changed_ms in remote.names(FOLDER).items() if name.isdigit()}
        last = max(found, default=0)
        if found:
            _see_that_it_is_free(remote, folder, last, found[last])
        mine = cls(remote, folder, last + 1)
        if not remote.put_new(mine._note(Holder.me(folder)), _name(last + 1)):
            raise _taken(remote, "took it at this moment")
        for number in found:
            remote.delete(_name(number))
        return mine

    def check(self) -> None:
        """See that nobody has followed.

        Raises:
            CheckpointError: Somebody has.
        """
        there = {int(name) for name in self._remote.names(FOLDER) if name.isdigit()}
        if self._number not in there or max(there) > self._number:
            raise CheckpointError(
                "another driver has taken over this checkpoint: nothing more is written by this one",
                f"{self._remote.url}, lease {self._number} of {socket.gethostname()} process {os.getpid()}",
                f"this one was silent for {SILENT_SECS:.0f} s: stopped, or cut off from the file system. "
                "The other one goes on with what is open; if it was not meant to, stop it and submit again",
            )

    def renew(self) -> None:
        """Say that this driver lives.

        Raises:
            CheckpointError: Somebody has followed, or it cannot be said.
        """
        self.check()
        self._remote.put(self._note(Holder.me(self._folder)), _name(self._number))

    def release(self) -> None:
        """Let the next driver have it at once. The number stays: whoever held an earlier one must see it."""
        self.check()
        me = Holder.me(self._folder)
        self._remote.put(self._note(Holder(me.host, me.pid, "", "", is_released=True)), _name(self._number))

    def _note(self, holder: Holder) -> Path:
        note = self._folder / "new-lease"
        write_private(note, json.dumps(asdict(holder)).encode())
        return note


def _see_that_it_is_free(remote: Remote, folder: Path, number: int, renewed_ms: int) -> None:
    holder: Holder | None = None
    with suppress(ValueError, TypeError):  # a file system may show a file before it is whole
        holder = Holder(**json.loads(remote.read(_name(number))))
    if holder is not None and holder.is_released:
        return
    if holder is not None and holder.is_dead:
        holder.leave_nothing()
        return
    probe = f"now-{secrets.token_hex(8)}"
    blank = folder / "new-lease"
    write_private(blank, b"what time is it?")
    remote.put(blank, f"{FOLDER}/{probe}")
    now_ms = remote.names(FOLDER)[probe]
    remote.delete(f"{FOLDER}/{probe}")
    silent_secs = (now_ms - renewed_ms) / 1000
    if silent_secs < SILENT_SECS:
        who = "" if holder is None else f"{holder.host} process {holder.pid} "
        raise _taken(remote, f"{who}renewed its lease {max(0.0, silent_secs):.0f} s ago")


def _taken(remote: Remote, how: str) -> CheckpointError:
    return CheckpointError(
        "another driver runs on this checkpoint",
        f"{remote.url}: {how}",
        "stop it first, or give this topology a checkpoint of its own. If it is dead: its lease is free when "
        f"it was silent for {SILENT_SECS:.0f} s, so submit again then",
    )


def _name(number: int) -> str:
    return f"{FOLDER}/{number:012d}"


def _machine() -> str:
    """Names one boot of a machine and a space of process numbers in it; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
