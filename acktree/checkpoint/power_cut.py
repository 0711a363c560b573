"""Which micro-batch outlives a power cut, and the way back to it.

Spark does not sync its logs and its state. So after a power cut any of these files may be missing or torn,
whatever the others say. With ``Config(survive_power_cut=True)`` the checkpoint is synced after each commit.
After that the note says so: a file whose *name* has the number, and whose content is always the same::

    synced-000000000042           all before micro-batch 42 is on the medium
    synced-000000000042-begun     and so are the offsets of micro-batch 42, which has begun

Rules of this file
------------------
1. What Spark logged after the note does not count. A restart reads past it, deletes it unread once everything
   else was read and fits, and Spark runs those micro-batches again. None of their verdicts was delivered, and
   nothing was deleted because of them.
   With gates a micro-batch that has begun runs again over the same messages. A sink's mark of it holds.
2. The note exists while runs survive power cuts. A run that does not survive them deletes it first.
3. The note is renamed from number to number: a copy of it says what its name says, and is never older. Of two
   the later counts; somebody has put the other there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from acktree.checkpoint.envelope import missing, opened, read, sealed
from acktree.checkpoint.files import Files
from acktree.system.private_files import UNPUBLISHED, Disk
from acktree.texts import is_number

_NOTE: Final = re.compile(r"synced-(\d{12,})(-begun)?", re.ASCII)
_LOGS: Final = ("commits", "offsets")


class Synced(NamedTuple):
    """What a note says; of two the greater one counts.

    Attributes:
        batch_id: The last micro-batch that is on the medium; -1 for none.
        has_begun: Whether the offsets of the one after it are there, too.
    """

    batch_id: int
    has_begun: bool = False

    @property
    def name(self) -> str:
        """The name of the note."""
        return f"synced-{self.batch_id + 1:012d}{'-begun' if self.has_begun else ''}"


def note_synced(folder: Path, synced: Synced, before: Synced | None, disk: Disk) -> None:
    """Note what is on the medium; the note is durable when this returns.

    Args:
        folder: The checkpoint's folder.
        synced: What the note says from now on.
        before: What it says; None if there is none.
        disk: The disk.
    """
    note = folder / synced.name
    try:
        if before is None:
            raise FileNotFoundError  # noqa: TRY301  # as if somebody had deleted it
        disk.rename(folder / before.name, note)
    except FileNotFoundError:
        disk.replace(note, sealed(0, b""), sync=True)
    disk.sync_folder(folder)


class RollBack:
    """The way back to the last micro-batch that was synced. Nothing is deleted before :meth:`carry_out`.

    Attributes:
        synced: What the note says; None where the last run did not survive power cuts, and every commit
            counts.
    """

    def __init__(self, folder: Path, spark: Path, first_batch: int, files: Files) -> None:
        """Read the note.

        Args:
            folder: The checkpoint's folder.
            spark: The folder of Spark's part.
            first_batch: The number that Spark's first micro-batch has in the checkpoint.
            files: How the note is read.

        Raises:
            CheckpointError: The note is damaged, or what it says is synced is not there.
        """
        self._folder, self._spark, self._disk = folder, spark, files.disk
        names = {name for name in self._disk.names(folder) if _NOTE.fullmatch(name.removeprefix(UNPUBLISHED))}
        self._notes = sorted(names)
        self.synced = max(map(_said_by, filter(_NOTE.fullmatch, names)), default=None)
        self._lasts: Mapping[str, int] = {}
        if self.synced is None:
            return
        note = folder / self.synced.name
        opened(read(note, files), 0, note)
        last = self.synced.batch_id - first_batch
        self._lasts = {"commits": last, "offsets": last + self.synced.has_begun}
        for log, number in self._lasts.items():
            if number >= 0 and max(self._numbers(spark / log), default=-1) < number:
                raise missing(spark / log / str(number))

    def counts(self, log: str, number: int) -> bool:
        """Whether an entry of one of Spark's logs counts."""
        return number <= self._lasts.get(log, number)

    def carry_out(self, *, survives: bool) -> None:
        """Delete what Spark logged after the last sync, and notes that do not count.

        Args:
            survives: Whether this run survives power cuts, too. False: every commit counts from now on.
        """
        if self.synced is not None:
            self._cut_logs(self.synced)
        kept = self.synced.name if survives and self.synced else None
        left = [name for name in self._notes if name != kept]
        for name in left:
            self._disk.remove(self._folder / name)
        if left:
            self._disk.sync_folder(self._folder)
        self._lasts = {}

    def _cut_logs(self, synced: Synced) -> None:
        last = self._lasts["commits"]
        lasts = {self._spark / log: self._lasts[log] for log in _LOGS}
        lasts |= dict.fromkeys(self._operators_logs(), last)
        cut = [self._cut(log, kept) for log, kept in lasts.items()]
        if any(cut):
            # Their numbers are used again: the marks of their first execution are of no use.
            self._disk.remove_tree(self._folder / "marks")
            if last < 0 and not synced.has_begun:  # none of Spark's files counts: any may be torn
                self._disk.remove(self._spark / "metadata")
                self._disk.remove(self._spark / ".metadata.crc")
                self._disk.remove_tree(self._spark / "state")
                self._disk.sync_folder(self._spark)

    def _operators_logs(self) -> list[Path]:
        """The logs of Spark's operators, with an entry for each micro-batch. Spark reads the last first."""
        state = self._spark / "state"
        operators = self._disk.names(state) if self._disk.exists(state) else []
        return [state / operator / "_metadata" / "v2" for operator in operators]

    def _cut(self, log: Path, last: int) -> bool:
        """Delete a log's entries after ``last``, the newest first, with checksums. True if there were any."""
        later = sorted((number for number in self._numbers(log) if number > last), reverse=True)
        for number in later:
            self._disk.remove(log / f".{number}.crc")
            self._disk.remove(log / str(number))
        if later:
            self._disk.sync_folder(log)
        return bool(later)

    def _numbers(self, log: Path) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(name) for name in self._disk.names(log) if is_number(name)]
        return []


def _said_by(name: str) -> Synced:
    number = _NOTE.fullmatch(name)
    assert number is not None, f"the name of a note: {name}"
    return Synced(int(number[1]) - 1, bool(number[2]))
