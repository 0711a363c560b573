"""Makes a checkpoint's folder, and writes and reads its lock's note of the driver that holds it."""

from __future__ import annotations

import errno
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from acktree.errors import ConfigError
from acktree.logs.loggers import logger
from acktree.system.private_files import Disk

log = logger("acktree")

_BEFORE_A_RUN: Final = frozenset({"lock", "driver.log", "control.json", "spark"})
"""What may be in a checkpoint before its first run: `acktree submit` opens the log first, and a driver that
was killed while it started may have made Spark's folder."""

_LOCKS: Final = Path("/proc/locks")


def sign_lock(lock: int, disk: Disk) -> None:
    """Write into the lock's open file who holds it, for the error that a second driver gets."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    said = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    disk.write_locked(lock, said.encode())


def make_folder(folder: Path, disk: Disk) -> None:
    """Make the checkpoint's folder, if it is not there.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        disk.make_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"a checkpoint is a folder, and {error.filename} is a file",
            f"submit(checkpoint={str(folder)!r})",
            "name a folder of the topology's own; it is made if it is not there",
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise  # disk_errors.py explains it
        raise ConfigError(
            f"the checkpoint's folder cannot be made: {error.strerror}: {error.filename}",
            f"submit(checkpoint={str(folder)!r})",
            "name a folder that this user can make and write to",
        ) from error


def holder_in(lock: Path, disk: Disk) -> str:
    """The holder of a lock, from its file."""
    try:
        said = json.loads(disk.read(lock))
        return f"process {said['pid']} on {said['host']}, since {said['since']}"
    except (OSError, ValueError, TypeError, KeyError):  # it is being written, or an older acktree wrote it
        return "a process that has not said who it is"


def is_held(checkpoint: Path) -> bool:
    """Whether a process of this machine holds the lock of a checkpoint, which is not taken for that.

    False too where the system does not tell: it is Linux that does, and not on every file system.
    """
    try:
        lock = (checkpoint / "lock").stat()
        listed = _LOCKS.read_text()
    except OSError:
        return False
    return f" {os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino} " in listed


def warn_of_other_files(folder: Path, disk: Disk) -> None:
    """Warn of a folder that holds other files and is no checkpoint yet: its name may be a mistake."""
    others = sorted({*disk.names(folder)} - _BEFORE_A_RUN)
    if others and not disk.exists(folder / "acktree.json"):
        log.warning(
            "checkpoint=%s holds other files (%s), and acktree puts its own beside them. "
            "fix: name a folder of the topology's own",
            folder,
            ", ".join(others[:3]) + (", ..." if len(others) > 3 else ""),  # noqa: PLR2004  # enough to know it by
        )


def warn_of_writers(folder: Path, disk: Disk) -> None:
    """Warn if others may write to an existing folder: they could run code in this driver."""
    if disk.can_others_write(folder):
        log.warning(
            "checkpoint=%s can be written by others than its owner: they could run code in this driver. "
            "fix: chmod go-w %s",
            folder,
            folder,
        )
