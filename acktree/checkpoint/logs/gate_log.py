"""The gates of a checkpoint: what is staged, and what has passed and is not in the inbox yet.

The sink lets the acker judge a micro-batch, and then the gates decide: see ``core/gate.py``. What they
decided counts with the commit of the micro-batch. From then on the spout of a gate hands it to the inbox, and
remembers with its messages how far it came. A restart continues there.

With its values a frame has the *origins* of its rows for dead letters: the messages of users' spouts that
they hang on. They are looked up while these are open, and kept until the messages of the gate have verdicts.

A section of the commit log has the values that a micro-batch staged, or their places in files of the tasks
(staged_files.py), and what it decided. From time to time one has everything that is staged or not handed
over, and supersedes those before: when they have grown as large, so each value is written about twice,
however long it waits. A restart reads what the sections name, and finds out that it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section, sections_of
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.checkpoint.staged_files import FOLDER_NAME, Place, StagedFiles
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.values import batch_from_bytes
from acktree.core.gate import Gate, Mask, Passage, Staged, among
from acktree.core.ids import Int64s, UInt64s, sequence_names, tasks_and_sequences
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.core.spouts.pending import MessageIds
from acktree.core.tracking.origins import FrameOrigins, NumberedOrigins, Origin, Origins
from acktree.core.tracking.verdicts import Verdicts
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.labels import label_of, shown_id
from acktree.tasks.spouts.retries import Redriven
from acktree.topology.gates import Passed
from acktree.topology.model import Component

__all__ = ["GateLog", "gate_log_of", "waiting_gates"]

_FRAMES: Final = 1 << 24
"""More frames than a micro-batch stages: a frame's number has that of its micro-batch above this."""
_MOST_CHANGES: Final = 256
"""After this number of sections one with everything is written in any case: a restart reads them all."""
_GROUP_BYTES: Final = 28
_PLACE_BYTES: Final = 80
_ROW: Final = "a row"


IdsAt = Callable[[int, Int64s], MessageIds]
"""Returns the ids of open messages by spout task and sequences, which ascend; None for one not there."""


def _no_roots() -> Int64s:
    return np.zeros(0, dtype=np.int64)


def gate_log_of(
    plan: Plan,
    still_open: Callable[[Int64s], Int64s],
    keys: KeyLog,
    ids_at: IdsAt,
    checkpoint: Path | None = None,
    files: Files = FOLDER,
) -> GateLog | None:
    """The gates of a topology; None if it has none.

    Args:
        checkpoint: The folder of the checkpoint; None for ``LocalCluster``, where rows carry all values.
        files: How its files are read and deleted.
    """
    spouts = plan.topology.spouts
    names = [spout.id for spout in spouts if spout.gated is not None]
    if not names:
        return None
    values = None if checkpoint is None else StagedFiles(checkpoint / FOLDER_NAME, files)
    return GateLog(
        names, plan.run_salt, still_open, spouts, ids_at, repeated=lambda: keys.repeated, files=values
    )


def waiting_gates(checkpoint: Path, last_committed: int, files: Files) -> frozenset[str]:
    """The gates of the last run with tuples that are staged, or may not be in the inbox yet."""
    by_gate = _recovered(sections_of(checkpoint, last_committed, GateLog.name, files))
    return frozenset(name for name, frames in by_gate.items() if not frames.is_empty)


