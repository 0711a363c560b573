"""The acker's host on Spark: in the driver, where verdicts are told, with a log of its own.

Written before the sink returns, so before Spark commits the micro-batch: what stands here of one that was
never committed is thrown away at a restart, and the micro-batch that runs again finds the acker as it was.

::

    acker/000000000042.change    what a micro-batch changed in the ledger; none where nothing was or is open
    acker/000000000040.whole     the ledger after a micro-batch; what is older goes at the next write
    payloads/000000000042        the rows of DataFrames that a micro-batch left open, where there is a retry

A file is written beside its place and renamed into it; one that is still called ``new-`` was never there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.frames import WireRow
from acktree.core.ids import Int64s
from acktree.core.ledger import Ledger
from acktree.core.packing import int64s, pack, unpack
from acktree.core.values import batch_from_bytes, batch_to_bytes
from acktree.spark.files import FOLDER, Files
from acktree.tasks.acker_task import Acker, Verdicts
from acktree.tasks.outputs import Payload, payload_of_wire
from acktree.tasks.plan import Plan

_SMALL: Final = 1 << 20
"""Changes of so many bytes are worth no new whole, however little is open."""
_MOST_CHANGES: Final = 1024
"""And so many changes are worth one, however much is open: a restart reads each, a file system holds each."""


class DurableAcker:
    """The acker of a checkpoint."""

    def __init__(
        self, plan: Plan, folder: Path, last_committed: int, first_batch: int = 0, files: Files = FOLDER
    ) -> None:
        """Take up what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed; the one after it runs again.
            first_batch: What was before this one is forgotten.
            files: How a file comes to be there.
        """
        self._log = _Log(folder / "acker", last_committed, first_batch, files)
        self._acker = Acker(plan, self._log.recover(plan.timeout_ms))
        self._payloads = _Payloads(folder / "payloads", last_committed, self._acker.ledger, files)

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run; see :meth:`Acker.forget_before`."""
        self._acker.forget_before(first_sequences)

    def settle(
        self,
        batch_id: int,
        deltas: Iterable[WireRow],
        payloads: Iterable[WireRow],
        clock_ms: int,
        *,
        is_first: bool,
    ) -> tuple[Verdicts, list[Payload]]:
        """Judge a micro-batch, durably; with what failed rows of DataFrames held."""
        verdicts, change = self._acker.settle(deltas, clock_ms, is_first=is_first)
        arrived = [payload_of_wire(row.head, row.body) for row in payloads]
        failed = self._payloads.settle(batch_id, arrived, verdicts)
        if change:
            self._log.write(batch_id, change, self._acker.ledger)
        return verdicts, failed


class _Log:
    """Changes since the last whole ledger, a file for each micro-batch that changed something."""

    def __init__(self, folder: Path, last_committed: int, first_batch: int, files: Files) -> None:
        self._folder, self._disk = folder, files
        found = _committed(files, folder, last_committed, first_batch)
        whole = max((at for at, file in enumerate(found) if file.suffix == ".whole"), default=0)
        self._superseded, self._files = found[:whole], found[whole:]
        self._written = 0

    def recover(self, timeout_ms: int | None) -> Ledger:
        ledger = Ledger(timeout_ms)
        for file in self._files:
            blob = file.read_bytes()
            if file.suffix == ".whole":
                ledger = Ledger(timeout_ms, blob)
            else:
                ledger.replay(blob)
                self._written += len(blob)
        return ledger

    def write(self, batch_id: int, change: bytes, ledger: Ledger) -> None:
        for file in self._superseded:  # by a micro-batch before this one, which is committed by now
            self._disk.remove(file)
        self._superseded = []
        self._written += len(change)
        is_large = self._written > max(_SMALL, 2 * ledger.nbytes)
        if is_large or len(self._files) > _MOST_CHANGES:
            self._superseded, self._files, self._written = self._files, [], 0
            file = _write(self._disk, self._folder / f"{batch_id:012d}.whole", ledger.to_bytes())
        else:
            file = _write(self._disk, self._folder / f"{batch_id:012d}.change", change)
        self._files.append(file)


class _Payloads:
    """What rows of DataFrames held, kept while they are open: their source has moved on."""

    def __init__(self, folder: Path, last_committed: int, ledger: Ledger, files: Files) -> None:
        self._folder, self._disk = folder, files
        self._open: dict[Path, Int64s] = {}
        self._closed: list[Path] = []
        for file in _committed(files, folder, last_committed):
            self._keep(file, ledger.still_open(np.concatenate([roots for roots, _ in _read(file)])))

    def settle(self, batch_id: int, arrived: Sequence[Payload], verdicts: Verdicts) -> list[Payload]:
        """Take in what came, let go of what was judged, give back what failed."""
        for file in self._closed:  # by a micro-batch before this one, which is committed by now
            self._disk.remove(file)
        self._closed = []
        lost = np.concatenate((verdicts.failed.roots, verdicts.timed_out.roots))
        judged = np.concatenate((verdicts.acked.roots, lost))
        failed = _those(arrived, lost)
        for file, roots in list(self._open.items()):
            if np.isin(roots, lost).any():
                failed += _those(_read(file), np.intersect1d(roots, lost))
            self._keep(file, roots[~np.isin(roots, judged)])
        came = np.concatenate([judged[:0], *(roots for roots, _ in arrived)])
        left = _those(arrived, came[~np.isin(came, judged)])
        if left:
            # One by one: the rows of two DataFrames make no table.
            parts = (part for roots, values in left for part in (roots, batch_to_bytes(values)))
            file = _write(self._disk, self._folder / f"{batch_id:012d}", pack(*parts))
            self._keep(file, np.concatenate([roots for roots, _ in left]))
        return failed

    def _keep(self, file: Path, roots: Int64s) -> None:
        self._open.pop(file, None)
        if len(roots):
            self._open[file] = roots
        else:
            self._closed.append(file)


def _committed(files: Files, folder: Path, last_committed: int, first_batch: int = 0) -> list[Path]:
    """The files of micro-batches that count, ascending; what else is there goes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found: list[Path] = []
    for file in sorted(folder.iterdir()):
        if file.name.startswith("new-") or not first_batch <= int(file.stem) <= last_committed:
            files.remove(file)
        else:
            found.append(file)
    return found


def _write(files: Files, file: Path, blob: bytes) -> Path:
    new = file.with_name(f"new-{file.name}")
    new.touch(mode=0o600)
    new.write_bytes(blob)
    return files.place(new, file)


def _read(file: Path) -> list[Payload]:
    parts = unpack(file.read_bytes())
    return [
        (int64s(roots), batch_from_bytes(values))
        for roots, values in zip(parts[::2], parts[1::2], strict=True)
    ]


def _those(payloads: Sequence[Payload], wanted: Int64s) -> list[Payload]:
    """The rows of some roots."""
    found = ((roots, values, np.flatnonzero(np.isin(roots, wanted))) for roots, values in payloads)
    return [(roots[which], values.take(pa.array(which))) for roots, values, which in found if len(which)]
