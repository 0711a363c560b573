"""The gates' sections of the commit log, beside a model: a restart finds what waits and what has passed."""

from __future__ import annotations

import shutil
import tempfile
from errno import ENOSPC
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.gate_log import GateLog, waiting_gates
from acktree.checkpoint.staged_files import FOLDER_NAME, StagedFiles, put_apart
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int64s, root_ids
from acktree.core.packing import pack
from acktree.core.spouts.pending import MessageIds
from acktree.core.tracking.origins import Origin
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.errors import CheckpointError
from acktree.system.private_files import Disk
from tests.simulator.disk import SimulatedDisk

NAMES = ("one", "two")
SALT, SPOUT = 7, 3
ROWS = [SimpleNamespace(id="rows", task_ids=(SPOUT,), is_dataframe=False)]
NONE = np.zeros(0, dtype=np.int64)
NOBODY = Judged(NONE, NONE.astype(np.int32))


def root_of(number: int) -> int:
    return int(root_ids(SALT, SPOUT, np.array([number]))[0])


def staged(gate: str, root: int, values: list[int]) -> WireRow:
    counts, degrees, roots = (np.array([number]) for number in (len(values), 1, root_of(root)))
    batch = batch_to_bytes(pa.record_batch({"n": values}))
    return WireRow(0, SINK_LEVEL, Kind.STAGED, 0, 0, 0, gate.encode(), pack(counts, degrees, roots, batch))


def acked(roots: set[int]) -> Verdicts:
    judged = Judged(
        np.array(sorted(map(root_of, roots)), dtype=np.int64), np.zeros(len(roots), dtype=np.int32)
    )
    return Verdicts([], judged, NOBODY, NONE, NONE, NOBODY, (), 0, None)


class World:
    """Gates on a disk, and what a model says that keeps everything in lists."""

    def __init__(
        self, folder: Path, *, has_numbers: bool = False, has_files: bool = False, files: Files = FOLDER
    ) -> None:
        self.folder, self.number, self.has_numbers, self.files = folder, -1, has_numbers, files
        self.staged = folder / FOLDER_NAME
        self.least_bytes = 0 if has_files else 1 << 30
        self.open: set[int] = set()
        self.waiting: dict[str, list[tuple[int, list[int]]]] = {name: [] for name in NAMES}
        self.passed: dict[str, list[int]] = {name: [] for name in NAMES}
        self.origins: dict[str, list[int]] = {name: [] for name in NAMES}  # the root of each that passed
        self.taken, self.settled = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
        self.pending: set[int] = set()
        self.written: list[int] = []
        self.restart()

    def restart(self) -> None:
        files = StagedFiles(self.staged, self.files)
        self.gates = GateLog(NAMES, SALT, self.still_open, ROWS, self.ids_at, files=files)
        self.log = CommitLog(self.folder, [self.gates], self.files)
        self.log.recover(self.number)
        self.log.sweep()
        for name in NAMES:  # as the spouts of the gates do when they open
            self.gates.handed_over(name, self.taken[name])

    def still_open(self, roots: Int64s) -> Int64s:
        return np.array(sorted(set(map(root_of, self.open)) & set(roots.tolist())), dtype=np.int64)

    def ids_at(self, task: int, sequences: Int64s) -> MessageIds:
        assert task == SPOUT
        assert self.pending.issuperset(sequences.tolist())
        return sequences * 10 if self.has_numbers else [f"m{number}" for number in sequences.tolist()]

    def commit(self, rows: list[tuple[str, int, list[int]]], ended: set[int], good: set[int]) -> None:
        """A micro-batch: rows are staged, some roots end, some of those are ACKED."""
        self.number += 1
        self.pending = self.open | {root for _, root, _ in rows}
        self.open = self.pending - ended
        for name, root, values in rows:
            self.waiting[name].append((root, values))
        for name, waiting in self.waiting.items():
            passing = [(value, root) for root, values in waiting if root in good for value in values]
            self.passed[name] += [value for value, _ in passing]
            self.origins[name] += [root for _, root in passing]
            self.waiting[name] = [each for each in waiting if each[0] in self.open]
        made = [staged(*row) for row in rows]
        wire = {Kind.STAGED: self.put_apart(made)}
        self.put_apart(made)  # another attempt, of which the driver does not hear
        self.log.write(Commit(self.number, 0, -1), Outcome(wire, acked(good)))
        self.gates.publish(self.number)

    def put_apart(self, rows: list[WireRow]) -> list[WireRow]:
        folder, disk = str(self.staged), self.files.disk
        return [*put_apart(folder, self.number, rows, disk, least_bytes=self.least_bytes)]

    def take(self, name: str) -> None:
        """The inbox takes what a gate hands over next."""
        for first, batch in self.gates.after(name, self.taken[name]):
            assert first == self.taken[name]
            end = first + batch.num_rows
            assert batch["n"].to_pylist() == self.passed[name][first:end]
            self.taken[name] = end

    def note(self, name: str) -> None:
        self.gates.handed_over(name, self.taken[name])

    def settle(self, name: str) -> None:
        """All messages that the inbox has taken have their verdicts."""
        self.settled[name] = self.taken[name]
        self.gates.settled(name, self.taken[name])

    def check_origins(self) -> None:
        for name, roots in self.origins.items():
            for number in range(self.settled[name], len(roots)):
                shown = f"{roots[number]}0" if self.has_numbers else f"'m{roots[number]}'"
                assert self.gates.origins_of(name, number) == (Origin("rows", shown),)

    def check_waiting(self) -> None:
        for name, waiting in self.waiting.items():
            count = sum(len(values) for _, values in waiting) + len(self.passed[name]) - self.taken[name]
            assert self.gates.waiting(name, self.taken[name]) == count

    def check_all_passes(self) -> None:
        for name in NAMES:
            while self.taken[name] < len(self.passed[name]):
                before = self.taken[name]
                self.take(name)
                assert self.taken[name] > before, "what has passed is not there"
            self.note(name)
            assert not self.gates.after(name, self.taken[name])
        assert self.gates.is_empty == (not any(self.waiting.values()))


