"""The commit log: a file for each micro-batch, with what each participant changed in it.

::

    commits/000000000042    an envelope (envelope.py); in it a table of contents, as JSON, and the sections

A participant is a part of the driver whose state changes with the micro-batches: the acker, the journal of
verdicts, the counts. Its section of a micro-batch holds a change, or its whole state, which supersedes its
earlier sections.

Rules of this file
------------------
1. The file of a micro-batch is written before the sink returns, so before Spark commits the micro-batch. A
   restart discards the files of micro-batches that were never committed; these run again.
2. The table of contents lists the files that count with this one. What it does not list is deleted when the
   next file is written: the micro-batch of the list is committed by then.
3. A restart reads all files before it deletes one. A file that is listed and missing, damaged, or older than
   the one that its successor has seen, is an error.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from acktree.checkpoint.envelope import checksum_of, opened, sealed
from acktree.checkpoint.files import FOLDER, Files
from acktree.core.packing import Buffer, pack, unpack
from acktree.errors import CheckpointError
from acktree.private_files import UNPUBLISHED
from acktree.texts import is_number

__all__ = ["Commit", "CommitLog", "Participant", "Section"]

Outcome_contra = TypeVar("Outcome_contra", contravariant=True)
"""What a micro-batch brought: participants take their part of it."""
_DIGITS: Final = 12
_FIX: Final = "nothing was deleted: take the checkpoint from a copy, or begin a new one"


@dataclass(frozen=True)
class Commit:
    """The unit of a commit.

    Attributes:
        number: The number of the micro-batch in the checkpoint.
        clock_ms: The clock of the micro-batch, in milliseconds since 1970.
        end: The last entry of the inbox that it ran over; -1 for none.
    """

    number: int
    clock_ms: int
    end: int


class Section(NamedTuple):
    """What a participant writes of a micro-batch.

    Attributes:
        content: Its bytes.
        is_whole: Whether it supersedes the earlier sections of the participant.
    """

    content: Buffer
    is_whole: bool = False


class Participant(ABC, Generic[Outcome_contra]):
    """A part of the driver whose state changes with each commit.

    Attributes:
        name: The name of its sections in the log. No other participant has it.
    """

    name: str

    @abstractmethod
    def recover(self, sections: Sequence[tuple[int, memoryview]]) -> None:
        """Take up the state as of the last commit. Called once, before :meth:`write`.

        Args:
            sections: The number of the commit and the content of each section that counts, ascending: the
                last whole one, and those after it. The contents are views, valid until this returns.

        Raises:
            CheckpointError: They do not fit each other.
        """

    @abstractmethod
    def write(self, commit: Commit, outcome: Outcome_contra) -> Section | None:
        """Apply a micro-batch, and return what it changed; None for nothing.

        Spark has not committed it yet. The driver may die before, and the micro-batch then runs again on the
        state of the commit before.
        """

    def committed(self, number: int) -> None:
        """Be told that a commit is final. What it superseded may be deleted."""

    @property
    def oldest(self) -> int:
        """Sections of commits before this one are not needed any more."""
        return 0


class CommitLog(Generic[Outcome_contra]):
    """The commit log of one checkpoint."""

    def __init__(
        self, folder: Path, participants: Sequence[Participant[Outcome_contra]], files: Files = FOLDER
    ) -> None:
        """Use a folder, which is made if it is not there.

        Args:
            folder: The folder of the log.
            participants: In the order in which they write: a later one may use what an earlier one left in
                the outcome.
            files: How files are written.
        """
        files.disk.make_folder(folder)
        self._folder, self._participants, self._files = folder, participants, files
        self._needed: dict[str, list[int]] = {each.name: [] for each in participants}
        self._last: tuple[int, int] | None = None
        self._there: set[int] = set()
        self._kept: set[int] = set()

    def recover(self, last_committed: int, first: int = 0) -> None:
        """Let the participants take up their state as of the last commit.

        Args:
            last_committed: The number of the last micro-batch that Spark has committed.
            first: Commits before it do not count.

        Raises:
            CheckpointError: A file is missing or damaged. Nothing is deleted then.
        """
        numbers = {int(name) for name in self._names() if is_number(name)}
        kept = [number for number in sorted(numbers) if first <= number <= last_committed]
        contents: dict[int, _Contents] = {}
        if last_committed >= first:
            if last_committed not in numbers:
                raise self._missing(last_committed)
            newest = self._read(last_committed)
            if gone := sorted(number for number in newest.kept - numbers if number >= first):
                raise self._missing(gone[0])
            kept = sorted(newest.kept & numbers)
            contents = {number: self._read(number) for number in kept}
            for before, after in pairwise(kept):
                self._check_order(before, contents[before], contents[after])
            self._last = last_committed, newest.checksum
        for participant in self._participants:
            sections = list(_counting(participant.name, contents))
            participant.recover(sections)
            self._needed[participant.name] = [number for number, _ in sections]
        self._kept = self._there = set(kept)
        for name in self._names():
            if name.startswith(UNPUBLISHED) or (is_number(name) and int(name) not in self._kept):
                self._files.remove(self._folder / name)

    def write(self, commit: Commit, outcome: Outcome_contra) -> None:
        """Write a commit; durable when this returns. The commit before it is final.

        Raises:
            OSError: The disk refuses.
        """
        self._drop()
        if self._last is not None:
            for participant in self._participants:
                participant.committed(self._last[0])
        sections = {}
        for participant in self._participants:
            section = participant.write(commit, outcome)
            needed = self._needed[participant.name]
            needed[:] = [number for number in needed if number >= participant.oldest]
            if section is not None:
                sections[participant.name] = section
                needed[:] = [commit.number] if section.is_whole else [*needed, commit.number]
        kept = {commit.number, *(number for needed in self._needed.values() for number in needed)}
        if self._last is not None:
            kept.add(self._last[0])
        blob = sealed(commit.number, self._packed(commit, kept, sections))
        self._files.write(self._file(commit.number), blob)
        self._last = commit.number, checksum_of(blob)
        self._kept = kept
        self._there = self._there | {commit.number}

    def _drop(self) -> None:
        """Delete the files that the last commit does not list."""
        for number in sorted(self._there - self._kept):
            self._files.remove(self._file(number))
        self._there &= self._kept

    def _packed(self, commit: Commit, kept: Iterable[int], sections: Mapping[str, Section]) -> bytes:
        table = {
            "clock_ms": commit.clock_ms,
            "end": commit.end,
            "kept": list(_ranges(sorted(kept))),
            "before": self._last,
            "sections": [[name, section.is_whole] for name, section in sections.items()],
        }
        return pack(json.dumps(table).encode(), *(section.content for section in sections.values()))

    def _read(self, number: int) -> _Contents:
        file = self._file(number)
        try:
            blob = self._files.mapped(file)
        except OSError as error:
            raise CheckpointError(
                f"a file of the checkpoint cannot be read: {error}", str(file), _FIX
            ) from error
        table, *contents = unpack(opened(blob, number, file))
        return _Contents(checksum_of(blob), json.loads(bytes(table)), contents)

    def _check_order(self, number: int, before: _Contents, after: _Contents) -> None:
        if after.before is not None and after.before[0] == number and after.before[1] != before.checksum:
            what = "a file of the checkpoint is an older copy: the one after it has seen another"
            raise CheckpointError(what, str(self._file(number)), _FIX)

    def _missing(self, number: int) -> CheckpointError:
        return CheckpointError("a file of the checkpoint is missing", str(self._file(number)), _FIX)

    def _names(self) -> list[str]:
        return sorted(self._files.disk.names(self._folder))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:0{_DIGITS}d}"


class _Contents:
    """What a file holds."""

    def __init__(self, checksum: int, table: dict[str, Any], contents: Sequence[memoryview]) -> None:
        self.checksum = checksum
        self.before: list[int] | None = table["before"]
        self.kept = {number for first, last in table["kept"] for number in range(first, last + 1)}
        self.sections = {
            name: (is_whole, content)
            for (name, is_whole), content in zip(table["sections"], contents, strict=True)
        }


def _counting(name: str, contents: Mapping[int, _Contents]) -> Iterator[tuple[int, memoryview]]:
    """The sections of a participant that count, ascending: the last whole one, and those after it."""
    found = [(number, *each.sections[name]) for number, each in contents.items() if name in each.sections]
    wholes = (at for at, (_, is_whole, _) in enumerate(found) if is_whole)
    for number, _, content in found[max(wholes, default=0) :]:
        yield number, content


def _ranges(ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges: (first, last) of each."""
    starts = [
        n
        for before, n in zip([None, *ascending], ascending, strict=False)
        if before is None or n > before + 1
    ]
    ends = [
        n
        for n, after in zip(ascending, [*ascending[1:], None], strict=False)
        if after is None or after > n + 1
    ]
    yield from zip(starts, ends, strict=True)
