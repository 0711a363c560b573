"""A folder in the place of one at a URL: what a mirror asks of a file system, and failures to order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from acktree.errors import CheckpointError


class RemoteFolder:
    """A ``Remote`` whose files are here. ``on`` sees each deed before and after it is done, and may raise."""

    def __init__(self, folder: Path, on: Callable[[str, str], None] = lambda when, name: None):
        self.folder, self.url, self.on = folder, f"there://{folder.name}", on

    def make(self, name: str) -> None:
        (self.folder / name).mkdir(parents=True, exist_ok=True)

    def names(self, folder: str) -> dict[str, int]:
        if not (self.folder / folder).is_dir():
            return {}
        files = [file for file in (self.folder / folder).iterdir() if file.is_file()]
        return {file.name: file.stat().st_mtime_ns // 1_000_000 for file in files}

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def get(self, name: str, file: Path) -> None:
        shutil.copyfile(self.folder / name, file)

    def put(self, file: Path, name: str) -> None:
        self.on("before", name)
        beside = self._beside(file, name)
        beside.rename(self.folder / name)
        self.on("after", name)

    def put_new(self, file: Path, name: str) -> bool:
        beside = self._beside(file, name)
        try:
            os.link(beside, self.folder / name)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        return True

    def delete(self, name: str) -> None:
        self.on("before", f"-{name}")
        (self.folder / name).unlink(missing_ok=True)

    def age(self, secs: float) -> None:
        """Let so much time pass for every lease."""
        for file in (self.folder / "lease").iterdir():
            written = file.stat().st_mtime - secs
            os.utime(file, (written, written))

    def _beside(self, file: Path, name: str) -> Path:
        beside = (self.folder / name).with_name(f".{Path(name).name}.tmp")
        shutil.copyfile(file, beside)
        return beside


class Unreachable(RemoteFolder):
    """Fails from some deed on, for good; ``left`` counts them down."""

    left = 10**9

    def __init__(self, folder: Path):
        super().__init__(folder, self._count)

    def _count(self, when: str, name: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise CheckpointError(f"no answer {when} {name}", self.url, "correct the test")
