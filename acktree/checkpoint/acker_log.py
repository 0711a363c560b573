"""The acker's log: what each micro-batch changed in the ledger, on disk; and the acker that writes it.

The log is written before the sink returns, so before Spark commits the micro-batch. A restart discards what
it holds of a micro-batch that was never committed, and that micro-batch runs again on the acker's earlier
state.

::

    acker/000000000042.change    what a micro-batch changed in the ledger; none where nothing was or is open
    acker/000000000040.whole     the ledger after a micro-batch; the next write deletes older files
    payloads/000000000042        payloads of rows of DataFrames that a micro-batch left open, with a retry
    payloads/000000000042.1      more of them: a file has some 16 MB
    ids/000000000042             the message ids of such rows, with an acknowledger

A file is written under a name that begins with ``new-``, and renamed. One that still has that name is
incomplete, and is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.checkpoint.files import FOLDER, Files, committed_files
from acktree.checkpoint.row_files import payloads_in
from acktree.core.data.frames import WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int64s
from acktree.core.micro_batch import MicroBatch
from acktree.core.packing import pack
from acktree.core.tracking.ledger import Judged, Ledger
from acktree.errors import CheckpointError
from acktree.tasks.acker import Acker, Verdicts
from acktree.tasks.chunk import in_parts
from acktree.tasks.payloads import Payload, RowIds, TakePayloads, is_among, no_payloads
from acktree.tasks.plan import Plan

_SMALL: Final = 1 << 20
"""No new whole ledger is written while the changes since the last one have fewer bytes than this."""
_FILE_BYTES: Final = 16 << 20
"""The usual size of a file of payloads. It is written in one go, and deleted with its last open row."""
_SPARSE: Final = 4
"""When fewer than one row in this number is still open, the open rows of a payload file move to a new one."""
_MOST_CHANGES: Final = 1024
"""After this number of changes a new whole ledger is written in any case: a restart reads every change."""
_OF_ACKER: Final = r"\.(?:change|whole)"
_OF_PAYLOADS: Final = r"(?:\.\d+)?"


class DurableAcker:
    """The acker of a checkpoint."""

    def __init__(
        self, plan: Plan, folder: Path, last_committed: int, first_batch: int = 0, files: Files = FOLDER
    ) -> None:
        """Recover what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed; the one after it runs again.
            first_batch: Earlier micro-batches are forgotten.
            files: How files are written.
        """
        self._log = _Log(folder / "acker", last_committed, first_batch, files)
        self._acker = Acker(plan, self._log.recover(plan))
        ledger = self._acker.ledger
        self._payloads = _Payloads(folder / "payloads", last_committed, ledger, files)
        self._ids = _Payloads(folder / "ids", last_committed, ledger, files) if plan.tells_rows else None
        self.row_ids = RowIds()
        """Message ids of the last micro-batch's rows; to be read before the next micro-batch."""

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run; see :meth:`Acker.forget_before`."""
        self._acker.forget_before(first_sequences)

    def open_row_ids(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The message ids of rows of DataFrames that are open, as (spout task, ids)."""
        if self._ids is not None:
            yield from _by_task(self._ids.still_open(), self._acker.ledger.open_rows())

    def judge(
        self,
        batch: MicroBatch,
        deltas: Iterable[WireRow],
        payloads: TakePayloads,
        ids: TakePayloads = no_payloads,
    ) -> tuple[Verdicts, Iterator[Payload]]:
        """Judge a micro-batch, durably.

        Args:
            payloads: Returns the payloads of rows of this micro-batch.
            ids: Returns their message ids, for :attr:`row_ids`.

        Returns:
            The verdicts, and the payloads of failed rows of DataFrames, in pieces; to be read before the next
            call.
        """
        verdicts, change = self._acker.judge(deltas, batch.clock_ms, is_first=batch.is_first)
        left, lost = self._acker.rows_left, _lost(verdicts)
        judged = np.concatenate((lost, _rows(verdicts.acked)))
        failed = self._payloads.update(batch.batch_id, payloads, lost, judged, left.roots)
        if self._ids is not None:
            judged = np.sort(judged)
            judged_ids = self._ids.update(batch.batch_id, ids, judged, judged, left.roots)
            self.row_ids = RowIds(judged_ids, list(_by_task(ids(left.roots), left)))
        if change:
            self._log.write(batch.batch_id, change, self._acker.ledger)
        return verdicts, failed


