"""The command line: says what it did, or why it did nothing."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from acktree.cli.main import main
from acktree.dead_letters.store import DeadLetters
from tests.unit.dead_letters.letters import LETTER


@pytest.mark.parametrize(
    "command", [[], ["rebalance"], ["rebalance", "x", "--parallelism", "many"], ["reset"]]
)
def test_what_is_no_command_is_answered_with_the_usage(command, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert "usage: acktree" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "usage", "said"),
    [
        (["statz", "own"], "usage: acktree [-h] COMMAND", "; did you mean 'stats'?"),
        (["stats", "own", "--windw", "600"], "usage: acktree stats", "--windw 600; did you mean '--window'?"),
        (["stats", "own", "--windw=600"], "usage: acktree stats", "--windw=600; did you mean '--window'?"),
        (["debug", "own", "onn"], "usage: acktree debug", "; did you mean 'on'?"),
        (["dead-letters", "list", "own", "--cause", "timeouts"], "usage: acktree", "did you mean 'TIMEOUT'?"),
        (["stats", "own", "other"], "usage: acktree stats", "unrecognized arguments: other"),
        (["qqqqqq"], "usage: acktree [-h] COMMAND", ")"),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_nearest(command, usage, said, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(usage)
    assert printed.rstrip().endswith(said)


@pytest.mark.parametrize(
    ("target", "fix"),
    [("mod_f:topologi", "did you mean 'topology'?"), ("mod_f:x", "there is only 'topology'")],
)
def test_a_misspelt_name_is_answered_with_a_function_of_the_module(
    target, fix, tmp_path: Path, capsys, monkeypatch
) -> None:
    (tmp_path / "mod_f.py").write_text(
        "from shutil import which\ndef topology(partitions=2): ...\ndef of(parts): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["run", target, "--dry-run"]) == 1
    assert f"fix:   {fix}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rebalance", "reset-state"])
def test_an_error_of_ours_is_three_lines_and_exit_code_1(command, tmp_path: Path, capsys) -> None:
    pytest.importorskip("pyspark")
    assert main([command, str(tmp_path / "typo")]) == 1
    what, where, fix = capsys.readouterr().err.splitlines()
    assert what == "acktree: there is no checkpoint"
    assert where == f"  where: {tmp_path / 'typo'}"
    assert fix.startswith("  fix:   name the folder")


def test_what_was_done_is_said_and_what_to_do_next(tmp_path: Path, capsys, monkeypatch) -> None:
    offline = pytest.importorskip("acktree.spark.offline")
    called = []
    assert main(["rebalance", "cp", "--by-key", "sums=operator:ad"]) == 1
    assert "module 'operator' has no function 'ad'" in capsys.readouterr().err
    monkeypatch.setattr(offline, "rebalance", lambda *given, **further: called.append((given, further)))
    monkeypatch.setattr(offline, "reset_state", lambda *given, **further: called.append((given, further)))
    assert main(["rebalance", "cp"]) == 0
    assert "submit the topology on it" in capsys.readouterr().out
    keys = ["--by-key", "counts", "--by-key", "sums=operator:add", "--forget", "seen"]
    assert main(["rebalance", "cp", "--component", "count", "--parallelism", "3", *keys]) == 0
    assert "with parallelism=3 there" in capsys.readouterr().out
    assert main(["reset-state", "cp"]) == 0
    assert "open messages are run again" in capsys.readouterr().out
    assert main(["reset-state", "cp", "--component", "count"]) == 0
    assert "messages that it held time out" in capsys.readouterr().out
    none = {"component": None, "parallelism": None, "partitions": None, "by_key": {}, "forget": []}
    moved = {"component": "count", "parallelism": 3, "by_key": {"counts": None, "sums": operator.add}}
    moved["forget"] = ["seen"]
    assert called == [
        (("cp",), none), (("cp",), none | moved), (("cp",), {"component": None}),
        (("cp",), {"component": "count"}),
    ]  # fmt: skip


def test_help_needs_no_spark() -> None:
    program = """
import runpy, sys
sys.argv = ["acktree", "--help"]
try:
    runpy.run_module("acktree", run_name="__main__")
except SystemExit:
    print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "rebalance" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("answer", "code"),
    [("Answer(1, 'bad', FAILED)", 1), ("[Answer(1, 'x', error=NobodyRunsError('a', 'b', 'c'))]", 3)],
)
def test_a_reader_that_has_enough_makes_no_success_of_a_failure(answer, code) -> None:
    program = f"""
import sys
from acktree.cli import main
from acktree.cli.answers import FAILED, Answer
from acktree.ui.client import NobodyRunsError
main._parser = lambda: type("", (), {{"parse_args": lambda *_: given}})
given = type("", (), {{"run": lambda *_: {answer}, "json": False}})
sys.exit(main.main([]))
"""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([sys.executable, "-c", program], stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert done.returncode == code, done.stderr


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def run(command: str, **given) -> subprocess.CompletedProcess:
    """A command of the shell, in which ACKTREE is this acktree."""
    command = command.replace("ACKTREE", f"{sys.executable} -m acktree")
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, **given)


@needs_full
@pytest.mark.parametrize("place", ["> /dev/full", ">&-"], ids=["full", "closed"])
@pytest.mark.parametrize("arguments", ["version --json", "dead-letters purge --help"])
def test_an_answer_that_cannot_be_written_is_an_error_that_names_the_reason(arguments, place) -> None:
    ended = run(f"ACKTREE {arguments} {place}")
    reason = "No space left on device" if "full" in place else "Bad file descriptor"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"the answer cannot be written: {reason}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


@needs_full
@pytest.mark.parametrize("place", ["2> /dev/full", "2>&-"], ids=["full", "closed"])
@pytest.mark.parametrize(("arguments", "code"), [("kill none", 1), ("nonsense", 2), ("version", 0)])
def test_an_error_that_cannot_be_written_leaves_its_exit_code_and_goes_nowhere_else(
    arguments, code, place, tmp_path
) -> None:
    ended = run(f"ACKTREE {arguments} {place}", env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert ended.returncode == code
    assert (ended.stdout == "") is (code > 0)


def test_where_stdin_is_closed_a_question_is_answered_with_the_option_that_answers_it(tmp_path) -> None:
    with DeadLetters(tmp_path / "cp" / "dead_letters.sqlite", create=True) as store:
        store.put([LETTER])
    (tmp_path / "cp" / "acktree.json").write_text("{}")
    ended = run(f"ACKTREE dead-letters purge {tmp_path}/cp --all <&-")
    assert ended.returncode == 1
    assert ended.stderr.startswith("acktree: this would delete 1 dead letter for ever")
    assert "--yes" in ended.stderr


def test_an_id_that_is_listed_is_taken_by_every_command_about_letters(tmp_path, capsys) -> None:
    place = tmp_path / "cp"
    with DeadLetters(place / "dead_letters.sqlite", create=True) as store:
        store.put(replace(LETTER, root=root) for root in range(1, 1501))
        store.purge(ids=range(1, 1500))
    (place / "acktree.json").write_text("{}")
    assert main(["dead-letters", "list", str(place)]) == 0
    number = capsys.readouterr().out.splitlines()[1].split()[0]
    assert main(["dead-letters", "show", str(place), number]) == 0
    assert main(["dead-letters", "list", str(place), "--after", number]) == 0
    assert main(["dead-letters", "purge", str(place), number, "--yes"]) == 0
    assert "1 deleted" in capsys.readouterr().out
