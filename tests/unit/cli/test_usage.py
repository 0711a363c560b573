"""Arguments that a command refuses, and what it says."""

from __future__ import annotations

import re

import pytest

from acktree.cli.main import main


@pytest.mark.parametrize(
    "command",
    [
        ["top", "x", "-i", "-1"],
        ["monitor", "x", "-i", "nan"],
        ["stats", "x", "--timeout", "-1"],
        ["kill", "x", "-w", "nan"],
        ["kill", "x", "-w", "soon"],
    ],
)
def test_a_time_that_is_none_is_usage(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert "is no time: give seconds, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "open x --limit 0",
        "open x --limit 1001",
        "trace x --limit -1",
        "trace x --limit many",
        "events x --limit 1001",
        "dead-letters list x --limit 501",
        "dead-letters list x --since yesterday",
        "dead-letters list x --since 2026-11-25T08:30:00",
        "trace x --rate much",
        "set-log-level numbers -l x",
        "set-log-level numbers -l x=LOUD",
        "set-log-level numbers -l x=DEBUG:soon",
        "set-log-level numbers -l x=DEBUG:0",
        "set-log-level numbers -l x=DEBUG:-1",
        "set-log-level numbers -l x=DEBUG:nan",
        "set-log-level numbers -l x=DEBUG:604801",
        "set-log-level nowhere -l x=DEBUG:inf",
        "trace x --watch y --secs 0",
        "trace x 9999999999999999999999",
        "dead-letters show x 9999999999999999999999",
        "top x -n -5",
        "monitor x -n 0",
        "trace x --watch y --secs 86401",
        "debug x on a much",
        "dead-letters show x -5",
        "dead-letters redrive x 0",
        "dead-letters purge x one",
    ],
)
def test_an_argument_that_is_out_of_range_is_usage_and_the_error_says_the_range(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    assert stopped.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert not re.search(r"invalid|_\w+ value", error)


@pytest.mark.parametrize(
    "command",
    [
        "trace numbers --secs 5",
        "debug numbers on 0",
        "debug numbers on 200",
        "trace numbers --rate 1 --watch x",
        "trace numbers 77 --rate 1",
        "trace numbers 77 --watch x",
        "dead-letters redrive numbers",
        "dead-letters purge numbers 1 --all --spout source",
    ],
)
def test_arguments_that_do_not_fit_each_other_are_usage(command, running, capsys):
    assert main(command.split()) == 2
    assert "fix:" in capsys.readouterr().err
