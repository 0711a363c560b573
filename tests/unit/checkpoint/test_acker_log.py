"""The acker's files: whenever the driver dies, the next one finds the acker as of the last commit.

A script of micro-batches is run once by one driver, and then by drivers that die at any touch of a file:
between two of them, or in the middle of a write. The outcome must be the same, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from acktree import Config
from acktree.checkpoint.logs import acker_log as acker_module
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import FOLDER_NAME
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.packing import pack
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.core.tracking.verdicts import Verdicts
from acktree.errors import CheckpointError
from acktree.spark.query.results import payloads_in_rows
from acktree.system.private_files import Disk
from acktree.tasks.payloads import Payload
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from tests.drawn import drawn
from tests.unit.checkpoint.commits import Commits, committed_numbers
from tests.unit.checkpoint.damages import DAMAGES
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row

SALT, T = 7, 1000
EDGE = 5


class DriverDied(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: messages of task 1 by sequence, rows of DataFrames by number.

    Attributes:
        opens: (first sequence, end) of what is opened.
        acks, fails: Sequences that are.
        rows: Rows that come, by the DataFrame they come from.
        rows_acked, rows_failed: Rows that are.
        now_ms: Its clock.
    """

    opens: tuple[int, int] = (0, 0)
    acks: Sequence[int] = ()
    fails: Sequence[int] = ()
    rows: dict[str, Sequence[int]] = field(default_factory=dict)
    rows_acked: Sequence[int] = ()
    rows_failed: Sequence[int] = ()
    now_ms: int = 0

    def sent(self) -> tuple[list[WireRow], Any]:
        """(DELTAS, a function that returns payloads), as the levels send them."""
        first, end = self.opens
        came = [row_root(n) for rows in self.rows.values() for n in rows]
        acked = [*message_roots(self.acks), *map(row_root, self.rows_acked)]
        failed = [*message_roots(self.fails), *map(row_root, self.rows_failed)]
        runs = ((Opened(1, first, end),), (SequenceSums(1, first, np.full(end - first, EDGE)),))
        deltas = Deltas(
            int64s(came), np.full(len(came), EDGE), np.full(len(came), -2, dtype=np.int32),
            int64s(acked), np.full(len(acked), EDGE), int64s(failed), np.zeros(len(failed), dtype=np.int64),
            (b"why",) if failed else (), int64s([]), *(runs if first < end else ()),
        )  # fmt: skip
        payloads = [
            wire(Kind.PAYLOADS, pack(int64s(map(row_root, rows))), batch_to_bytes(held(name, rows)))
            for name, rows in self.rows.items()
        ]
        return [wire(Kind.DELTAS, b"", deltas.to_bytes())], payloads_in_rows(payloads)


def wire(kind: Kind, head: bytes, body: bytes) -> WireRow:
    return WireRow(0, SINK_LEVEL, int(kind), 0, 0, 0, head, body)


def int64s(values: Any) -> np.ndarray[Any, Any]:
    return np.array(list(values), dtype=np.int64)


def message_roots(sequences: Sequence[int]) -> list[int]:
    return root_ids(SALT, 1, int64s(sequences)).tolist()


def row_root(number: int) -> int:
    return number * 0x9E3779B97F4A7C15 % (1 << 63)


def held(name: str, rows: Sequence[int]) -> pa.RecordBatch:
    """What the rows of a DataFrame hold; each has columns of its own."""
    if name == "texts":
        return pa.record_batch({"text": [f"row {n}" for n in rows]})
    return pa.record_batch({"n": list(rows), "half": [n / 2 for n in rows]})


CONFIG = Config(message_timeout_secs=T / 1000)
PLAN = Plan.of(in_a_row(FeederSpout(["value"]), Calls(print)), CONFIG, 1, SALT)


