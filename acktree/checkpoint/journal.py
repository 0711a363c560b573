"""Verdicts on disk, for spouts whose messages only the inbox has.

Written before the sink returns: the micro-batch is then committed and never runs again, so a driver that dies
before a verdict was told would never hear of it. A queue needs none of this: it brings back what was open.

What a micro-batch decided is true once Spark has committed it: before that it may run again and decide
otherwise. So nothing is told earlier, and what stands here of a micro-batch that was never committed is
thrown away at a restart.

A file goes when it was told, and with the last chunk that its verdicts could be about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from acktree.checkpoint.files import FOLDER, UNPLACED, Files
from acktree.checkpoint.row_files import write_parts
from acktree.core.data.values import batch_to_bytes
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.tasks.acker import Verdicts
from acktree.tasks.payloads import Payload, payload_of_wire

_TOLD: Final = "told"
"""What was told by when that was last noted: a moment ago at most, and after an orderly stop all."""


@dataclass(frozen=True)
class StoredPayloads:
    """What a file of the journal says that failed rows held; read piece by piece, as often as one likes."""

    file: Path
    files: Files

    def __iter__(self) -> Iterator[Payload]:
        return _pieces(self.file, self.files, 0)

    @property
    def ids(self) -> Iterable[Payload]:
        """Message ids of all rows with a verdict, where an ``Acknowledger`` is told of them."""
        return _StoredIds(self.file, self.files)


@dataclass(frozen=True)
class _StoredIds:
    """What a file of the journal says of rows' message ids; read as often as one likes."""

    file: Path
    files: Files

    def __iter__(self) -> Iterator[Payload]:
        return _pieces(self.file, self.files, 1)


_BETWEEN: Final = (b"", b"")
"""Stands between the payloads and the ids of a file, if there are ids."""


def _pieces(file: Path, files: Files, section: int) -> Iterator[Payload]:
    """The payloads (section 0) or the ids (section 1) of a file."""
    _, _, *packed = unpack(files.mapped(file))
    at = 0
    for head, body in zip(packed[::2], packed[1::2], strict=True):
        if not len(head):
            at += 1
        elif at == section:
            yield payload_of_wire(head, body)


def _sections(payloads: Iterable[Payload], ids: Iterable[Payload]) -> Iterator[bytes | Buffer]:
    for roots, values in payloads:
        yield from (pack(roots), batch_to_bytes(values))
    for number, (roots, message_ids) in enumerate(ids):
        if not number:
            yield from _BETWEEN
        yield from (pack(roots), batch_to_bytes(message_ids))


class Journal:
    """The journal of one checkpoint."""

    def __init__(self, folder: Path, told_through: Callable[[], int], files: Files = FOLDER) -> None:
        """Open it.

        Args:
            told_through: The last micro-batch all of whose verdicts were told to the spouts.
            files: How a file comes to be there.
        """
        files.disk.make_folder(folder)
        self._folder, self._files = folder, files
        self._told_through = told_through
        self._ends: dict[int, int] = {}
        self._noted = -1

    def write(
        self,
        batch_id: int,
        end: int,
        verdicts: Verdicts,
        payloads: Iterable[Payload] = (),
        ids: Iterable[Payload] = (),
    ) -> StoredPayloads:
        """Make the verdicts of a micro-batch durable, and what failed rows of DataFrames held.

        Args:
            end: The last inbox number that the micro-batch ran over.
            payloads: What failed rows held; read once, piece by piece.
            ids: Message ids of rows with a verdict; likewise.

        Returns:
            The same payloads, as they are on disk: until the verdicts were told.
        """
        head = np.array([self._told_through(), end])
        parts = chain((head, verdicts.to_bytes()), _sections(payloads, ids))
        file = write_parts(self._file_of(batch_id), parts, self._files)
        self._ends[batch_id] = end
        return StoredPayloads(file, self._files)

    def earlier(self, last_committed: int) -> Iterator[tuple[bool, Verdicts, StoredPayloads]]:
        """What earlier runs wrote, in order: whether the spouts were told of it, and what it was.

        Args:
            last_committed: The last micro-batch that Spark has committed; what came after it runs again.
        """
        names = self._files.disk.names(self._folder)
        for name in names:
            if name.startswith(UNPLACED) or (name.isdigit() and int(name) > last_committed):
                self._files.remove(self._folder / name)
        numbers = sorted(int(name) for name in names if name.isdigit())
        files = {number: self._file_of(number) for number in numbers if number <= last_committed}
        parts = {number: unpack(self._files.mapped(file)) for number, file in files.items()}
        heads = {batch_id: int64s(part[0]).tolist() for batch_id, part in parts.items()}
        told_through = max((self._last_noted(), *(told for told, _ in heads.values())))
        self._ends |= {batch_id: end for batch_id, (_, end) in heads.items()}
        for batch_id, (_, told, *_) in parts.items():
            stored = StoredPayloads(files[batch_id], self._files)
            yield batch_id <= told_through, Verdicts.from_bytes(told), stored

    def forget_before(self, oldest: int, sync: Callable[[], None] = lambda: None) -> None:
        """Delete what was told and is only about chunks before ``oldest``: none of them is there any more.

        Args:
            sync: Called first: a chunk that a power cut brings back needs its verdicts.
        """
        told_through = self._told_through()
        done = [batch_id for batch_id, end in self._ends.items() if end < oldest and batch_id <= told_through]
        if done:
            sync()
        for batch_id in done:
            self._files.remove(self._file_of(batch_id))
            del self._ends[batch_id]

    def note_told(self) -> None:
        """Note what was told up to now, so that the next run does not tell it again."""
        told_through = self._told_through()
        if told_through != self._noted:
            self._files.write(self._folder / _TOLD, str(told_through).encode())
            self._noted = told_through

    def _last_noted(self) -> int:
        file = self._folder / _TOLD
        return int(self._files.read(file)) if self._files.disk.exists(file) else -1

    def _file_of(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id:012d}"
