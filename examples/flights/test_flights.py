"""The account of the example is right, would be seen if it were not, and survives Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import submit
from acktree.dead_letters.letter import DeadLetter
from acktree.testing import LocalCluster
from examples.flights import flights as example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(example.__file__)
LIMIT = 4_000  # of which 28 never departed


def on_local_cluster(folder: Path, limit: int = LIMIT) -> tuple[example.Files, list[DeadLetter]]:
    files = example.Files(folder)
    with LocalCluster() as cluster:
        running = cluster.submit(example.flights_topology(files, limit), config=example.CONFIG)
        cluster.advance()
        assert running.has_ended
        return files, list(running.dead_letters)


def stories(letters: list[DeadLetter]) -> list[tuple[object, ...]]:
    """The content of letters, without their numbers."""
    return sorted(
        (
            letter.message_id_repr,
            letter.reason,
            letter.component,
            letter.attempts,
            letter.cause,
            str(letter.values),
        )
        for letter in letters
    )


def test_all_departures_are_there_and_their_lines_have_a_value_for_each_column() -> None:
    columns, lines = example.read_lines()
    assert len(lines) == example.DEPARTURES
    assert {line.count(",") + 1 for line in lines} == {len(columns)}


def test_the_account_adds_up_and_pandas_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, letters = on_local_cluster(tmp_path)
    assert files.verdicts() == (0, 3_972, 28)
    assert example.report(files, LIMIT, [letter.reason for letter in letters])
    printed = capsys.readouterr().out
    assert "3,972 + 28 = 4,000: every message has its verdict." in printed
    assert "pandas finds the same in the same rows, to the last bit." in printed


def test_a_wrong_account_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, letters = on_local_cluster(tmp_path)
    reasons = [letter.reason for letter in letters]
    assert not example.report(files, LIMIT, reasons[1:])
    ledger = bytearray(files.ledger.read_bytes())
    ledger[100] = example.OPEN
    files.ledger.write_bytes(ledger)
    assert not example.report(files, LIMIT, reasons)
    assert not example.report(files, LIMIT - 1, reasons)
    printed = capsys.readouterr().out
    assert printed.count("THE ACCOUNT IS WRONG") == 3
    assert printed.count("SOMETHING ELSE") == 1


def test_spark_and_local_cluster_give_each_departure_the_same_verdict(
    tmp_path: Path, spark: SparkSession
) -> None:
    local, letters = on_local_cluster(tmp_path / "local")
    files = example.Files(tmp_path / "spark")
    topology = example.flights_topology(files, LIMIT)
    with submit(topology, checkpoint=files.folder, spark=spark, config=example.CONFIG) as running:
        assert running.await_termination(timeout_secs=120)
        assert stories(list(running.dead_letters)) == stories(letters)
    assert files.ledger.read_bytes() == local.ledger.read_bytes()
    assert files.delays() == local.delays()


def test_a_dead_letter_says_which_flight_and_why(tmp_path: Path) -> None:
    _, letters = on_local_cluster(tmp_path, limit=1_000)
    first = min(letters, key=lambda letter: int(letter.message_id_repr))
    assert first.reason == "NeverDeparted: EV4308 EWR-RDU, 2013-1-1"
    assert str(first.values[0]).startswith("2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,")
    assert (first.component, first.attempts, first.message_id_repr) == ("parse", 1, "838")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    example.flights_topology(example.Files(tmp_path), 10)
    with pytest.raises(SystemExit, match="is of a run over 10 departures, not 20"):
        example.flights_topology(example.Files(tmp_path), 20)


@pytest.mark.spark
@pytest.mark.slow
def test_ctrl_c_says_what_is_open_and_the_same_command_goes_on_to_the_end(tmp_path: Path) -> None:
    files, limit = example.Files(tmp_path / "run"), 100_000  # far from its end after the first verdict
    command = [sys.executable, str(SCRIPT), "--checkpoint", str(files.folder), "--limit", str(limit)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - nothing forks here yet
    ) as first:
        while not files.ledger.exists() or not files.verdicts()[1]:
            assert first.poll() is None, first.communicate()
            time.sleep(0.05)  # another process: there is nothing to wait on
        first.send_signal(signal.SIGINT)
        said, complained = first.communicate(timeout=60)
    assert first.returncode == 130, complained
    assert "To go on: python" in said
    assert "Traceback" not in said
    assert files.verdicts()[0] > 0

    second = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert "= 100,000: every message has its verdict." in second.stdout
    assert "to the last bit" in second.stdout