class _Log:
    """Changes since the last whole ledger, a file for each micro-batch that changed something."""

    def __init__(self, folder: Path, last_committed: int, first_batch: int, files: Files) -> None:
        self._folder, self._disk = folder, files
        found = _committed(files, folder, last_committed, _OF_ACKER, first_batch)
        whole = max((at for at, file in enumerate(found) if file.suffix == ".whole"), default=0)
        self._superseded, self._files = found[:whole], found[whole:]
        self._written = 0

    def recover(self, plan: Plan) -> Ledger:
        ledger = Ledger(plan.timeout_ms, timeout_of=plan.timeout_of)
        for file in self._files:
            with _explained(self._folder):
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
    """The payloads of open rows of DataFrames, whose source does not read them again.

    A row is in one file. When three quarters of a file's rows have their verdict, the others move to a new
    file. So the size on disk is proportional to the open rows.
    """

    def __init__(self, folder: Path, last_committed: int, ledger: Ledger, files: Files) -> None:
        self._folder, self._disk = folder, files
        self._open: dict[Path, Int64s] = {}
        self._sizes: dict[Path, int] = {}
        self._closed: list[Path] = []
        seen = np.zeros(0, dtype=np.int64)
        # The newest first: after a crash rows may also be in the file from which they have moved.
        for file in reversed(_committed(files, folder, last_committed, _OF_PAYLOADS)):
            with _explained(folder):
                roots = np.concatenate([seen[:0], *(roots for roots, _ in payloads_in(file, files))])
            self._sizes[file] = len(roots)
            still_open = ledger.still_open(roots)
            still_open = still_open[~is_among(still_open, seen)]
            seen = np.union1d(seen, still_open)
            self._keep(file, still_open)

    def still_open(self) -> Iterator[Payload]:
        """The payloads of all open rows."""
        return _in_files(self._disk, list(self._open.items()))

    def update(
        self, batch_id: int, payloads: TakePayloads, wanted: Int64s, judged: Int64s, left: Int64s
    ) -> Iterator[Payload]:
        """Drop the payloads of judged rows, and add those of rows that a micro-batch left open.

        Args:
            payloads: Returns the payloads of rows of this micro-batch.
            wanted: Those of ``judged`` whose payloads are returned, ascending.
            judged: Roots that have their verdict now, in any order: usually no row is open in a file, and the
                sort of hundreds of thousands is left out.
            left: Roots that this micro-batch opened and left open.

        Returns:
            The payloads of ``wanted``, in pieces.
        """
        for file in self._closed:  # by a micro-batch before this one, which is committed by now
            self._disk.remove(file)
            self._sizes.pop(file, None)
        self._closed = []
        given: list[tuple[Path, Int64s]] = []
        moving: list[tuple[Path, Int64s]] = []
        held = list(self._open.items()) if len(judged) else []
        ascending = np.sort(judged) if held else judged
        for file, roots in held:
            is_judged = is_among(roots, ascending)
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
        """Write payloads, into files of a bounded size."""
        for number, part in enumerate(in_parts(payloads, lambda each: each[1].nbytes, _FILE_BYTES)):
            name = f"{batch_id:012d}.{number}" if number else f"{batch_id:012d}"
            # One by one: the rows of two DataFrames do not fit into one table.
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
    """Message ids with the spout task of their rows: a piece has rows of one task."""
    order = np.argsort(rows.roots)
    for roots, message_ids in ids:
        at = order[np.searchsorted(rows.roots, roots[0], sorter=order)]
        yield -int(rows.owners[at]), message_ids


def _rows(judged: Judged) -> Int64s:
    """Those of judged roots that are rows of DataFrames."""
    return judged.roots[judged.owners < 0]


def _in_files(files: Files, wanted: Sequence[tuple[Path, Int64s]]) -> Iterator[Payload]:
    """The payloads of some rows in some files."""
    for file, roots in wanted:
        ascending = np.sort(roots)
        for held, values in payloads_in(file, files) if len(roots) else ():
            which = np.flatnonzero(is_among(held, ascending))
            if len(which):
                yield held[which], values.take(pa.array(which))


def _committed(
    files: Files, folder: Path, last_committed: int, suffix: str, first_batch: int = 0
) -> list[Path]:
    """The files of micro-batches that count, ascending; deletes the others."""
    with _explained(folder):
        files.disk.make_folder(folder)
        return committed_files(files, folder, last_committed, first_batch=first_batch, suffix=suffix)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say what to do about a folder in the place of a file, or the reverse."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise CheckpointError(
            f"what an earlier run stored about open messages cannot be read: {error}",
            f"the folder {folder.name} of the checkpoint",
            "move what is not acktree's out of the checkpoint, or take the checkpoint from a copy",
        ) from error
