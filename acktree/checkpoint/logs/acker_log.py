"""The acker of a checkpoint: what each micro-batch changed in the ledger is its section of the commit log.

::

    in the log                 what a micro-batch changed in the ledger, or the ledger after it; and which
                               files count
    payloads/000000000042      payloads of rows of DataFrames that a micro-batch left open, with a retry
    payloads/000000000042.1    more of them: a file has some 16 MB
    ids/000000000042           the message ids of such rows, with an acknowledger
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.checkpoint.files import FOLDER, Files, explaining
from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section
from acktree.checkpoint.row_files import RowFile, rows_in, write_rows
from acktree.core.data.frames import WireRow
from acktree.core.ids import Int64s
from acktree.core.micro_batch import MicroBatch
from acktree.core.packing import pack, unpack
from acktree.core.runs import end_to_end
from acktree.core.tracking.ledger import Ledger
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.system.private_files import UNPUBLISHED
from acktree.tasks.acker import Acker
from acktree.tasks.chunk import in_parts
from acktree.tasks.payloads import Payload, RowIds, TakePayloads, is_among, no_payloads
from acktree.tasks.plan import Plan

_SMALL: Final = 1 << 20
"""No new whole ledger is written while the changes since the last one have fewer bytes than this."""
_FILE_BYTES: Final = 16 << 20
"""The usual size of a file of payloads. It is written in one go, and deleted with its last open row."""
_SPARSE: Final = 4
"""When fewer than one row in this number is still open, the open rows of a payload file move to a new one."""
_MOST_CHANGES: Final = 256
"""After this number of changes a new whole ledger is written in any case: a restart reads every change."""
_OURS: Final = re.compile(rf"(?:{UNPUBLISHED})?\d{{12,}}(?:\.\d+)?", re.ASCII)
"""The names of files of rows; what has another name is not acktree's, and stays."""
_Names = Mapping[str, Mapping[str, Sequence[int]]]
"""Kind of rows -> file name -> the fields of its :class:`RowFile`, of the files that count."""


