"""Bolts that are child processes: in four languages, hostile ones, and how long a child lives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from acktree import ConfigError, Retry, TopologyBuilder
from acktree.core.tracking.verdicts import FailureKind
from acktree.multilang import ShellBolt, SubprocessError, keeper
from acktree.multilang.child import Child
from acktree.processes import is_alive
from acktree.testing import FeederSpout, LocalCluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "multilang"
ROOT = Path(__file__).parents[3]
HOSTILE = [sys.executable, "-I", "-S", str(Path(__file__).parent / "hostile.py")]
LANGUAGES = {
    "node": ["node", "split.js"],
    "perl": ["perl", "split.pl"],
    "python": [sys.executable, "split.py"],
    "go": ["go", "run", "split.go"],
}


class Bench:
    """A topology of one shell bolt, fed by hand."""

    def __init__(self, cluster: LocalCluster, bolt: ShellBolt, retry: Retry | None = None) -> None:
        self.feeder, self._cluster = FeederSpout(["text"]), cluster
        builder = TopologyBuilder("bench")
        builder.set_spout("source", self.feeder, retry=retry)
        builder.set_bolt("shell", bolt).shuffle_grouping("source")
        self.running = cluster.submit(builder.create_topology())

    def feed(self, *texts: Any, secs: float = 0) -> None:
        """Feed messages named by their texts in one micro-batch."""
        for text in texts:
            self.feeder.feed([text], message_id=str(text))
        self._cluster.advance(secs)

    @property
    def failed(self) -> dict[str, Any]:
        return dict(self.feeder.failed)

    @property
    def emitted(self) -> list[Any]:
        return [value for value, *_ in self._cluster.tuples("shell")]


@contextmanager
def bench(
    folder: Path, command: list[str] = HOSTILE, *, retry: Retry | None = None, **more: Any
) -> Iterator[Bench]:
    bolt = ShellBolt(command, more.pop("outputs", ["text"]), resources=folder, **more)
    with LocalCluster() as cluster:
        yield Bench(cluster, bolt, retry)


def started(folder: Path) -> list[int]:
    """The children that have begun in a folder, in order."""
    return [int(line) for line in (folder / "started").read_text().split()]


def await_end(pid: int) -> None:
    while is_alive(pid, of_others=False):
        pass


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_bolt_in_another_language_counts_on_over_micro_batches_and_its_verdicts_are_right(language):
    command = LANGUAGES[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    with bench(EXAMPLES, command, outputs=["word", "sentences"], tick_secs=60) as shell:
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
        assert "the child process that this task had is gone: it ended by signal SIGKILL" in (
            shell.failed["hold"].reason
        )


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


# --- how long a child lives ---------------------------------------------------------------------------


def lent(**more: Any) -> Child:
    """A child that sends what it is sent."""
    return Child(["cat"], "component 'shell', task 1", 60, **more)


HALF = """printf '["a"]\\nend\\n["b"'; read line; printf ']\\nend\\n'; sleep 1000"""


def test_a_child_that_is_given_back_goes_on_in_the_middle_of_a_message():
    def half(version: str) -> Child:
        return Child(["sh", "-c", HALF], "component 'shell', task 1", 60, name="one", version=version)

    first = half("")
    assert (first.is_new, first.receive()) == (True, ["a"])
    while not first._frames.rest:
        list(first.arrived())
    first.give_back("v1")
    again = half("v1")
    assert (again.pid, again.is_new) == (first.pid, False)
    again.write([])
    assert again.receive() == ["b"]
    again.abandon()


@pytest.mark.parametrize("change", [{"version": "v2"}, {"mark": "other"}, {"env": {"A": "b"}}])
def test_a_child_that_is_not_what_was_expected_is_replaced(change):
    first = lent(name="two")
    first.give_back("v1")
    second = lent(**{"name": "two", "version": "v1", **change})
    assert second.is_new
    await_end(first.pid)
    second.close()
    await_end(second.pid)


def test_who_asks_for_a_lent_child_gets_a_new_one_and_the_first_is_told():
    first, second = lent(name="three"), lent(name="three")
    assert second.is_new
    with pytest.raises(SubprocessError, match="another attempt of this task"):
        first.receive()
    await_end(first.pid)
    second.write([1])
    assert second.receive() == [1]
    second.abandon()
    await_end(second.pid)


BORROWER = """
import sys
from acktree.multilang import keeper
from acktree.multilang.child import Child
script = "trap '' HUP TERM; sleep 1000 & echo [$$, $!]; echo end; cat; sleep 1000"
child = Child(["sh", "-c", script], "here", 60, name="x")
pids = child.receive()
{then}
print(*pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("then", ["", "child.give_back('v1')"], ids=["lent", "given back"])
def test_a_child_does_not_outlive_the_process_that_its_keeper_belongs_to(then):
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER.replace("{then}", then)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.kill()
        for pid in pids:
            await_end(pid)


def keeper_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux alone kills the children of a killed keeper")
@pytest.mark.parametrize("is_lent", [True, False])
def test_a_killed_keeper_leaves_no_child_and_a_new_one_is_started(is_lent):
    child = Child(["sleep", "1000"], "component 'shell', task 1", 60, name="four")
    if not is_lent:
        child.give_back("v1")
    os.kill(keeper_of(child.pid), signal.SIGKILL)
    if is_lent:
        with pytest.raises(SubprocessError, match="its keeper ended"):
            child.receive()
    await_end(child.pid)
    another = lent(name="four", version="v1")
    assert another.is_new
    another.close()


@pytest.fixture
def stopped_keeper(monkeypatch):
    """Stops the keeper of a child; it is noticed after 2 s."""
    monkeypatch.setattr(keeper, "ANSWER_SECS", 2)
    monkeypatch.setattr(keeper, "GRACE_SECS", 0.2)
    stopped: list[int] = []

    def stop(child: Child) -> int:
        stopped.append(keeper_of(child.pid))
        os.kill(stopped[-1], signal.SIGSTOP)
        return stopped[-1]

    yield stop
    for process in stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux alone kills the children of a killed keeper")
def test_a_stopped_keeper_is_killed_with_its_children_and_a_new_one_is_started(stopped_keeper):
    child = Child(["sleep", "1000"], "component 'shell', task 1", 60, name="six")
    child.give_back("v1")
    stopped = stopped_keeper(child)
    another = lent(name="six", version="v1")
    assert another.is_new
    assert keeper_of(another.pid) != stopped
    await_end(child.pid)
    another.close()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the keeper in /proc")
def test_a_child_cannot_be_given_back_to_a_stopped_keeper_and_is_killed(stopped_keeper):
    child = lent()
    stopped_keeper(child)
    with pytest.raises(SubprocessError, match="its keeper does not answer"):
        child.give_back("v1")
    await_end(child.pid)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the keeper in /proc")
def test_a_child_that_is_closed_ends_also_while_its_keeper_is_stopped(stopped_keeper):
    child = lent()
    stopped_keeper(child)
    child.close(0.1)
    await_end(child.pid)


def test_tuples_of_a_killed_keeper_fail_and_the_next_ones_are_served(tmp_path):
    with bench(tmp_path) as shell:
        shell.feed("hold")
        (first,) = started(tmp_path)
        os.kill(keeper_of(first), signal.SIGKILL)
        await_end(first)
        shell.feed("after")
        assert shell.feeder.acked == ["after"]
        assert "the child process that this task had is gone" in shell.failed["hold"].reason


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_may_enter_is_not_used_for_the_socket_of_a_keeper(mode):
    folder = Path(tempfile.gettempdir(), f"acktree-keeper-{os.getuid()}-0")  # of no process
    folder.mkdir()
    folder.chmod(mode)
    try:
        with pytest.raises(PermissionError, match="is not a folder that only this user can access"):
            keeper.connect(0)
        assert not [*folder.iterdir()]
    finally:
        folder.rmdir()


def test_a_request_that_is_no_json_ends_its_connection_alone():
    child = lent()
    with keeper.connect(os.getpid()) as stranger:
        stranger.sendall(b"no JSON\n")
        assert stranger.recv(100) == b""
    child.write([1])
    assert child.receive() == [1]
    child.abandon()


def test_a_keeper_starts_also_where_acktree_is_in_a_zip_as_on_an_executor(tmp_path):
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as code:
        code.write(keeper.__file__, "zipped_keeper.py")
    program = f"""
import json, os, socket, sys
sys.path.insert(0, {str(tmp_path / "code.zip")!r})
import zipped_keeper
connection = zipped_keeper.connect(os.getpid())
request = {{"command": ["cat"], "folder": "/", "name": "", "version": "", "environ": {{}}, "mark": ""}}
connection.sendall(json.dumps(request).encode() + b"\\n")
print(socket.recv_fds(connection, 65536, 2)[0].decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert '"is_new": true' in done.stdout


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