STEPS = st.one_of(
    st.tuples(
        st.just("commit"),
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 3)), max_size=4),
        st.sets(st.integers(1, 6)),
        st.sets(st.integers(1, 6)),
    ),
    st.tuples(st.sampled_from(["take", "note", "settle"]), st.sampled_from(NAMES)),
    st.just(("restart",)),
    st.just(("close",)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=25), st.booleans(), st.booleans())
def test_gates_hand_over_what_a_model_says_however_often_the_driver_starts_again(
    steps, has_numbers, has_files
):
    with tempfile.TemporaryDirectory() as folder:
        world, drawn = World(Path(folder), has_numbers=has_numbers, has_files=has_files), 0
        for name, *given_ in steps:
            if name == "commit":
                rows, ended, good = given_
                fresh = []
                for gate, root, count in rows:
                    fresh.append((gate, root, list(range(drawn, drawn + count))))
                    drawn += count
                world.commit(fresh, ended, ended & good)
            elif name == "restart":
                world.restart()
            elif name == "close":
                world.log.close()
                world.restart()
            else:
                getattr(world, name)(*given_)
            world.check_origins()
            world.check_waiting()
        world.check_all_passes()
        world.commit([], set(), set())  # a run that has committed writes at its end what the inbox has
        world.log.close()
        still = {name for name in NAMES if world.waiting[name]}
        assert waiting_gates(Path(folder), world.number, FOLDER) == still
        world.restart()
        waiting = sum(len(world.waiting[name]) for name in NAMES)
        assert len([*world.staged.iterdir()]) <= waiting * has_files


def test_what_waits_long_is_not_written_with_each_micro_batch(tmp_path):
    world = World(tmp_path)
    world.commit([("one", 1, list(range(10_000)))], set(), set())
    sizes = []
    for number in range(600):
        world.commit([("one", 2, [number])], {2}, {2})
        world.take("one")
        world.note("one")
        world.settle("one")
        sizes.append((tmp_path / "commits" / f"{world.number:012d}").stat().st_size)
    assert sum(sizes) / len(sizes) < 2_000  # one whole section has 80,000
    assert len(list((tmp_path / "commits").iterdir())) < 300
    world.restart()
    world.commit([], {1}, {1})
    world.check_all_passes()


