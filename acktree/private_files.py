"""Files and folders that are their owner's alone, whatever the umask.

What acktree writes are users' messages, and pickles that it will read again: whoever could write there could
run code in the user's driver. So each folder that it makes is 0700 and each file 0600. What was there before
keeps the rights that somebody gave it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "make_all_private",
    "make_private_file",
    "make_private_folder",
    "write_private",
]

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it as far as they are missing."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # somebody else made it meanwhile
    folder.chmod(PRIVATE_FOLDER)  # an umask only takes rights away, but a strange one takes ours


def make_private_file(file: Path) -> bool:
    """Make an empty file; False if there is one, which is not even opened."""
    try:
        made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
    except FileExistsError:
        return False
    try:
        os.fchmod(made, PRIVATE_FILE)
    finally:
        os.close(made)
    return True


def make_all_private(folder: Path) -> None:
    """Make a folder of ours and all in it private, where another program wrote it with rights of its own."""
    for at, _, names in os.walk(folder):
        rights = [(Path(at), PRIVATE_FOLDER), *((Path(at, name), PRIVATE_FILE) for name in names)]
        for path, mode in rights:
            with suppress(FileNotFoundError):  # that program still deletes some
                if stat.S_IMODE(path.lstat().st_mode) != mode and not path.is_symlink():
                    path.chmod(mode)


def write_private(file: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a whole file, in the place of one that may be there.

    Args:
        sync: Whether it shall outlive a power cut when this returns.
    """
    opened = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE)
    with os.fdopen(opened, "wb") as stream:
        os.fchmod(opened, PRIVATE_FILE)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(opened)
