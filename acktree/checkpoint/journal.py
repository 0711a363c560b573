"""The journal: verdicts on disk, in ``verdicts/``, for spouts whose messages only the inbox has.

The sink writes them before it returns. Spark then commits the micro-batch, which never runs again: without
the journal, a driver that dies before it has delivered a verdict would lose it. A spout of a queue needs no
journal: the queue delivers open messages again.

The verdicts of a micro-batch are final once Spark has committed it: before that it may run again and decide
otherwise. So no verdict is delivered earlier, and a restart discards what the journal holds of a micro-batch
that was never committed.

A file is deleted when its verdicts were delivered and the last chunk that they may concern is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from acktree.checkpoint.files import FOLDER, Files, committed_files
from acktree.checkpoint.row_files import write_parts
from acktree.core.data.values import batch_to_bytes
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.errors import CheckpointError
from acktree.private_files import UNPUBLISHED
from acktree.tasks.acker import Verdicts
from acktree.tasks.payloads import Payload, payload_of_wire

_DELIVERED: Final = "told"
"""The file with the last micro-batch whose verdicts were delivered. It is written every few moments, and at
an orderly stop."""


@dataclass(frozen=True)
class StoredPayloads:
    """The payloads of failed rows in a file of the journal; read in pieces, any number of times."""

    file: Path
    files: Files

    def __iter__(self) -> Iterator[Payload]:
        return _pieces(self.file, self.files, 0)

    @property
    def ids(self) -> Iterable[Payload]:
        """Message ids of all rows with a verdict, where an ``Acknowledger`` needs them."""
        return _StoredIds(self.file, self.files)


@dataclass(frozen=True)
class _StoredIds:
    """The message ids of rows in a file of the journal; read any number of times."""

    file: Path
    files: Files

    def __iter__(self) -> Iterator[Payload]:
        return _pieces(self.file, self.files, 1)


_BETWEEN: Final = (b"", b"")
"""The separator between the payloads and the ids of a file, if there are ids."""


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

    def __init__(self, folder: Path, delivered_through: Callable[[], int], files: Files = FOLDER) -> None:
        """Open it.

        Args:
            delivered_through: Returns the last micro-batch all of whose verdicts the spouts have received.
            files: How files are written.
        """
        files.disk.make_folder(folder)
        self._folder, self._files = folder, files
        self._delivered_through = delivered_through
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
        """Make the verdicts of a micro-batch durable, and the payloads of failed rows of DataFrames.

        Args:
            end: The last inbox number that the micro-batch ran over.
            payloads: The payloads of failed rows; read once, in pieces.
            ids: Message ids of rows with a verdict; read once, in pieces.

        Returns:
            The same payloads, read from disk. The file is there until the verdicts were delivered.
        """
        head = np.array([self._delivered_through(), end])
        parts = chain((head, verdicts.to_bytes()), _sections(payloads, ids))
        file = write_parts(self._file_of(batch_id), parts, self._files)
        self._ends[batch_id] = end
        return StoredPayloads(file, self._files)

    def earlier(self, last_committed: int) -> Iterator[tuple[bool, Verdicts, StoredPayloads]]:
        """What earlier runs wrote, in order: whether the spouts received it, the verdicts, and the payloads.

        Args:
            last_committed: The last micro-batch that Spark has committed; later ones run again.
        """
        unpublished = self._folder / f"{UNPUBLISHED}{_DELIVERED}"
        if self._files.disk.exists(unpublished):
            self._files.disk.remove(unpublished)
        files = {int(file.name): file for file in committed_files(self._files, self._folder, last_committed)}
        parts = {number: unpack(self._files.mapped(file)) for number, file in files.items()}
        heads = {batch_id: int64s(part[0]).tolist() for batch_id, part in parts.items()}
        delivered_through = max((self._last_noted(), *(through for through, _ in heads.values())))
        self._ends |= {batch_id: end for batch_id, (_, end) in heads.items()}
        for batch_id, (_, verdicts, *_) in parts.items():
            stored = StoredPayloads(files[batch_id], self._files)
            yield batch_id <= delivered_through, Verdicts.from_bytes(verdicts), stored

    def forget_before(self, oldest: int, sync: Callable[[], None] = lambda: None) -> None:
        """Delete delivered verdicts that concern chunks before ``oldest`` only: these chunks are deleted.

        Args:
            sync: Called first: a chunk whose deletion a power cut undoes needs its verdicts.
        """
        delivered = self._delivered_through()
        done = [batch_id for batch_id, end in self._ends.items() if end < oldest and batch_id <= delivered]
        if done:
            sync()
        for batch_id in done:
            self._files.remove(self._file_of(batch_id))
            del self._ends[batch_id]

    def note_delivered(self) -> None:
        """Note which verdicts were delivered, so that the next run does not deliver them again."""
        delivered = self._delivered_through()
        if delivered != self._noted:
            self._files.write(self._folder / _DELIVERED, str(delivered).encode())
            self._noted = delivered

    def _last_noted(self) -> int:
        file = self._folder / _DELIVERED
        if not self._files.disk.exists(file):
            return -1
        try:
            return int(self._files.read(file))
        except ValueError as error:
            raise CheckpointError(
                "the note of the verdicts that were delivered is damaged",
                str(file),
                "delete this file; acks and fails of the last micro-batches are then delivered again",
            ) from error

    def _file_of(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id:012d}"
