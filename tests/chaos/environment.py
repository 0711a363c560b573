"""The environment of a driver, parts of which can fail: its disk, its clock, the reader of its output."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

DISK_MB: Final = 512
_BLOCK: Final = 1 << 20
_MAY_READ_ALL: Final = "-dac_override,-dac_read_search"


class Disk:
    """A small file system of the driver's own, where this machine lets us mount one."""

    def __init__(self, folder: Path, megabytes: int = DISK_MB) -> None:
        """Mount it on a folder; without the right to, the folder is as it was and cannot be filled."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "chaos", str(folder)]
        self.can_be_full = bool(shutil.which("mount")) and not _run(command)
        self._ballast = folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Fill the disk, but for ``leave`` bytes at most."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            for size in (_BLOCK, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
            file.truncate(file.tell() - leave)

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    def close(self, keep: Path | None = None) -> None:
        """Let go of it; ``keep`` is where what is on it goes first."""
        if keep is not None:
            shutil.copytree(
                self.folder, keep, dirs_exist_ok=True, ignore_dangling_symlinks=True, ignore=_no_pipes
            )
        if self.can_be_full:
            _run(["umount", "-l", str(self.folder)])


class WallClock:
    """The wall clock of the driver's processes, where there is a C compiler to make it."""

    def __init__(self, folder: Path) -> None:
        """Make it; it shows the machine's time."""
        self._library, self._file = folder / "clock.so", folder / "clock"
        self._file.write_bytes(bytes(8))
        source = Path(__file__).with_name("clock.c")
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.can_jump = compiler is not None and not _run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(source), "-ldl"]
        )

    def environment(self) -> dict[str, str]:
        """What puts a process under this clock."""
        if not self.can_jump:
            return {}
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file)}

    def jump(self, secs: int) -> None:
        """Set the clock off the machine's time by this number of seconds, at once."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as offset:
            offset[:] = (secs * 10**9).to_bytes(8, "little", signed=True)


class Listener:
    """Reads what a driver prints into a file, until it turns away."""

    def __init__(self, output: BinaryIO, file: Path) -> None:
        """Begin."""
        self._output, self._file = output, file
        self._turned_away = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def turn_away(self) -> None:
        """Read no more: the next to print finds the pipe broken."""
        self._turned_away.set()

    def join(self) -> None:
        """Wait until all is read; what outlived the driver may still hold the pipe, so not for long."""
        self._thread.join(5)

    def _read(self) -> None:
        os.set_blocking(self._output.fileno(), False)
        with self._output, self._file.open("ab", buffering=0) as file:
            while not self._turned_away.wait(0.02):
                while said := self._output.read(_BLOCK):
                    file.write(said)
                if said == b"":
                    return


def unprivileged(command: list[str]) -> list[str] | None:
    """The command such that root, too, may not read what it is not allowed to; None where that cannot be."""
    if os.geteuid() != 0:
        return command
    setpriv = shutil.which("setpriv")
    return [setpriv, f"--bounding-set={_MAY_READ_ALL}", *command] if setpriv else None


def _run(command: list[str]) -> int:
    return subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


def _no_pipes(folder: str, names: list[str]) -> set[str]:
    """Named pipes are not copied: to open one blocks."""
    return {name for name in names if (Path(folder) / name).is_fifo()}