class GateLog(Participant, Passed):
    """All gates of a topology. The sink decides; spout threads read."""

    name = "gates"

    def __init__(
        self,
        names: Sequence[str],
        run_salt: int,
        still_open: Callable[[Int64s], Int64s],
        spouts: Sequence[Component],
        ids_at: IdsAt,
        repeated: Callable[[], Int64s] = _no_roots,
        files: StagedFiles | None = None,
    ) -> None:
        """Begin with nothing staged, until :meth:`recover`.

        Args:
            names: The ids of the gates.
            still_open: Returns the open ones of some roots, ascending.
            spouts: All spouts, gates included.
            ids_at: Returns the ids of open messages.
            repeated: Returns the roots that the micro-batch ACKED after another with the same key.
            files: The files of staged values; None where rows carry all values.
        """
        self._spouts = {task: spout.id for spout in spouts for task in spout.task_ids}
        self._ids_at = ids_at
        # The driver does not know the ids of a DataFrame's rows, and their roots do not name the task.
        self._rows: Origins = tuple(Origin(spout.id, _ROW) for spout in spouts if spout.is_dataframe)
        self._gates = {name: _Frames() for name in names}
        self._salt, self._still_open, self._repeated, self._files = run_salt, still_open, repeated, files
        self._lock = Lock()
        self._decided = -1
        self._was_empty = True  # of the last section that has everything
        self._written = self._changes = 0  # since then: bytes, sections

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged, and everything that passed is in the inbox."""
        with self._lock:
            return all(frames.is_empty for frames in self._gates.values())

    def after(self, gate: str, start: int) -> Sequence[tuple[int, pa.RecordBatch]]:
        with self._lock:
            frames = self._gates[gate]
            passage = frames.next_passage(start)
            values = {} if passage is None else frames.values_of(passage)
        if passage is None:
            return ()
        read = {frame: self._read(blob) for frame, blob in values.items()}  # the sink may go on meanwhile
        return _batches_of(passage, start, read)

    def _read(self, values: Buffer | Place) -> Buffer:
        if not isinstance(values, Place):
            return values
        assert self._files is not None, "a checkpoint has files"
        return self._files.values(values)

    def handed_over(self, gate: str, end: int) -> None:
        with self._lock:
            self._gates[gate].hand_over(end)

    def settled(self, gate: str, end: int) -> None:
        with self._lock:
            self._gates[gate].settle(end)

    def origins_of(self, spout: str, message_id: object) -> Origins:
        """The messages of users' spouts that a message of a gate hung on; none for one of another spout."""
        if spout not in self._gates:
            return ()
        with self._lock:
            return self._origins(spout, [message_id])[0]

    def waiting(self, gate: str, start: int) -> int:
        with self._lock:
            return self._gates[gate].waiting(start)

    def publish(self, number: int) -> None:
        """Note that Spark has committed a micro-batch: what it decided may be handed over."""
        with self._lock:
            if number >= self._decided:
                self._publish()

    def _publish(self) -> None:
        for frames in self._gates.values():
            frames.visible = frames.gate.end

    # ---- a participant of the commit log ----------------------------------------------------------------

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        if not sections:
            return
        by_gate = _recovered(sections)
        self._gates |= {name: frames for name, frames in by_gate.items() if name in self._gates}
        for frames in self._gates.values():
            for place in frames.places:
                self._read(place)  # an error if it is not whole
        self._decided, self._was_empty, self._changes = sections[-1][0], False, _MOST_CHANGES
        self._publish()

    def sweep(self) -> None:
        if self._files is not None:
            self._files.forget(self._named())

    def committed(self, number: int) -> None:
        if self._files is not None:
            self._files.forget(self._named(), number + 1)

    def _named(self) -> set[str]:
        """The files that the log names."""
        return set[str]().union(*(frames.named for frames in self._gates.values()))

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:
        acked, staged = partial(self._acked, outcome.verdicts), dict[str, list[WireRow]]()
        for row in outcome.rows.get(Kind.STAGED, ()):
            staged.setdefault(bytes(row.head).decode(), []).append(row)
        with self._lock:
            self._publish()  # the micro-batch before this one is committed
            self._decided = commit.number
            decided = {
                name: frames.decide(
                    commit.number, staged.get(name, ()), acked, self._still_open, self._frame_origins
                )
                for name, frames in self._gates.items()
            }
            return self._section({name: change for name, change in decided.items() if change})

    def closing_section(self) -> Section | None:
        with self._lock:
            return None if self._was_empty else self._whole()

    def _section(self, changes: Mapping[str, _Change]) -> Section | None:
        is_empty = all(frames.is_empty for frames in self._gates.values())
        if not changes and (self._was_empty or not is_empty):
            return None
        self._changes += 1
        self._written += sum(self._gates[name].size_of(change) for name, change in changes.items())
        size = sum(frames.size for frames in self._gates.values())
        if is_empty or self._written >= size or self._changes > _MOST_CHANGES:
            self._written = self._changes = 0
            return self._whole()
        self._was_empty = False
        parts = (self._gates[name].packed(change) for name, change in changes.items())
        return Section(pack(json.dumps(list(changes)).encode(), *parts))

    def _whole(self) -> Section:
        self._was_empty = all(frames.is_empty for frames in self._gates.values())
        parts = (frames.to_bytes() for frames in self._gates.values())
        return Section(pack(json.dumps(list(self._gates)).encode(), *parts), is_whole=True)

    def _frame_origins(self, groups: Staged) -> FrameOrigins:
        names = sequence_names(self._salt, groups.roots)
        return FrameOrigins.of(groups.counts, groups.degrees, names, self._look_up)

    def _look_up(self, names: UInt64s) -> Sequence[Origins]:
        """The origins of each of some roots, which ascend; none where they are not known."""
        tasks, sequences = tasks_and_sequences(names)
        if len(names) and tasks[0] == tasks[-1] and int(tasks[0]) in self._spouts:
            return self._origins(self._spouts[int(tasks[0])], self._ids_at(int(tasks[0]), sequences))
        origins_of_names: list[Origins] = [self._rows if len(self._rows) == 1 else ()] * len(names)
        for task, spout in self._spouts.items():
            places = np.flatnonzero(tasks == task)
            if len(places):
                origins = self._origins(spout, self._ids_at(task, sequences[places]))
                for place, origins_of_name in zip(places.tolist(), origins, strict=True):
                    origins_of_names[place] = origins_of_name
        return origins_of_names

    def _origins(self, spout: str, message_ids: MessageIds) -> Sequence[Origins]:
        """The origins of messages of one spout; through gates, if it is one."""
        frames = self._gates.get(spout)
        if frames is None and (numbers := _whole_numbers(message_ids)) is not None:
            return NumberedOrigins(spout, numbers)
        return [
            ()
            if message_id is None
            else tuple(Origin(*origin) for origin in message_id.origins)
            if isinstance(message_id, Redriven) and message_id.origins
            else frames.origins_of(int(message_id))
            if frames is not None and isinstance(message_id, int | np.integer)
            else (Origin(spout, shown_id(message_id), label_of(message_id)),)
            for message_id in (message_ids.tolist() if isinstance(message_ids, np.ndarray) else message_ids)
        ]

    def _acked(self, verdicts: Verdicts | None, roots: Int64s) -> Mask:
        """Which of some roots the micro-batch ACKED, but for those that repeat a key."""
        if verdicts is None or not len(roots):
            return np.zeros(len(roots), dtype=np.bool_)
        is_acked = among(roots, np.unique(verdicts.acked.roots))
        tasks, sequences = tasks_and_sequences(sequence_names(self._salt, roots))
        for task, done in verdicts.done:
            is_acked |= (tasks == task) & among(sequences, done)
        repeated = self._repeated()
        return is_acked & ~np.isin(roots, repeated) if len(repeated) else is_acked


