"""A checkpoint at a URL: what any driver leaves there is enough for one on another machine.

The laws are those of ``test_crash_windows.py``: here the working copy is gone after each death, deletes there
lag behind or not, and a driver also dies before and after each file that it puts.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree import Retry, Spout, Topology, TopologyBuilder
from acktree.checkpoint import lease, mirror
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.checkpoint.mirror import Mirror
from acktree.checkpoint.staged_files import FOLDER_NAME
from acktree.errors import CheckpointError
from tests.drawn import drawn
from tests.unit.checkpoint import test_gate_crashes as gates
from tests.unit.checkpoint.inbox_chunks import chunk_of
from tests.unit.checkpoint.points import POINTS
from tests.unit.checkpoint.remote_folder import RemoteFolder, Unreachable
from tests.unit.checkpoint.small_spark import Driver, DriverDied, World, live
from tests.unit.checkpoint.test_crash_windows import COUNT, RETRY, check


class OnAnotherMachine(Mirror):
    """Its driver dies at once: nothing is cleaned up, the lease is kept, the folder is not used again."""

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._stops.set()
            self._thread.join()


class Abroad(World):
    """A world whose checkpoint is at a URL.

    Args:
        sweeps_every: So often, of the files that are put, what was deleted is deleted there too; 0: never.
    """

    def __init__(self, folder: Path, *, sweeps_every: int = 0, **given):
        super().__init__(folder, COUNT, **given)
        self.remote = RemoteFolder(folder / "there", self.sees)
        self.spark = self.remote.folder / "spark"
        self.take = self.take_over
        self.sweeps_every, self.puts = sweeps_every, 0
        self.mirror: Mirror | None = None

    def take_over(self) -> Checkpoint:
        if self.mirror is not None:
            self.mirror.close()
            self.remote.age(60)
        self.mirror = OnAnotherMachine.open(self.remote, str(self.folder))
        return Checkpoint(self.mirror.folder, self.mirror)

    def sees(self, when: str, name: str) -> None:
        if name.startswith(("lease", "-")):
            return
        self.passed(f"{when} a write")
        self.puts += 1
        if self.mirror is not None and self.sweeps_every and self.puts % self.sweeps_every == 0:
            self.mirror._sweep()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "RENEW_SECS", 10**6)  # its thread would sweep when it likes


@pytest.mark.parametrize("redelivers", [True, False], ids=["queue", "position"])
@pytest.mark.parametrize("point", [*POINTS, "before a write", "after a write"])
def test_a_driver_that_dies_is_followed_on_another_machine(tmp_path, redelivers, point, thorough):
    retry = RETRY if point == "recorded" else None
    moments = ((1, 0), (8, 3))
    for passes, sweeps_every in moments if thorough else [moments[redelivers]]:
        folder = tmp_path / str(passes)
        folder.mkdir()
        world = Abroad(folder, sweeps_every=sweeps_every, redelivers=redelivers, retry=retry)
        if retry or not redelivers:  # a queue without a policy replays for ever
            world.weather = lambda number, attempt, run: number % 5 == 0 and attempt < 1 + number % 4
        world.lives_until(f"{point}*{passes}")
        live(world)
        check(world)


@settings(max_examples=drawn(15))
@example(  # chunks whose verdicts were forgotten are there again
    deaths=[("any", 7), *[("emitted", 1)] * 3, ("in the mailbox", 12), ("emitted", 1)],
    sweeps_every=0, redelivers=False, retries=True,
)  # fmt: skip
@given(
    deaths=st.lists(
        st.tuples(st.sampled_from([*POINTS, "any", "before a write", "after a write"]), st.integers(1, 12)),
        max_size=6,
    ),
    sweeps_every=st.integers(0, 4),
    redelivers=st.booleans(),
    retries=st.booleans(),
)
def test_whatever_dies_when_the_next_machine_finds_enough(deaths, sweeps_every, redelivers, retries):
    with tempfile.TemporaryDirectory() as folder:
        retry = RETRY if retries else None
        world = Abroad(Path(folder), sweeps_every=sweeps_every, redelivers=redelivers, retry=retry)
        if retries or not redelivers:
            world.weather = lambda number, attempt, run: (number * 7 + attempt * 5 + run * 3) % 4 == 0
        world.lives_until(*(f"{point}*{passes}" for point, passes in deaths))
        live(world)
        check(world)


@pytest.mark.parametrize("nth", [2, 3, 4])
def test_a_folder_that_is_copied_to_a_url_has_there_what_its_gates_staged(tmp_path, nth):
    """Nothing remembers there: what bolts remember is refused at a URL."""
    before = gates.made(tmp_path, "position")
    before.build = with_a_sink
    before.lives_until(f"commit logged*{nth}")
    driver = Driver(before)
    driver.micro_batch()
    driver.open()
    with suppress(DriverDied):
        while True:
            driver.spout_turns()
            driver.micro_batch()
    driver.close()
    assert [*(tmp_path / "checkpoint" / FOLDER_NAME).iterdir()]
    copied = shutil.ignore_patterns("wake", "lock")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "there", ignore=copied)
    world = Abroad(tmp_path, redelivers=False, retry=gates.RETRY)
    world.build, world.count, world.database = with_a_sink, gates.COUNT, before.database
    world.verdicts, world.effects = before.verdicts, before.effects
    driver = live(world)
    assert Counter(world.database.table) == Counter(range(gates.COUNT))
    driver.close()


def with_a_sink(name: str, spout: Spout, retry: Retry | None) -> Topology:
    builder = TopologyBuilder("sink")
    builder.set_spout("numbers", spout, retry=retry)
    builder.set_bolt("weathered", gates.EmitsAndRaises(name), parallelism=2).shuffle_grouping("numbers")
    table = builder.set_sink("table", gates.Table(name), parallelism=2, retry=gates.RETRY)
    table.fields_grouping("weathered", ["n"])
    return builder.create_topology()


def opened(remote: RemoteFolder, tmp_path: Path) -> tuple[Mirror, FileInbox]:
    files = Mirror.open(remote, str(tmp_path))
    inbox = FileInbox(files.folder / "inbox", -1, 10**6, 10**9, files)
    files.begin(lambda: None)
    return files, inbox


def test_a_group_of_chunks_is_there_at_once_or_not_at_all_wherever_writing_fails(tmp_path):
    for left in range(8):
        remote = Unreachable(tmp_path / str(left))
        files, inbox = opened(remote, tmp_path)
        remote.left = left
        try:
            inbox.append([chunk_of(number, first_sequence=number) for number in range(3)])
            was_reported = True
        except CheckpointError:
            was_reported = False
        remote.left = 10**9
        with pytest.raises(CheckpointError) if not was_reported else pytest.MonkeyPatch.context():
            inbox.append_control(ChunkKind.BEAT, {})  # the same number, had it not failed for good
        inbox.close()
        files.close()
        remote.age(60)
        files, inbox = opened(remote, tmp_path)
        found = [number for number, _ in inbox.recovered()]
        assert found in ([], [0, 1, 2])
        assert found or not was_reported
        inbox.close()
        files.close()


def test_the_first_failure_is_reported_at_once_and_nothing_more_is_written(tmp_path):
    remote, reported = Unreachable(tmp_path / "there"), []
    files, inbox = opened(remote, tmp_path)
    files.begin(lambda: reported.append(files.lost))
    remote.left = 0
    with pytest.raises(CheckpointError, match="no answer") as first:
        inbox.append([chunk_of(1)])
    assert reported == [files.lost] == [first.value]
    remote.left = 10**9
    before = remote.names("inbox")
    for deed in (lambda: inbox.append([chunk_of(1)]), files.check):
        with pytest.raises(CheckpointError, match="no answer"):
            deed()
    assert remote.names("inbox") == before
    inbox.close()
    files.close()


def test_the_chunks_of_a_hand_over_are_written_at_the_same_time_and_the_first_of_them_last(tmp_path):
    met, done = threading.Barrier(4), list[str]()

    def on(when: str, name: str) -> None:
        if not name.startswith("inbox/"):
            return
        if when == "before" and not done:
            met.wait(120)  # broken if they come one after the other
        if when == "after":
            done.append(name)

    files, inbox = opened(RemoteFolder(tmp_path / "there", on), tmp_path)
    assert inbox.append([chunk_of(n) for n in range(5)]) == 0
    assert len(done) == 5
    assert done[-1].startswith("inbox/000000000000.")
    assert inbox.last_number == 4
    inbox.close()
    files.close()


def test_if_one_of_several_writes_fails_none_goes_on_when_the_error_is_raised(tmp_path):
    going_on, started = set[str](), threading.Barrier(2)

    def on(when: str, name: str) -> None:
        if not name.startswith("inbox/"):
            return
        if when == "after":
            going_on.remove(name)
            return
        started.wait(120)
        if "000000000001" in name:
            raise CheckpointError("no answer", "there", "correct the test")
        going_on.add(name)
        time.sleep(0.2)

    files, inbox = opened(RemoteFolder(tmp_path / "there", on), tmp_path)
    with pytest.raises(CheckpointError, match="no answer"):
        inbox.append([chunk_of(n) for n in range(3)])
    assert not going_on
    assert files.lost is not None
    inbox.close()
    files.close()


@pytest.mark.parametrize("calls", [1, 3, 50])
def test_each_of_several_writes_is_made_once_and_at_most_eight_at_a_time(calls):
    made, at_once, most, guard = list[int](), 0, 0, threading.Lock()

    def call(number: int) -> None:
        nonlocal at_once, most
        with guard:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)
        with guard:
            at_once -= 1
            made.append(number)

    mirror._at_once([partial(call, number) for number in range(calls)])
    assert sorted(made) == list(range(calls))
    assert min(calls, 2) <= most <= mirror._PUTS_AT_ONCE


def test_a_driver_that_was_replaced_writes_nothing_more(tmp_path):
    remote = RemoteFolder(tmp_path / "there")
    files, inbox = opened(remote, tmp_path)
    remote.age(60)
    second, _ = opened(remote, tmp_path)
    before = remote.names("inbox")
    with pytest.raises(CheckpointError, match="taken over"):
        inbox.append([chunk_of(1)])
    assert remote.names("inbox") == before
    inbox.close()
    files.close()  # it lets go of what is not its own any more: nothing happens
    second.check()
    second.close()


def test_the_thread_notices_that_another_has_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "RENEW_SECS", 0.01)
    remote, noticed = RemoteFolder(tmp_path / "there"), threading.Event()
    files = Mirror.open(remote, str(tmp_path))
    files.begin(noticed.set)
    (remote.folder / "lease" / "000000000002").write_text("{}")
    assert noticed.wait(120)
    assert files.lost is not None
    files.close()


def test_deletions_reach_the_url_in_order_unless_the_file_was_written_again(tmp_path):
    deleted: list[str] = []
    remote = RemoteFolder(tmp_path / "there", lambda when, name: deleted.append(name))
    files, inbox = opened(remote, tmp_path)
    for name in ("3", "1", "2"):
        (files.folder / f"new-{name}").write_text(name)
        files.publish(files.folder / f"new-{name}", files.folder / "commits" / name)
    for name in ("3", "1", "2"):
        files.remove(files.folder / "commits" / name)
    assert sorted(remote.names("commits")) == ["1", "2", "3"]
    (files.folder / "new-1").write_text("again")
    files.publish(files.folder / "new-1", files.folder / "commits" / "1")
    deleted.clear()
    inbox.close()
    files.close()
    assert [name for name in deleted if name.startswith("-commits")] == ["-commits/3", "-commits/2"]
    assert list(remote.names("commits")) == ["1"]
    assert not files.folder.exists()


def test_before_a_run_has_begun_what_is_thrown_away_is_gone_at_once(tmp_path):
    remote = RemoteFolder(tmp_path / "there")
    files = Mirror.open(remote, str(tmp_path))
    (files.folder / "new").write_text("of no commit")
    file = files.publish(files.folder / "new", files.folder / "verdicts" / "000000000007")
    files.remove(file)
    assert not remote.names("verdicts")
    files.close()


def test_a_copy_that_was_not_fetched_completely_is_deleted_and_blocks_no_other_driver(tmp_path, monkeypatch):
    remote = RemoteFolder(tmp_path / "there")
    files, inbox = opened(remote, tmp_path / "")
    inbox.append([chunk_of(1), chunk_of(2)])
    inbox.close()
    files.close()
    get, left = remote.get, [1]

    def fails(name: str, file: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise CheckpointError("no answer", remote.url, "correct the test")
        get(name, file)

    monkeypatch.setattr(remote, "get", fails)
    with pytest.raises(CheckpointError, match="no answer"):
        Mirror.open(remote, str(tmp_path))
    monkeypatch.undo()
    assert not list(tmp_path.glob("acktree-*"))
    files, inbox = opened(remote, tmp_path)
    assert [number for number, _ in inbox.recovered()] == [0, 1]
    inbox.close()
    files.close()


def test_what_a_writer_had_begun_beside_its_place_is_taken_away(tmp_path):
    remote = RemoteFolder(tmp_path / "there")
    remote.make("inbox")
    for name in (".000000000000.beat.0.0.5f1c.tmp", ".a users notes"):
        (remote.folder / "inbox" / name).write_text("half of")
    files, inbox = opened(remote, tmp_path)
    assert inbox.last_number == -1
    assert list(remote.names("inbox")) == [".a users notes"]
    inbox.close()
    files.close()
    assert lease.RENEW_SECS * 3 < lease.SILENT_SECS


def test_a_working_copy_is_not_warned_of(tmp_path, caplog):
    files = Mirror.open(RemoteFolder(tmp_path / "there"), str(tmp_path))
    Checkpoint(files.folder, files).close()
    assert not [each for each in caplog.messages if "holds other files" in each]
