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
2. The table of contents lists the files that count with this one, and from which file on the sections of each
   participant count. A file that it does not list is deleted when the next one is written: the micro-batch of
   the list is committed by then.
3. A restart reads all files before it deletes one. A file that is listed and missing, damaged, or older than
   the one that its successor has seen, is an error. So is a file of which Spark has not committed the one
   before it, and a file that has seen newer facts of the checkpoint than there are: each micro-batch runs
   after the commit of the one before, so something else is an older copy.
4. The newest file is written once more at an orderly end, with what a participant has noted since.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from acktree.checkpoint.envelope import checksum_of, damaged, missing, opened, read, sealed
from acktree.checkpoint.files import FOLDER, Files, explaining
from acktree.core.data.frames import WireRow
from acktree.core.packing import Buffer, pack, unpack
from acktree.core.tracking.verdicts import Verdicts
from acktree.errors import CheckpointError
from acktree.system.private_files import UNPUBLISHED
from acktree.texts import is_number

FOLDER_NAME: Final = "commits"
"""The folder of the log in a checkpoint."""
_DIGITS: Final = 12


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


class Outcome(NamedTuple):
    """What a micro-batch brought. A participant takes its part of it.

    Attributes:
        rows: Its rows for the driver, by kind.
        verdicts: What the acker decided; None if no message is tracked.
    """

    rows: Mapping[int, Sequence[WireRow]]
    verdicts: Verdicts | None = None


class Section(NamedTuple):
    """What a participant writes of a micro-batch.

    Attributes:
        content: Its bytes.
        is_whole: Whether it supersedes the earlier sections of the participant.
    """

    content: Buffer
    is_whole: bool = False


class Participant(ABC):
    """A part of the driver whose state changes with each commit.

    Attributes:
        name: The name of its sections in the log. No other participant has it.
    """

    name: str

    @abstractmethod
    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        """Take up the state as of the last commit. Called once, before :meth:`write`.

        Args:
            sections: The number of the commit, and each section that counts, ascending: the last whole one,
                and those after it.

        Raises:
            CheckpointError: They do not fit each other.
        """

    def sweep(self) -> None:
        """Delete files that no section names. Called once, when all that an earlier run left was read."""

    @abstractmethod
    def write(self, commit: Commit, outcome: Outcome) -> Section | None:
        """Apply a micro-batch, and return what it changed; None for nothing.

        Spark has not committed it yet. The driver may die before, and the micro-batch then runs again on the
        state of the commit before.
        """

    def committed(self, number: int) -> None:
        """Called when a commit is final: what it superseded may be deleted."""

    def closing_section(self) -> Section | None:
        """The section of the newest commit, written once more at the end of a run; None to leave it."""
        return None

    @property
    def oldest(self) -> int:
        """Sections of commits before this one are not needed any more."""
        return 0


