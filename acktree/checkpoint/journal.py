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

from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.row_files import write_parts
from acktree.core.data.values import batch_to_bytes
from acktree.core.packing import int64s, pack, unpack
from acktree.mapped_files import mapped
from acktree.private_files import make_private_folder, write_private
from acktree.tasks.acker import Verdicts
from acktree.tasks.payloads import Payload, payload_of_wire

_TOLD: Final = "told"
"""What was told by when that was last noted: a moment ago at most, and after an orderly stop all."""


@dataclass(frozen=True)
class StoredPayloads:
    """What a file of the journal says that failed rows held; read piece by piece, as often as one likes."""

    file: Path

    def __iter__(self) -> Iterator[Payload]:
        _, _, *packed = unpack(mapped(self.file))
        for head, body in zip(packed[::2], packed[1::2], strict=True):
            yield payload_of_wire(head, body)


class Journal:
    """The journal of one checkpoint."""

    def __init__(self, folder: Path, told_through: Callable[[], int], files: Files = FOLDER) -> None:
        """Open it.

        Args:
            told_through: The last micro-batch all of whose verdicts were told to the spouts.
            files: How a file comes to be there.
        """
        make_private_folder(folder)
        self._folder, self._files = folder, files
        self._told_through = told_through
        self._ends: dict[int, int] = {}
        self._noted = -1

    def write(
        self, batch_id: int, end: int, verdicts: Verdicts, payloads: Iterable[Payload] = ()
    ) -> StoredPayloads:
        """Make the verdicts of a micro-batch durable, and what failed rows of DataFrames held.

        Args:
            end: The last inbox number that the micro-batch ran over.
            payloads: What failed rows held; read once, piece by piece.

        Returns:
            The same payloads, as they are on disk: until the verdicts were told.
        """
        head = np.array([self._told_through(), end])
        rows = (part for roots, values in payloads for part in (pack(roots), batch_to_bytes(values)))
        new = self._folder / f"new-{batch_id}"
        write_parts(new, chain((head, verdicts.to_bytes()), rows))
        file = self._files.place(new, self._folder / f"{batch_id:012d}")
        self._ends[batch_id] = end
        return StoredPayloads(file)

    def earlier(self, last_committed: int) -> Iterator[tuple[bool, Verdicts, StoredPayloads]]:
        """What earlier runs wrote, in order: whether the spouts were told of it, and what it was.

        Args:
            last_committed: The last micro-batch that Spark has committed; what came after it runs again.
        """
        for file in self._folder.iterdir():
            if file.name.startswith("new-") or (file.name.isdigit() and int(file.name) > last_committed):
                self._files.remove(file)
        files = sorted(file for file in self._folder.iterdir() if file.name.isdigit())
        parts = {int(file.name): unpack(mapped(file)) for file in files}
        heads = {batch_id: int64s(part[0]).tolist() for batch_id, part in parts.items()}
        told_through = max((self._last_noted(), *(told for told, _ in heads.values())))
        self._ends |= {batch_id: end for batch_id, (_, end) in heads.items()}
        for file, (batch_id, (_, told, *_)) in zip(files, parts.items(), strict=True):
            yield batch_id <= told_through, Verdicts.from_bytes(told), StoredPayloads(file)

    def forget_before(self, oldest: int) -> None:
        """Delete what was told and is only about chunks before ``oldest``: none of them is there any more."""
        told_through = self._told_through()
        for batch_id, end in list(self._ends.items()):
            if end < oldest and batch_id <= told_through:
                self._files.remove(self._folder / f"{batch_id:012d}")
                del self._ends[batch_id]

    def note_told(self) -> None:
        """Note what was told up to now, so that the next run does not tell it again."""
        told_through = self._told_through()
        if told_through != self._noted:
            new = self._folder / "new-told"
            write_private(new, str(told_through).encode())
            self._files.place(new, self._folder / _TOLD)
            self._noted = told_through

    def _last_noted(self) -> int:
        file = self._folder / _TOLD
        return int(file.read_text()) if file.exists() else -1
