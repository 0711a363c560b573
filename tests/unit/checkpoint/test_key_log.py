"""The keys' sections of the commit log, beside a model: a restart finds what was kept, and as old."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree import Config
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.logs import key_log
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.packing import pack
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.driver.assembly import assembled_run
from acktree.driver.logs.run_log import RunLog
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.key_table import Fate
from acktree.tasks.spouts.keys.labels import Labelled
from tests.unit.checkpoint.commits import committed_numbers
from tests.unit.tasks.bolts.bolt_harness import Calls, in_a_row
from tests.unit.tasks.spouts.spout_harness import Source

NONE = np.zeros(0, dtype=np.int64)
NOBODY = Judged(NONE, NONE.astype(np.int32))
RETENTION_MS = 1000


def digest(number: int) -> bytes:
    return f"{number:016d}".encode()


class World:
    """Keys on a disk, and what a model says that keeps everything in a dict."""

    def __init__(self, folder: Path) -> None:
        config = Config(key_retention_secs=RETENTION_MS / 1000)
        self.plan = Plan.of(in_a_row(Source(), Calls(print)), config, 1, 7)
        self.folder, self.number, self.clock_ms, self.age_ms, self.next = folder, -1, 0, 0, 0
        self.decided: dict[int, int] = {}
        self.stopwatch_ms = 0
        self.starts = 0
        self.restart()

    def restart(self) -> None:
        self.starts += 1
        self.keys = KeyLog(self.plan, lambda: self.stopwatch_ms)
        self.log = CommitLog(self.folder, [self.keys])
        self.log.recover(self.number)
        self.log.sweep()
        self.is_first = True

    def write(self, count: int, more_ms: int) -> dict[int, int]:
        """A micro-batch in which some keys are decided; it is not committed yet."""
        self.stopwatch_ms += more_ms
        numbers = [*range(self.next, self.next + count)]
        self.next += count
        digests = [digest(number) for number in numbers]
        assert self.keys.keys.claim(digests) == [Fate.RUNS] * count
        roots = np.array(numbers, dtype=np.int64)
        self.keys.keys.sent(roots, [Labelled(number, "", key) for number, key in enumerate(digests)])
        clock_ms = self.clock_ms + more_ms
        broadcast = Broadcast(end=0, is_first=self.is_first).row(0, SINK_LEVEL)
        verdicts = Verdicts(
            [], Judged(roots, roots.astype(np.int32)), NOBODY, NONE, NONE, NOBODY, (), 0, None
        )
        self.log.write(
            Commit(self.number + 1, clock_ms, -1), Outcome({Kind.BROADCAST: [broadcast]}, verdicts)
        )
        return dict.fromkeys(numbers, self.age_ms + (0 if self.is_first else more_ms))

    def commit(self, decided: dict[int, int], more_ms: int) -> None:
        self.number += 1
        self.clock_ms += more_ms
        self.age_ms += 0 if self.is_first else more_ms
        self.is_first = False
        self.decided |= decided
        self.keys.publish(self.number)

    def check(self) -> None:
        fates = self.keys.keys.claim([digest(number) for number in self.decided])
        most_ms = RETENTION_MS * 17 // 16 + (self.starts - 1) * (RETENTION_MS // 64)
        for fate, at_ms in zip(fates, self.decided.values(), strict=True):
            age_ms = self.age_ms - at_ms
            assert age_ms > RETENTION_MS or fate is Fate.ACKED
            assert age_ms <= most_ms or fate is not Fate.ACKED
        self.decided = {n: at for n, at in self.decided.items() if self.age_ms - at <= RETENTION_MS}


@settings(max_examples=50)
@example([("commit", 1, 0), ("clock", 1, 0), ("commit", 0, 10), ("restart", 0, 0), ("commit", 0, 0)])
@example([("commit", 1, 0), ("clock", 0, 0), ("commit", 1, 300), ("clock", 1, 0), *[("commit", 0, 300)] * 3])
@example([("commit", 1, 0), ("commit", 0, 290), ("die", 0, 0), ("commit", 0, 0), *[("commit", 0, 290)] * 3])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commit", "die", "restart", "clock"]),
            st.integers(0, 3),
            st.integers(0, 300),
        ),
        max_size=40,
    )
)
def test_keys_count_with_their_commit_and_age_only_while_the_topology_runs(steps):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_log, "_MOST_CHANGES", 5)
        world = World(Path(folder))
        for step, count, more_ms in steps:
            if step == "clock":  # somebody sets it
                world.clock_ms += 10**9 if count % 2 else -(10**9)
                continue
            decided = world.write(count, more_ms) if step != "restart" else {}
            if step == "commit":
                world.commit(decided, more_ms)
            else:
                world.clock_ms += 10**9  # nobody started it again for days
                world.restart()
                undecided = [digest(number) for number in decided]
                assert world.keys.keys.claim(undecided) == [Fate.RUNS] * len(undecided)
            assert [*world.keys.keys.open_rows().items()] == []
            if world.number >= 0 and step == "commit":
                world.check()
        assert len(committed_numbers(Path(folder))) <= 9


def test_a_driver_counts_their_age_by_a_stopwatch_and_not_by_the_clock_of_micro_batches(tmp_path):
    held = Checkpoint(tmp_path / "checkpoint")
    topology = held.begin_run(in_a_row(Source(), Calls(print)), Config(), 1)
    run, commits = assembled_run(
        topology, held, Config(), log=RunLog(topology.name), version="1", max_chunk_bytes=None,
        event_logger=None, stop_session=lambda: None, close_door=lambda _: None, leave_door=lambda: None,
    )  # fmt: skip
    try:
        keys, root = run.keys.keys, np.array([7], dtype=np.int64)
        assert keys.claim([digest(7)]) == [Fate.RUNS]
        keys.sent(root, [Labelled(7, "", digest(7))])
        acked = Judged(root, root.astype(np.int32))
        verdicts = Verdicts([], acked, NOBODY, NONE, NONE, NOBODY, (), 0, None)
        run.keys.write(Commit(0, 0, -1), Outcome({}, verdicts))
        run.keys.publish(0)
        run.keys.write(Commit(1, 10**15, -1), Outcome({}, None))
        run.keys.publish(1)
        assert keys.claim([digest(7)]) == [Fate.ACKED]
    finally:
        commits.close()
        run.dead_letters.close()
        held.close()


def test_without_keys_nothing_is_written():
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        assert world.keys.write(Commit(0, 0, -1), Outcome({}, None)) is None


def test_the_keys_of_rows_of_a_dataframe_that_are_open_outlive_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        row = WireRow(0, SINK_LEVEL, Kind.KEYS, 0, 0, 0, pack(np.arange(3)), b"".join(map(digest, (7, 7, 9))))

        def commit(number: int, acked: list[int], rows: list[WireRow]) -> list[int]:
            judged = Judged(np.array(acked, dtype=np.int64), np.full(len(acked), -1, dtype=np.int32))
            verdicts = Verdicts([], judged, NOBODY, NONE, NONE, NOBODY, (), 3 - len(acked), None)
            world.log.write(Commit(number, number, -1), Outcome({Kind.KEYS: rows}, verdicts))
            world.number = number
            return world.keys.repeated.tolist()

        assert commit(0, [], [row]) == []
        world.restart()
        assert world.keys.keys.open_rows() == {0: digest(7), 1: digest(7), 2: digest(9)}
        assert commit(1, [1], []) == []
        world.restart()
        assert commit(2, [0, 2], []) == [0]
        world.restart()
        assert world.keys.keys.open_rows() == {}
        assert world.keys.keys.claim([digest(7), digest(9)]) == [Fate.ACKED, Fate.ACKED]


def test_a_key_expires_also_where_no_micro_batch_comes(tmp_path):
    """A message that is ACKED at once makes none."""
    world = World(tmp_path)
    for _ in range(2):
        world.commit(world.write(1, 10), 10)
    keys = world.keys.keys
    assert keys.claim([digest(0), digest(1)]) == [Fate.ACKED, Fate.ACKED]
    world.stopwatch_ms += RETENTION_MS // 2
    assert keys.claim([digest(0)]) == [Fate.ACKED]
    numbers = world.keys.numbers(0)
    assert (numbers.kept, numbers.oldest_secs) == (2, (RETENTION_MS // 2 + 10) / 1000)
    world.stopwatch_ms += RETENTION_MS
    assert keys.claim([digest(0), digest(1)]) == [Fate.RUNS, Fate.RUNS]
    assert world.keys.numbers(0).kept == 0


def test_after_a_restart_a_key_that_had_expired_without_a_micro_batch_is_kept_by_the_age_that_was_written(
    tmp_path,
):
    world = World(tmp_path)
    world.commit(world.write(1, 10), 10)
    world.stopwatch_ms += 2 * RETENTION_MS
    assert world.keys.keys.claim([digest(0)]) == [Fate.RUNS]
    world.restart()
    assert world.keys.keys.claim([digest(0)]) == [Fate.ACKED]
    world.stopwatch_ms += 2 * RETENTION_MS  # before the first micro-batch nothing is known of the time
    assert world.keys.keys.claim([digest(0)]) == [Fate.ACKED]
    world.commit(world.write(0, 10), 10)
    world.stopwatch_ms += RETENTION_MS + 1
    assert world.keys.keys.claim([digest(0)]) == [Fate.RUNS]


def test_a_row_of_a_dataframe_is_not_repeated_by_a_key_that_has_expired_at_rest(tmp_path):
    """Rows claim no key."""
    world = World(tmp_path)
    world.commit(world.write(1, 10), 10)
    world.stopwatch_ms += 100 * RETENTION_MS
    root = np.array([50], dtype=np.int64)
    row = WireRow(0, SINK_LEVEL, Kind.KEYS, 0, 0, 0, pack(root), digest(0))
    judged = Judged(root, np.full(1, -1, dtype=np.int32))
    verdicts = Verdicts([], judged, NOBODY, NONE, NONE, NOBODY, (), 0, None)
    world.log.write(Commit(world.number + 1, 0, -1), Outcome({Kind.KEYS: [row]}, verdicts))
    assert world.keys.repeated.tolist() == []
    world.number += 1
    world.keys.publish(world.number)
    numbers = world.keys.numbers(0)
    assert (numbers.kept, numbers.oldest_secs) == (1, 0)
    world.stopwatch_ms += 100 * RETENTION_MS
    assert world.keys.numbers(0).kept == 0
