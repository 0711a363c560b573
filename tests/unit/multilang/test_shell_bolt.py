"""Bolts that are child processes: in four languages, hostile ones, and how long a child lives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acktree import Config, ConfigError, Retry, TopologyBuilder
from acktree.core.tracking.verdicts import FailureKind
from acktree.multilang import ShellBolt, ShellSpout
from acktree.system.processes import is_alive
from acktree.tasks.component_checks import checks_of
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.multilang.bench import EXAMPLES, ROOT, await_end, bench, started

LANGUAGES = {
    "node": ["node", "split.js"],
    "perl": ["perl", "split.pl"],
    "python": [sys.executable, "split.py"],
    "go": ["go", "run", "split.go"],
}


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_bolt_in_another_language_counts_on_over_micro_batches_and_its_verdicts_are_right(language):
    command = LANGUAGES[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    more = {
        "tick_secs": 60,
        "subprocess_timeout_secs": 500 if language == "go" else 30,
    }  # it is compiled first
    with bench(EXAMPLES, command, outputs=["word", "sentences"], **more) as shell:
        shell.feed("the cow jumped", " ", "an apple")
        shell.feed("naïve café", secs=60)
        assert shell.feeder.acked == ["the cow jumped", "an apple", "naïve café"]
        assert shell.failed[" "].reason == "component 'shell' failed it"
        words = [("the", 1), ("cow", 1), ("jumped", 1), ("an", 2), ("apple", 2), ("naïve", 3), ("café", 3)]
        assert shell.running.tuples("shell") == [[*pair] for pair in words]


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")
def test_the_topology_of_the_page_runs_as_it_stands(monkeypatch):
    if shutil.which("node") is None or shutil.which("perl") is None:
        pytest.skip("node and perl are not installed")
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/multilang.md").read_text(), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {}
    exec(block, names)
    with LocalCluster() as cluster:
        running = cluster.submit(names["topology"])
        cluster.advance(0)
        assert running.stats()["sentences"].total.acked == 4


DEADLY = {
    "exit": "ended with exit code 3; the last lines of its stderr:\nthe reason",
    "exit with a flood": "ended with exit code 4",
    "kill": "ended by signal SIGKILL; it wrote nothing to stderr",
    "silence": "sent no message for 0.5 s",
    "stop": "sent no message for 0.5 s",
    "no newline": "more than 16,777,216 bytes without a line 'end'",
    "no JSON": "wrote what is not JSON: 'hello'",
    "half a message": "ended with exit code 5; unfinished output",
    "close": "closed its output",
    "fork": "ended with exit code 6",
    "unknown ack": "broke the protocol: ack of id '777777', which was never given to it",
    "unknown anchor": "broke the protocol: an emit is anchored to '777777'",
    "no command": "broke the protocol: a message without a command",
    "no values": "broke the protocol: an emit without values",
    "another stream": "broke the protocol: emitted on stream 'other'",
}


@pytest.mark.parametrize(("deed", "text"), DEADLY.items(), ids=DEADLY)
def test_a_hostile_child_is_one_failure_of_its_own_tuples_and_the_next_ones_have_a_new_child(
    deed, text, tmp_path
):
    with bench(tmp_path, subprocess_timeout_secs=0.5 if "0.5" in text else 60) as shell:
        shell.feed("before", deed)
        shell.feed("after")
        assert shell.feeder.acked == ["before", "after"]
        assert list(shell.failed) == [deed]
        assert text in shell.failed[deed].reason
        assert "component 'shell', task 1" in shell.failed[deed].reason
        assert [error.reason for error in shell.running.errors] == [shell.failed[deed].reason]
        first, second = started(tmp_path)
        await_end(first)
        assert is_alive(second, of_others=False)


@pytest.mark.parametrize("deed", ["print", "ack twice", "unknown command"])
def test_a_mistake_that_harms_nothing_is_reported_and_the_child_lives_on(deed, tmp_path, caplog):
    with caplog.at_level("INFO"), bench(tmp_path) as shell:
        shell.feed(deed, "after")
        assert (shell.feeder.acked, shell.failed) == ([deed, "after"], {})
        assert len(started(tmp_path)) == 1
        texts = [error.reason for error in shell.running.errors]
        said = {"print": "a debugging line", "ack twice": "acked or failed before"}
        assert said.get(deed, "unknown command: 'dance'") in caplog.text + " ".join(texts)


@pytest.mark.parametrize(
    ("said", "text"), [("", "sent no message for 0.5 s"), ('["a"]\nend\n', "answered with")]
)
def test_a_child_that_does_not_answer_the_set_up_is_tried_once_a_micro_batch(said, text, tmp_path):
    (tmp_path / "no handshake").touch()
    (tmp_path / "never").write_text(said)
    with bench(tmp_path, subprocess_timeout_secs=0.5) as shell:
        shell.feed("a", "b", "c")
        assert [name for name, _ in shell.feeder.failed] == ["a", "b", "c"]
        assert all(text in failure.reason for failure in shell.failed.values())
        shell.feed("d")
        assert shell.feeder.acked == ["d"]
        assert len(started(tmp_path)) == 1


def lines_of(file: Path, first: str) -> Path:
    file.write_text(f"{first}\n")
    file.chmod(0o755)
    return file


COMMANDS = {
    "no such program": (["no-such-program-at-all"], "no command 'no-such-program-at-all' on the PATH"),
    "no such file": (["./none"], "there is no file"),
    "a folder": (["./folder"], "this is a folder:"),
    "not executable": (["./plain"], "plain is not executable"),
    "no interpreter": (["./words.sh"], "words.sh names /none/python, which is not there"),
    "beside": (["words.sh"], "no command 'words.sh' on the PATH"),
}


@pytest.mark.parametrize("kind", [ShellBolt, ShellSpout])
@pytest.mark.parametrize(("command", "text"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_cannot_be_executed_is_refused_before_anything_runs(command, text, kind, tmp_path):
    (tmp_path / "folder").mkdir()
    lines_of(tmp_path / "plain", "x").chmod(0o644)
    lines_of(tmp_path / "words.sh", "#!/none/python -I")
    shell = kind(command, ["text"], resources=tmp_path)
    builder = TopologyBuilder("checked")
    builder.set_spout(
        "shell" if kind is ShellSpout else "source", shell if kind is ShellSpout else FeederSpout(["text"])
    )
    if kind is ShellBolt:
        builder.set_bolt("shell", shell).shuffle_grouping("source")
    ((name, error),) = checks_of(builder.create_topology(), Config())
    assert name == "shell"
    assert isinstance(error, ConfigError)
    assert text in error.what
    assert f"'shell': {kind.__name__}(command=...)" in error.where
    assert error.fix == "write './words.sh'" if command == ["words.sh"] else error.fix


def test_a_command_that_is_there_passes_its_check_by_path_by_name_and_by_the_path_of_its_environment(
    tmp_path,
):
    script = lines_of(tmp_path / "script", "#!/bin/sh")
    for command, env in (
        [["./script"], {}],
        [[str(script)], {}],
        [["sh"], {}],
        [["script"], {"PATH": str(tmp_path)}],
    ):
        ShellBolt(command, ["text"], resources=tmp_path, env=env).check(Config(), None)


def test_the_command_line_says_in_one_line_what_is_missing_before_anything_runs(tmp_path):
    (tmp_path / "missing.py").write_text(
        "from acktree import TopologyBuilder\n"
        "from acktree.multilang import ShellBolt\n"
        "from acktree.testing import FeederSpout\n"
        "builder = TopologyBuilder('missing')\n"
        "builder.set_spout('source', FeederSpout(['text']))\n"
        "builder.set_bolt('shell', ShellBolt(['no-such-program'], ['n'])).shuffle_grouping('source')\n"
        "topology = builder.create_topology()\n"
    )
    for command in (["run", "missing:topology", "--dry-run"], ["doctor", "missing:topology"]):
        done = subprocess.run(
            [sys.executable, "-m", "acktree", *command],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, *sys.path)))},
        )  # fmt: skip
        (line,) = [each for each in (done.stdout + done.stderr).splitlines() if "no-such-program" in each]
        assert "there is no command 'no-such-program' on the PATH" in line
        assert done.returncode == 1


def test_a_command_that_is_not_there_fails_each_tuple_with_its_name(tmp_path):
    with bench(tmp_path, [str(tmp_path / "none")]) as shell:
        shell.feed("a")
        assert "none' cannot be started" in shell.failed["a"].reason


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {"a": {1, 2}}])
def test_a_value_that_json_does_not_have_fails_its_tuple_alone(value, tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("before", value, "after")
        assert shell.feeder.acked == ["before", "after"]
        (failure,) = shell.failed.values()
        assert f"field 'text' is {type(value).__name__}, which JSON does not have" in failure.reason


def test_a_held_tuple_is_acked_in_a_later_micro_batch(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("hold")
        shell.feed("other")
        assert shell.feeder.acked == ["other"]
        shell.feed("release")
        assert sorted(shell.feeder.acked) == ["hold", "other", "release"]
        assert len(started(tmp_path)) == 1


def test_a_held_tuple_is_acked_at_a_tick(tmp_path):
    with bench(tmp_path, tick_secs=5) as shell:
        shell.feed("hold", secs=4)
        assert shell.feeder.acked == []
        shell.feed(secs=1)
        assert shell.feeder.acked == ["hold"]


def test_a_child_that_answers_out_of_turn_is_waited_for(tmp_path):
    (tmp_path / "late").touch()
    with bench(tmp_path, linger_secs=60) as shell:
        shell.feed("late")
        assert shell.feeder.acked == ["late"]


def test_a_held_tuple_fails_with_the_reason_when_its_child_dies_between_two_micro_batches(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("hold")
        (first,) = started(tmp_path)
        os.kill(first, signal.SIGKILL)
        await_end(first)
        shell.feed("after")
        assert shell.feeder.acked == ["after"]
        reason = shell.failed["hold"].reason
        assert "the child process that this task had is gone: it ended by signal SIGKILL" in reason
        assert [error.reason for error in shell.running.errors] == [reason]


def test_a_death_between_two_micro_batches_is_reported_where_nothing_was_held(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("before")
        (first,) = started(tmp_path)
        os.kill(first, signal.SIGKILL)
        await_end(first)
        shell.feed("after")
        assert shell.feeder.acked == ["before", "after"]
        (error,) = shell.running.errors
        assert "the child process that this task had is gone: it ended by signal SIGKILL" in error.reason


def test_a_tuple_that_nobody_acks_times_out(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("hold", secs=100)
        assert shell.failed["hold"].kind is FailureKind.TIMED_OUT


def test_messages_that_come_again_are_given_one_at_a_time_so_the_one_that_kills_is_found(tmp_path):
    with bench(tmp_path, retry=Retry(2, backoff_secs=(1, 1), jitter=False)) as shell:
        shell.feed("kill", "a", "b", "c", secs=60)
        assert [name for name, failure in shell.feeder.failed if failure.final] == ["kill"]
        assert sorted(shell.feeder.acked) == ["a", "b", "c"]


def test_metrics_have_the_kinds_that_are_declared(tmp_path):
    with bench(tmp_path, metrics={"level": "gauge"}) as shell:
        shell.feed("metrics")
        metrics = shell.running.stats()["shell"].metrics
        assert (metrics["lines"].count, metrics["level"].value) == (1, 7)


def test_each_emit_that_asks_for_its_tasks_is_answered_by_one_list(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("ask for tasks")
        assert shell.emitted == ["asked", []]
        assert shell.feeder.acked == ["ask for tasks"]


def test_large_values_in_both_directions_hold_nothing_up(tmp_path):
    with bench(tmp_path) as shell:
        texts = [f"{n} {'x' * 100_000}" for n in range(50)]
        shell.feed(*texts)
        assert shell.emitted == texts


def test_a_relative_folder_is_that_of_the_program_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    with bench(Path(tmp_path.name)) as shell:
        monkeypatch.chdir("/")
        shell.feed("a")
        assert len(started(tmp_path)) == 1


def test_mistakes_are_refused_when_the_bolt_is_made(tmp_path):
    for mistake, text in [
        ({"command": "node x.js"}, "is not a command"),
        ({"resources": tmp_path / "none"}, "there is no folder"),
        ({"serializer": "xml"}, "there is no serializer 'xml'"),
        ({"metrics": {"level": "gauges"}}, "gauge"),
    ]:
        with pytest.raises(ConfigError, match=text):
            ShellBolt(**{"command": ["node"], "outputs": ["a"], **mistake})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"env": {"PORT": 8080}}, "no text"),
        ({"subprocess_timeout_secs": "30"}, "positive number"),
        ({"subprocess_timeout_secs": 0}, "positive number"),
        ({"settings": {"x": object()}}, "JSON"),
        ({"settings": ["a"]}, "JSON"),
        ({"max_pending": "9"}, "max_pending"),
        ({"linger_secs": -1}, "linger_secs"),
    ],
    ids=["env", "a text", "0", "object", "list", "pending", "linger"],
)
def test_an_argument_that_cannot_be_is_refused_at_once(given, text):
    with pytest.raises(ConfigError, match=text):
        ShellBolt(["cat"], ["n"], **given)


@pytest.mark.parametrize(
    "command", [Path("x.py"), 5, [], "cat", [b"cat"]], ids=["path", "5", "empty", "text", "bytes"]
)
def test_what_is_no_command_is_refused_at_once(command):
    with pytest.raises(ConfigError, match="not a command"):
        ShellBolt(command, ["n"])
