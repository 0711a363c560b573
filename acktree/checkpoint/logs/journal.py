"""The journal: the verdicts of messages that only the inbox has, as sections of the commit log.

A micro-batch whose verdicts are in the log never runs again: without the journal, a driver that dies before
it has delivered a verdict would lose it. A spout of a queue needs no journal: the queue delivers open
messages again.

The verdicts of a micro-batch are final once Spark has committed it: before that it may run again and decide
otherwise. So no verdict is delivered earlier, and a restart discards what the log holds of a micro-batch that
was never committed.

::

    verdicts/000000000042.rows    rows of DataFrames that failed in a micro-batch, with a retry
    verdicts/000000000042.ids     message ids of its rows with a verdict, with an acknowledger
    verdicts/told                 the last micro-batch whose verdicts were delivered; written every few
                                  moments, and at an orderly stop

Beside the verdicts each section names the newest entries of the inbox. A restart that finds only older ones
refuses the checkpoint: of the newest file no later one tells that it is gone.

Verdicts are not needed any more when they were delivered and the last chunk that they may concern is gone.
The section that forgets them says before which entry all chunks are gone. A restart drops a chunk that is
there again, since it was not deleted at the URL yet: without their verdicts its messages would stay open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from acktree.checkpoint.envelope import opened, sealed
from acktree.checkpoint.files import FOLDER, Files, explaining
from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section
from acktree.checkpoint.row_files import NO_FILE, RowFile, rows_in, write_rows
from acktree.core.packing import int64s, pack, unpack
from acktree.core.tracking.verdicts import Verdicts
from acktree.errors import CheckpointError
from acktree.system.private_files import UNPUBLISHED
from acktree.tasks.payloads import Payload

_DELIVERED: Final = "told"
_OURS: Final = re.compile(rf"(?:{UNPUBLISHED})?\d{{12,}}\.(?:rows|ids)|{UNPUBLISHED}{_DELIVERED}", re.ASCII)


@dataclass(frozen=True)
class _RowsOfFile:
    """Rows in a file; read in pieces, any number of times."""

    file: Path
    written: RowFile
    files: Files

    def __iter__(self) -> Iterator[Payload]:
        return rows_in(self.file, self.written, self.files)


class StoredRows(NamedTuple):
    """What the journal has of a micro-batch's rows of DataFrames; there until the verdicts were delivered.

    Attributes:
        failed: The values of the rows that failed.
        ids: The message ids of all rows with a verdict, where an ``Acknowledger`` needs them.
    """

    failed: Iterable[Payload]
    ids: Iterable[Payload]


NO_ROWS: Final = StoredRows((), ())


class Journal(Participant):
    """The journal of one checkpoint.

    Attributes:
        first_entry: Before this entry of the inbox no chunk is needed, since its verdicts were forgotten.
        newest: Of each spout task the entry that had its newest position, and of the inbox the newest entry
            that only it has, at the last commit of an earlier run that is in the journal: those entries are
            there, or newer ones.
    """

    name = "verdicts"

    def __init__(
        self,
        folder: Path,
        delivered_through: Callable[[], int],
        oldest_entry: Callable[[], int],
        files: Files = FOLDER,
        newest: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        """Open it.

        Args:
            folder: Its folder, which is made if it is not there.
            delivered_through: Returns the last micro-batch all of whose verdicts the spouts have received.
            oldest_entry: Returns the oldest entry of the inbox that is kept.
            files: How files are written.
            newest: Returns the entry of the inbox that has the newest position of each spout task, and the
                newest one that only the inbox has.
        """
        with explaining(folder):
            files.disk.make_folder(folder)
        self._folder, self._files = folder, files
        self._delivered_through, self._oldest_entry = delivered_through, oldest_entry
        self._newest = newest
        self._ends: dict[int, int] = {}  # of the commits with verdicts that count
        self._noted = -1
        self._oldest = 0
        self.first_entry = 0
        self.newest: Mapping[int, int] = {}
        self._verdicts: Verdicts | None = None
        self._rows = (NO_FILE, NO_FILE)
        self._recovered: Sequence[tuple[int, Section]] = ()

    def write_rows(self, number: int, failed: Iterable[Payload], ids: Iterable[Payload]) -> StoredRows:
        """Store rows of a micro-batch, before its verdicts are written.

        Args:
            number: The number of the commit.
            failed: The values of the failed rows; read once, in pieces.
            ids: The message ids of rows with a verdict; read once, in pieces.
        """
        rows, of_ids = self._row_files(number)
        self._rows = write_rows(rows, failed, self._files), write_rows(of_ids, ids, self._files)
        return self._stored(number, self._rows)

    # ---- a participant of the commit log ----------------------------------------------------------------

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        for number, section in sections:
            head, newest, verdicts = unpack(section.content)
            pairs = int64s(newest).reshape(-1, 2)
            self.newest = dict(zip(*pairs.T.tolist(), strict=True))
            _, end, first_entry, *rows_of = int64s(head).tolist()
            self.first_entry = max(self.first_entry, first_entry)
            if not verdicts:
                continue
            self._ends[number] = end
            for rows in self._stored(number, _row_files_in(rows_of)):
                for _ in rows:  # all are read before one is delivered: none may be missing
                    pass
        self._recovered = sections

    def sweep(self) -> None:
        wanted = {file.name for number in self._ends for file in self._row_files(number)}
        with explaining(self._folder):
            for name in self._files.disk.names(self._folder):
                if _OURS.fullmatch(name) and name not in wanted:
                    self._files.remove(self._folder / name)

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:
        has_forgotten = self._forget(commit)
        newest = self._newest()
        # Without verdicts before it, it supersedes the sections before it: they do not pile up.
        is_alone = not self._ends and max(newest.values(), default=-1) > commit.end
        if not outcome.verdicts and not has_forgotten and not is_alone:
            return None
        head = np.array([self._delivered_through(), commit.end, self.first_entry, *chain(*self._rows)])
        pairs = np.array([*newest.items()], dtype=np.int64)
        if not outcome.verdicts:
            return Section(pack(head, pairs, b""), is_whole=is_alone)
        self._ends[commit.number], self._rows = commit.end, (NO_FILE, NO_FILE)
        return Section(pack(head, pairs, outcome.verdicts.to_bytes()))

    def _forget(self, commit: Commit) -> bool:
        """Whether some verdicts are not needed any more: delivered ones that concern deleted chunks only."""
        delivered, oldest = self._delivered_through(), self._oldest_entry()
        needed = [batch_id for batch_id, end in self._ends.items() if end >= oldest or batch_id > delivered]
        has_forgotten = len(needed) < len(self._ends)
        if has_forgotten:
            self._oldest = min(needed, default=commit.number)
            # Not beyond what Spark has logged: after a power cut a later number may be used again.
            self.first_entry = min(oldest, commit.end + 1)
        return has_forgotten

    def committed(self, number: int) -> None:  # noqa: ARG002  # what it forgot is what the last one forgot
        for batch_id in [batch_id for batch_id in self._ends if batch_id < self._oldest]:
            for file in self._row_files(batch_id):
                self._files.remove(file)
            del self._ends[batch_id]

    @property
    def oldest(self) -> int:
        return self._oldest

    # ---- delivery ---------------------------------------------------------------------------------------

    def earlier(self) -> Iterator[tuple[bool, Verdicts, StoredRows]]:
        """What earlier runs wrote, in order: whether the spouts received it, the verdicts, and their rows."""
        parts = {number: unpack(section.content) for number, section in self._recovered}
        heads = {number: int64s(head).tolist() for number, (head, _, _) in parts.items()}
        delivered = max((self._last_noted(), *(through for through, *_ in heads.values())))
        for number, (_, _, verdicts) in parts.items():
            stored = self._stored(number, _row_files_in(heads[number][3:]))
            if verdicts:
                yield number <= delivered, Verdicts.from_bytes(verdicts), stored
        self._recovered = ()

    def note_delivered(self) -> None:
        """Note which verdicts were delivered, so that the next run does not deliver them again."""
        delivered = self._delivered_through()
        if delivered != self._noted:
            self._files.write(self._folder / _DELIVERED, sealed(0, str(delivered).encode()))
            self._noted = delivered

    def _last_noted(self) -> int:
        file = self._folder / _DELIVERED
        if not self._files.disk.exists(file):
            return -1
        try:
            return int(bytes(opened(self._files.read(file), 0, file)))
        except (CheckpointError, OSError) as error:
            raise CheckpointError(
                "the note of the verdicts that were delivered is damaged",
                str(file),
                "delete this file; acks and fails of the last micro-batches are then delivered again",
            ) from error

    def _stored(self, number: int, rows: tuple[RowFile, RowFile]) -> StoredRows:
        files = zip(self._row_files(number), rows, strict=True)
        return StoredRows(*(_RowsOfFile(file, written, self._files) for file, written in files))

    def _row_files(self, number: int) -> tuple[Path, Path]:
        return self._folder / f"{number:012d}.rows", self._folder / f"{number:012d}.ids"


def _row_files_in(head: Sequence[int]) -> tuple[RowFile, RowFile]:
    return RowFile(*head[:2]), RowFile(*head[2:])
