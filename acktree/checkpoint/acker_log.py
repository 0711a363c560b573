"""The acker's host on Spark: in the driver, where verdicts are told, with a log of its own.

Written before the sink returns, so before Spark commits the micro-batch: what stands here of one that was
never committed is thrown away at a restart, and the micro-batch that runs again finds the acker as it was.

::

    acker/000000000042.change    what a micro-batch changed in the ledger; none where nothing was or is open
    acker/000000000040.whole     the ledger after a micro-batch; what is older goes at the next write
    payloads/000000000042        what rows of DataFrames hold that a micro-batch left open, with a retry
    payloads/000000000042.1      more of it: a file has some 16 MB
    ids/000000000042             likewise the message ids of such rows, with an acknowledger

A file is written beside its place and renamed into it; one that is still called ``new-`` was never there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.checkpoint.files import FOLDER, UNPLACED, Files
from acktree.checkpoint.row_files import payloads_in
from acktree.core.data.frames import WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int64s
from acktree.core.micro_batch import MicroBatch
from acktree.core.packing import pack
from acktree.core.tracking.ledger import Judged, Ledger
from acktree.tasks.acker import Acker, Verdicts
from acktree.tasks.chunk import in_parts
from acktree.tasks.payloads import Payload, RowIds, TakePayloads, is_among, no_payloads
from acktree.tasks.plan import Plan

_SMALL: Final = 1 << 20
"""No new whole is written while the changes since the last one have fewer bytes than this."""
_FILE_BYTES: Final = 16 << 20
"""The usual bytes of a file of payloads. It is written at once and deleted with its last open row."""
_SPARSE: Final = 4
"""When fewer than one row in this number is still open, the open rows of a payload file move to a new one."""
_MOST_CHANGES: Final = 1024
"""After this number of changes a new whole is written in any case: a restart reads each of their files."""


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
        self._acker = Acker(plan, self._log.recover(plan))
        ledger = self._acker.ledger
        self._payloads = _Payloads(folder / "payloads", last_committed, ledger, files)
        self._ids = _Payloads(folder / "ids", last_committed, ledger, files) if plan.tells_rows else None
        self.row_ids = RowIds()
        """Message ids of the last micro-batch's rows; to be read before the next."""

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run; see :meth:`Acker.forget_before`."""
        self._acker.forget_before(first_sequences)

    def open_row_ids(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The message ids of rows of DataFrames that are open, as (spout task, ids)."""
        if self._ids is not None:
            yield from _by_task(self._ids.still_open(), self._acker.ledger.open_rows())

    def settle(
        self,
        batch: MicroBatch,
        deltas: Iterable[WireRow],
        payloads: TakePayloads,
        ids: TakePayloads = no_payloads,
    ) -> tuple[Verdicts, Iterator[Payload]]:
        """Judge a micro-batch, durably.

        Args:
            payloads: Gives what rows of this micro-batch hold.
            ids: Gives their message ids, for :attr:`row_ids`.

        Returns:
            The verdicts, and what failed rows of DataFrames held, in pieces; to be read before the next call.
        """
        verdicts, change = self._acker.settle(deltas, batch.clock_ms, is_first=batch.is_first)
        left, lost = self._acker.rows_left, _lost(verdicts)
        judged = np.sort(np.concatenate((lost, _rows(verdicts.acked))))
        failed = self._payloads.settle(batch.batch_id, payloads, lost, judged, left.roots)
        if self._ids is not None:
            told = self._ids.settle(batch.batch_id, ids, judged, judged, left.roots)
            self.row_ids = RowIds(told, list(_by_task(ids(left.roots), left)))
        if change:
            self._log.write(batch.batch_id, change, self._acker.ledger)
        return verdicts, failed


class _Log:
    """Changes since the last whole ledger, a file for each micro-batch that changed something."""

    def __init__(self, folder: Path, last_committed: int, first_batch: int, files: Files) -> None:
        self._folder, self._disk = folder, files
        found = _committed(files, folder, last_committed, first_batch)
        whole = max((at for at, file in enumerate(found) if file.suffix == ".whole"), default=0)
        self._superseded, self._files = found[:whole], found[whole:]
        self._written = 0

    def recover(self, plan: Plan) -> Ledger:
        ledger = Ledger(plan.timeout_ms, timeout_of=plan.timeout_of)
        for file in self._files:
            blob = self._disk.read(file)
            if file.suffix == ".whole":
                ledger = Ledger(plan.timeout_ms, blob, timeout_of=plan.timeout_of)
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
            file = self._disk.write(self._folder / f"{batch_id:012d}.whole", ledger.to_bytes())
        else:
            file = self._disk.write(self._folder / f"{batch_id:012d}.change", change)
        self._files.append(file)