class CommitLog:
    """The commit log of one checkpoint."""

    def __init__(
        self,
        folder: Path,
        participants: Sequence[Participant],
        files: Files = FOLDER,
        facts: Callable[[], int] = int,
    ) -> None:
        """Use the folder of a checkpoint; the log's own in it is made if it is not there.

        Args:
            folder: The folder of the checkpoint.
            participants: In the order in which they write: a later one may use what an earlier one left in
                the outcome.
            files: How files are written.
            facts: How often the facts of the checkpoint were written by now; by default 0 times.
        """
        self._folder, self._participants, self._files = folder / FOLDER_NAME, participants, files
        self._facts = facts
        with explaining(self._folder):
            files.disk.make_folder(self._folder)
        self._needed: dict[str, list[int]] = {}  # by participant the commits with sections that count
        self._last: tuple[int, int] | None = None  # number and checksum of the newest file
        self._before: tuple[int, int] | None = None  # of the one before it
        self._newest: tuple[Commit, dict[str, Section]] | None = None
        self._oldest: dict[str, int] = {}  # by participant: it has forgotten its sections before this one
        self._existing: set[int] = set()  # numbers of the files in the folder
        self._kept: set[int] = set()  # numbers that the newest file lists

    def recover(self, last_committed: int, refuse_older: Callable[[int], None] | None = None) -> None:
        """Let the participants take up their state as of the last commit. Nothing is deleted.

        Args:
            last_committed: The number of the last micro-batch that Spark has committed.
            refuse_older: Called with how often the facts of the checkpoint were written at that commit; it
                raises an error if they are older now.

        Raises:
            CheckpointError: A file is missing or damaged, or something else is an older copy.
        """
        numbers = {int(name) for name in self._names() if is_number(name)}
        kept = [number for number in sorted(numbers) if number <= last_committed]
        counting: dict[str, list[tuple[int, Section]]] = {}
        if (newest_number := max(numbers, default=-1)) > last_committed + 1:
            raise self._ahead(newest_number, last_committed)
        if last_committed >= 0:
            if last_committed not in numbers:
                raise missing(self._file(last_committed))
            newest = self._read(last_committed)
            if gone := newest.kept - numbers:
                raise missing(self._file(min(gone)))
            kept = sorted(newest.kept & numbers)
            if refuse_older is not None:
                refuse_older(newest.facts)
            self._oldest = newest.oldest
            counting = self._counting(kept)
            self._last = last_committed, newest.checksum
        # Sections of a participant that this run does not have are kept for the next that has it.
        for participant in self._participants:
            participant.recover(counting.get(participant.name, ()))
        self._needed = {name: [number for number, _ in sections] for name, sections in counting.items()}
        self._kept = self._existing = set(kept)

    def sweep(self) -> None:
        """Delete what does not count. Called once, when all else of the checkpoint was read, and fits."""
        for participant in self._participants:
            participant.sweep()
        with explaining(self._folder):
            for name in self._names():
                number = name.removeprefix(UNPUBLISHED)
                if is_number(number) and (number != name or int(number) not in self._kept):
                    self._files.remove(self._folder / name)

    def write(self, commit: Commit, outcome: Outcome) -> None:
        """Write a commit; durable when this returns. The commit before it is final.

        Raises:
            OSError: The disk refuses.
        """
        self._delete_unlisted()
        if self._last is not None:
            for participant in self._participants:
                participant.committed(self._last[0])
        sections = {}
        for participant in self._participants:
            section = participant.write(commit, outcome)
            needed = self._needed.setdefault(participant.name, [])
            oldest = max(self._oldest.get(participant.name, 0), participant.oldest)
            self._oldest[participant.name] = oldest
            needed[:] = [number for number in needed if number >= oldest]
            if section is not None:
                sections[participant.name] = section
                needed[:] = [commit.number] if section.is_whole else [*needed, commit.number]
        kept = {commit.number, *(number for needed in self._needed.values() for number in needed)}
        if self._last is not None:
            kept.add(self._last[0])
        self._before, self._kept, self._newest = self._last, kept, (commit, sections)
        self._existing = self._existing | {commit.number}
        self._write_newest()

    def close(self) -> None:
        """The run ends: write the newest file once more, with the closing sections of the participants.

        Raises:
            OSError: The disk refuses. The file is as it was.
        """
        if self._newest is None:
            return
        commit, sections = self._newest
        closing = {participant.name: participant.closing_section() for participant in self._participants}
        added = {name: section for name, section in closing.items() if section is not None}
        if added:
            self._newest = commit, sections | added
            self._write_newest()

    def _write_newest(self) -> None:
        assert self._newest is not None, "a commit was written"
        commit, sections = self._newest
        blob = sealed(commit.number, self._packed(commit, sections))
        self._files.write(self._file(commit.number), blob)
        self._last = commit.number, checksum_of(blob)

    def _delete_unlisted(self) -> None:
        """Delete the files that the last commit does not list."""
        for number in sorted(self._existing - self._kept):
            self._files.remove(self._file(number))
        self._existing &= self._kept

    def _packed(self, commit: Commit, sections: Mapping[str, Section]) -> bytes:
        table = {
            "clock_ms": commit.clock_ms,
            "facts": self._facts(),
            "end": commit.end,
            "kept": list(_ranges(sorted(self._kept))),
            "before": self._before,
            "oldest": self._oldest,
            "sections": [[name, section.is_whole] for name, section in sections.items()],
        }
        return pack(json.dumps(table).encode(), *(section.content for section in sections.values()))

    def _read(self, number: int) -> _Contents:
        return _contents_of(self._file(number), number, self._files)

    def _counting(self, kept: Sequence[int]) -> dict[str, list[tuple[int, Section]]]:
        """By participant the sections that count, ascending: the last whole one, and those after it.

        A file that is kept for another participant may have sections that its own has forgotten. The files
        are read one after the other: each that is mapped takes a descriptor, and there may be thousands.
        """
        sections_of_names: dict[str, list[tuple[int, Section]]] = {}
        whole: set[str] = set()
        after: _Contents | None = None
        for number in reversed(kept):
            contents = self._read(number)
            if after is not None:
                self._check_order(number, contents, after)
            for name, (content, is_whole) in contents.sections.items():
                if name not in whole and number >= self._oldest.get(name, 0):
                    sections_of_names.setdefault(name, []).append((number, Section(bytes(content), is_whole)))
                    whole |= {name} if is_whole else set()
            after = contents
        return {name: sections[::-1] for name, sections in sections_of_names.items()}

    def _check_order(self, number: int, before: _Contents, after: _Contents) -> None:
        if after.before is not None and after.before[0] == number and after.before[1] != before.checksum:
            raise damaged("is an older copy: the one after it has seen another", self._file(number))

    def _ahead(self, number: int, last_committed: int) -> CheckpointError:
        return CheckpointError(
            f"micro-batch {number} has run, and Spark's log ends with micro-batch {last_committed}",
            f"{self._file(number)}, and the folder of Spark beside {self._folder.name}",
            "nothing was deleted: Spark's log, synced-* or acktree.json is an older copy, or gone: bring "
            "back the newest, or begin a new checkpoint",
        )

    def _names(self) -> list[str]:
        return sorted(self._files.disk.names(self._folder))

    def _file(self, number: int) -> Path:
        return self._folder / file_of(number)


