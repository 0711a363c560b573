"""The commit log: a participant resumes as of the last commit, whatever happens, and damage is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.checkpoint.logs.commit_log import FOLDER_NAME, Commit, CommitLog, Participant, Section
from acktree.errors import CheckpointError
from tests.unit.checkpoint.damages import DAMAGES


class Sum(Participant):
    """A toy: the sum of all outcomes. It writes changes, and its whole state after each third."""

    def __init__(self, name: str, every: int = 3) -> None:
        self.name, self.every = name, every
        self.total = self.changes = 0

    def recover(self, sections):
        for _, section in sections:
            kind, number = json.loads(bytes(section.content))
            self.total = number if kind == "whole" else self.total + number

    def write(self, commit, outcome):
        added = outcome.get(self.name, 0)
        if not added:
            return None
        self.total += added
        self.changes += 1
        if self.changes % self.every == 0:
            return Section(json.dumps(["whole", self.total]).encode(), is_whole=True)
        return Section(json.dumps(["change", added]).encode())


class Notes(Participant):
    """A toy that never writes its whole state, and forgets sections; as the journal of verdicts does."""

    name = "notes"

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}
        self.forgotten = 0

    def recover(self, sections):
        self.notes = {number: bytes(section.content).decode() for number, section in sections}

    def write(self, commit, outcome):
        note = outcome.get(self.name)
        return None if note is None else Section(note.encode())

    @property
    def oldest(self):
        return self.forgotten


def log_of(folder: Path) -> tuple[CommitLog, list]:
    participants = [Sum("often"), Sum("rare", every=1), Notes()]
    return CommitLog(folder, participants), participants


def started(folder: Path, last_committed: int) -> tuple[CommitLog, list]:
    log, participants = log_of(folder)
    log.recover(last_committed)
    log.sweep()
    return log, participants


outcomes = st.fixed_dictionaries(
    {
        "often": st.integers(0, 3),
        "rare": st.sampled_from([0, 0, 0, 0, 5]),
        "notes": st.none() | st.text(max_size=3),
    }
)
steps = st.lists(
    st.one_of(st.tuples(st.just("commit"), outcomes), st.tuples(st.just("die before the commit"), outcomes),
              st.tuples(st.just("die"), st.none()), st.tuples(st.just("forget"), st.integers(0, 3))),
    max_size=25,
)  # fmt: skip


@given(steps)
def test_after_any_death_participants_resume_as_of_the_last_commit(tmp_path_factory, steps) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, participants = started(folder, -1)
    often = rare = 0
    notes: dict[int, str] = {}
    forgotten, number = 0, 0

    def check() -> None:
        assert [each.total for each in participants[:2]] == [often, rare]
        kept = {at: note for at, note in notes.items() if at >= forgotten}
        assert kept.items() <= participants[2].notes.items() <= notes.items()

    for what, value in steps:
        if what == "forget":
            participants[2].forgotten = forgotten = min(number, max(forgotten, number - value))
            continue
        if what != "die":
            log.write(Commit(number, 1000 * number, number), value)
        if what != "commit":
            log, participants = started(folder, number - 1)
            check()
            participants[2].forgotten = forgotten
            continue
        often, rare = often + value["often"], rare + value["rare"]
        if value["notes"] is not None:
            notes[number] = value["notes"]
        number += 1
    log, participants = started(folder, number - 1)
    check()


def commits_of(folder: Path) -> Path:
    return folder / FOLDER_NAME


def written(folder: Path, count: int = 8) -> None:
    log, _ = started(folder, -1)
    for number in range(count):
        log.write(Commit(number, number, number), {"often": 1, "rare": 7 if number == 4 else 0})


def test_files_that_nobody_needs_are_deleted(tmp_path: Path) -> None:
    written(tmp_path, 8)
    # 4: the last of "rare"; 5: the last whole one of "often"; 6 and 7 after it.
    assert sorted(int(file.name) for file in commits_of(tmp_path).iterdir()) == [4, 5, 6, 7]
    _, participants = started(tmp_path, 7)
    assert [each.total for each in participants[:2]] == [8, 7]
    assert sorted(int(file.name) for file in commits_of(tmp_path).iterdir()) == [4, 5, 6, 7]


def test_what_a_participant_has_forgotten_stays_forgotten_while_another_needs_the_file(
    tmp_path: Path,
) -> None:
    participants = [Sum("often", every=10**6), Notes()]
    log = CommitLog(tmp_path, participants)
    log.recover(-1)
    for number in range(6):
        participants[1].forgotten = min(number, 4)
        log.write(Commit(number, number, number), {"often": 1, "notes": str(number)})
    for _ in range(2):  # a run that forgets nothing more does not bring it back either
        participants = [Sum("often", every=10**6), Notes()]
        log = CommitLog(tmp_path, participants)
        log.recover(number)
        assert participants[0].total == number + 1
        assert participants[1].notes == {each: str(each) for each in range(4, 6)}
        number += 1
        log.write(Commit(number, number, number), {"often": 1})


def test_however_many_files_count_a_start_opens_one_at_a_time(tmp_path: Path) -> None:
    open_at_once = []

    class Counts(Sum):
        def recover(self, sections):
            super().recover(sections)
            open_at_once.append(len([*Path("/proc/self/fd").iterdir()]))

    log = CommitLog(tmp_path, [Counts("often", every=10**6)])
    log.recover(-1)
    for number in range(100):
        log.write(Commit(number, number, number), {"often": 1})
    again = Counts("often", every=10**6)
    CommitLog(tmp_path, [again]).recover(99)
    assert again.total == 100
    assert open_at_once[1] < open_at_once[0] + 20


class Deletes(Notes):
    """A toy with files of its own."""

    has_deleted = False

    def sweep(self):
        self.has_deleted = True


class Refuses(Sum):
    """A toy whose part of the checkpoint is damaged."""

    def recover(self, sections):
        raise CheckpointError("a file of the checkpoint is damaged", self.name, "take it from a copy")


def test_participants_delete_their_files_when_everything_was_read_and_not_if_one_cannot_recover(
    tmp_path: Path,
) -> None:
    first = Deletes()
    with pytest.raises(CheckpointError):
        CommitLog(tmp_path, [first, Refuses("often")]).recover(-1)
    log = CommitLog(tmp_path, [first, Sum("often")])
    log.recover(-1)
    assert not first.has_deleted
    log.sweep()
    assert first.has_deleted


@pytest.mark.parametrize("number", [5, 6, 7])
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_of_a_file_is_an_error_that_names_it_and_deletes_nothing(
    tmp_path: Path, number: int, damage: str
) -> None:
    written(tmp_path)
    file = commits_of(tmp_path) / f"{number:012d}"
    DAMAGES[damage](file)
    names = {each.name for each in commits_of(tmp_path).iterdir()}
    log, _ = log_of(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        log.recover(7)
    assert raised.value.where == str(file)
    assert "nothing was deleted" in raised.value.fix
    assert {each.name for each in commits_of(tmp_path).iterdir()} == names


def test_an_older_copy_of_a_file_is_told_by_its_successor(tmp_path: Path) -> None:
    log, _ = started(tmp_path, -1)
    log.write(Commit(0, 0, 0), {"often": 1})
    log.write(Commit(1, 1, 1), {"often": 1})
    older = (commits_of(tmp_path) / "000000000001").read_bytes()
    log, _ = started(tmp_path, 0)  # the driver died, and the micro-batch runs again
    log.write(Commit(1, 1, 1), {"often": 2})
    log.write(Commit(2, 2, 2), {"often": 1})
    (commits_of(tmp_path) / "000000000001").write_bytes(older)
    with pytest.raises(CheckpointError, match="an older copy") as raised:
        started(tmp_path, 2)
    assert raised.value.where.endswith("000000000001")


def test_what_a_dead_driver_left_unpublished_is_deleted_and_other_files_stay(tmp_path: Path) -> None:
    written(tmp_path)
    (commits_of(tmp_path) / "new-000000000008").write_bytes(b"half")
    (commits_of(tmp_path) / "notes.txt").touch()
    started(tmp_path, 7)
    assert not (commits_of(tmp_path) / "new-000000000008").exists()
    assert (commits_of(tmp_path) / "notes.txt").exists()


def test_facts_that_are_older_than_a_commit_has_seen_are_told_before_anything_is_deleted(
    tmp_path: Path,
) -> None:
    times = iter(range(3, 9))
    log = CommitLog(tmp_path, [Sum("often")], facts=lambda: next(times))
    log.recover(-1)
    for number in range(3):
        log.write(Commit(number, number, number), {"often": 1})
    seen: list[int] = []
    first = Deletes()

    def refuse(written: int) -> None:
        seen.append(written)
        raise CheckpointError("acktree.json is an older copy", "here", "bring back the newest")

    before = sorted(file.name for file in commits_of(tmp_path).iterdir())
    with pytest.raises(CheckpointError, match="older copy"):
        CommitLog(tmp_path, [first]).recover(1, refuse)
    assert seen == [4]
    assert not first.has_deleted
    assert sorted(file.name for file in commits_of(tmp_path).iterdir()) == before


@pytest.mark.parametrize("last", [-1, 0])
def test_a_micro_batch_that_has_run_before_the_one_before_it_was_committed_is_told(
    tmp_path: Path, last: int
) -> None:
    log = CommitLog(tmp_path, [Sum("often", every=10**6)])
    log.recover(-1)
    for number in range(last + 3):
        log.write(Commit(number, number, number), {"often": 1})
    before = sorted(file.name for file in commits_of(tmp_path).iterdir())
    with pytest.raises(CheckpointError, match=f"micro-batch {last + 2} has run, and Spark's log ends with"):
        started(tmp_path, last)
    assert sorted(file.name for file in commits_of(tmp_path).iterdir()) == before
    started(tmp_path, last + 1)