class DurableAcker(Participant):
    """The acker of a checkpoint."""

    name = "acker"

    def __init__(self, plan: Plan, folder: Path, first: int = 0, files: Files = FOLDER) -> None:
        """Begin with nothing open, until :meth:`recover`.

        Args:
            folder: The checkpoint's folder.
            first: Sections of commits before this number do not count.
            files: How files are written.
        """
        self._plan, self._first = plan, first
        self._acker = Acker(plan)
        self._payloads = _RowFiles(folder / "payloads", files)
        self._ids = _RowFiles(folder / "ids", files) if plan.tells_rows else None
        self._change = b""
        self._bytes_since = self._changes_since = 0  # bytes, sections since the last whole ledger
        self.row_ids = RowIds()
        """Message ids of the last micro-batch's rows; to be read before the next micro-batch."""

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run; see :meth:`Acker.forget_before`."""
        self._acker.forget_before(first_sequences)

    def still_open(self, roots: Int64s) -> Int64s:
        """The open ones among these roots, ascending."""
        return self._acker.ledger.still_open(roots)

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
        verdicts = self._acker.judge(deltas, batch.clock_ms, is_first=batch.is_first)
        left_open, lost = self._acker.rows_left, _lost(verdicts)
        judged = np.concatenate((lost, _rows(verdicts.acked)))
        failed = self._payloads.update(batch.batch_id, payloads, lost, judged, left_open.roots)
        if self._ids is not None:  # of all judged rows the ids are wanted, of lost ones alone the payloads
            judged = np.sort(judged)
            judged_ids = self._ids.update(batch.batch_id, ids, judged, judged, left_open.roots)
            self.row_ids = RowIds(judged_ids, list(_by_task(ids(left_open.roots), left_open)))
        self._change = verdicts.change
        return verdicts, failed

    # ---- a participant of the commit log ----------------------------------------------------------------

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        ledger = Ledger(self._plan.timeout_ms, timeout_of=self._plan.timeout_of)
        names: _Names = {}
        next_number = sections[-1][0] + 1 if sections else 0
        for number, section in sections:
            if number < self._first:
                continue
            files, changed = unpack(section.content)
            names = json.loads(bytes(files))
            if section.is_whole:
                ledger = Ledger(self._plan.timeout_ms, changed, timeout_of=self._plan.timeout_of)
            elif len(changed):
                ledger.replay(changed)
                self._bytes_since += len(changed)
                self._changes_since += 1
        self._acker = Acker(self._plan, ledger)
        for rows, kind in self._row_files():
            rows.recover(names.get(kind, {}), ledger, next_number)

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:  # noqa: ARG002  # it has judged
        change, self._change = self._change, b""
        other_files = [rows.take_changed() for rows, _ in self._row_files()]
        if not change and not any(other_files):
            return None
        names = json.dumps({kind: rows.names for rows, kind in self._row_files()}).encode()
        self._bytes_since += len(change)
        self._changes_since += 1
        ledger = self._acker.ledger
        if self._bytes_since > max(_SMALL, 2 * ledger.nbytes) or self._changes_since > _MOST_CHANGES:
            self._bytes_since = self._changes_since = 0
            return Section(pack(names, ledger.to_bytes()), is_whole=True)
        return Section(pack(names, change))

    def sweep(self) -> None:
        for rows, _ in self._row_files():
            rows.sweep()

    def committed(self, number: int) -> None:
        for rows, _ in self._row_files():
            rows.delete_closed(number)

    @property
    def oldest(self) -> int:
        return self._first

    def _row_files(self) -> Iterator[tuple[_RowFiles, str]]:
        yield self._payloads, "payloads"
        if self._ids is not None:
            yield self._ids, "ids"


class _RowFiles:
    """The payloads of open rows of DataFrames, whose source does not read them again; or their message ids.

    A row is in one file. When three quarters of a file's rows have their verdict, the others move to a new
    file. So the size on disk is proportional to the open rows.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        with explaining(folder):
            files.disk.make_folder(folder)
        self._folder, self._disk = folder, files
        self._open: dict[Path, Int64s] = {}
        self._sizes: dict[Path, int] = {}
        self._written: dict[Path, RowFile] = {}
        self._closed: list[tuple[int, Path]] = []
        self._number = -1
        self._has_changed = False

    def recover(self, written: Mapping[str, Sequence[int]], ledger: Ledger, next_number: int) -> None:
        """Take up the files that count. The others are of micro-batches that were never committed."""
        self._number = next_number
        seen = np.zeros(0, dtype=np.int64)
        # The newest first: after a crash rows may also be in the file from which they have moved.
        for name in sorted(written, reverse=True):
            file = self._folder / name
            self._written[file] = RowFile(*written[name])
            roots = end_to_end(roots for roots, _ in self._rows_in(file))
            self._sizes[file] = len(roots)
            still_open = ledger.still_open(roots)
            still_open = still_open[~is_among(still_open, seen)]
            seen = np.union1d(seen, still_open)
            self._keep(file, still_open)

    def sweep(self) -> None:
        """Delete the files that do not count."""
        counting = {file.name for file in self._written}
        with explaining(self._folder):
            for name in self._disk.disk.names(self._folder):
                if _OURS.fullmatch(name) and name not in counting:
                    self._disk.remove(self._folder / name)

    @property
    def names(self) -> dict[str, RowFile]:
        """The files that count."""
        return {file.name: self._written[file] for file in self._open}

    def take_changed(self) -> bool:
        """Whether :attr:`names` has changed since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def delete_closed(self, committed: int) -> None:
        """Delete the files that a commit, or one before it, has closed."""
        for number, file in self._closed:
            if number <= committed:
                self._disk.remove(file)
                self._sizes.pop(file, None)
                self._written.pop(file, None)
        self._closed = [(number, file) for number, file in self._closed if number > committed]

    def still_open(self) -> Iterator[Payload]:
        """The payloads of all open rows."""
        return self._in_files(list(self._open.items()))

    def update(
        self, batch_id: int, payloads: TakePayloads, wanted: Int64s, judged: Int64s, left_open: Int64s
    ) -> Iterator[Payload]:
        """Drop the payloads of judged rows, and add those of rows that a micro-batch left open.

        Args:
            payloads: Returns the payloads of rows of this micro-batch.
            wanted: Those of ``judged`` whose payloads are returned, ascending.
            judged: Roots that have their verdict now, in any order. They are sorted only if there are open
                files: usually there are none, and the roots are hundreds of thousands.
            left_open: Roots that this micro-batch opened and left open.

        Returns:
            The payloads of ``wanted``, in pieces.
        """
        self._number = batch_id
        returned: list[tuple[Path, Int64s]] = []
        moving: list[tuple[Path, Int64s]] = []
        open_files = list(self._open.items()) if len(judged) else []
        ascending = np.sort(judged) if open_files else judged
        for file, roots in open_files:
            is_judged = is_among(roots, ascending)
            if not is_judged.any():
                continue
            judged_here, stays = roots[is_judged], roots[~is_judged]
            returned.append((file, judged_here[is_among(judged_here, wanted)]))
            if len(stays) * _SPARSE < self._sizes[file]:
                moving.append((file, stays))
                stays = stays[:0]
            self._keep(file, stays)
        self._write(batch_id, chain(payloads(left_open), self._in_files(moving)))
        old = np.sort(end_to_end(roots for _, roots in returned))
        return chain(self._in_files(returned), payloads(wanted[~is_among(wanted, old)]))

    def _write(self, batch_id: int, payloads: Iterable[Payload]) -> None:
        """Write payloads, into files of a bounded size."""
        for number, part in enumerate(in_parts(payloads, lambda payload: payload[1].nbytes, _FILE_BYTES)):
            name = f"{batch_id:012d}.{number}" if number else f"{batch_id:012d}"
            file = self._folder / name
            self._written[file] = write_rows(file, part, self._disk)
            roots = np.concatenate([roots for roots, _ in part])
            self._sizes[file] = len(roots)
            self._has_changed = True
            self._keep(file, roots)

    def _keep(self, file: Path, roots: Int64s) -> None:
        self._open.pop(file, None)
        if len(roots):
            self._open[file] = roots
        else:
            self._has_changed = True
            self._closed.append((self._number, file))

    def _in_files(self, wanted: Sequence[tuple[Path, Int64s]]) -> Iterator[Payload]:
        """The payloads of some rows in some files."""
        for file, roots in wanted:
            ascending = np.sort(roots)
            for stored, values in self._rows_in(file) if len(roots) else ():
                rows = np.flatnonzero(is_among(stored, ascending))
                if len(rows):
                    yield stored[rows], values.take(pa.array(rows))

    def _rows_in(self, file: Path) -> Iterator[Payload]:
        return rows_in(file, self._written[file], self._disk)


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
    """The judged roots that are rows of DataFrames."""
    return judged.roots[judged.owners < 0]
