"""A disk in memory that keeps apart what a process reads and what is on the medium.

What is written, made, renamed and deleted is seen at once, and is on the medium after a sync. A power cut
keeps any subset of the rest: names in any order, and of each unsynced content all, nothing, a beginning, or
zeros of its length. A process that is killed loses nothing but the operation it is in, which may be torn.

Folders are on the medium as soon as they are made: losing one would lose all in it, as if nothing had been.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from acktree.system.private_files import Disk

Fault = Literal["kill", "power", "full"]


class ProcessDied(BaseException):
    """The driver's process is gone. No part of it may catch this."""


@dataclass(eq=False, slots=True)
class _File:
    content: bytes
    stable: bytes = b""
    is_stable: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a folder's names that is not on the medium: a file gets a name, or loses one, or both."""

    gets: str | None
    file: _File
    loses: str | None = None


class SimulatedDisk(Disk):
    """The disk of one scenario."""

    def __init__(self, random: Random, note: Callable[[str], None] | None) -> None:
        """An empty one.

        Args:
            note: Told each operation that changes something, for the trace; None for no trace.
        """
        self.fault: tuple[int, Fault] | None = None
        """After how many more operations, and what happens then."""
        self.is_full = False
        self.is_dead = False
        self._random, self._note = random, note
        self._folders: dict[str, dict[str, _File]] = {}
        self._stable: dict[str, dict[str, _File]] = {}
        self._changes: dict[str, list[_Change]] = {}
        self._below: dict[str, list[str]] = {}
        self._locks: list[Path] = []
        self.past: dict[str, bytes] = {}
        """By path, what a file held before it was written anew or removed."""

    # ---- what acktree calls -------------------------------------------------------------------------------

    def write(self, file: Path, content: bytes, *, sync: bool = False) -> None:
        folder, name = _split(file)
        fault = self._step("write", name)
        if fault is not None:
            self._put(folder, name, content[: self._random.randint(0, len(content))])
            if fault == "full":
                raise OSError(errno.ENOSPC, "No space left on device", str(file))
            raise ProcessDied
        made = self._put(folder, name, content)
        if sync:
            made.stable, made.is_stable = content, True

    def write_pieces(self, file: Path, pieces: Iterable[bytes | memoryview], *, sync: bool = False) -> None:
        self.write(file, b"".join(map(bytes, pieces)), sync=sync)

    def mapped(self, file: Path) -> memoryview:
        return memoryview(self.read(file))

    def read(self, file: Path) -> bytes:
        return self._find(file).content

    def size(self, file: Path) -> int:
        return len(self._find(file).content)

    def names(self, folder: Path) -> list[str]:
        try:
            return [*self._folders[str(folder)], *self._below.get(str(folder), ())]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such folder", str(folder)) from None

    def exists(self, file: Path) -> bool:
        return _split(file)[1] in self._folders.get(_split(file)[0], ()) or str(file) in self._folders

    def rename(self, old: Path, new: Path) -> None:
        (folder, before), (_, after) = _split(old), _split(new)
        fault = self._step("rename", after)
        if self._dies_before(fault):
            raise ProcessDied
        here = self._folders[folder]
        if before not in here:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(old))
        if after in here:
            self.past[str(new)] = here[after].content
        here[after] = file = here.pop(before)
        self._changes[folder].append(_Change(after, file, before))
        self._die_after(fault)

    def remove(self, file: Path) -> None:
        folder, name = _split(file)
        here = self._folders.get(folder, {})
        if name not in here:
            return
        fault = self._step("remove", name)
        if self._dies_before(fault):
            raise ProcessDied
        self._changes[folder].append(_Change(None, here.pop(name), name))
        self._die_after(fault)

    def remove_tree(self, folder: Path) -> None:
        for below in [name for name in self._folders if Path(name) == folder or folder in Path(name).parents]:
            for name in list(self._folders[below]):
                self.remove(Path(below, name))

    def make_folder(self, folder: Path) -> None:
        if str(folder) in self._folders:
            return
        for each in (folder, *folder.parents):
            above, name = _split(each)
            if name not in self._below.setdefault(above, []):
                self._below[above].append(name)
            self._folders.setdefault(str(each), {})
            self._stable.setdefault(str(each), {})
            self._changes.setdefault(str(each), [])

    def remove_empty(self, folder: Path) -> None:
        if self.is_dead:
            raise ProcessDied
        above, name = _split(folder)
        if self._folders[str(folder)] or self._below.get(str(folder)):
            raise OSError(errno.ENOTEMPTY, "Not empty", str(folder))
        self._below[above].remove(name)
        for known in (self._folders, self._stable, self._changes):
            del known[str(folder)]

    def make_all_private(self, folder: Path) -> None:
        """Nothing: whose a file is is not simulated."""

    def make_file(self, file: Path) -> bool:
        if self.exists(file):
            return False
        self.write(file, b"")
        return True

    def can_others_write(self, folder: Path) -> bool:
        return False

    def lock(self, file: Path) -> int:
        if file in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "held", str(file))
        self._find(file)
        self._locks.append(file)
        return len(self._locks) - 1

    def write_locked(self, held: int, content: bytes) -> None:
        self.write(self._locks[held], content)

    def unlock(self, held: int) -> None:
        self._locks.clear()

    def sync_folder(self, folder: Path) -> None:
        fault = self._step("sync the names in", str(folder))
        if self._dies_before(fault):
            raise ProcessDied
        self._sync_names(str(folder))
        self._die_after(fault)

    def sync_all(self, folder: Path) -> None:
        fault = self._step("sync all of", str(folder))
        if self._dies_before(fault):
            raise ProcessDied
        for name, files in self._folders.items():
            self._sync_names(name)
            for file in files.values():
                file.stable, file.is_stable = file.content, True
        self._die_after(fault)

    # ---- what the simulator calls -------------------------------------------------------------------------

    def start_process(self) -> None:
        """The process that there was is gone, and there is room."""
        self.is_full = self.is_dead = False
        self._locks.clear()

    def cut_power(self) -> None:
        """What is on the medium, and by chance some of the rest, is all that there is."""
        random = self._random
        kept = random.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        for folder, names in self._stable.items():
            for change in self._changes[folder]:
                if random.random() < kept:
                    _apply(change, names)
            self._changes[folder] = []
            self._folders[folder] = dict(names)
            for name, file in names.items():
                if not file.is_stable:
                    file.content = self._torn(file)
                    if self._note is not None:
                        self._note(f"    after the power cut {name} has {len(file.content)} bytes")
                    file.stable, file.is_stable = file.content, True

    def content_of(self, file: str) -> bytes | None:
        """What is in a file; None if there is none."""
        folder, name = _split(Path(file))
        found = self._folders[folder].get(name)
        return None if found is None else found.content

    def put_back(self, file: str, content: bytes | None) -> None:
        """Let a file hold this, as if it always had; None for no file."""
        folder, name = _split(Path(file))
        for names in (self._folders[folder], self._stable[folder]):
            names.pop(name, None)
            if content is not None:
                names[name] = _File(content, content, is_stable=True)

    def list_all(self) -> list[str]:
        """Every file, by its whole path."""
        return sorted(f"{folder}/{name}" for folder, files in self._folders.items() for name in files)

    # ---- how ----------------------------------------------------------------------------------------------

    def _find(self, file: Path) -> _File:
        folder, name = _split(file)
        try:
            return self._folders[folder][name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(file)) from None

    def _put(self, folder: str, name: str, content: bytes) -> _File:
        here = self._folders[folder]
        if name in here:
            self.past[f"{folder}/{name}"] = here[name].content
            here[name].content, here[name].is_stable = content, False
            return here[name]
        here[name] = made = _File(content)
        self._changes[folder].append(_Change(name, made))
        return made

    def _sync_names(self, folder: str) -> None:
        for change in self._changes[folder]:
            _apply(change, self._stable[folder])
        self._changes[folder] = []

    def _torn(self, file: _File) -> bytes:
        new, at = file.content, self._random.randint(0, len(file.content))
        return self._random.choice(
            (new, file.stable, b"", new[:at], bytes(len(new)), new[:at] + bytes(len(new) - at))
        )

    def _step(self, what: str, name: str) -> Fault | None:
        if self.is_dead:
            raise ProcessDied  # what cleans up after an exception is dead too
        fault = self._due() if self.fault else None
        if self.is_full and what == "write":
            fault = fault or "full"
        if self._note is not None:
            self._note(f"    disk: {what} {name}" + (f", {fault}" if fault else ""))
        return fault

    def _due(self) -> Fault | None:
        assert self.fault is not None
        left, fault = self.fault
        if left > 1:
            self.fault = left - 1, fault
            return None
        self.fault = None
        self.is_full = fault == "full"
        self.is_dead = not self.is_full
        return fault

    def _dies_before(self, fault: Fault | None) -> bool:
        return fault in {"kill", "power"} and self._random.random() < 0.5  # else after it, see _die_after

    def _die_after(self, fault: Fault | None) -> None:
        if fault in {"kill", "power"}:
            raise ProcessDied


def _split(file: Path) -> tuple[str, str]:
    folder, _, name = str(file).rpartition("/")
    return folder, name


def _apply(change: _Change, names: dict[str, _File]) -> None:
    if change.loses is not None and names.get(change.loses) is change.file:
        del names[change.loses]
    if change.gets is not None:
        names[change.gets] = change.file
