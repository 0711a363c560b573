"""A commit log of some participants, for tests of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.logs.commit_log import FOLDER_NAME, Commit, CommitLog, Outcome, Participant
from acktree.core.data.frames import WireRow
from acktree.core.tracking.verdicts import Verdicts


class Commits:
    """The log of a checkpoint's folder, recovered as of a commit."""

    def __init__(
        self, folder: Path, participants: Iterable[Participant], last: int = -1, files: Files = FOLDER
    ) -> None:
        self.log = CommitLog(folder, [*participants], files)
        self.log.recover(last)
        self.log.sweep()

    def write(
        self,
        number: int,
        verdicts: Verdicts | None = None,
        end: int | None = None,
        rows: Mapping[int, Sequence[WireRow]] | None = None,
    ) -> None:
        """Write a commit; Spark's is still to come."""
        self.log.write(Commit(number, number, number if end is None else end), Outcome(rows or {}, verdicts))


def committed_numbers(folder: Path) -> list[int]:
    """The commits that a checkpoint's folder has files of."""
    return sorted(int(file.name) for file in (folder / FOLDER_NAME).iterdir())
