"""A model of a log: what programs do to its files, and which lines a reader of it has to return."""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Literal

Layout = Literal["numbers", "dates", "symlink", "hard link"]
LAYOUTS: tuple[Layout, ...] = ("numbers", "dates", "symlink", "hard link")
_NUMBER = re.compile(rb"\d+")


class Log:
    """A log with a writer, a rotation and all that is done to files.

    Args:
        layout: How rotated files are named. With "symlink" and "hard link" the log is a link to the file of
            the day, and rotation makes another file and changes the link.

    Attributes:
        lines: What a reader has to return: the lines of all files of the log, one file after the other. The
            text of a line is changed by an editor, its number never.
        optional: Numbers of lines that ``copytruncate`` may lose: written between its copy and truncation.
        repeated: Numbers of lines that may come again, with a report: an editor has changed a file that
            was read; or the copy of ``copytruncate`` has less than what was read, and no file has the old
            inode number.
        partial: What was written of a line that has no line end yet.
        is_copy: Whether a copy has replaced the log since the last rotation.
        may_report: Whether a report is allowed.
    """

    def __init__(self, folder: Path, layout: Layout = "numbers", seed: int = 0) -> None:
        self.path, self.layout = folder / "app.log", layout
        self.lines: list[bytes] = []
        self.optional: set[int] = set()
        self.repeated: set[int] = set()
        self.is_copy = self.may_report = False
        self._random = random.Random(seed)
        self.partial = b""
        self._in_file: list[int] = []
        self._in_windows: set[int] = set()
        self._names, self._numbers, self._days = count(), count(), count(1)
        self._is_ahead = 0.0
        if layout in ("symlink", "hard link"):
            self.switch()

    # --- the program that writes ------------------------------------------------------------------------

    def write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text)
        self._touch(self.path)
        *whole, self.partial = (self.partial + text).split(b"\n")
        self.lines += whole
        self._in_file += map(number_of, whole)

    def write_lines(self, number: int) -> None:
        for _ in range(number):
            filling = b" " + b"x" * self._random.choice([0, 0, 20, 300])
            self.write(b"line %d%b\n" % (next(self._numbers), filling))

    def write_part(self) -> None:
        self.write(b"part " if self.partial else b"line %d part " % next(self._numbers))

    # --- rotation ---------------------------------------------------------------------------------------

    def rotate(self) -> None:
        """As logrotate does by default, with ``create``; with links a new file of the day."""
        if self.layout in ("symlink", "hard link"):
            self.switch()
        else:
            self.path.rename(self._room())
            self.path.touch()
            self._touch(self.path)
        self._end_file()

    def switch(self) -> None:
        """Link the log to a new file, as ``rotatelogs -L`` does."""
        today = self.path.with_name(f"app.log.{20240000 + next(self._days)}")
        today.touch()
        beside = self.path.with_name(".link")
        if self.layout == "symlink":
            beside.symlink_to(today.name)
        else:
            beside.hardlink_to(today)
        beside.rename(self.path)

    def copy_and_truncate(
        self, within: Callable[[], object] = lambda: None, lines: int = 0, *, appends: bool = True
    ) -> None:
        """As ``copytruncate`` does, with what happens between the copy and the truncation.

        Args:
            within: Called there.
            lines: How many lines are written there.
            appends: Whether the program appends. If not, it writes where it was, behind zeros.
        """
        if self.layout in ("symlink", "hard link"):
            return
        copy = self._room()
        shutil.copy(self.path, copy)
        self._touch(copy)
        if lines and not self.partial:
            before = len(self.lines)
            self.write_lines(lines)
            window = set(map(number_of, self.lines[before:]))
            self.optional |= window
            self._in_windows |= {*self._in_file} - window
            self.may_report = True
        within()
        size = self.path.stat().st_size
        os.truncate(self.path, 0)
        self._touch(self.path)
        self._end_file()
        if not appends:
            os.truncate(self.path, size)
            self.write_lines(1)
            self.may_report = True

    def compress(self) -> None:
        """Compress a rotated file; the program that does it keeps the time, or not."""
        paths = [path for path in self.rotated() if path.suffix != ".gz" and not path.samefile(self.path)]
        if paths:
            path = self._random.choice(paths)
            packed = path.with_name(path.name + ".gz")
            with gzip.open(packed, "wb") as file:
                file.write(path.read_bytes())
            shutil.copystat(path, packed)
            path.unlink()
            self.repeated |= self._in_windows

    def delete(self, found: set[int]) -> None:
        """Delete a rotated file of which all was found."""
        for path in self.rotated():
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            numbers = {number_of(line) for line in text.strip(b"\0").split(b"\n") if line}
            if numbers <= found and not path.samefile(self.path):
                path.unlink()
                self.may_report = True
                self.repeated |= self._in_windows
                return

    # --- other programs ---------------------------------------------------------------------------------

    def replace(self) -> None:
        """Rename a longer copy over the log, as rsync does, and editors."""
        if self.layout != "hard link":  # else the old file would be beside the new one
            target = self.path.resolve()
            self._copy_over(target)
            self.write_lines(self._random.randrange(3))
            self.repeated |= self._in_windows

    def edit(self, *, in_place: bool) -> None:
        """Change the first line of the log, as ``sed -i`` does, or in the file itself."""
        if self.layout == "hard link" and not in_place:
            return
        if self.partial:  # else the reader returns it as the end of the old file
            self.write(b"\n")
        target = self.path.resolve()
        text = b"edited " + target.read_bytes().lstrip(b"\0")
        if not self._in_file:
            return
        if in_place:
            target.write_bytes(text)
        else:
            beside = target.with_name(".beside")
            beside.write_bytes(text)
            beside.rename(target)
        self.repeated |= {*self._in_file} | self._in_windows
        self.may_report = True

    def restore(self) -> None:
        """Replace every file by a copy, as a restored backup does."""
        if self.layout == "hard link":
            return
        for path in [*self.rotated(), self.path.resolve()]:
            self._copy_over(path)
        self.repeated |= self._in_windows

    def set_times(self) -> None:
        """Let the clock jump, and give files any time."""
        self._is_ahead = self._random.choice([-1e6, -3600.0, 0.0, 3600.0, 1e6])
        for path in [*self.rotated(), self.path]:
            self._touch(path)

    def rotated(self) -> list[Path]:
        return [path for path in self.path.parent.iterdir() if path.name.startswith("app.log.")]

    def older(self, number: int) -> Path:
        return self.path.with_name(f"app.log.{number}")

    def _copy_over(self, path: Path) -> None:
        beside = path.with_name(".beside")
        shutil.copy(path, beside)
        beside.rename(path)
        self.is_copy = True

    def _room(self) -> Path:
        """A free name for the newest rotated file."""
        if self.layout != "numbers":
            return self.path.with_name(f"app.log.{20240000 + next(self._days)}")
        names = ((path, re.fullmatch(r"app\.log\.(\d+)(\.gz)?", path.name)) for path in self.rotated())
        numbers = {int(name[1]): path for path, name in names if name}
        for number, path in sorted(numbers.items(), reverse=True):
            path.rename(path.with_name(path.name.replace(f".{number}", f".{number + 1}")))
        return self.older(1)

    def _end_file(self) -> None:
        if self.partial:
            self.lines.append(self.partial)
            self.partial = b""
        self._in_file = []
        self.is_copy = False

    def _touch(self, path: Path) -> None:
        if self._is_ahead:
            seconds = 1_700_000_000 + self._is_ahead + self._random.random() * 1e5
            os.utime(path, (seconds, seconds))


def number_of(line: bytes) -> int:
    """The number of a line; -1 if it has none."""
    found = _NUMBER.search(line)
    return int(found[0]) if found else -1
