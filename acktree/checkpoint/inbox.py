"""The inbox: what spouts emitted, durable and numbered, until Spark has committed it and nobody needs it.

Rules of this file
------------------
1. Same number, same bytes. A chunk is a file that is written beside its place and renamed into it.
2. Numbers have no gaps. A group of chunks is renamed in last to first: readers stop at the first number
   that is missing, so the group is there at once or not at all.
3. A file goes when its micro-batch was committed **and** its spout task has let go of it. Of the newest file
   that holds a task's position then only the position stays.
4. There is room while what waits and what is kept stay under the limits; asking never blocks. What the
   running micro-batch has taken waits no more, so spouts fill the next one meanwhile. Bytes are free at the
   commit, not at the next micro-batch: with no room there would be none.
5. Where power cuts are survived: a message that only the inbox has is on the disk when ``append`` returns,
   a file goes only after what took its place is there, and one that holds a next attempt only after the file
   of the attempt before is gone for good.
6. A closed inbox takes nothing: a spout thread that outlived its topology must not write into the next run.

Beside messages the inbox carries what else has to come as data, so that a re-run sees the same: ticks, the
beginning of a run, and beats, which only let a micro-batch come. Parked messages do not run at all: they wait
here for their next attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from acktree.checkpoint import full_disk
from acktree.checkpoint.files import FOLDER, UNPLACED, Files
from acktree.checkpoint.inbox_files import (
    HOLD,
    TAKEN,
    WAKE,
    WORK,
    ChunkKind,
    Entry,
    Taken,
    Work,
    entries_after,
    read_chunk,
)
from acktree.errors import CheckpointError
from acktree.private_files import PRIVATE_FILE
from acktree.tasks.chunk import Chunk

AHEAD: Final = 2
"""How many micro-batches the spouts may be ahead of the source."""
_CHANGED: Final = 2.0
"""The source is told a time that differs by this factor from the last one."""
CHUNKS: Final = 8
"""How many chunks a full micro-batch has at least."""


class FileInbox:
    """The driver's side of the inbox. Any thread may call any method."""

    def __init__(
        self,
        folder: Path,
        admitted: int,
        max_messages: int,
        max_bytes: int,
        files: Files = FOLDER,
        max_chunk_bytes: int | None = None,
    ) -> None:
        """Open the inbox in a folder, which is made if it is not there.

        Args:
            admitted: The last number that some micro-batch of an earlier run was to run over; -1 for none.
            max_messages: There is room while fewer messages wait for their micro-batch; and than
                :data:`AHEAD` times what a micro-batch takes.
            max_bytes: And while fewer bytes wait or are kept.
            files: How a chunk comes to be there.
            max_chunk_bytes: What a chunk may have where Spark carries it to the executors; None: anything.
        """
        files.disk.make_folder(folder)
        self._folder, self._files, self._disk = folder, files, files.disk
        self.admitted = admitted
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._max_chunk_bytes = max_chunk_bytes
        self._lock = Lock()
        self._is_closed = False
        self._entries: dict[int, tuple[Entry, int]] = {}
        self._released: set[int] = set()
        self._next_attempts: set[int] = set()
        self._newest_position: dict[int, int] = {}
        self._waiting = 0
        self._bytes = 0
        self._taken = Taken()
        self._disk.remove(folder / TAKEN)
        self._disk.remove(folder / WORK)
        self._work: Work | None = None
        self._next = self._take_stock(admitted)
        self._started = self._consumed = self._committed = min(self._entries, default=self._next) - 1
        self._disk.remove(folder / HOLD)
        self._pipe: int | None = self._open_pipe()

    def append(self, chunks: Sequence[Chunk]) -> int:
        """Hand over chunks, all or none; returns the number of the first."""
        blobs = [(ChunkKind.DATA, chunk.task, len(chunk), chunk.to_bytes()) for chunk in chunks]
        self._refuse_larger_than_spark_carries(blobs)
        with self._lock:
            only_here = any(chunk.message_ids or chunk.position for chunk in chunks)
            first = self._write(blobs, only_here=only_here)
            for offset, chunk in enumerate(chunks):
                self._note_attempts(first + offset, chunk)
                if chunk.position:
                    self._move_position(chunk.task, first + offset)
        self.wake()
        return first

    def _refuse_larger_than_spark_carries(self, blobs: Sequence[tuple[ChunkKind, int, int, bytes]]) -> None:
        largest = max((len(blob) for *_, blob in blobs), default=0)
        if self._max_chunk_bytes is not None and largest > self._max_chunk_bytes:
            raise CheckpointError(
                f"a message takes {largest:,} bytes; Spark carries {self._max_chunk_bytes:,} to an executor",
                str(self._files.shown(self._folder)),
                "nothing of it was handed over. Raise spark.rpc.message.maxSize (MB, 2047 at most) where the "
                "session is built, and submit again",
            )

    def park(self, chunk: Chunk) -> int:
        """Keep a chunk until it is released, without running it; returns its number."""
        with self._lock:
            return self._write([(ChunkKind.PARK, chunk.task, 0, chunk.to_bytes())], only_here=True)

    def append_control(self, kind: ChunkKind, orders: Mapping[str, object]) -> int:
        """Hand over a tick, a beat or the beginning of a run; returns its number."""
        with self._lock:
            number = self._write([(kind, 0, 0, json.dumps(orders).encode())])
            self._released.add(number)
        self.wake()
        return number

    def read(self, number: int) -> Chunk:
        """A chunk that was not released."""
        return read_chunk(self._folder, self._entries[number][0].name, self._disk)

    def room(self, wanted: int = 1) -> int:
        """How many messages a spout task may have that it did not hand over yet; it may emit below that.

        Args:
            wanted: With less room than this it is seen whether more was made meanwhile, which costs a file.
        """
        room = self._room()
        return self._room() if room < wanted and self._look() else room

    def _room(self) -> int:
        most = min(self._max_messages, AHEAD * self._taken.allowance)
        return max(0, most - self._waiting) if self._bytes < self._max_bytes else 0

    def note_work(self, message_ms: float) -> None:
        """Tell the source how long the bolts of its level take for a message, if that has changed much."""
        known = self._work
        if known is None or not 1 / _CHANGED < (message_ms + 0.1) / (known.message_ms + 0.1) < _CHANGED:
            self._work = Work(message_ms)
            self._work.write(self._folder, self._disk)

    def _look(self) -> bool:
        """Whether the source has taken more since last looked; or takes more at once."""
        taken = Taken.read(self._folder, self._disk)
        if taken == self._taken:
            return False
        self._taken = taken
        with self._lock:
            self._start(taken.end)
        return True

    def _start(self, end: int) -> None:
        """What a micro-batch has taken waits no more."""
        for number in range(self._started + 1, end + 1):
            if number in self._entries:
                self._waiting -= self._entries[number][0].rows
        self._started = max(self._started, end)

    def is_running(self) -> bool:
        """Whether a micro-batch runs: what is handed over now waits for the next one.

        With something to run over and no word that it was taken, the source is asked, which costs a file.
        """
        if self._consumed < self._started:
            return True
        return not self.is_drained and self._look() and self._consumed < self._started

    @property
    def chunk_rows(self) -> int:
        """How many messages a chunk shall have at most, for micro-batches to be cut between chunks."""
        return max(1, self._taken.allowance // CHUNKS)

    def release(self, number: int) -> None:
        """The spout task that appended it needs the chunk no more."""
        with self._lock:
            self._released.add(number)
            self._delete_if_done(number)

    def consumed(self, end: int) -> None:
        """A micro-batch that ends with this number has run; whether it is committed shows later."""
        with self._lock:
            self._start(end)
            self._consumed = max(self._consumed, end)
        self._look()

    def committed(self, end: int) -> None:
        """The micro-batch that ends with this number is committed, and so are all before it."""
        with self._lock:
            self._committed = max(self._committed, end)
            for number in sorted(self._released):
                if number > self._committed:
                    break
                self._delete_if_done(number)

    @property
    def last_number(self) -> int:
        """The newest number; -1 when there was none ever."""
        return self._next - 1

    @property
    def is_drained(self) -> bool:
        """Whether a micro-batch has run over everything there is."""
        return self._consumed >= self._next - 1

    @property
    def waiting(self) -> tuple[int, int]:
        """The messages that wait for a micro-batch, and the bytes that wait or are kept."""
        return self._waiting, self._bytes

    @property
    def oldest_kept(self) -> int:
        """The oldest number whose messages somebody may still want; one that is to come if there is none."""
        with self._lock:
            entries = (entry for entry, _ in self._entries.values())
            kept = (entry.number for entry in entries if entry.rows or entry.kind is ChunkKind.PARK)
            return min(kept, default=self._next)

    def recovered(self, kind: ChunkKind = ChunkKind.DATA) -> Iterator[tuple[int, Chunk]]:
        """The messages that an earlier run left here, run or parked, ascending."""
        for number, (entry, _) in sorted(self._entries.items()):
            if entry.kind is kind:
                chunk = read_chunk(self._folder, entry.name, self._disk)
                self._note_attempts(number, chunk)
                yield number, chunk

    def has_position(self, task: int, number: int) -> None:
        """Say of a recovered chunk that it holds its task's position."""
        with self._lock:
            self._move_position(task, number)

    def sync_names(self) -> None:
        """Where power cuts are survived: what was deleted here stays deleted."""
        self._files.sync_names(self._folder)

    def hold(self) -> None:
        """Let the source stop advancing; a new inbox in the same folder lets it go on."""
        with suppress(OSError):  # no room for it: whoever stops the query must stop it in mid-batch then
            self._disk.make_file(self._folder / HOLD)
        self.wake()

    def wake(self) -> None:
        """Tell the source to look."""
        with self._lock:  # another thread may close it, and the number of a closed file is soon another's
            if self._pipe is not None:
                with suppress(BlockingIOError):  # it is full of wakes that nobody took yet
                    os.write(self._pipe, b"\0")

    def close(self) -> None:
        """Take nothing any more, and let go of the pipe. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self._pipe is not None:
                os.close(self._pipe)
                self._pipe = None

    def _note_attempts(self, number: int, chunk: Chunk) -> None:
        if chunk.retry_of is not None:
            self._next_attempts.add(number)

    def _write(self, blobs: Sequence[tuple[ChunkKind, int, int, bytes]], *, only_here: bool = False) -> int:
        if self._is_closed:
            raise CheckpointError(
                "the inbox is closed: its topology was stopped",
                str(self._folder),
                "what was emitted is not lost: its spout brings it back when the topology is submitted again",
            )
        first = self._next
        entries = [Entry(first + at, kind, task, rows) for at, (kind, task, rows, _) in enumerate(blobs)]
        try:
            with full_disk.telling(self._folder):
                written = [
                    (self._files.prepare(self._folder / entry.name, blob), self._folder / entry.name)
                    for entry, (_, _, _, blob) in zip(entries, blobs, strict=True)
                ]
                for new, file in reversed(written[1:]):
                    self._files.place(new, file)
                if only_here and len(written) > 1:
                    self.sync_names()  # a power cut must not leave the first without the others
                self._files.place(*written[0])
                if only_here:
                    self.sync_names()
        except BaseException:
            # The first comes last, so nobody has read any; the next to write takes the same numbers.
            for entry in entries:
                self._disk.remove(self._folder / f"{UNPLACED}{entry.name}")
                self._disk.remove(self._folder / entry.name)
            raise
        for entry, (_, _, _, blob) in zip(entries, blobs, strict=True):
            self._entries[entry.number] = (entry, len(blob))
            self._waiting += entry.rows
            self._bytes += len(blob)
        self._next += len(blobs)
        return first

    def _move_position(self, task: int, number: int) -> None:
        before = self._newest_position.get(task)
        self._newest_position[task] = number
        if before is not None:
            self._delete_if_done(before)

    def _delete_if_done(self, number: int) -> None:
        if number not in self._released or number > self._committed:
            return
        if number in self._newest_position.values():
            self._keep_position_alone(number)
            return
        self._released.discard(number)
        if number in self._next_attempts:
            self.sync_names()  # should the attempt before come back, it would be tried again
            self._next_attempts.discard(number)
        entry, size = self._entries.pop(number)
        self._bytes -= size
        self._files.remove(self._folder / entry.name)

    def _keep_position_alone(self, number: int) -> None:
        """Keep of a chunk what its spout remembers: a chunk of no messages, of the same number."""
        entry, size = self._entries[number]
        if not entry.rows:
            return
        chunk = read_chunk(self._folder, entry.name, self._disk)
        blob = replace(
            chunk, is_tracked=False, values=chunk.values.slice(0, 0), attempts=None, tasks=None,
            first_emitted_ms=None, retry_of=None, message_ids=b"",
        ).to_bytes()  # fmt: skip
        bare = replace(entry, rows=0)
        self._files.write(self._folder / bare.name, blob)
        self.sync_names()
        self._files.remove(self._folder / entry.name)
        self._entries[number] = (bare, 0)  # no wait would make room of it, so it takes none
        self._bytes -= size

    def _take_stock(self, admitted: int) -> int:
        """See what an earlier run left; returns the next number.

        What stands behind a gap after ``admitted`` belongs to a group that was never handed over.
        """
        following = entries_after(self._folder, admitted, self._disk)
        end = admitted + 1 + len(following)
        # Two of one number: the driver died between them. The one of no rows holds the position alone.
        for name in sorted(self._disk.names(self._folder), key=_by_number_and_rows):
            entry, file = Entry.of_name(name), self._folder / name
            is_left_over = entry is not None and (entry.number >= end or entry.number in self._entries)
            if is_left_over:
                self._files.remove(file)
            elif name.startswith(UNPLACED):
                self._disk.remove(file)
            elif entry is not None:
                is_bare = entry.kind is ChunkKind.DATA and not entry.rows
                size = 0 if is_bare else self._disk.size(file)
                self._entries[entry.number] = (entry, size)
                self._bytes += size
                self._waiting += entry.rows
                if entry.kind not in (ChunkKind.DATA, ChunkKind.PARK):
                    self._released.add(entry.number)
        self.sync_names()  # what was deleted must not come back beside what takes its number
        return end

    def _open_pipe(self) -> int | None:
        """The pipe that wakes the source; None where there can be none, and the source looks by itself."""
        pipe = self._folder / WAKE
        try:
            if not pipe.exists():
                os.mkfifo(pipe, PRIVATE_FILE)
                pipe.chmod(PRIVATE_FILE)
            return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            return None


def _by_number_and_rows(name: str) -> tuple[int, int]:
    entry = Entry.of_name(name)
    return (-1, 0) if entry is None else (entry.number, entry.rows)
