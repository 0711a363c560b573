"""Damage to one durable file while no driver runs, and how an operator mends it.

A driver that starts then finds the damage and says so in one error, which names the file or its folder; or
the file does not count any more, and all goes on as if it was whole. Nothing may be lost or acked by mistake.

Of the inbox only files are deleted of which the last commit says that they are there and that no micro-batch
has run over them. That others are gone is not always noticed: what was handed over after the last commit, and
messages whose verdict their spout has not heard. Spark's own files are not damaged here: the simulated Spark
does not check them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from acktree.checkpoint.files import Files
from acktree.checkpoint.inbox import WHOLE_INBOX
from acktree.checkpoint.inbox_files import Entry
from acktree.checkpoint.logs.commit_log import section_of
from acktree.checkpoint.logs.journal import Journal
from acktree.checkpoint.power_cut import RollBack
from acktree.core.packing import int64s, unpack
from acktree.errors import AcktreeError, CheckpointError
from tests.simulator.disk import SimulatedDisk


@dataclass(frozen=True)
class Damage:
    """A file that is not what it was.

    Attributes:
        file: Its path.
        kind: One of :data:`KINDS`.
        before: What was in it; None if it was not there.
        after: What is in it; None if it is gone.
    """

    file: str
    kind: str
    before: bytes | None
    after: bytes | None

    def is_told_by(self, error: BaseException) -> bool:
        """Whether an error is one of acktree's, with a way out, and names the file or a folder it is in."""
        if not isinstance(error, AcktreeError) or not error.fix:
            return False
        folder, _, name = self.file.rpartition("/")
        return name in str(error) or folder.rpartition("/")[2] in str(error)

    def mend(self, disk: SimulatedDisk) -> None:
        """Put back what was there, unless something was written since."""
        if disk.content_of(self.file) == self.after:
            disk.put_back(self.file, self.before)


def _flipped(content: bytes, random: Random) -> bytes:
    bit = random.randrange(8 * len(content))
    return content[: bit // 8] + bytes([content[bit // 8] ^ (1 << bit % 8)]) + content[bit // 8 + 1 :]


_NOTE = re.compile(r"synced-(\d{12})(?:-begun)?")
KINDS: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "gone": lambda content, random: None,
    "empty": lambda content, random: b"",
    "cut": lambda content, random: content[: random.randrange(len(content))],
    "cut in front": lambda content, random: content[random.randrange(1, len(content) + 1) :],
    "zeros": lambda content, random: bytes(len(content)),
    "zeros at the end": lambda content, random: (
        content[: (at := random.randrange(len(content)))] + bytes(len(content) - at)
    ),
    "a bit": _flipped,
    "longer": lambda content, random: content + random.randbytes(random.randint(1, 40)),
    "twice": lambda content, random: content * 2,
    "foreign": lambda content, random: random.randbytes(len(content)),
}
"""What can happen to a file; an older copy of itself, and the content of a neighbour, come besides."""


def damaged(disk: SimulatedDisk, random: Random, folder: str) -> Damage | None:
    """Damage a file below a folder; None if there is none, or if it stays as it was."""
    ours = [file for file in disk.list_all() if file.startswith(folder) and "/spark/" not in file]
    files = [file for file in ours if disk.content_of(file)]
    if not files:
        return None
    file = random.choice(files)
    kind = random.choice((*KINDS, "older", "a neighbour's"))
    known = _known_to_be_there(disk, Path(folder), files)
    if known and random.random() < 0.1:
        file, kind = random.choice(known), "gone"
    elif kind == "gone" and "/inbox/" in file:
        return None
    before = disk.content_of(file)
    assert before is not None
    note = _NOTE.fullmatch(Path(file).name)
    if kind == "older" and note is not None:  # it has another name, and is beside the newer one
        older = f"{folder}/synced-{max(0, int(note[1]) - 1):012d}"
        if older == file:
            return None
        disk.put_back(older, before)
        return Damage(older, kind, None, before)
    if kind == "older":
        after = disk.past.get(file, before)
    elif kind == "a neighbour's":
        above = file.rpartition("/")[0] + "/"
        after = disk.content_of(random.choice([each for each in files if each.startswith(above)]))
    else:
        after = KINDS[kind](before, random)
    if after == before:
        return None
    disk.put_back(file, after)
    return Damage(file, kind, before, after)


def _known_to_be_there(disk: SimulatedDisk, checkpoint: Path, files: Sequence[str]) -> list[str]:
    """The files of the inbox that the last commit says are there, and that no micro-batch has run over."""
    held = Files(disk=disk)
    commits = [int(name) for name in held.logged(checkpoint / "spark" / "commits")]
    try:
        counts = RollBack(checkpoint, checkpoint / "spark", 0, held).counts
        last = max((number for number in commits if counts("commits", number)), default=-1)
        section = section_of(checkpoint, last, Journal.name, held) if last >= 0 else None
    except (CheckpointError, ValueError):  # it is damaged itself
        section = None
    if section is None:
        return []
    head, newest, _ = unpack(section.content)
    end, known = int64s(head)[1], dict(int64s(newest).reshape(-1, 2).tolist())
    entries = {file: Entry.of_name(Path(file).name) for file in files if "/inbox/" in file}
    return [file for file, entry in entries.items() if entry and end < entry.number <= known[WHOLE_INBOX]]