class Driver:
    """The acker of a checkpoint, with a commit log of its own."""

    def __init__(self, folder: Path, last_committed: int) -> None:
        self.acker = DurableAcker(PLAN, folder)
        self.forget_before = self.acker.forget_before
        self.log = Commits(folder, [self.acker], last_committed)

    def judge(self, batch: MicroBatch, *sent: Any) -> tuple[Verdicts, list[Payload]]:
        """Judge a micro-batch, and write its commit."""
        verdicts, failed = self.acker.judge(batch, *sent)
        read = list(failed)
        self.log.write(batch.batch_id, verdicts)
        return verdicts, read


def outcome_of(
    acker: Driver, number: int, batch: Batch, *, is_first: bool = False
) -> tuple[bytes, list[Any]]:
    """The outcome of a micro-batch: the verdicts, and the payloads of failed rows."""
    verdicts, failed = acker.judge(MicroBatch(number, batch.now_ms, is_first), *batch.sent())
    kept = {
        root: row
        for roots, values in failed
        for root, row in zip(roots.tolist(), values.to_pylist(), strict=True)
    }
    return verdicts.to_bytes(), sorted(kept.items())


def undisturbed(script: Sequence[Batch]) -> list[tuple[bytes, list[Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        acker = Driver(Path(folder), -1)
        return [outcome_of(acker, number, batch) for number, batch in enumerate(script)]


@contextmanager
def dying(after: int) -> Iterator[list[int]]:
    """Die at the n-th touch of a file; a write is left half done."""
    left = [after]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "write_pieces", "rename", "remove", "make_folder"):
            done = getattr(Disk, name)

            def touched(self: Disk, *given: Any, done: Any = done, name: str = name, **named: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    if name == "write":
                        done(self, given[0], given[1][: len(given[1]) // 2])
                    if name == "write_pieces":
                        done(self, given[0], [b"half of a piece"])
                    raise DriverDied
                return done(self, *given, **named)

            patch.setattr(Disk, name, touched)
        yield left


def disturbed(
    script: Sequence[Batch], folder: Path, deaths: Sequence[tuple[int, int]]
) -> list[tuple[bytes, list[Any]]]:
    """Run a script while drivers die; returns the outcomes of micro-batches that were committed.

    Args:
        deaths: For each driver: the number of accesses to files after which it dies, and the micro-batch
            after whose sink call, and before whose commit, it dies otherwise.
    """
    outcomes: list[tuple[bytes, list[Any]]] = []
    for after, uncommitted in [*deaths, (0, -1)]:
        try:
            with dying(after):
                acker = Driver(folder, len(outcomes) - 1)
                for number in range(len(outcomes), len(script)):
                    outcome = outcome_of(acker, number, script[number])
                    if number == uncommitted:
                        break
                    outcomes.append(outcome)
        except DriverDied:
            continue
    return outcomes


@pytest.fixture
def often_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole ledger every few micro-batches."""
    monkeypatch.setattr(acker_module, "_MOST_CHANGES", 2)


SCRIPT = [
    Batch(opens=(0, 40), acks=range(5, 40), rows={"texts": [0, 1, 2], "numbers": [3, 4]}, rows_acked=[1]),
    Batch(opens=(40, 50), acks=[0, 41, 42], fails=[1], rows_failed=[0, 3], now_ms=10),
    Batch(now_ms=20),
    Batch(acks=[2], rows={"numbers": [5, 6]}, rows_failed=[5], rows_acked=[4], now_ms=400),
    Batch(opens=(50, 60), acks=range(50, 60), now_ms=410),
    Batch(rows={"texts": [7]}, rows_acked=[6], fails=[40], now_ms=500),
    Batch(now_ms=1_200),  # what is left of the first two is late, a row of the first among them
    Batch(opens=(60, 61), now_ms=1_300),
    Batch(rows_failed=[7], now_ms=1_400),
    Batch(now_ms=9_000),
]


def test_the_script_has_verdicts_of_every_kind_and_payloads() -> None:
    outcomes = undisturbed(SCRIPT)
    texts = {row["text"] for _, kept in outcomes for _, row in kept if "text" in row}
    numbers = {row["n"] for _, kept in outcomes for _, row in kept if "n" in row}
    assert (texts, numbers) == ({"row 0", "row 2", "row 7"}, {3, 5})
    assert [len(kept) for _, kept in outcomes] == [0, 2, 0, 1, 0, 0, 1, 0, 1, 0]


def test_at_whichever_access_to_a_file_a_driver_dies_the_next_one_gives_the_same_verdicts(
    tmp_path: Path, often_whole: None
) -> None:
    expected = undisturbed(SCRIPT)
    with dying(0) as left:
        assert disturbed(SCRIPT, tmp_path / "counted", []) == expected
    touches = -left[0]
    assert touches > 30
    for after in range(1, touches + 1):
        assert disturbed(SCRIPT, tmp_path / str(after), [(after, -1)]) == expected, f"died at touch {after}"


@pytest.mark.parametrize("number", range(len(SCRIPT)))
def test_what_was_written_and_never_committed_is_discarded_and_decided_again(
    tmp_path: Path, often_whole: None, number: int
) -> None:
    assert disturbed(SCRIPT, tmp_path, [(0, number)] * 3) == undisturbed(SCRIPT)


def test_the_second_run_of_a_micro_batch_does_not_see_the_decisions_of_the_lost_first_run(
    tmp_path: Path,
) -> None:
    first = Batch(opens=(0, 40), acks=range(1, 40), rows={"texts": [0, 1]})
    outcome_of(Driver(tmp_path, -1), 0, first)
    # Run 1 fails message 0 and acks row 0; then the driver dies, and in run 2 it is the other way round.
    outcome_of(Driver(tmp_path, 0), 1, Batch(fails=[0], rows_acked=[0], opens=(40, 90)))
    acker = Driver(tmp_path, 0)
    said = outcome_of(acker, 1, Batch(acks=[0], rows_failed=[0]))
    assert said == undisturbed([first, Batch(acks=[0], rows_failed=[0])])[1]
    assert said[1] == [(row_root(0), {"text": "row 0"})]


@st.composite
def scripts(draw: st.DrawFn) -> list[Batch]:
    script: list[Batch] = []
    opened = rows = now_ms = 0
    for _ in range(draw(st.integers(1, 6))):
        end = opened + draw(st.sampled_from([0, 0, 1, 3, 40]))
        came = {}
        for name in ("texts", "numbers"):
            count = draw(st.integers(0, 2))
            came |= {name: range(rows, rows + count)} if count else {}
            rows += count
        some = st.lists(st.integers(0, max(0, end - 1)), max_size=5, unique=True)
        some_rows = st.lists(st.integers(0, max(0, rows - 1)), max_size=4, unique=True)
        acks = draw(some | st.just(range(opened, end)))
        script.append(Batch((opened, end), acks, draw(some), came, draw(some_rows), draw(some_rows), now_ms))
        opened, now_ms = end, now_ms + draw(st.sampled_from([0, 100, 600, 1_200]))
    return script


@settings(max_examples=drawn(60), deadline=None)
@given(scripts(), st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 5)), max_size=4), st.booleans())
def test_however_often_drivers_die_the_verdicts_are_the_same(
    script: list[Batch], deaths: list[tuple[int, int]], is_often_whole
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(acker_module, "_MOST_CHANGES", 1 if is_often_whole else 1000)
        patch.setattr(acker_module, "_SPARSE", 1 if is_often_whole else 4)
        patch.setattr(acker_module, "_FILE_BYTES", 1 if is_often_whole else 1 << 20)
        assert disturbed(script, Path(folder), deaths) == undisturbed(script)


# ---- the log ----------------------------------------------------------------------------------------------


def test_a_restart_after_any_prefix_of_the_files_continues_from_there(tmp_path: Path) -> None:
    expected = undisturbed(SCRIPT)
    acker = Driver(tmp_path / "all", -1)
    for number, batch in enumerate(SCRIPT):
        shutil.copytree(tmp_path / "all", tmp_path / str(number))
        outcome_of(acker, number, batch)
    for committed in range(len(SCRIPT)):
        # The files of all micro-batches lie there, of which only some were committed.
        copied = tmp_path / str(committed)
        if committed + 1 < len(SCRIPT):
            shutil.copytree(tmp_path / str(committed + 1), copied, dirs_exist_ok=True)
        again = Driver(copied, committed - 1)
        assert [
            outcome_of(again, number, SCRIPT[number]) for number in range(committed, len(SCRIPT))
        ] == expected[committed:]


def test_a_micro_batch_that_leaves_nothing_open_has_no_section(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    for number in range(5):
        outcome_of(
            acker, number, Batch((40 * number, 40 * number + 40), range(40 * number, 40 * number + 40))
        )
    assert committed_numbers(tmp_path) == [2, 3, 4]  # 2 is deleted with the next
    assert list((tmp_path / "payloads").iterdir()) == []


def test_a_whole_ledger_replaces_the_changes_when_it_is_committed_and_not_before(
    tmp_path: Path, often_whole: None
) -> None:
    acker = Driver(tmp_path, -1)
    for number in range(3):
        outcome_of(acker, number, Batch(opens=(number, number + 1)))
    # What the whole ledger of micro-batch 2 replaces is needed if that was not committed.
    assert committed_numbers(tmp_path) == [0, 1, 2]
    for number in (3, 4):
        outcome_of(acker, number, Batch(opens=(number, number + 1)))
    assert committed_numbers(tmp_path) == [2, 3, 4]


def test_changes_are_kept_until_they_are_twice_as_large_as_what_is_open(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(opens=(0, 200_000)))
    for number in range(1, 8):  # a change of 1.6 MB each; 4.2 MB are open
        acks = range(40_000 * (number - 1), 40_000 * number)
        outcome_of(acker, number, Batch(opens=(200_000 * number, 200_000 * number + 40_000), acks=acks))
    first, *_ = committed_numbers(tmp_path)
    assert first > 0
    assert (tmp_path / FOLDER_NAME / f"{first:012d}").stat().st_size < 21 * 200_000 + 5_000


def test_small_changes_do_not_become_more_and_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acker_module, "_MOST_CHANGES", 20)
    acker, most = Driver(tmp_path, -1), 0
    outcome_of(acker, 0, Batch(opens=(0, 5_000)))
    for number in range(1, 100):
        outcome_of(acker, number, Batch(now_ms=number))
        most = max(most, len(committed_numbers(tmp_path)))
        if number == 50:
            acker = Driver(tmp_path, number)
    assert most <= 20 + 3


def test_what_is_half_written_was_never_there(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(opens=(0, 1), rows={"texts": [0]}))
    for name in (f"{FOLDER_NAME}/new-000000000001", "payloads/new-000000000001", "payloads/000000000001"):
        (tmp_path / name).write_bytes(b"half of")
    acker = Driver(tmp_path, 0)
    assert list(tmp_path.rglob("*1")) == []
    verdicts, _ = acker.judge(MicroBatch(1, 0), *Batch(acks=[0]).sent())
    assert (verdicts.acked.roots.tolist(), verdicts.open_count) == (message_roots([0]), 1)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "folder"])
def test_what_is_not_acktrees_is_neither_read_nor_deleted(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(opens=(0, 1), rows={"texts": [0]}))
    names = [
        "README.txt",
        "old",
        "000000000000~",
        "000000000000.change~",
        "000000000000 (copy)",
        "new-README",
    ]
    others = [tmp_path / folder / name for folder in (FOLDER_NAME, "payloads") for name in names]
    for other in others:
        make(other)
    acker = Driver(tmp_path, 0)
    assert all(other.exists() for other in others)
    verdicts, _ = acker.judge(MicroBatch(1, 0), *Batch(acks=[0]).sent())
    assert (verdicts.acked.roots.tolist(), verdicts.open_count) == (message_roots([0]), 1)


@pytest.mark.parametrize(
    "name",
    [f"{FOLDER_NAME}/000000000000", f"{FOLDER_NAME}/new-000000000000", "payloads/000000000000",
     "payloads/new-000000000000"],
)  # fmt: skip
def test_a_folder_in_the_place_of_a_file_is_said_in_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(CheckpointError, match="move what is not acktree's out of the checkpoint"):
        Driver(tmp_path, -1)


@pytest.mark.parametrize("name", [FOLDER_NAME, "payloads"])
def test_a_file_in_the_place_of_a_folder_is_said_in_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match="move what is not acktree's out of the checkpoint"):
        Driver(tmp_path, -1)


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_of_a_file_of_payloads_is_an_error_that_names_it_and_deletes_nothing(
    tmp_path: Path, damage: str
) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": [0]}))
    outcome_of(acker, 1, Batch(rows={"texts": [1]}))
    file = tmp_path / "payloads" / "000000000001"
    DAMAGES[damage](file)
    names = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError) as raised:
        Driver(tmp_path, 1)
    assert raised.value.where == str(file)
    assert sorted(tmp_path.rglob("*")) == names


def test_files_are_their_owners_alone(tmp_path: Path, often_whole: None) -> None:
    before = os.umask(0)
    try:
        acker = Driver(tmp_path / "checkpoint", -1)
        for number in range(4):
            outcome_of(acker, number, Batch(opens=(number, number + 1), rows={"texts": [number]}))
    finally:
        os.umask(before)
    modes = {
        (file.is_dir(), stat.S_IMODE(file.stat().st_mode))
        for folder in (FOLDER_NAME, "payloads")
        for file in [tmp_path / "checkpoint" / folder, *(tmp_path / "checkpoint" / folder).iterdir()]
    }
    assert modes == {(True, 0o700), (False, 0o600)}


# ---- time and runs ----------------------------------------------------------------------------------------


def late(said: tuple[bytes, list[Any]]) -> bool:
    return said[0] == undisturbed([Batch(opens=(0, 1)), Batch(), Batch(now_ms=T)])[2][0]


def test_the_time_between_two_drivers_is_not_counted(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(opens=(0, 1)))
    for number in range(1, 8):  # it ran all the while, and nothing changed
        outcome_of(acker, number, Batch(now_ms=(number - 1) * T // 7))
    acker = Driver(tmp_path, 7)
    assert not late(outcome_of(acker, 8, Batch(now_ms=100 * T), is_first=True))
    assert not late(outcome_of(acker, 9, Batch(now_ms=100 * T + T // 7)))
    assert late(outcome_of(acker, 10, Batch(now_ms=100 * T + T // 7 + 2)))


def test_a_first_micro_batch_that_runs_again_subtracts_the_time_between_runs_once(tmp_path: Path) -> None:
    outcome_of(Driver(tmp_path, -1), 0, Batch(opens=(0, 1)))
    outcome_of(Driver(tmp_path, 0), 1, Batch(now_ms=0))
    for _ in range(3):  # drivers that die before the commit
        outcome_of(Driver(tmp_path, 1), 2, Batch(now_ms=50 * T), is_first=True)
    acker = Driver(tmp_path, 1)
    outcome_of(acker, 2, Batch(now_ms=50 * T), is_first=True)
    assert not late(outcome_of(acker, 3, Batch(now_ms=80 * T), is_first=True))  # of the driver that lives
    assert not late(outcome_of(acker, 4, Batch(now_ms=81 * T - 1)))
    assert late(outcome_of(acker, 5, Batch(now_ms=81 * T)))


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_messages_that_an_interrupted_micro_batch_opened_are_redelivered_by_their_queue(
    tmp_path: Path, is_forgotten
) -> None:
    """Sequences 0 to 79 are of the first run; micro-batch 1 is interrupted and runs again in the second."""
    interrupted = Batch(opens=(40, 80), acks=[0, *range(40, 60)], fails=[60, 1])
    outcome_of(Driver(tmp_path, -1), 0, Batch(opens=(0, 40)))
    outcome_of(Driver(tmp_path, 0), 1, interrupted)
    acker = Driver(tmp_path, 0)
    acker.forget_before({1: 80, 9: 0} if is_forgotten else {9: 0})
    verdicts, _ = acker.judge(MicroBatch(1, 0), *interrupted.sent())
    done = [sequence for _, sequences in verdicts.done for sequence in sequences.tolist()]
    if is_forgotten:
        assert not verdicts
        assert verdicts.open_count == 0
    else:
        assert done == [*range(40, 60)]
        assert verdicts.acked.roots.tolist() == message_roots([0])
        assert set(verdicts.failed.roots.tolist()) == {*message_roots([1, 60])}
    # The driver after that finds them gone too, and messages of the new run are like any other.
    acker = Driver(tmp_path, 1)
    verdicts, _ = acker.judge(MicroBatch(2, 0, is_first=True), *Batch(opens=(80, 81), acks=[2, 80]).sent())
    assert [(task, sequences.tolist()) for task, sequences in verdicts.done] == [(1, [80])]
    assert verdicts.open_count == (0 if is_forgotten else 56)
    assert verdicts.acked.roots.tolist() == ([] if is_forgotten else message_roots([2]))


def test_open_rows_of_a_dataframe_are_never_forgotten_since_no_source_repeats_them(tmp_path: Path) -> None:
    outcome_of(Driver(tmp_path, -1), 0, Batch(rows={"texts": [0]}))
    acker = Driver(tmp_path, 0)
    acker.forget_before({1: 1 << 47, 2: 1 << 47})
    assert outcome_of(acker, 1, Batch(rows_failed=[0]))[1] == [(row_root(0), {"text": "row 0"})]


# ---- payloads ---------------------------------------------------------------------------------------------


def kept(folder: Path) -> list[int]:
    """Of which micro-batches there are payloads."""
    return sorted(int(file.stem) for file in (folder / "payloads").iterdir())


def test_a_payload_is_on_disk_until_the_verdict_of_its_row_is_committed(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": [0, 1]}))
    outcome_of(acker, 1, Batch(rows={"texts": [2]}, rows_acked=[1]))
    assert kept(tmp_path) == [0, 1]
    outcome_of(acker, 2, Batch(rows_failed=[0]))
    assert kept(tmp_path) == [0, 1]  # micro-batch 2 may run again
    outcome_of(acker, 3, Batch())
    assert kept(tmp_path) == [1]
    acker = Driver(tmp_path, 3)
    assert outcome_of(acker, 4, Batch(rows_failed=[2]))[1] == [(row_root(2), {"text": "row 2"})]
    acker = Driver(tmp_path, 4)
    outcome_of(acker, 5, Batch())
    assert kept(tmp_path) == []


def test_when_three_quarters_of_a_file_have_their_verdict_the_open_rows_move_to_a_new_one(
    tmp_path: Path,
) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": range(8)}))
    outcome_of(acker, 1, Batch(rows_acked=range(6)))
    outcome_of(acker, 2, Batch())
    assert kept(tmp_path) == [0]  # two of eight are open: a quarter
    outcome_of(acker, 3, Batch(rows_acked=[6]))
    assert kept(tmp_path) == [0, 3]  # micro-batch 3 may run again
    outcome_of(acker, 4, Batch())
    assert kept(tmp_path) == [3]
    acker = Driver(tmp_path, 4)
    assert outcome_of(acker, 5, Batch(rows_failed=[7]))[1] == [(row_root(7), {"text": "row 7"})]
    outcome_of(acker, 6, Batch())
    assert kept(tmp_path) == []


@pytest.mark.parametrize("committed", [0, 1])
def test_a_driver_that_dies_after_rows_moved_to_a_new_file_leaves_each_of_them_once(
    tmp_path: Path, committed: int
) -> None:
    moves = Batch(rows_acked=range(7))
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": range(8)}))
    outcome_of(acker, 1, moves)
    assert kept(tmp_path) == [0, 1]
    acker = Driver(tmp_path, committed)
    if not committed:
        assert kept(tmp_path) == [0]
        outcome_of(acker, 1, moves)
    verdicts, failed = acker.judge(MicroBatch(2, 0), *Batch(rows_failed=[7]).sent())
    assert [roots.tolist() for roots, _ in failed] == [[row_root(7)]]
    assert verdicts.failed.roots.tolist() == [row_root(7)]
    outcome_of(acker, 3, Batch())
    assert kept(tmp_path) == []


def test_what_is_left_open_is_written_in_files_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acker_module, "_FILE_BYTES", 1)
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": [0, 1], "numbers": [2]}))
    assert kept(tmp_path) == [0, 0]
    outcome_of(acker, 1, Batch(rows_acked=[2]))
    outcome_of(acker, 2, Batch())
    assert kept(tmp_path) == [0]
    acker = Driver(tmp_path, 2)
    assert outcome_of(acker, 3, Batch(rows_failed=[1]))[1] == [(row_root(1), {"text": "row 1"})]


def test_only_rows_that_failed_or_stay_open_are_asked_for(tmp_path: Path) -> None:
    deltas, payloads = Batch(rows={"texts": range(9)}, rows_acked=range(6), rows_failed=[6]).sent()
    asked: list[list[int]] = []

    def asking(wanted: np.ndarray[Any, Any]) -> Any:
        asked.append(sorted(wanted.tolist()))
        return payloads(wanted)

    _, failed = Driver(tmp_path, -1).judge(MicroBatch(0, 0), deltas, asking)
    assert [roots.tolist() for roots, _ in failed] == [[row_root(6)]]
    assert asked == [sorted(map(row_root, (7, 8))), [row_root(6)]]


def test_a_row_that_fails_in_its_first_micro_batch_is_returned_and_never_stored(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    said = outcome_of(
        acker, 0, Batch(rows={"texts": [0, 1], "numbers": [2]}, rows_failed=[0, 2], rows_acked=[1])
    )
    assert said[1] == sorted([(row_root(0), {"text": "row 0"}), (row_root(2), {"n": 2, "half": 1.0})])
    assert kept(tmp_path) == []


def test_rows_of_two_dataframes_that_one_micro_batch_left_open_keep_their_own_columns(tmp_path: Path) -> None:
    acker = Driver(tmp_path, -1)
    outcome_of(acker, 0, Batch(rows={"texts": [0, 1], "numbers": [2, 3]}))
    acker = Driver(tmp_path, 0)
    assert outcome_of(acker, 1, Batch(rows_failed=[1, 2]))[1] == sorted(
        [(row_root(1), {"text": "row 1"}), (row_root(2), {"n": 2, "half": 1.0})]
    )


@settings(max_examples=drawn(60), deadline=None)
@given(scripts(), st.sets(st.integers(0, 5)))
def test_payloads_agree_with_a_dict(script: list[Batch], restarts: set[int]) -> None:
    """A row comes once; it may be judged in its own micro-batch, later, never or a second time."""
    model: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        acker = Driver(Path(folder), -1)
        for number, batch in enumerate(script):
            if number in restarts:
                acker = Driver(Path(folder), number - 1)
            for name, rows in batch.rows.items():
                model |= dict(zip(map(row_root, rows), held(name, rows).to_pylist(), strict=True))
            verdicts, failed = acker.judge(MicroBatch(number, batch.now_ms), *batch.sent())
            lost = {*verdicts.failed.roots.tolist(), *verdicts.timed_out.roots.tolist()}
            pairs = [pair for roots, values in failed
                    for pair in zip(roots.tolist(), values.to_pylist(), strict=True)]  # fmt: skip
            assert len(pairs) == len(dict(pairs))
            assert dict(pairs) == {root: model[root] for root in lost & model.keys()}
            for root in lost | set(verdicts.acked.roots.tolist()):
                model.pop(root, None)
        acker.judge(MicroBatch(len(script), script[-1].now_ms), [], payloads_in_rows([]))
        assert bool(kept(Path(folder))) == bool(model)