class _Payloads:
    """What rows of DataFrames hold that are open: their source has moved on.

    A row is in one file. When three quarters of a file's rows have their verdict the others move to a new
    one, so what is on disk follows what is open.
    """

    def __init__(self, folder: Path, last_committed: int, ledger: Ledger, files: Files) -> None:
        self._folder, self._disk = folder, files
        self._open: dict[Path, Int64s] = {}
        self._sizes: dict[Path, int] = {}
        self._closed: list[Path] = []
        seen = np.zeros(0, dtype=np.int64)
        # The newest first: a driver that died may have left the file from which rows had moved.
        for file in reversed(_committed(files, folder, last_committed)):
            roots = np.concatenate([seen[:0], *(roots for roots, _ in payloads_in(file, files))])
            self._sizes[file] = len(roots)
            still_open = ledger.still_open(roots)
            still_open = still_open[~is_among(still_open, seen)]
            seen = np.union1d(seen, still_open)
            self._keep(file, still_open)

    def still_open(self) -> Iterator[Payload]:
        """What is kept."""
        return _in_files(self._disk, list(self._open.items()))

    def settle(
        self, batch_id: int, payloads: TakePayloads, wanted: Int64s, judged: Int64s, left: Int64s
    ) -> Iterator[Payload]:
        """Let go of what was judged, keep what was left open, give what is wanted of the judged.

        Args:
            payloads: Of rows of this micro-batch.
            wanted: Roots among ``judged``, ascending.
            judged: Roots that have their verdict now, ascending.
            left: Roots that this micro-batch opened and left open.
        """
        for file in self._closed:  # by a micro-batch before this one, which is committed by now
            self._disk.remove(file)
            self._sizes.pop(file, None)
        self._closed = []
        given: list[tuple[Path, Int64s]] = []
        moving: list[tuple[Path, Int64s]] = []
        for file, roots in list(self._open.items()) if len(judged) else ():
            is_judged = is_among(roots, judged)
            if not is_judged.any():
                continue
            gone, stays = roots[is_judged], roots[~is_judged]
            given.append((file, gone[is_among(gone, wanted)]))
            if len(stays) * _SPARSE < self._sizes[file]:
                moving.append((file, stays))
                stays = stays[:0]
            self._keep(file, stays)
        self._write(batch_id, chain(payloads(left), _in_files(self._disk, moving)))
        old = np.sort(np.concatenate([wanted[:0], *(roots for _, roots in given)]))
        return chain(_in_files(self._disk, given), payloads(wanted[~is_among(wanted, old)]))

    def _write(self, batch_id: int, payloads: Iterable[Payload]) -> None:
        """Keep what these rows hold, in files of a bounded size."""
        for number, part in enumerate(in_parts(payloads, lambda each: each[1].nbytes, _FILE_BYTES)):
            name = f"{batch_id:012d}.{number}" if number else f"{batch_id:012d}"
            # One by one: the rows of two DataFrames make no table.
            parts = (half for roots, values in part for half in (roots, batch_to_bytes(values)))
            file = self._disk.write(self._folder / name, pack(*parts))
            roots = np.concatenate([roots for roots, _ in part])
            self._sizes[file] = len(roots)
            self._keep(file, roots)

    def _keep(self, file: Path, roots: Int64s) -> None:
        self._open.pop(file, None)
        if len(roots):
            self._open[file] = roots
        else:
            self._closed.append(file)


def _lost(verdicts: Verdicts) -> Int64s:
    """The rows that were not acked, ascending."""
    return np.sort(np.concatenate((_rows(verdicts.failed), _rows(verdicts.timed_out))))


def _by_task(ids: Iterable[Payload], rows: Judged) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Message ids with the spout task of their rows: all of a piece are of one."""
    order = np.argsort(rows.roots)
    for roots, message_ids in ids:
        at = order[np.searchsorted(rows.roots, roots[0], sorter=order)]
        yield -int(rows.owners[at]), message_ids


def _rows(judged: Judged) -> Int64s:
    """Of judged roots those of rows of DataFrames."""
    return judged.roots[judged.owners < 0]


def _in_files(files: Files, wanted: Sequence[tuple[Path, Int64s]]) -> Iterator[Payload]:
    """What some rows in some files hold."""
    for file, roots in wanted:
        ascending = np.sort(roots)
        for held, values in payloads_in(file, files) if len(roots) else ():
            which = np.flatnonzero(is_among(held, ascending))
            if len(which):
                yield held[which], values.take(pa.array(which))


def _committed(files: Files, folder: Path, last_committed: int, first_batch: int = 0) -> list[Path]:
    """The files of micro-batches that count, ascending; what else is there goes."""
    files.disk.make_folder(folder)
    found: list[Path] = []
    for name in sorted(files.disk.names(folder)):
        file = folder / name
        if name.startswith(UNPLACED) or not first_batch <= int(file.stem) <= last_committed:
            files.remove(file)
        else:
            found.append(file)
    return found