def _whole_numbers(message_ids: MessageIds) -> Int64s | None:
    """Message ids that are whole numbers, as an array; None if others are among them."""
    if isinstance(message_ids, np.ndarray):
        return message_ids.astype(np.int64) if message_ids.dtype.kind == "i" else None
    if {*map(type, message_ids)} != {int}:
        return None
    try:
        return np.array(message_ids, dtype=np.int64)
    except OverflowError:
        return None


def _recovered(sections: Sequence[tuple[int, Section]]) -> dict[str, _Frames]:
    by_gate: dict[str, _Frames] = {}
    for _, section in sections:
        head, *parts = unpack(section.content)
        for name, part in zip(json.loads(bytes(head)), parts, strict=True):
            if section.is_whole:
                by_gate[name] = _Frames(part)
            else:
                by_gate.setdefault(name, _Frames()).replay(part)
    return by_gate


class _Change(NamedTuple):
    """What a gate decided in a micro-batch: for :meth:`Gate.replay`, and the frames of it that are needed."""

    of_gate: bytes
    frames: Sequence[int]


class _Frames:
    """One gate, with the values of the tuples that it needs.

    Attributes:
        gate: Which tuples wait, and which have passed.
        visible: The messages before this number are committed.
        named: The files that the log names for it.
    """

    def __init__(self, whole: Buffer | None = None) -> None:
        self.gate, self.visible = Gate(), 0
        self.named: frozenset[str] = frozenset()
        self._handed_over = 0  # the inbox has the messages before this number
        self._open: list[Passage] = []  # those of which messages may have no verdict
        self._values: dict[int, Buffer | Place] = {}  # by number of the frame
        self._origins: dict[int, FrameOrigins] = {}  # likewise
        if whole is not None:
            gate, passages, *frames = unpack(whole)
            self.gate = Gate(gate)
            self._open = [Passage.from_bytes(blob) for blob in unpack(passages)]
            self._read(frames)
            self._forget()
            self.named = self._files()

    def to_bytes(self) -> bytes:
        self.named = self._files()
        passages = pack(*(passage.to_bytes() for passage in self._open))
        return pack(self.gate.to_bytes(), passages, *self._packed(self._origins))

    def _packed(self, frames: Iterable[int]) -> tuple[bytes, ...]:
        """The numbers of frames, and of each its values or their place, and its origins."""
        parts = (pack(*_apart(self._values.get(frame, b"")), self._origins[frame].blob) for frame in frames)
        return np.array(list(frames), dtype=np.int64).tobytes(), *parts

    def _read(self, packed: Sequence[Buffer]) -> None:
        """Add what :meth:`_packed` wrote."""
        numbers, *frames = packed
        for frame, blob in zip(int64s(numbers).tolist(), frames, strict=True):
            values, place, origins = unpack(blob)
            self._values[frame] = Place.from_bytes(place) if len(place) else bytes(values)
            self._origins[frame] = FrameOrigins(origins)

    @property
    def places(self) -> list[Place]:
        """Where values are that are in files."""
        return [values for values in self._values.values() if isinstance(values, Place)]

    def _files(self) -> frozenset[str]:
        return frozenset(place.file for place in self.places)

    @property
    def size(self) -> int:
        """About the length of :meth:`to_bytes`."""
        origins = sum(len(frame_origins.blob) for frame_origins in self._origins.values())
        return sum(map(_size_of, self._values.values())) + origins + _GROUP_BYTES * self.gate.waiting

    @property
    def is_empty(self) -> bool:
        return not (self.gate.waiting or self.gate.passages)

    def waiting(self, start: int) -> int:
        """The tuples without a verdict, and those of the passages from a number on."""
        passages = self.gate.passages
        return self.gate.waiting + sum(max(0, each.end - max(start, each.first)) for each in passages)

    def decide(
        self,
        number: int,
        rows: Sequence[WireRow],
        acked: Callable[[Int64s], Mask],
        still_open: Callable[[Int64s], Int64s],
        origins_of: Callable[[Staged], FrameOrigins],
    ) -> _Change | None:
        """Decide for a micro-batch; None if nothing changed."""
        staged = dict[int, Staged]()
        for frame, row in enumerate(rows, number * _FRAMES):
            body: Buffer = row.body
            counts, degrees, roots, values, *place = unpack(body)
            staged[frame] = Staged.groups(frame, int64s(counts), int64s(degrees), int64s(roots))
            # A view of a mapped file would keep the whole file, which is deleted meanwhile.
            inline = values if isinstance(body, bytes) else bytes(values)
            self._values[frame] = Place.from_bytes(place[0]) if place else inline
        decision = self.gate.decide(Staged.joined([*staged.values()]), acked, still_open)
        self._opened(decision.passage)
        kept = sorted(staged.keys() & self._values.keys())
        self._origins |= {frame: origins_of(staged[frame]) for frame in kept}
        return _Change(decision.change, kept) if decision.change else None

    def packed(self, change: _Change) -> bytes:
        """What :meth:`replay` takes."""
        self.named = self._files()
        return pack(change.of_gate, np.array([self._handed_over]), *self._packed(change.frames))

    def size_of(self, change: _Change) -> int:
        """About the length of :meth:`packed`."""
        frames = (
            _size_of(self._values.get(frame, b"")) + len(self._origins[frame].blob) for frame in change.frames
        )
        return len(change.of_gate) + sum(frames)

    def replay(self, change: Buffer) -> None:
        """Apply what :meth:`decide` returned in an earlier run, packed."""
        of_gate, handed_over, *frames = unpack(change)
        self._read(frames)
        end = self.gate.end
        self.gate.replay(of_gate)
        self._opened(*(passage for passage in self.gate.passages if passage.end > end))
        self.hand_over(int(int64s(handed_over)[0]))
        self.named = self._files()

    def _opened(self, *passages: Passage) -> None:
        self._open += (passage for passage in passages if len(passage.frames))
        self._forget()

    def settle(self, end: int) -> None:
        """The messages before this number have their verdicts."""
        self._open = [passage for passage in self._open if passage.end > end]
        self._forget()

    def origins_of(self, number: int) -> Origins:
        """The origins of a message."""
        for passage in self._open:
            if passage.first <= number < passage.end:
                frame, row = passage.row_of(number)
                return self._origins[frame].of_row(row)
        return ()

    def next_passage(self, start: int) -> Passage | None:
        """The first committed passage with messages from a number on; None if there is none."""
        return next((each for each in self.gate.passages if start < each.end <= self.visible), None)

    def values_of(self, passage: Passage) -> dict[int, Buffer | Place]:
        """The values of its frames, or their places, by frame."""
        return {frame: self._values[frame] for frame in np.unique(passage.frames).tolist()}

    def hand_over(self, end: int) -> None:
        self._handed_over = max(self._handed_over, end)
        self.gate.hand_over(end)
        self._forget()

    def _forget(self) -> None:
        needed = set(self.gate.frames.tolist())
        self._values = {frame: values for frame, values in self._values.items() if frame in needed}
        needed.update(*(passage.frames.tolist() for passage in self._open))
        self._origins = {frame: origins for frame, origins in self._origins.items() if frame in needed}


def _apart(values: Buffer | Place) -> tuple[Buffer, Buffer]:
    """Values and their place: one of them is empty."""
    return (b"", values.to_bytes()) if isinstance(values, Place) else (values, b"")


def _size_of(values: Buffer | Place) -> int:
    """About the bytes that values, or their place, take in a section."""
    return _PLACE_BYTES if isinstance(values, Place) else len(values)


def _batches_of(
    passage: Passage, start: int, values: Mapping[int, Buffer]
) -> Sequence[tuple[int, pa.RecordBatch]]:
    """The messages of a passage from a number on, by frame: the number of the first, and the batch."""
    batches, first = [], passage.first
    for frame, blob in values.items():
        is_here = passage.frames == frame
        firsts, counts = passage.firsts[is_here], passage.counts[is_here]
        batch, count = batch_from_bytes(blob), int(counts.sum())
        if len(counts) == 1:
            batch = batch.slice(int(firsts[0]), count)
        else:
            rows = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(count)
            batch = batch.take(pa.array(rows))
        if first + count > start:
            batches.append((max(first, start), batch.slice(max(0, start - first))))
        first += count
    return batches
