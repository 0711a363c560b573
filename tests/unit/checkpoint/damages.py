"""What can become of a file on a disk, at the hands of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("nowhere")


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def take_neighbour(file: Path) -> None:
    shutil.copy(file.with_name(f"{int(file.stem) - 1:012d}{file.suffix}"), file)


DAMAGES: Final[dict[str, Callable[[Path], Any]]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "cut to its head": lambda file: file.write_bytes(file.read_bytes()[:20]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "a flipped bit": flip,
    "foreign": lambda file: file.write_text("an editor's file, of some length and more"),
    "its neighbour": take_neighbour,
    "a folder": replace_by_folder,
    "a link to nothing": replace_by_link,
    "a fifo": replace_by_fifo,
}
