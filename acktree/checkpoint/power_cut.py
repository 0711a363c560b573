"""Which micro-batch outlives a power cut, and the way back to it.

Spark does not sync its logs and its state. So after a power cut any of these files may be missing or torn,
whatever the others say. With ``Config(survive_power_cut=True)`` the checkpoint is synced after each commit.
After that the number of the micro-batch is written to the file ``synced``, and synced too.

Rules of this file
------------------
1. What Spark logged after the micro-batch in ``synced`` does not count. A restart deletes it unread, and
   Spark runs those micro-batches again. None of their verdicts was delivered, and nothing was deleted because
   of them.
   With gates the next micro-batch may be in ``synced`` too, as begun: it runs again over the same messages. A
   sink's mark of it holds.
2. The file exists while runs survive power cuts. A run that does not survive them deletes it first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from acktree.checkpoint.envelope import damaged, opened, sealed
from acktree.system.private_files import UNPUBLISHED, Disk
from acktree.texts import is_number

_SYNCED: Final = "synced"
SYNC_NOTES: Final = (_SYNCED, f"{UNPUBLISHED}{_SYNCED}")
"""The names of the files that this module writes into a checkpoint's folder."""
_BEGUN: Final = " begun"
_LOGS: Final = ("commits", "offsets")


def note_synced(folder: Path, batch_id: int, disk: Disk, *, has_begun: bool = False) -> None:
    """Note that everything up to a micro-batch is on the medium; the note is durable when this returns.

    Args:
        has_begun: Whether the offsets of the micro-batch after it are, too.
    """
    note = f"{batch_id}{_BEGUN if has_begun else ''}"
    disk.replace(folder / _SYNCED, sealed(0, note.encode()), sync=True)
    disk.sync_folder(folder)


def forget_synced(folder: Path, disk: Disk) -> None:
    """Delete the note: from now on every commit counts at once."""
    if disk.exists(folder / _SYNCED):
        disk.remove(folder / _SYNCED)
        disk.sync_folder(folder)


def roll_back(folder: Path, spark: Path, first_batch: int, disk: Disk) -> tuple[int, bool] | None:
    """Delete what Spark logged after the last micro-batch that was synced.

    Args:
        folder: The checkpoint's folder.
        spark: The folder of Spark's part.
        first_batch: The number that Spark's first micro-batch has in the checkpoint.

    Returns:
        That micro-batch, and whether the next one has begun; None where the last run did not survive power
        cuts, and every commit counts.

    Raises:
        CheckpointError: The note is damaged.
    """
    if not disk.exists(folder / _SYNCED):
        return None
    note = bytes(opened(disk.read(folder / _SYNCED), 0, folder / _SYNCED)).decode()
    if not is_number(note.removesuffix(_BEGUN).removeprefix("-")):
        raise damaged("has the content of another file", folder / _SYNCED)
    synced, has_begun = int(note.removesuffix(_BEGUN)), note.endswith(_BEGUN)
    last = synced - first_batch
    lasts = {spark / log: last + (has_begun and log == "offsets") for log in _LOGS}
    lasts |= dict.fromkeys(_operators_logs(spark / "state", disk), last)
    cut = [_cut(log, kept, disk) for log, kept in lasts.items() if disk.exists(log)]
    if any(cut):
        # Their numbers are used again: the marks of their first execution are of no use.
        disk.remove_tree(folder / "marks")
        if last < 0 and not has_begun:  # none of Spark's files counts: any may be torn
            disk.remove(spark / "metadata")
            disk.remove(spark / ".metadata.crc")
            disk.remove_tree(spark / "state")
            disk.sync_folder(spark)
    return synced, has_begun


def _operators_logs(state: Path, disk: Disk) -> list[Path]:
    """The logs of Spark's operators, with an entry for each micro-batch. Spark reads the last entry first."""
    operators = disk.names(state) if disk.exists(state) else []
    logs = [state / operator / "_metadata" / "v2" for operator in operators]
    return [log for log in logs if disk.exists(log)]


def _cut(log: Path, last: int, disk: Disk) -> bool:
    """Delete a log's entries after ``last``, the newest first, with checksums. True if there were any."""
    numbers = [int(name) for name in disk.names(log) if is_number(name)]
    later = sorted((number for number in numbers if number > last), reverse=True)
    for number in later:
        disk.remove(log / f".{number}.crc")
        disk.remove(log / str(number))
    if later:
        disk.sync_folder(log)
    return bool(later)
