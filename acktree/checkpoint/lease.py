"""The lease of a checkpoint at a URL: only the driver with the last lease may write.

A file, unlike a lock, does not disappear with its process. So a driver renews its lease, and when it has not
done so for :data:`SILENT_SECS` another driver may take over. A driver that was replaced must not write any
more: each checks the leases before it writes a file.

::

    lease/000000000007    a lease: its holder, and whether it was released; written again to renew it

Rules of this file
------------------
1. Leases are numbered, and each number is given to one driver: of two drivers that create a file of the same
   new name, one succeeds. A driver that sees a higher number than its own has lost.
2. Times are the file system's: the age of a lease is compared with a file that is written now. The clocks of
   two machines are never compared.
3. A driver that missed its renewals and was not replaced continues.

A lease has one gap: a process that is stopped between its check and its write still writes that one file when
it resumes; see docs/running.md.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from acktree.errors import CheckpointError
from acktree.system.private_files import write_private
from acktree.system.processes import is_alive

FOLDER: Final = "lease"
_LEASE: Final = re.compile(r"\d{12,}", re.ASCII)
SILENT_SECS: Final = 30.0
"""A lease that was not renewed for this time is free."""
RENEW_SECS: Final = 5.0
"""The time between two renewals."""


class Remote(Protocol):
    """A folder at a URL. Names are relative to it. Any thread may call it. Failures raise a CheckpointError.

    Attributes:
        url: Its URL; it holds no secret.
    """

    url: str

    def make(self, name: str) -> None:
        """Make a private folder, if it is not there."""

    def names(self, folder: str) -> dict[str, int]:
        """The files in a folder, and when each was last written: ms, by the file system's clock."""

    def exists(self, name: str) -> bool:
        """Whether a file is there."""

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""

    def get(self, name: str, file: Path) -> None:
        """Copy a file from there."""

    def put(self, file: Path, name: str) -> None:
        """Copy a file there, atomically; an earlier one of that name is replaced."""

    def put_new(self, file: Path, name: str) -> bool:
        """Copy a file there unless one of that name exists. Of two calls at once exactly one returns True."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lease.

    Attributes:
        machine: Identifies one boot of one machine and a namespace of process numbers. Where it is the same,
            a process number shows whether the holder is alive.
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
        """Whether it is known to be dead; this can be known of processes of this machine only."""
        if not self.machine or self.machine != _machine():
            return False
        return not is_alive(self.pid, of_others=True)

    def leave_nothing(self) -> None:
        """Delete the working copy of a dead process."""
        if Path(self.folder).name.startswith("acktree-"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Lease:
    """The lease of this process on one checkpoint."""

    def __init__(self, remote: Remote, folder: Path, number: int) -> None:
        """Hold a number; called by :meth:`take`."""
        self._remote, self._folder, self._number = remote, folder, number

    @classmethod
    def take(cls, remote: Remote, folder: Path) -> Lease:
        """Take the lease of a checkpoint.

        Args:
            folder: The working copy that belongs to it.

        Raises:
            CheckpointError: Another driver runs on the checkpoint, or died less than SILENT_SECS ago.
        """
        remote.make(FOLDER)
        leases = {int(name): ms for name, ms in remote.names(FOLDER).items() if _LEASE.fullmatch(name)}
        last = max(leases, default=0)
        if leases:
            _see_that_it_is_free(remote, folder, last, leases[last])
        lease = cls(remote, folder, last + 1)
        if not remote.put_new(lease._note(Holder.me(folder)), _name(last + 1)):
            raise _taken(remote, "took it at this moment")
        for number in leases:
            remote.delete(_name(number))
        return lease

    def check(self) -> None:
        """Check that no other driver has taken over.

        Raises:
            CheckpointError: Another driver has.
        """
        there = {int(name) for name in self._remote.names(FOLDER) if _LEASE.fullmatch(name)}
        if self._number not in there or max(there) > self._number:
            raise CheckpointError(
                "another driver has taken over this checkpoint: nothing more is written by this one",
                f"{self._remote.url}, lease {self._number} of {socket.gethostname()} process {os.getpid()}",
                f"this one was silent for {SILENT_SECS:.0f} s: stopped, or cut off from the file system. "
                "The other one goes on with what is open; if it was not meant to, stop it and submit again",
            )

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            CheckpointError: Another driver has taken over, or the lease cannot be written.
        """
        self.check()
        self._remote.put(self._note(Holder.me(self._folder)), _name(self._number))

    def release(self) -> None:
        """Free it for the next driver at once. The number stays, so that earlier holders see it."""
        self.check()
        me = Holder.me(self._folder)
        self._remote.put(self._note(Holder(me.host, me.pid, "", "", is_released=True)), _name(self._number))

    def _note(self, holder: Holder) -> Path:
        note = self._folder / "new-lease"
        write_private(note, json.dumps(asdict(holder)).encode())
        return note


def _see_that_it_is_free(remote: Remote, folder: Path, number: int, renewed_ms: int) -> None:
    holder: Holder | None = None
    with suppress(ValueError, TypeError):  # a file system may show a file before all of it is written
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
    """Identifies one boot of a machine and a namespace of process numbers; empty where it is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
