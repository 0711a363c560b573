"""The inbox: durable, without gaps, and no larger than what somebody still needs."""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acktree.checkpoint.files import Files
from acktree.checkpoint.inbox import WHOLE_INBOX, FileInbox
from acktree.checkpoint.inbox_files import (
    WAKE,
    ChunkKind,
    Entry,
    Taken,
    entries_after,
    sealed_entry,
    waiting_spouts,
)
from acktree.errors import CheckpointError
from tests.drawn import drawn
from tests.unit.checkpoint.inbox_chunks import chunk_of

ROOMY = {"max_messages": 10**6, "max_bytes": 10**9}


def numbers_in(folder: Path) -> list[int]:
    entries = [Entry.of_name(file.name) for file in folder.iterdir()]
    return sorted(entry.number for entry in entries if entry is not None)


@pytest.fixture
def inbox(tmp_path: Path):
    opened = FileInbox(tmp_path, -1, **ROOMY)
    yield opened
    opened.close()


def test_spouts_wait_as_long_as_the_inbox_has_messages_of_them(inbox: FileInbox, tmp_path: Path) -> None:
    assert waiting_spouts(tmp_path / "not made yet") == frozenset()
    inbox.append_control(ChunkKind.BEAT, {})
    assert waiting_spouts(tmp_path) == frozenset()
    inbox.append([chunk_of(1, position=1)])
    assert waiting_spouts(tmp_path) == {"numbers"}
    inbox.release(1)
    inbox.consumed(1)
    inbox.committed(1)
    assert numbers_in(tmp_path) == [1]  # what the spout remembers is left of it
    assert waiting_spouts(tmp_path) == frozenset()
    inbox.append([], [chunk_of(2)])
    assert waiting_spouts(tmp_path) == {"numbers"}


def test_a_file_is_deleted_when_it_is_committed_and_released_in_either_order(
    inbox: FileInbox, tmp_path: Path
) -> None:
    inbox.append([chunk_of(1), chunk_of(2)])
    inbox.consumed(1)
    inbox.release(0)
    assert numbers_in(tmp_path) == [0, 1]  # it has run, and may run again
    inbox.committed(1)
    assert numbers_in(tmp_path) == [1]
    inbox.release(1)
    assert numbers_in(tmp_path) == []


def test_room_that_a_commit_makes_is_there_without_another_micro_batch(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, max_messages=100, max_bytes=1)
    inbox.append([chunk_of(1)])
    assert not inbox.room()
    inbox.release(0)
    inbox.consumed(0)
    assert not inbox.room()  # the bytes are still there
    inbox.committed(0)
    assert inbox.room()
    inbox.close()


def test_a_micro_batch_runs_from_when_its_entries_are_taken_until_it_has_run_over_them(
    inbox: FileInbox, tmp_path: Path
) -> None:
    assert not inbox.is_running()
    inbox.append([chunk_of(1)])
    assert not inbox.is_running()  # the source may take it with what comes now
    Taken(0, 1000).write(tmp_path)
    assert inbox.is_running()
    inbox.append([chunk_of(1)])
    assert inbox.is_running()
    inbox.consumed(0)
    assert not inbox.is_running()  # the next one has not begun
    Taken(1, 1000).write(tmp_path)
    assert inbox.is_running()
    inbox.consumed(1)
    assert not inbox.is_running()


def test_a_position_takes_no_room(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, max_messages=100, max_bytes=1)
    inbox.append([chunk_of(1, position=1)])
    inbox.release(0)
    inbox.consumed(0)
    inbox.committed(0)
    assert inbox.room()
    inbox.close()
    assert FileInbox(tmp_path, 0, max_messages=100, max_bytes=1).room()


def test_of_the_newest_position_only_the_position_stays(inbox: FileInbox, tmp_path: Path) -> None:
    inbox.append([chunk_of(*range(50), position=50)])
    inbox.release(0)
    inbox.consumed(0)
    size_before = sum(file.stat().st_size for file in tmp_path.glob("0*"))
    inbox.committed(0)
    assert sum(file.stat().st_size for file in tmp_path.glob("0*")) < size_before
    assert inbox.oldest_kept == 1  # no verdict can be about it any more
    [(number, kept)] = FileInbox(tmp_path, 0, **ROOMY).recovered()
    assert (number, len(kept), kept.is_tracked) == (0, 0, False)
    assert kept.position == chunk_of(position=50).position
    inbox.append([chunk_of(51, position=51)])
    assert numbers_in(tmp_path) == [1]


