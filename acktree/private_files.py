"""Creates files and folders that only their owner can access, with any umask.

acktree writes users' messages, and pickles that it reads again: anyone who can write there can run code in
the user's driver. So each new folder has mode 0700 and each new file 0600. Existing folders keep their mode.
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
    """Create a folder and its missing parents."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # another process created it meanwhile
    folder.chmod(PRIVATE_FOLDER)  # an unusual umask may also remove the owner's permissions


def make_private_file(file: Path) -> bool:
    """Create an empty file; False if it exists, which is then not opened."""
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
    """Make a folder and its content private, after another program wrote it with other permissions."""
    for at, _, names in os.walk(folder):
        rights = [(Path(at), PRIVATE_FOLDER), *((Path(at, name), PRIVATE_FILE) for name in names)]
        for path, mode in rights:
            with suppress(FileNotFoundError):  # the other program may still delete files
                if stat.S_IMODE(path.lstat().st_mode) != mode and not path.is_symlink():
                    path.chmod(mode)


def write_private(file: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file, and overwrite an existing one.

    Args:
        file: The file.
        content: Its new content.
        sync: Whether to sync the file, so that it survives a power cut when this returns.
    """
    opened = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE)
    with os.fdopen(opened, "wb") as stream:
        os.fchmod(opened, PRIVATE_FILE)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(opened)
