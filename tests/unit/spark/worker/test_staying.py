"""A task that stays: one mark and one watchdog for many micro-batches, and what the next task finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import ExecuteTimeoutError
from acktree.spark.worker import watchdog
from acktree.spark.worker.isolation import Isolation
from acktree.spark.worker.marks import MarkingMonitor, Suspects
from acktree.spark.worker.staying import StayingMonitor
from acktree.spark.worker.watchdog import Watchdog
from tests.unit.spark.worker.test_isolation import (
    BOLT,
    NAMES,
    ROWS,
    Level,
    exits,
    holds_the_interpreter,
    said,
    sleeps,
)

RUN = 5
DONE = dict.fromkeys(NAMES, "done")


def staying(folder: Path, timeout_secs: float | None = None, run: int = RUN) -> StayingMonitor:
    return StayingMonitor(folder, 1, 0, timeout_secs, run)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[StayingMonitor]:
    made = staying(tmp_path, 0.4)
    yield made
    made.close()


def died_over(folder: Path, batch_id: int, level: Level, timeout_secs: float | None = None) -> int:
    """A task runs two micro-batches, and the next with this level; how its process ended."""
    child = os.fork()
    if child == 0:
        try:
            mine = staying(folder, timeout_secs)
            for before in (batch_id - 2, batch_id - 1):
                mine.run(before, Level({}))
            mine.run(batch_id, level)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_the_next_task(folder: Path, batch_id: int, level: Level) -> dict[int, str]:
    """The same micro-batch in a task of the next start."""
    staying(folder)
    return said(Isolation(folder, batch_id, 1, 0, 0, None, RUN).resumed().run(level))


@pytest.mark.parametrize(
    ("deed", "cause"),
    [(exits, FailureCause.KILLED_WORKER), (holds_the_interpreter, FailureCause.HUNG)],
)
def test_a_message_that_ends_its_process_is_found_by_the_next_task(tmp_path, deed, cause) -> None:
    level = Level({103: deed})
    code = died_over(tmp_path, 9, level, 0.2)
    assert code
    found = in_the_next_task(tmp_path, 9, Level({103: exits}))
    assert found.pop(103).startswith(cause if deed is exits else FailureCause.KILLED_WORKER)
    assert set(found.values()) == {"done"}
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("stays.")]


def test_a_death_between_two_micro_batches_suspects_nobody(tmp_path) -> None:
    assert died_over(tmp_path, 9, Level({})) == 0  # it ends without closing anything
    staying(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_death_of_another_run_suspects_nobody(tmp_path) -> None:
    assert died_over(tmp_path, 9, Level({103: exits}))
    staying(tmp_path, run=RUN + 1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_makes_no_thread_and_no_file_after_the_first(tmp_path, here) -> None:
    assert said(here.run(1, Level({}))) == DONE
    threads, files = set(threading.enumerate()), {file: file.stat().st_ino for file in tmp_path.iterdir()}
    for batch_id in range(2, 20):
        assert said(here.run(batch_id, Level({}))) == DONE
        assert set(threading.enumerate()) == threads
        assert {file: file.stat().st_ino for file in tmp_path.iterdir()} == files
    here.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "acktree-watchdog"]


def test_code_that_waits_is_interrupted_in_whichever_micro_batch(here) -> None:
    for batch_id in (1, 2):
        assert said(here.run(batch_id, Level({}))) == DONE
        found = said(here.run(batch_id, Level({104: sleeps})))
        assert found.pop(104) == "execute took longer than execute_timeout_secs=0.4"
        assert set(found.values()) == {"done"}


def test_a_signal_that_comes_too_late_raises_nothing(here) -> None:
    here.run(1, Level({}))
    os.kill(os.getpid(), signal.SIGURG)
    assert said(here.run(2, Level({}))) == DONE


def test_a_watchdog_without_runs_sleeps_and_wakes_with_the_next(tmp_path) -> None:
    """While it sleeps the hard kill is off: a process that rests is not ended."""
    progress: list[tuple[int, int] | None] = [None]
    with (tmp_path / "hung").open("wb") as hung:
        dog = Watchdog(lambda: progress[0], hung.fileno(), 0.1, stays=True)
        for _ in range(2):
            with dog.on_watch():
                pass
            while not dog._is_asleep:
                time.sleep(0.01)
            assert dog._armed_secs is None
            with pytest.raises(ExecuteTimeoutError):
                wait_on_watch(dog, progress)
            progress[0] = None
        dog.close()
    assert (tmp_path / "hung").read_bytes() == b""


def wait_on_watch(dog: Watchdog, progress: list[tuple[int, int] | None]) -> None:
    """A run whose row waits."""
    with dog.on_watch():
        assert dog._armed_secs == 0.1
        progress[0] = (0, 1)
        bolt_that_waits()


def bolt_that_waits() -> None:
    """As the engine calls a bolt: user code, called by a module that calls user code."""
    scope = {"__name__": "acktree.tasks.bolts.kinds", "wait": lambda: time.sleep(60)}
    exec("def call():\n    wait()\ncall()", scope)


def test_a_hook_that_does_not_return_is_told_again_and_again_and_not_interrupted(tmp_path, caplog) -> None:
    hook: list[tuple[str, str, int] | None] = [("joins", "prepare", 1)]
    with (tmp_path / "hung").open("wb") as hung:
        dog = Watchdog(lambda: None, hung.fileno(), 0.2, hook=lambda: hook[0])
        with dog.on_watch():
            while len(caplog.records) < 2:
                time.sleep(0.01)
            hook[0] = None
            told = len(caplog.records)
            time.sleep(1)
    assert len(caplog.records) <= told + 1, "one may have been under way"
    said = (
        "component=joins prepare() has not returned for {} s: its partition waits, and nothing interrupts it"
    )
    secs = [record.args[2] for record in caplog.records]
    assert [record.getMessage() for record in caplog.records] == [said.format(f"{s:.1f}") for s in secs]
    assert secs == sorted(secs)
    assert secs[0] >= 0.2
    assert secs[1] >= 0.4


def test_a_thread_that_cannot_be_started_to_tell_of_a_hook_ends_no_watchdog(
    tmp_path, caplog, monkeypatch
) -> None:
    """It would set the timer no more, which then ends the process of a healthy hook."""
    refused: list[float] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            if self.name != "acktree-watchdog" and not refused:
                refused.append(time.monotonic())
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(watchdog, "threading", SimpleNamespace(**{**vars(threading), "Thread": Thread}))
    with (tmp_path / "hung").open("wb") as hung:
        dog = Watchdog(lambda: None, hung.fileno(), 0.2, hook=lambda: ("joins", "prepare", 1))
        with dog.on_watch():
            while not refused:
                time.sleep(0.01)
            while not caplog.records and dog._thread.is_alive():
                time.sleep(0.01)
            assert dog._thread.is_alive()
    assert "joins prepare() has not returned" in caplog.text


def test_a_level_in_a_hook_says_so_and_one_that_has_left_it_does_not(tmp_path) -> None:
    monitor = MarkingMonitor(tmp_path / "7.1.0.mark", Suspects(tmp_path / "suspects"), 60)
    try:
        assert monitor._called_hook() is None
        monitor.enter(BOLT, "prepare")
        assert monitor._called_hook() == ("bolt", "prepare", 1)
        monitor.begin(BOLT, ROWS, together=False)
        assert monitor._called_hook() is None
        monitor.enter(BOLT, "prepare")
        assert monitor._called_hook() == ("bolt", "prepare", 2)
    finally:
        monitor.close()


def test_a_log_that_waits_while_a_hook_is_told_of_ends_no_process(tmp_path) -> None:
    """A handler whose server is away, or whose lock the hook holds."""
    code = died_in(tmp_path, LOG_WAITS)
    assert code == 0


LOG_WAITS = """
import logging, os, sys, time
from pathlib import Path
from acktree.core.data.frames import WireRow
from acktree.spark.worker.marks import MarkingMonitor, Suspects
from tests.unit.spark.worker.test_isolation import BOLT

class Waits(logging.Handler):
    def emit(self, record):
        time.sleep(3600)

logging.getLogger().addHandler(Waits())
folder = Path(sys.argv[1])
monitor = MarkingMonitor(folder / "7.1.0.mark", Suspects(folder / "suspects"), 2)
with monitor.on_watch():
    monitor.enter(BOLT, "prepare")
    time.sleep(9)  # the hard kill comes 4 s after the last look
os._exit(0)
"""


def died_in(folder: Path, program: str) -> int:
    return subprocess.run([sys.executable, "-c", program, str(folder)], check=False, timeout=300).returncode
