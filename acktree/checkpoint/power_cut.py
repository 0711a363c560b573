"""Which micro-batch outlives a power cut, and the way back to it.

Spark does not sync its logs and its state, so after a power cut any of them may be missing, or torn, whatever
stands beside it. With ``Config(survive_power_cut=True)`` the checkpoint is synced after each commit, and only
then the number of the micro-batch is written, synced itself, into the file ``synced``.

Rules of this file
------------------
1. What Spark logged after the micro-batch in ``synced`` does not count. A restart deletes it unread, so that
   Spark runs those micro-batches anew; nothing was told of them, and nothing deleted because of them.
2. The file is there while runs survive power cuts. A run that does not deletes it first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from acktree.checkpoint.files import UNPLACED
from acktree.private_files import Disk

_SYNCED: Final = "synced"
SYNC_NOTES: Final = (_SYNCED, f"{UNPLACED}{_SYNCED}")
"""The names of what this file writes into a checkpoint's folder."""
_LOGS: Final = ("commits", "offsets")


def note_synced(folder: Path, batch_id: int, disk: Disk) -> None:
    """Write that everything up to a micro-batch is on the medium; durable when this returns."""
    new = folder / f"{UNPLACED}{_SYNCED}"
    disk.write(new, str(batch_id).encode(), sync=True)
    disk.rename(new, folder / _SYNCED)
    disk.sync_folder(folder)


def forget_synced(folder: Path, disk: Disk) -> None:
    """From now on every commit counts at once."""
    if disk.exists(folder / _SYNCED):
        disk.remove(folder / _SYNCED)
        disk.sync_folder(folder)


def roll_back(folder: Path, spark: Path, first_batch: int, disk: Disk) -> int | None:
    """Delete what Spark logged after the last micro-batch that was synced.

    Args:
        folder: The checkpoint's.
        spark: Spark's part of it.
        first_batch: What Spark's first micro-batch counts as.

    Returns:
        That micro-batch; None where the last run did not survive power cuts, and every commit counts.
    """
    if not disk.exists(folder / _SYNCED):
        return None
    synced = int(disk.read(folder / _SYNCED))
    last = synced - first_batch
    logs = [spark / log for log in _LOGS if disk.exists(spark / log)]
    cut = [_cut(log, last, disk) for log in (*logs, *_operators_logs(spark / "state", disk))]
    if any(cut):
        # Their numbers come again: what levels marked while they executed them is of no use.
        disk.remove_tree(folder / "marks")
        if last < 0:  # nothing that Spark has counts: any of it may be torn
            disk.remove(spark / "metadata")
            disk.remove(spark / ".metadata.crc")
            disk.remove_tree(spark / "state")
            disk.sync_folder(spark)
    return synced


def _operators_logs(state: Path, disk: Disk) -> list[Path]:
    """Where Spark writes about its operators' state, by micro-batch; it reads the last entry first."""
    operators = disk.names(state) if disk.exists(state) else []
    logs = [state / operator / "_metadata" / "v2" for operator in operators]
    return [log for log in logs if disk.exists(log)]


def _cut(log: Path, last: int, disk: Disk) -> bool:
    """Delete a log's entries after one, the newest first, each with its checksum."""
    numbers = sorted((int(name) for name in disk.names(log) if name.isdigit()), reverse=True)
    later = [number for number in numbers if number > last]
    for number in later:
        disk.remove(log / f".{number}.crc")
        disk.remove(log / str(number))
    if later:
        disk.sync_folder(log)
    return bool(later)
