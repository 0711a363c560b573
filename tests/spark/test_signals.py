"""Ctrl-C and SIGTERM at a real driver: how it ends, what it says, and that nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.test_crashes import COUNT, ROOT, noted, run_to_the_end
from tests.spark.test_running import wait_until
from tests.spark.topologies import notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def driver(spout: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process of its own, which a terminal's signals reach; what it prints is in driver.log."""
    command = [sys.executable, "-m", "tests.spark.driver", spout, str(folder), str(COUNT)]
    with (folder / "driver.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            # A test run in the background ignores Ctrl-C, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - nothing forks here
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(folder: Path) -> list[str]:
    """What it said, without the time; not what any topology says of its progress."""
    lines = (folder / "driver.log").read_text().splitlines()
    return [re.sub(r"^\S+ \S+ WARNING acktree ", "", line) for line in lines if " INFO acktree " not in line]


def complaint(folder: Path) -> str:
    """What it said, without Java's stacks."""
    return "\n".join(line for line in said(folder) if not line.lstrip().startswith("at "))[-5000:]


def test_sigterm_lets_what_is_open_finish_and_says_how_to_go_on(spark: SparkSession, tmp_path: Path) -> None:
    with driver("position", tmp_path) as process:
        wait_until(lambda: process.poll() is not None or len(noted(tmp_path, "acked")) > COUNT // 3, secs=200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143, complaint(tmp_path)
    first, last = said(tmp_path)  # these, and not a word of Spark's
    assert first.startswith("topology=counted signal=SIGTERM")
    assert last.startswith("topology=counted is stopped. Open: numbers 0. To continue, ")
    assert str(tmp_path / "checkpoint") in last
    before = noted(tmp_path, "acked")
    assert sorted(before) == list(range(len(before)))
    assert COUNT // 3 < len(before) < COUNT
    run_to_the_end(spark, "position", tmp_path)
    assert sorted(noted(tmp_path, "acked")) == list(range(COUNT))  # each once: the stop was orderly
    counted = Counter(key for key, _ in notes(tmp_path / "notes", "notes"))
    assert counted == {f"key {key}": COUNT // 10 for key in range(10)}


def jvms_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The JVM that a driver has started, or none yet."""
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    mine = [int(pid) for pid in file.read_text().split()] if file.exists() else []
    return [pid for pid in mine if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the JVM in /proc")
def test_ctrl_c_while_spark_starts_leaves_no_jvm_and_a_checkpoint_that_can_be_used(
    spark: SparkSession, tmp_path: Path
) -> None:
    with driver("position", tmp_path) as process:
        wait_until(lambda: process.poll() is not None or bool(jvms_of(process)), secs=200)
        (jvm,) = jvms_of(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130, complaint(tmp_path)
    wait_until(lambda: not Path(f"/proc/{jvm}").exists(), secs=60)
    (line,) = said(tmp_path)
    assert line.startswith("topology=counted signal=SIGINT arrived while it was started: it is not started.")
    run_to_the_end(spark, "position", tmp_path)
    assert sorted(noted(tmp_path, "acked")) == list(range(COUNT))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the JVM in /proc")
def test_a_killed_jvm_ends_the_run_with_an_error_that_says_so_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    with driver("position", tmp_path) as process:
        wait_until(lambda: process.poll() is not None or len(noted(tmp_path, "acked")) > COUNT // 3, secs=200)
        (jvm,) = jvms_of(process)
        os.kill(jvm, signal.SIGKILL)
        assert process.wait(timeout=120) == 1, complaint(tmp_path)
    log = (tmp_path / "driver.log").read_text()
    said_last = log[log.rindex("acktree.errors.AcktreeError: ") :].splitlines()
    assert said_last[0].endswith(
        f"Spark's Java process {jvm} was ended by signal 9, and the topology with it"
    )
    assert said_last[2].endswith("it goes on where it was, nothing is lost")
    # The program has submitted once more before it ended.
    no_other = "and PySpark starts no other one in the same process"
    assert f"again: Spark's Java process {jvm} was ended by signal 9, {no_other}\n" in log
    assert "could not be stopped in order" not in log
    run_to_the_end(spark, "position", tmp_path)
    assert set(noted(tmp_path, "acked")) == set(range(COUNT))


def test_a_second_ctrl_c_does_not_wait_for_what_is_executed_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "stuck").touch()
    with driver("held up", tmp_path) as process:
        wait_until(lambda: process.poll() is not None or 7 in noted(tmp_path, "delivered"), secs=200)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None or bool(said(tmp_path)), secs=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130, complaint(tmp_path)  # the message timeout is 300 s
    first, last = said(tmp_path)
    acked = set(noted(tmp_path, "acked"))
    assert first.startswith("topology=held up signal=SIGINT")
    assert f"Open: numbers {len(set(noted(tmp_path, 'delivered')) - acked)}. To continue, " in last
    assert 7 not in acked
    (tmp_path / "stuck").unlink()
    run_to_the_end(spark, "held up", tmp_path, emptied=True)
    assert set(noted(tmp_path, "acked")) == set(range(COUNT))