def test_a_file_of_staged_values_goes_when_the_commit_is_final_that_names_it_no_more(tmp_path):
    world = World(tmp_path, has_files=True)
    world.commit([("one", 1, [1, 2]), ("two", 1, [3])], set(), set())
    assert len([*world.staged.iterdir()]) == 2  # one of an attempt of which the driver does not know
    world.commit([], {1}, {1})
    [named] = world.staged.iterdir()
    world.check_all_passes()  # the inbox has them, but the log does not say so
    world.commit([], set(), set())  # this one says so
    assert [*world.staged.iterdir()] == [named]
    world.commit([], set(), set())
    assert not [*world.staged.iterdir()]


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "flipped", "older", "folder"])
def test_a_damaged_file_of_staged_values_is_one_error_with_its_name_and_nothing_is_deleted(tmp_path, damage):
    world = World(tmp_path, has_files=True)
    world.commit([("one", 1, [1, 2])], set(), set())
    world.commit([("one", 2, [3, 4])], set(), set())
    first, second = (
        world.staged / file for file in sorted(place.file for place in world.gates._gates["one"].places)
    )
    content = second.read_bytes()
    if damage in ("missing", "folder"):
        second.unlink()
    if damage == "folder":
        second.mkdir()
    elif damage != "missing":
        changed = bytearray(content)
        changed[-9] ^= 1
        other = {"empty": b"", "torn": content[:-5], "flipped": changed, "older": first.read_bytes()}
        second.write_bytes(other[damage])
    before = {*tmp_path.rglob("*")}
    with pytest.raises(CheckpointError, match="a file of the checkpoint") as error:
        world.restart()
    assert error.value.where == str(second)
    assert {*tmp_path.rglob("*")} == before


def test_what_is_not_acktrees_stays_beside_files_of_staged_values(tmp_path):
    world = World(tmp_path, has_files=True)
    (world.staged / "README").touch()
    (world.staged / "000000000000-mine").mkdir()
    world.commit([("one", 1, [1])], {1}, {1})
    world.check_all_passes()
    for _ in range(2):
        world.commit([], set(), set())
    world.restart()
    assert sorted(file.name for file in world.staged.iterdir()) == ["000000000000-mine", "README"]


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    (tmp_path / FOLDER_NAME).touch()
    with pytest.raises(CheckpointError, match="the folder staged of the checkpoint"):
        World(tmp_path)


def test_a_folder_that_was_deleted_is_made_again_if_no_file_of_it_is_named(tmp_path):
    world = World(tmp_path, has_files=True)
    world.staged.rmdir()
    files = StagedFiles(world.staged)
    files.forget((), 7)
    assert not [*world.staged.iterdir()]
    world.commit([("one", 1, [1])], {1}, {1})
    world.check_all_passes()


def test_a_folder_that_was_deleted_with_files_that_are_named_is_told(tmp_path):
    world = World(tmp_path, has_files=True)
    world.commit([("one", 1, [1])], set(), {1})
    files = {str(file) for file in world.staged.iterdir()}  # also that of an attempt of which nobody hears
    shutil.rmtree(world.staged)
    with pytest.raises(CheckpointError, match="a file of the checkpoint is missing") as error:
        world.commit([], set(), {1})
    assert error.value.where in files


@pytest.mark.parametrize("seed", range(8))
def test_after_a_power_cut_no_commit_names_a_file_that_a_start_has_deleted(seed):
    """A run writes its last commit once more at its end, and nothing was synced since."""
    disk = SimulatedDisk(Random(seed), None)
    disk.make_folder(Path("/run"))
    world = World(Path("/run"), has_files=True, files=Files(disk, survives_power_cut=True))
    world.commit([("one", 1, [1, 2])], {1}, {1})
    disk.sync_all(world.folder)
    world.check_all_passes()
    world.log.close()
    world.restart()
    assert not disk.names(world.staged)
    disk.cut_power()
    disk.start_process()
    world.restart()


def test_on_a_full_disk_rows_carry_what_they_stage(tmp_path):
    class Full(Disk):
        def write_pieces(self, file, pieces, *, sync=False):
            super().write_pieces(file, [next(iter(pieces))])
            raise OSError(ENOSPC, "No space left on device")

    rows = [staged("one", 1, [1, 2])]
    assert [*put_apart(str(tmp_path), 0, rows, Full(), least_bytes=0)] == rows
    assert not [*tmp_path.iterdir()]
