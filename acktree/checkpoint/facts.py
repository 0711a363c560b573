"""The facts of a checkpoint: ``acktree.json``, which says what must not change and how far the numbers went.

The file is replaced as a whole, durably. Its facts outlive the runs; each run adds to them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from acktree.checkpoint.files import Files
from acktree.checkpoint.layout import check_version
from acktree.errors import CheckpointError
from acktree.system.private_files import UNPUBLISHED
from acktree.topology.shape import Shape

_NAME: Final = "acktree.json"
_CHECKSUM: Final = "checksum"
_WRITTEN: Final = "written"


def redrives_ordered_in(folder: Path) -> dict[int, int]:
    """The dead letters that are ordered for the next run, and when; none where the facts cannot be read.

    It takes no lock: for display, while nobody runs the topology. A run that was stopped may have settled
    some of them since.
    """
    with suppress(OSError, ValueError, AttributeError, TypeError):
        ordered = json.loads((folder / _NAME).read_bytes()).get("redrive", {})
        return {int(letter): int(at_ms) for letter, at_ms in ordered.items()}
    return {}


def _checksum_of(facts: Mapping[str, Any]) -> int:
    """CRC-32 of facts, however their file is laid out."""
    as_read = json.loads(json.dumps(facts))  # keys are texts, which sort otherwise than numbers
    return zlib.crc32(json.dumps(as_read, sort_keys=True).encode())


class CheckpointFacts:
    """The facts of one checkpoint folder; empty before its first run."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Start empty; :meth:`_read` reads them.

        Args:
            files: How the file is written.
        """
        self.folder, self.files = folder, files
        self._disk = files.disk
        self._facts: dict[str, Any] = {}

    @property
    def place(self) -> Path | str:
        """The checkpoint as messages name it: the folder, or the URL whose working copy the folder is."""
        return self.files.shown(self.folder)

    @property
    def run_salt(self) -> int:
        """The salt of root ids."""
        return int(self._facts["run_salt"])

    @property
    def partitions(self) -> int:
        """How many partitions every level has."""
        return int(self._facts["partitions"])

    @property
    def run(self) -> int:
        """The number of this run, from 1."""
        return int(self._facts["run"])

    @property
    def written(self) -> int:
        """How often the facts were written; each commit notes it."""
        return int(self._facts.get(_WRITTEN, 0))

    @property
    def first_sequence(self) -> int:
        """The first sequence of this run."""
        return int(self._facts["first_sequence"])

    @property
    def has_ended(self) -> bool:
        """Whether an earlier run has ended: every spout ended, every message had its verdict."""
        return bool(self._facts.get("ended"))

    @property
    def is_over(self) -> bool:
        """Whether another run has nothing to do: it has ended, and no dead letter is to be sent again."""
        return self.has_ended and not self.letters_to_redrive

    @property
    def letters_to_redrive(self) -> dict[int, int]:
        """The dead letters that a run is to send again: id -> when that was ordered, in milliseconds."""
        return {int(number): at_ms for number, at_ms in self._facts.get("redrive", {}).items()}

    @property
    def first_batch(self) -> int:
        """The number of Spark's first micro-batch here: Spark's checkpoint may be younger than this one."""
        return int(self._facts.get("first_batch", 0))

    @property
    def begins_after(self) -> int:
        """The inbox number after which Spark's first micro-batch begins."""
        return int(self._facts.get("begins_after", -1))

    @property
    def acker_from(self) -> int:
        """The acker has forgotten micro-batches before this one."""
        return int(self._facts.get("acker_from", 0))

    @property
    def lost_through(self) -> int:
        """The acker has forgotten open messages up to this inbox number, and they run again; -1 for none."""
        return int(self._facts.get("lost_through", -1))

    @property
    def has_state_files(self) -> bool:
        """Whether what bolts remember is in files of ours; else it is in Spark's state."""
        return bool(self._facts.get("has_state_files"))

    @property
    def state_from(self) -> int | None:
        """The first micro-batch in which bolts could remember in files; None while none could."""
        number = self._facts.get("state_from")
        return None if number is None else int(number)

    @property
    def shape(self) -> Shape | None:
        """The shape of the topology that ran last; None before the first run."""
        return Shape.from_json(self._facts["shape"]) if "shape" in self._facts else None

    @property
    def next_generation(self) -> int:
        """The number of the next generation."""
        return int(self._facts.get("generation", 1)) + 1

    def _read(self) -> dict[str, Any]:
        file = self.folder / _NAME
        if not self._disk.exists(file):
            self._refuse_used()
            return {}
        try:
            facts: dict[str, Any] = dict(json.loads(self._disk.read(file)))
        except (TypeError, ValueError) as error:
            raise self._unreadable(f"cannot be read: {error}") from error
        check_version(facts, self.place)
        if facts.pop(_CHECKSUM, None) != _checksum_of(facts):
            raise self._unreadable("is damaged: its checksum is another one")
        return facts

    def _unreadable(self, what: str) -> CheckpointError:
        fix = "bring it back from a copy, or give the topology a new checkpoint"
        return CheckpointError(f"{_NAME} {what}", str(self.place), fix)

    def refuse_used_sequences(self, last: int) -> None:
        """CheckpointError if an earlier run has used sequences up to this one, and this run would again."""
        if last >= self.first_sequence:
            raise self._unreadable(f"is an older copy: an earlier run has used sequences up to {last}")

    def refuse_older(self, written: int) -> None:
        """CheckpointError if a commit has seen the facts as they were when written this often, or later."""
        if written > self.written:
            what = f"it was written {self.written} times, and {written} times at the last commit"
            raise self._unreadable(f"is an older copy: {what}")

    def refuse_later_run(self, run: int) -> None:
        """CheckpointError if a run with this number has written here, which the facts do not know yet."""
        if run >= self.run:
            raise self._unreadable(f"is an older copy: it knows {self.run - 1} runs, and run {run} was here")

    def _refuse_used(self) -> None:
        """CheckpointError where there are messages of a run, and what it was a run of is missing."""
        for name in ("inbox", "commits"):
            if self._disk.exists(self.folder / name) and self._disk.names(self.folder / name):
                raise CheckpointError(
                    f"{_NAME} is missing, and {name} has files of an earlier run",
                    str(self.place),
                    "bring it back from a copy; or give the topology a new checkpoint, and leave this one",
                )

    def _write(self, facts: dict[str, Any]) -> None:
        facts = {**facts, _WRITTEN: self.written + 1}
        new = self.folder / f"{UNPUBLISHED}{_NAME}"
        # File and name are synced: a reservation that a power cut undoes would give out ids twice.
        content = json.dumps({**facts, _CHECKSUM: _checksum_of(facts)}, indent=1).encode()
        self._disk.write(new, content, sync=True)
        self.files.publish(new, self.folder / _NAME)
        self._disk.sync_folder(self.folder)
        self._facts = facts  # only now: a reservation that was not written must not be used
