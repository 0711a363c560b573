"""The inbox: the messages of spouts, durable and numbered, until they are committed and no longer needed.

Rules of this file
------------------
1. Same number, same bytes. A chunk is a file, written under a temporary name and renamed.
2. Numbers have no gaps. The chunks of a group are renamed last to first. Readers stop at the first number
   that is missing, so a group appears as a whole or not at all.
3. A file is deleted when its micro-batch is committed **and** its spout task has released it. Of the newest
   file that holds a task's position only the position is kept.
4. There is room while the waiting messages and the kept bytes are below the limits; asking never blocks.
   Messages that the running micro-batch has taken no longer wait, so spouts fill the next one meanwhile.
   Bytes are free at the commit, not at the next micro-batch: without room there would be no next one.
5. With ``survive_power_cut``: a message that only the inbox has is on the disk when ``append`` returns. A
   file is deleted only after the file that replaces it is on the disk, and a file that holds a next attempt
   only after the deletion of the attempt before it is on the disk.
6. A closed inbox takes nothing: a spout thread that outlived its topology must not write into the next run.
7. The source is another process, which reads the files and the notes beside them; or, in real time, this one,
   which asks here and reads no file that this run has written.

Beside messages the inbox carries other input that must be the same when a micro-batch runs again: ticks, the
beginning of a run, and beats, whose only effect is that a micro-batch runs. Parked messages do not run: they
wait here for their next attempt, or for the verdict on another one with their key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from acktree.checkpoint import disk_errors
from acktree.checkpoint.envelope import missing
from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.inbox_files import (
    HOLD,
    TAKEN,
    WORK,
    ChunkKind,
    Entry,
    Taken,
    Work,
    by_number_and_rows,
    entries_after,
    first_of_group,
    is_unpublished,
    read_chunk,
    read_entry,
    read_orders,
    sealed_entry,
)
from acktree.checkpoint.wake_pipe import WakePipe
from acktree.core.packing import Buffer
from acktree.errors import CheckpointError
from acktree.system.private_files import UNPUBLISHED
from acktree.tasks.chunk import Chunk

AHEAD: Final = 2
"""How many micro-batches the spouts may be ahead of the source."""
CHUNKS: Final = 8
"""The least number of chunks in a full micro-batch."""
_COME_BY_THEMSELVES: Final = frozenset({ChunkKind.TICK, ChunkKind.BEAT})
"""Entries that nobody waits for: with ticks more frequent than micro-batches there is always one."""
WHOLE_INBOX: Final = -1
"""In the place of a spout task: the newest entry with a message that only the inbox has, of any task."""


class FileInbox:
    """The driver's side of the inbox. Any thread may call any method.

    Attributes:
        last_run: The last run whose beginning an earlier driver has left here; 0 for none.
        is_held: Whether the source is not to advance: see :meth:`hold`.
    """

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
            admitted: The last number that Spark's log assigns to a micro-batch of an earlier run, or -1.
            max_messages: There is room while fewer messages than this wait for their micro-batch, and fewer
                than :data:`AHEAD` times what a micro-batch takes.
            max_bytes: There is room while fewer bytes than this wait or are kept.
            files: How chunks are written.
            max_chunk_bytes: The largest chunk, where Spark carries it to the executors; None: no limit.
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
        self._newest_only_here = -1
        self._left_over: list[Path] = []
        self._watches: list[int] = []
        self._waiting = 0
        self._bytes = 0
        self._taken = Taken()
        self._disk.remove(folder / TAKEN)
        self._disk.remove(folder / WORK)
        self._work: Work | None = None
        self.last_run = 0
        self._next = self._take_stock(admitted)
        self._last_lasting = self._next - 1
        self._started = self._consumed = self._committed = min(self._entries, default=self._next) - 1
        self._disk.remove(folder / HOLD)
        self._pipe = WakePipe(folder)
        self.is_held = False
        self._on_entry: Callable[[], None] | None = None
        self._can_take: Callable[[], bool] = lambda: False
        self._contents: dict[int, bytes] = {}
        """Of entries that this run has written and no micro-batch has run over, if they are read here."""

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Add chunks, all or none; returns the number of the first.

        Args:
            chunks: Those that run.
            parked: Those that are kept until they are released, without running; they come after the others.
        """
        blobs = [(ChunkKind.DATA, chunk.task, len(chunk), chunk.to_bytes()) for chunk in chunks]
        self._refuse_larger_than_spark_carries(blobs)
        blobs += [(ChunkKind.PARK, chunk.task, 0, chunk.to_bytes()) for chunk in parked]
        with self._lock:
            only_here = bool(parked) or any(chunk.is_only_here for chunk in chunks)
            first = self._write(blobs, only_here=only_here)
            if only_here:
                self._newest_only_here = self._next - 1
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

    def append_control(self, kind: ChunkKind, orders: Mapping[str, object]) -> int:
        """Add a tick, a beat or the beginning of a run; returns its number."""
        with self._lock:
            number = self._write([(kind, 0, 0, json.dumps(orders).encode())])
            self._released.add(number)
        self.wake()
        return number

    def append_watch(self, order: bytes, levels: int) -> int:
        """Hand over what operators watch from now on; returns its number.

        It is kept until a later one is committed: each micro-batch reads the last one.
        """
        blob = json.dumps({"levels": levels, "order": order.decode()}).encode()
        with self._lock:
            number = self._write([(ChunkKind.WATCH, 0, 0, blob)])
            self._watches.append(number)
        self.wake()
        return number

    @property
    def has_watch(self) -> bool:
        """Whether an order of operators is here, of this run or an earlier one."""
        return bool(self._watches)

    def read(self, number: int) -> Chunk:
        """A chunk that was not released."""
        return read_chunk(self._folder, self._entries[number][0].name, self._disk)

    def room(self, wanted: int = 1) -> int:
        """How many messages have room; a spout task may emit while it has fewer that it did not append yet.

        Args:
            wanted: With less room than this, the file that the source writes is read again.
        """
        room = self._room()
        return self._room() if room < wanted and self._look() else room

    def _room(self) -> int:
        most = min(self._max_messages, AHEAD * self._taken.allowance)
        return max(0, most - self._waiting) if self._bytes < self._max_bytes else 0

    def note_work(self, message_ms: float) -> None:
        """Write for the source how long its level's bolts take for a message, if that has changed much."""
        work = Work(message_ms)
        if work.differs_much(self._work):
            self._work = work
            if self._on_entry is None:
                work.write(self._folder, self._disk)

    def read_here(self, on_entry: Callable[[], None], can_take: Callable[[], bool]) -> None:
        """Let this process be the source, and not another one.

        Args:
            on_entry: Called on any thread when there is a new entry, or the source is held.
            can_take: Whether messages appended now would be taken at once.
        """
        self._on_entry, self._can_take = on_entry, can_take

    def take(self, taken: Taken) -> None:
        """Note what the source of this process has taken."""
        with self._lock:
            self._taken = taken
            self._start(taken.end)

    def following(self, number: int) -> list[Entry]:
        """The entries after ``number``, ascending.

        Raises:
            CheckpointError: A file is missing: its messages would never have a verdict.
        """
        try:
            with self._lock:
                return [self._entries[later][0] for later in range(number + 1, self._next)]
        except KeyError as error:
            raise missing(self._folder / f"{error.args[0]:012d}.*") from None

    def content(self, entry: Entry) -> Buffer:
        """What was written as an entry."""
        content = self._contents.get(entry.number)
        return read_entry(self._folder, entry, self._disk) if content is None else content

    @property
    def work(self) -> Work | None:
        """How long the bolts of the source level take for a message, as noted last."""
        return self._work

    def newest_watch(self, end: int) -> Entry | None:
        """The order of operators that holds in a micro-batch that ends with a number: the last up to it."""
        with self._lock:
            numbers = [number for number in self._watches if number <= end]
            return self._entries[max(numbers)][0] if numbers else None

    def _look(self) -> bool:
        """Read what the source has taken. True if that, or how much it takes at once, has changed."""
        if self._on_entry is not None:
            return False  # it has been noted
        taken = Taken.read(self._folder, self._disk)
        if taken == self._taken:
            return False
        self._taken = taken
        with self._lock:
            self._start(taken.end)
        return True

    def _start(self, end: int) -> None:
        """Note that a micro-batch has taken all numbers up to ``end``: they no longer wait."""
        for number in range(self._started + 1, end + 1):
            if number in self._entries:
                self._waiting -= self._entries[number][0].rows
        self._started = max(self._started, end)

    def is_running(self) -> bool:
        """Whether a micro-batch runs, so that messages appended now wait for the next one.

        Where messages wait and the source is not known to have taken them, the file that it writes is read.
        """
        if self._on_entry is not None:
            return not self._can_take()
        if self._consumed < self._started:
            return True
        return not self.is_drained and self._look() and self._consumed < self._started

    @property
    def chunk_rows(self) -> int:
        """The largest number of messages in a chunk, so that micro-batches can be cut between chunks."""
        return max(1, self._taken.allowance // CHUNKS)

    def release(self, number: int) -> None:
        """Note that the spout task that appended a chunk no longer needs it."""
        with self._lock:
            self._released.add(number)
            self._delete_if_done(number)

    def consumed(self, end: int) -> None:
        """Note that a micro-batch that ends with this number has run; it may not be committed yet."""
        with self._lock:
            self._start(end)
            for number in range(self._consumed + 1, end + 1):
                self._contents.pop(number, None)
            self._consumed = max(self._consumed, end)
        self._look()

    def committed(self, end: int) -> None:
        """Note that the micro-batch that ends with this number is committed, and all before it."""
        with self._lock:
            self._committed = max(self._committed, end)
            self._release_old_watches()
            for number in sorted(self._released):
                if number > self._committed:
                    break
                self._delete_if_done(number)

    @property
    def last_number(self) -> int:
        """The newest number; -1 before the first."""
        return self._next - 1

    @property
    def is_drained(self) -> bool:
        """Whether micro-batches have run over every entry."""
        return self._consumed >= self._next - 1

    @property
    def has_run_all(self) -> bool:
        """The same without ticks and beats: they come anew however long nothing else does."""
        return self._consumed >= self._last_lasting

    @property
    def waiting(self) -> tuple[int, int]:
        """The messages that wait for a micro-batch, and the bytes that wait or are kept."""
        return self._waiting, self._bytes

    def refuse_older(self, numbers: Mapping[int, int]) -> None:
        """Check, after recovery, that what was there at the last commit is there, or something newer.

        Args:
            numbers: As :attr:`newest` was at the last commit.

        Raises:
            CheckpointError: The file with a position is missing, or the newest one that only the inbox has.
        """
        newest = self._newest_position | {WHOLE_INBOX: self.last_number}
        for task, number in numbers.items():
            if newest.get(task, -1) < number:
                raise missing(self._folder / f"{number:012d}.*")

    @property
    def newest(self) -> dict[int, int]:
        """Spout task -> the number of the entry that holds its newest position; see also `WHOLE_INBOX`."""
        with self._lock:
            return self._newest_position | {WHOLE_INBOX: self._newest_only_here}

    @property
    def oldest_kept(self) -> int:
        """The oldest number whose messages are still needed; the next number if there is none."""
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
                if kind is ChunkKind.PARK or chunk.is_only_here:
                    self._newest_only_here = max(self._newest_only_here, number)
                yield number, chunk

    def drop_before(self, first: int) -> None:
        """Delete messages before an entry: an earlier run has deleted them, but not yet at the URL."""
        with self._lock:
            for number, (entry, size) in sorted(self._entries.items()):
                if number < first and (entry.rows or entry.kind is ChunkKind.PARK):
                    del self._entries[number]
                    self._waiting -= entry.rows
                    self._bytes -= size
                    self._files.remove(self._folder / entry.name)

    def has_position(self, task: int, number: int) -> None:
        """Note that a recovered chunk holds its task's position."""
        with self._lock:
            self._move_position(task, number)

    def sync_names(self) -> None:
        """With ``survive_power_cut``: sync the names of new files, and deletions."""
        self._files.sync_names(self._folder)

    def hold(self) -> None:
        """Stop the source from advancing; a new inbox in the same folder lets it continue."""
        self.is_held = True
        with suppress(OSError):  # no room for it: the query is then stopped in the middle of a micro-batch
            self._disk.make_file(self._folder / HOLD)
        self.wake()

    def wake(self) -> None:
        """Make the source look for new entries."""
        if self._on_entry is None:
            self._pipe.write()
        else:
            self._on_entry()

    def close(self) -> None:
        """Take nothing any more, and close the pipe. A second call does nothing."""
        with self._lock:
            self._is_closed = True
        self._pipe.close()

    def _release_old_watches(self) -> None:
        """Release the orders of operators that are older than the last committed one."""
        done = [number for number in self._watches if number <= self._committed]
        for number in done[:-1]:
            self._watches.remove(number)
            self._released.add(number)

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
        self._delete_left_over()
        first = self._next
        numbered = enumerate(blobs, first)
        entries = [Entry(number, kind, task, rows) for number, (kind, task, rows, _) in numbered]
        try:
            with disk_errors.explaining(self._folder):
                written = [
                    (
                        self._files.prepare(
                            self._folder / entry.name, sealed_entry(entry.number, blob, first)
                        ),
                        self._folder / entry.name,
                    )
                    for entry, (*_, blob) in zip(entries, blobs, strict=True)
                ]
                self._files.publish_all(written[:0:-1])
                if only_here and len(written) > 1:
                    self.sync_names()  # a power cut must not leave the first without the others
                self._files.publish(*written[0])
                if only_here:
                    self.sync_names()
        except BaseException:
            # The first is renamed last, so none was read. The next write takes the same numbers.
            for entry in entries:
                self._disk.remove(self._folder / f"{UNPUBLISHED}{entry.name}")
                self._disk.remove(self._folder / entry.name)
            raise
        for entry, (*_, blob) in zip(entries, blobs, strict=True):
            self._entries[entry.number] = (entry, len(blob))
            if self._on_entry is not None and entry.kind is not ChunkKind.PARK:
                self._contents[entry.number] = blob
            self._waiting += entry.rows
            self._bytes += len(blob)
        self._next += len(blobs)
        if any(kind not in _COME_BY_THEMSELVES for kind, *_ in blobs):
            self._last_lasting = self._next - 1
        return first

    def _delete_left_over(self) -> None:
        """Delete what an earlier run left and what does not count, before numbers of it are used."""
        if self._left_over:
            for file in self._left_over:
                self._files.remove(file)
            self._left_over.clear()
            self.sync_names()  # a power cut must not undo a deletion after its number was used again

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
            self.sync_names()  # if the deletion of the attempt before were undone, it would be tried again
            self._next_attempts.discard(number)
        entry, size = self._entries.pop(number)
        self._bytes -= size
        self._files.remove(self._folder / entry.name)

    def _keep_position_alone(self, number: int) -> None:
        """Replace a chunk by one of the same number that has its spout's position and no messages."""
        entry, size = self._entries[number]
        if not entry.rows:
            return
        chunk = read_chunk(self._folder, entry.name, self._disk)
        blob = chunk.position_alone().to_bytes()
        bare = replace(entry, rows=0)
        self._files.write(self._folder / bare.name, sealed_entry(number, blob))
        self.sync_names()
        self._files.remove(self._folder / entry.name)
        self._entries[number] = (bare, 0)  # to wait would not free its bytes, so they do not count
        self._bytes -= size

    def _refuse_gap(self, end: int) -> None:
        """Refuse to go on where a file is missing whose messages nobody brings back.

        Behind a gap there may be the rest of a group that was never appended as a whole. After a power cut
        there may also be names that were not synced. Those before a message that only the inbox has were
        synced when its ``append`` returned, which that of the last one perhaps did not.

        Raises:
            CheckpointError: A file is missing, or one behind it is damaged.
        """
        named = map(Entry.of_name, self._disk.names(self._folder))
        behind = {entry.number: entry for entry in named if entry is not None and entry.number >= end}
        groups = {
            first_of_group(self._folder, entry, self._disk)
            for entry in behind.values()
            if entry.kind is ChunkKind.PARK or self._is_only_here(entry)
        }
        if len(groups & behind.keys()) > self._files.survives_power_cut:
            raise missing(self._folder / f"{end:012d}.*")

    def _is_only_here(self, entry: Entry) -> bool:
        if entry.kind is not ChunkKind.DATA:
            return False
        return read_chunk(self._folder, entry.name, self._disk).is_only_here

    def _take_stock(self, admitted: int) -> int:
        """Load what an earlier run left; returns the next number.

        Entries behind a gap after ``admitted`` belong to a group that was never appended as a whole.
        """
        following = entries_after(self._folder, admitted, self._disk)
        end = admitted + 1 + len(following)
        self._refuse_gap(end)
        # Two files of one number: the driver died between two steps of `_keep_position_alone`. The one
        # without rows is the replacement.
        for name in sorted(self._disk.names(self._folder), key=by_number_and_rows):
            entry, file = Entry.of_name(name), self._folder / name
            if entry is not None and (entry.number >= end or entry.number in self._entries):
                self._left_over.append(file)  # deleted with the first write: nothing is refused then
            elif is_unpublished(name):
                self._disk.remove(file)
            elif entry is not None:
                is_bare = entry.kind is ChunkKind.DATA and not entry.rows
                size = 0 if is_bare else self._disk.size(file)
                self._entries[entry.number] = (entry, size)
                self._bytes += size
                self._waiting += entry.rows
                if entry.kind is ChunkKind.WATCH:
                    self._watches = sorted([*self._watches, entry.number])
                elif entry.kind is ChunkKind.RUN:
                    self.last_run = int(read_orders(self._folder, entry, self._disk).get("run", 0))
                    self._released.add(entry.number)
                elif entry.kind not in (ChunkKind.DATA, ChunkKind.PARK):
                    self._released.add(entry.number)
        self.sync_names()  # a power cut must not undo a deletion after its number was used again
        return end