def file_of(number: int) -> str:
    """The name of the file of a commit. In order of names commits are in their order."""
    return f"{number:0{_DIGITS}d}"


def section_of(checkpoint: Path, number: int, name: str, files: Files = FOLDER) -> Section | None:
    """What a participant wrote with a commit; None for nothing. For other processes than the driver's.

    Raises:
        CheckpointError: The file is not there, or damaged.
    """
    return _contents_of(checkpoint / FOLDER_NAME / file_of(number), number, files).sections.get(name)


def sections_of(
    checkpoint: Path, number: int, name: str, files: Files = FOLDER
) -> Sequence[tuple[int, Section]]:
    """The sections of a participant that count as of a commit, as :meth:`Participant.recover` takes them.

    For callers without a :class:`CommitLog`. A missing file is skipped: :meth:`CommitLog.recover` refuses it.
    """
    folder = checkpoint / FOLDER_NAME
    if not files.disk.exists(folder / file_of(number)):
        return ()
    newest = _contents_of(folder / file_of(number), number, files)
    sections: list[tuple[int, Section]] = []
    for kept in sorted(newest.kept, reverse=True):
        if kept >= newest.oldest.get(name, 0) and files.disk.exists(folder / file_of(kept)):
            section = _contents_of(folder / file_of(kept), kept, files).sections.get(name)
            if section is not None:
                sections.append((kept, section))
                if section.is_whole:
                    break
    return sections[::-1]


def _contents_of(file: Path, number: int, files: Files) -> _Contents:
    blob = read(file, files)
    table, *contents = unpack(opened(blob, number, file))
    return _Contents(checksum_of(blob), json.loads(bytes(table)), contents)


class _Contents:
    """What a file holds."""

    def __init__(self, checksum: int, table: dict[str, Any], contents: Sequence[memoryview]) -> None:
        self.checksum = checksum
        self.before: list[int] | None = table["before"]
        self.oldest: dict[str, int] = table["oldest"]
        self.facts: int = table["facts"]
        self.kept = {number for first, last in table["kept"] for number in range(first, last + 1)}
        self.sections = {
            name: Section(content, is_whole)
            for (name, is_whole), content in zip(table["sections"], contents, strict=True)
        }


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
