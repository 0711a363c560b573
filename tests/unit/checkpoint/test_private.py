"""What a driver makes is its user's alone; Spark's part too, by the folder around it."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree import Retry
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.dead_letters import DeadLetters
from acktree.spark.worker.process import SharedPlan
from tests.unit.checkpoint.small_spark import World, live


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("redelivers", [True, False], ids=["queue", "position"])
def test_a_whole_checkpoint_is_private_whatever_the_umask(tmp_path, umask, redelivers):
    world = World(tmp_path, 30, redelivers=redelivers, retry=Retry(max_attempts=2, backoff_secs=(0, 0)))
    world.weather = lambda number, attempt, run: number % 7 == 0
    driver = live(world)
    SharedPlan.write(driver.plan, driver.held.new_plan_file())
    driver.inbox.hold()
    driver.supervisor._stop_threads()
    checkpoint = tmp_path / "checkpoint"
    made = {str(path.relative_to(checkpoint)): path for path in checkpoint.rglob("*")}
    names = {name.partition("/")[0].partition("-")[0] for name in made}
    assert names >= {"acktree.json", "dead_letters.sqlite", "inbox", "lock", "plan", "spark"}
    assert ("verdicts" in names) is not redelivers
    assert {"inbox/wake", "inbox/hold"} <= made.keys()
    for folder in (checkpoint, *(path for path in checkpoint.iterdir() if path.is_dir())):
        assert oct(mode(folder)) == "0o700", folder
    ours = [path for name, path in made.items() if not name.startswith("spark/") and not path.is_dir()]
    assert {path.name: oct(mode(path)) for path in ours} == {path.name: "0o600" for path in ours}
    driver.close()


def test_a_strange_umask_does_not_take_a_driver_its_own_inbox(tmp_path):
    before = os.umask(0o277)
    try:
        inbox = FileInbox(tmp_path / "inbox", -1, 10, 10_000)
    finally:
        os.umask(before)
    inbox.append_control(ChunkKind.BEAT, {})
    assert mode(tmp_path / "inbox") == 0o700
    assert {oct(mode(path)) for path in (tmp_path / "inbox").iterdir()} == {"0o600"}
    inbox.close()


def test_a_checkpoint_that_others_may_write_to_is_taken_with_a_warning(tmp_path, caplog):
    for rights, count in ((0o755, 0), (0o775, 1), (0o757, 1)):
        folder = tmp_path / oct(rights)
        folder.mkdir()
        folder.chmod(rights)
        with caplog.at_level(logging.WARNING, "acktree"):
            Checkpoint(folder).close()
        warnings = [record.message for record in caplog.records if str(folder) in record.message]
        assert len(warnings) == count
        assert all(f"chmod go-w {folder}" in text for text in warnings)
        assert mode(folder) == rights


def test_dead_letters_beside_a_checkpoint_are_private_too(tmp_path, umask):
    with DeadLetters(tmp_path / "letters" / "mine.sqlite", create=True):
        assert mode(tmp_path / "letters") == 0o700
        assert {mode(file) for file in (tmp_path / "letters").iterdir()} == {0o600}