def test_a_driver_that_dies_between_a_chunk_and_its_bare_position_leaves_the_position(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    inbox.append([chunk_of(1, 2, 3, position=3)])
    whole = next(tmp_path.glob("0*"))
    copy = whole.read_bytes()
    inbox.release(0)
    inbox.committed(0)
    whole.write_bytes(copy)  # as if it had not been deleted yet
    again = FileInbox(tmp_path, 0, **ROOMY)
    [(_, kept)] = again.recovered()
    assert len(kept) == 0
    assert whole.exists()  # until all else was read: the bare one may be damaged
    again.append([chunk_of(4)])
    assert not whole.exists()


def test_messages_that_are_still_there_at_the_url_are_dropped_and_a_position_stays(tmp_path: Path) -> None:
    before = FileInbox(tmp_path, -1, 100, 10**6)
    before.append([chunk_of(2), chunk_of(3, position=b"here")])
    before.append([], [chunk_of(1)])
    before.append([chunk_of(4)])
    before.committed(1)
    before.release(1)  # its position stays
    before.close()
    inbox = FileInbox(tmp_path, 1, 100, 10**6)
    inbox.drop_before(3)
    assert numbers_in(tmp_path) == [1, 3]
    assert [(number, bool(chunk.position)) for number, chunk in inbox.recovered()] == [(1, True), (3, False)]
    assert [*inbox.recovered(ChunkKind.PARK)] == []
    assert inbox.oldest_kept == 3
    assert inbox.waiting[0] == 1
    inbox.close()


def test_what_runs_and_what_is_parked_are_one_group(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    assert inbox.append([chunk_of(1), chunk_of(2)], [chunk_of(3)]) == 0
    assert inbox.waiting[0] == 2
    inbox.close()
    again = FileInbox(tmp_path, -1, **ROOMY)
    assert [number for number, _ in again.recovered(ChunkKind.PARK)] == [2]
    again.close()
    first = next(tmp_path.glob("*0.data*"))
    first.rename(tmp_path / f"new-{first.name}")  # died before the last rename
    third = FileInbox(tmp_path, -1, **ROOMY)
    assert not [*third.recovered(), *third.recovered(ChunkKind.PARK)]
    assert third.append_control(ChunkKind.BEAT, {}) == 0
    assert numbers_in(tmp_path) == [0]
    third.close()


def test_a_group_that_was_not_handed_over_whole_is_not_there(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    inbox.append([chunk_of(1)])
    inbox.append([chunk_of(2), chunk_of(3), chunk_of(4)])
    second = next(tmp_path.glob("*1.data*"))
    second.rename(tmp_path / f"new-{second.name}")  # died before the last rename
    again = FileInbox(tmp_path, -1, **ROOMY)
    assert [number for number, _ in again.recovered()] == [0]
    assert again.append([chunk_of(5)]) == 1
    assert numbers_in(tmp_path) == [0, 1]
    assert not list(tmp_path.glob("new-*"))


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "folder"])
def test_what_is_not_acktrees_is_neither_read_nor_deleted(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    names = ["new-README", "9.old.b.c", "000000000009.copy.1.1", "000000000009.data.1.1~", "\u00b2.data.1.1"]
    for name in names:
        make(tmp_path / name)
    (tmp_path / "new-taken").touch()  # half written
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    assert inbox.append([chunk_of(1)]) == 0
    assert [entry.number for entry in entries_after(tmp_path, -1)] == [0]
    assert {each.name for each in tmp_path.iterdir()} >= set(names)
    assert not (tmp_path / "new-taken").exists()
    inbox.close()


def test_a_group_that_cannot_be_written_leaves_nothing_behind(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if ".".join(target.name.split(".")[:1]).endswith("0"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(CheckpointError, match="no space left on a disk"):
        inbox.append([chunk_of(1), chunk_of(2)])  # 1 is renamed, 0 is not
    monkeypatch.undo()
    assert numbers_in(tmp_path) == []
    assert inbox.append([chunk_of(3)]) == 0
    assert [entry.number for entry in entries_after(tmp_path, -1)] == [0]


def test_a_file_that_is_missing_before_messages_that_only_the_inbox_has_is_told(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    for number in range(3):
        inbox.append([chunk_of(number, first_sequence=number)])
    inbox.close()
    (tmp_path / Entry(1, ChunkKind.DATA, 1, 1).name).unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"a file of the checkpoint is missing\n.*000000000001"):
        FileInbox(tmp_path, -1, **ROOMY)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_is_missing_in_what_was_logged_is_told_where_this_process_is_the_source(
    tmp_path: Path,
) -> None:
    """An epoch that was logged and not committed runs again over its entries."""
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    for number in range(3):
        inbox.append([chunk_of(number, first_sequence=number)])
    inbox.close()
    (tmp_path / Entry(1, ChunkKind.DATA, 1, 1).name).unlink()
    logged = FileInbox(tmp_path, 2, **ROOMY)
    assert [entry.number for entry in logged.following(1)] == [2]
    with pytest.raises(CheckpointError, match=r"a file of the checkpoint is missing\n.*000000000001"):
        logged.following(-1)
    logged.close()


def test_a_position_that_is_older_than_it_was_is_told(inbox: FileInbox, tmp_path: Path) -> None:
    inbox.append([chunk_of(0, position=1)])
    assert inbox.newest == {1: 0, WHOLE_INBOX: 0}
    inbox.refuse_older({1: 0})
    with pytest.raises(CheckpointError, match="is missing"):
        inbox.refuse_older({1: 1})


def test_that_the_newest_file_is_gone_is_told_if_it_was_there_at_the_last_commit(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, **ROOMY)
    inbox.append([chunk_of(0)])
    inbox.append([chunk_of(1, first_sequence=1)])
    at_commit = inbox.newest
    assert at_commit == {WHOLE_INBOX: 1}
    inbox.append_control(ChunkKind.BEAT, {})
    assert inbox.newest == at_commit  # a beat is no message
    inbox.close()
    whole = FileInbox(tmp_path, -1, **ROOMY)
    assert len([*whole.recovered()]) == 2
    assert whole.newest == at_commit  # the next run notes it, too
    whole.refuse_older(at_commit)
    whole.close()
    for file in (Entry(1, ChunkKind.DATA, 1, 1), Entry(2, ChunkKind.BEAT, 0, 0)):
        (tmp_path / file.name).unlink()
    torn = FileInbox(tmp_path, -1, **ROOMY)
    with pytest.raises(CheckpointError, match=r"a file of the checkpoint is missing\n.*000000000001"):
        torn.refuse_older(at_commit)
    torn.close()


def test_a_closed_inbox_takes_nothing_and_closing_it_twice_is_fine(inbox: FileInbox) -> None:
    inbox.close()
    inbox.close()
    inbox.wake()
    with pytest.raises(CheckpointError, match="closed"):
        inbox.append([chunk_of(1)])


def test_a_wake_before_the_reader_looks_is_not_lost_and_a_full_pipe_does_not_block(
    inbox: FileInbox, tmp_path: Path
) -> None:
    for _ in range(100_000):
        inbox.wake()
    pipe = os.open(tmp_path / WAKE, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([pipe], [], [], 0)[0]
        while select.select([pipe], [], [], 0)[0]:
            os.read(pipe, 65536)
        inbox.append([chunk_of(1)])
        assert select.select([pipe], [], [], 0)[0]
    finally:
        os.close(pipe)


def test_threads_that_append_at_the_same_time_leave_no_gap_and_lose_nothing(
    inbox: FileInbox, tmp_path: Path
) -> None:
    def emit(task: int) -> None:
        for n in range(20):
            number = inbox.append([chunk_of(n, task=task), chunk_of(n, task=task)])
            if n % 2:
                inbox.release(number)

    def commit_all() -> None:
        while any(thread.is_alive() for thread in threads):
            end = inbox.last_number
            inbox.consumed(end)
            inbox.committed(end)

    threads = [threading.Thread(target=emit, args=(task,)) for task in (1, 2, 3)]
    owner = threading.Thread(target=commit_all)
    for thread in [*threads, owner]:
        thread.start()
    for thread in [*threads, owner]:
        thread.join()
    assert inbox.last_number == 3 * 20 * 2 - 1
    inbox.consumed(inbox.last_number)
    inbox.committed(inbox.last_number)
    kept = numbers_in(tmp_path)
    assert len(kept) == 3 * (20 + 10)
    assert all(len(inbox.read(number)) == 1 for number in kept)
    assert inbox.room()


def test_beats_and_the_beginning_of_a_run_go_with_their_commit(inbox: FileInbox, tmp_path: Path) -> None:
    inbox.append_control(ChunkKind.RUN, {"run": 1})
    inbox.append_control(ChunkKind.BEAT, {})
    inbox.consumed(1)
    assert numbers_in(tmp_path) == [0, 1]
    inbox.committed(1)
    assert numbers_in(tmp_path) == []


class InboxBesideADict(RuleBasedStateMachine):
    """Appends, micro-batches, commits and releases in any order; the driver dies at any moment."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.admitted = self.ran = self.committed = self.known = -1
        self.next = 0
        self.last_lasting = -1  # the newest entry that is no beat
        self.kept: dict[int, tuple[int, tuple[int, ...], object]] = {}  # number -> task, values, position
        self.controls: set[int] = set()
        self.released: set[int] = set()
        self.newest: dict[int, int] = {}
        self.waiting = 0
        self.inbox = FileInbox(self.folder, -1, max_messages=20, max_bytes=10**9)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.inbox.close()
            shutil.rmtree(self.folder)

    @rule(
        groups=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=3),
        task=st.integers(1, 2),
        position=st.none() | st.integers(0, 9),
    )
    def append(self, groups: list[list[int]], task: int, position: int | None) -> None:
        first = self.inbox.append([chunk_of(*values, task=task, position=position) for values in groups])
        assert first == self.next
        for at, values in enumerate(groups):
            self.kept[first + at] = (task, tuple(values), position)
            self.waiting += len(values)
            if position is not None:
                self.newest[task] = first + at
        self.next += len(groups)
        self.last_lasting = self.next - 1 if groups else self.last_lasting
        self.forget()

    @rule()
    def beat(self) -> None:
        assert self.inbox.append_control(ChunkKind.BEAT, {}) == self.next
        self.controls.add(self.next)
        self.next += 1

    @precondition(lambda self: set(self.kept) - self.released)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.kept) - self.released)))
        self.inbox.release(number)
        self.released.add(number)
        self.forget()

    @rule()
    def log_offsets(self) -> None:
        if self.admitted == self.committed:  # one micro-batch at a time
            self.admitted = self.next - 1

    @rule()
    def run(self) -> None:
        self.inbox.consumed(self.admitted)
        self.waiting -= sum(
            len(self.kept[number][1]) for number in self.kept if self.ran < number <= self.admitted
        )
        self.ran = max(self.ran, self.admitted)

    @precondition(lambda self: self.ran == self.admitted)
    @rule()
    def commit(self) -> None:
        self.committed = self.admitted
        self.known = self.committed
        self.inbox.committed(self.committed)
        self.forget()

    @rule(torn=st.integers(0, 3))
    def die_and_come_back(self, torn: int) -> None:
        """Perhaps in the middle of handing over a group, of which the last ``torn`` are in place."""
        self.inbox.close()
        for at in range(torn):
            entry = Entry(self.next + 1 + at, ChunkKind.DATA, 1, 1)
            (self.folder / entry.name).write_bytes(
                sealed_entry(entry.number, chunk_of(0).to_bytes(), self.next)
            )
        half = Entry(self.next, ChunkKind.DATA, 1, 1)
        (self.folder / f"new-{half.name}").write_bytes(b"half of")
        self.inbox = FileInbox(self.folder, self.admitted, max_messages=20, max_bytes=10**9)
        found = dict(self.inbox.recovered())
        positions = {}
        for number, chunk in found.items():
            if chunk.position:
                self.inbox.has_position(chunk.task, number)
                positions[chunk.task] = number
            if not len(chunk):
                self.inbox.release(number)
        assert positions == self.newest
        self.released = {number for number in self.released if number in found and not len(found[number])}
        self.ran = min([*self.kept, *self.controls], default=self.next) - 1
        self.last_lasting = self.next - 1
        self.known = self.ran  # what else was committed shows with the next commit
        self.waiting = sum(len(chunk) for chunk in found.values())
        self.beat()  # each run begins with an entry, before which the rest of a torn group is deleted

    def forget(self) -> None:
        for number in list(self.kept):
            if number in self.released and number <= self.known:
                if number in self.newest.values():
                    task, _, position = self.kept[number]
                    self.kept[number] = (task, (), position)
                else:
                    del self.kept[number]
                    self.released.discard(number)
        self.controls = {number for number in self.controls if number > self.known}

    @invariant()
    def what_is_needed_is_there_and_nothing_else(self) -> None:
        if not hasattr(self, "folder"):
            return
        assert numbers_in(self.folder) == sorted([*self.kept, *self.controls])
        assert [entry.number for entry in entries_after(self.folder, self.admitted)] == list(
            range(self.admitted + 1, self.next)
        )
        for number, (task, values, position) in self.kept.items():
            chunk = self.inbox.read(number)
            assert (chunk.task, len(chunk)) == (task, len(values))
            assert chunk.position == chunk_of(position=position).position
            if values:
                assert chunk.values.column("n").to_pylist() == list(values)
        with_messages = [number for number, (_, values, _) in self.kept.items() if values]
        assert self.inbox.oldest_kept == min(with_messages, default=self.next)
        assert self.inbox.room() == self.inbox.room(5) == max(0, 20 - self.waiting)
        assert self.inbox.is_drained == (self.ran >= self.next - 1)
        assert self.inbox.has_run_all == (self.ran >= self.last_lasting)


TestInboxBesideADict = InboxBesideADict.TestCase
TestInboxBesideADict.settings = settings(max_examples=drawn(60), stateful_step_count=40, deadline=None)


def test_on_a_disk_without_room_for_an_empty_file_stopping_continues_without_the_hold(
    inbox: FileInbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acktree.system.private_files.make_private_file", full)
    inbox.hold()
    assert not (tmp_path / "hold").exists()


def test_a_chunk_that_spark_cannot_carry_is_refused_before_it_is_handed_over(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, 100, 10**9, max_chunk_bytes=len(chunk_of(1).to_bytes()))
    assert inbox.append([chunk_of(1)]) == 0
    with pytest.raises(CheckpointError, match="Spark carries") as raised:
        inbox.append([chunk_of(2), chunk_of(*range(1000))])
    assert "spark.rpc.message.maxSize" in raised.value.fix
    assert inbox.last_number == 0
    inbox.close()


@pytest.mark.parametrize("survives", [False, True])
def test_a_file_that_is_gone_before_two_that_only_the_inbox_has_is_told(
    tmp_path: Path, *, survives: bool
) -> None:
    files = Files(survives_power_cut=survives)
    inbox = FileInbox(tmp_path, -1, 20, 10**9, files)
    for number in range(3):
        inbox.append([chunk_of(number, first_sequence=number)])
    inbox.close()
    (tmp_path / "000000000000.data.1.1").unlink()
    before = sorted(tmp_path.glob("0*"))
    with pytest.raises(CheckpointError, match=r"is missing(?s:.)*000000000000"):
        FileInbox(tmp_path, -1, 20, 10**9, files)
    assert sorted(tmp_path.glob("0*")) == before


def test_the_rest_of_a_group_that_was_never_appended_as_a_whole_is_no_missing_file(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, -1, 20, 10**9)
    inbox.append([chunk_of(number, first_sequence=number) for number in range(3)])
    inbox.close()
    (tmp_path / "000000000000.data.1.1").unlink()
    again = FileInbox(tmp_path, -1, 20, 10**9)
    assert not list(again.recovered())
    assert numbers_in(tmp_path) == [1, 2]  # who refuses the checkpoint has deleted nothing
    assert again.append([chunk_of(7)]) == 0
    assert numbers_in(tmp_path) == [0]
    again.close()
